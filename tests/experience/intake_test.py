"""Where unrolls come in: each is counted once, and what is impossible or out of order is left out."""

import os

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from scalable_agents.agents import configs
from scalable_agents.agents import impala
from scalable_agents.experience import intake as intake_lib
from scalable_agents.experience import unroll_check
from scalable_agents.tests.training import unrolls

_LEVELS = 2


class IntakeTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    agent = impala.Agent(unrolls.environment_spec(), configs.ImpalaConfig(torso='shallow'))
    self.batch = unrolls.random_unroll(agent, batch=8)
    self.intake = self._make_intake()
    self.take = tf.function(self.intake.take_batch, autograph=False)

  def _make_intake(self, **settings):
    spec = tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), self._one(0))
    check = lambda batch: unroll_check.is_valid(batch, _LEVELS, unrolls.NUM_ACTIONS)
    settings = dict(frames_per_step=4, check=check, actor_name='number {}'.format) | settings
    intake = intake_lib.Intake(spec, 20, **settings)
    self.addCleanup(intake.close)
    return intake

  def _one(self, number, **changes):
    """Unroll `number` of the batch, as the first one of a stream of its own."""
    one = unrolls.one(self.batch, number)
    values = dict(stream_id=100 + number, index=0) | changes
    types = dict(stream_id=tf.int64, index=tf.int64, level_id=tf.int32, actor_id=tf.int32)
    return one._replace(**{name: tf.constant(value, types[name]) for name, value in values.items()})

  def test_frames_and_episodes_are_those_of_the_batch(self):
    want = []
    for number in range(3):
      numbers = 10 * number + np.arange(7)
      one = self._one(number, level_id=number % 2)
      self.intake.put(one._replace(environment_output=one.environment_output._replace(
          episode_return=tf.constant(numbers + 0.5, tf.float32), episode_length=tf.constant(numbers + 100, tf.int32))))
      # Row 0 was counted with the unroll before.
      want += [(number % 2, numbers[row] + 0.5, numbers[row] + 100)
               for row in range(1, 7) if one.environment_output.done[row]]
    taken, arrived = self.take(3)
    self.assertEqual(int(arrived.environment_frames), 3 * 6 * 4)
    episodes = list(zip(*(values.numpy().tolist() for values in arrived.episodes), strict=True))
    self.assertLen(episodes, 3 * 6)
    self.assertCountEqual([episode for episode in episodes if episode[0] != intake_lib.NO_LEVEL], want)
    self.assertNotEmpty(want)
    np.testing.assert_array_equal(arrived.actor_ids, taken.actor_id)
    np.testing.assert_array_equal(arrived.parameter_versions, taken.parameter_version[1:])

  def test_what_was_counted_before_a_restart_is_not_counted_again(self):
    folder = self.create_tempdir().full_path
    for index in range(3):
      self.intake.put(self._one(0, stream_id=7, index=index))
    self.take(3)
    self.intake.save(folder)
    restarted = self._make_intake()
    restarted.restore(folder)
    for index in range(2, 6):  # Unroll 2 is sent again.
      restarted.put(self._one(0, stream_id=7, index=index))
    taken, _ = tf.function(restarted.take_batch, autograph=False)(3)
    self.assertEqual(taken.index.numpy().tolist(), [3, 4, 5])
    self.assertEqual(restarted.metrics(), {'queue_size': 0, 'unrolls_missing': 0, 'unrolls_late': 1})

  def test_without_other_processes_nothing_is_saved(self):
    folder = self.create_tempdir().full_path
    intake = self._make_intake(check=None)
    intake.save(folder)
    self.assertEmpty(os.listdir(folder))
    intake.restore(folder)

  def test_what_cannot_be_right_is_dropped_and_told_once(self):
    good = [self._one(number) for number in range(3)]
    bad_action = good[0].agent_output._replace(action=tf.fill([7], unrolls.NUM_ACTIONS))
    bad_logits = good[0].agent_output._replace(policy_logits=tf.fill([7, unrolls.NUM_ACTIONS], np.float32(np.nan)))
    bad_vector = good[0].environment_output._replace(observation={'vector': tf.fill([7, 4], np.float32(np.inf))})
    bad = [self._one(0, level_id=_LEVELS), self._one(0, level_id=-1), self._one(0, actor_id=-1), self._one(0, index=-1),
           good[0]._replace(agent_output=bad_action), good[0]._replace(agent_output=bad_logits),
           good[0]._replace(environment_output=bad_vector),
           self._one(5)._replace(parameter_version=tf.fill([7], np.int64(-1)))]
    for one in (bad[0], good[0], *bad[1:7], good[1], bad[7], good[2]):
      self.intake.put(one)
    taken, arrived = self.take(3)
    self.assertEqual(taken.stream_id.numpy().tolist(), [100, 101, 102])
    self.assertEqual(int(arrived.environment_frames), 3 * 6 * 4)
    warning, = self.intake.warnings()
    self.assertStartsWith(warning, 'unrolls dropped: 8, the last one from number 5: level, ')
    self.assertEmpty(self.intake.warnings())
    self.assertEqual(self.intake.metrics(), {'queue_size': 0, 'unrolls_missing': 0, 'unrolls_late': 0})

  def test_rewards_that_are_not_finite_are_the_learners_business(self):
    environment = self._one(0).environment_output._replace(reward=tf.fill([7], np.float32(np.nan)))
    self.intake.put(self._one(0)._replace(environment_output=environment))
    self.assertTrue(np.isnan(self.take(1)[0].environment_output.reward).all())

  def test_a_stream_comes_in_order_and_its_gaps_are_counted(self):
    unroll_at = lambda index: self._one(0, stream_id=7, index=index)
    for index in (0, 1, 4, 2, 4, 5):  # 3 is lost, 2 comes too late, 4 twice.
      self.intake.put(unroll_at(index))
    taken, arrived = self.take(4)
    self.assertEqual(taken.index.numpy().tolist(), [0, 1, 4, 5])
    self.assertEqual(int(arrived.environment_frames), 4 * 6 * 4)
    self.assertEqual(self.intake.metrics(), {'queue_size': 0, 'unrolls_missing': 2, 'unrolls_late': 2})
    self.assertLen(self.intake.warnings(), 1)
    self.assertEmpty(self.intake.warnings())

  def test_closing_ends_the_wait(self):
    self.intake.close()
    with self.assertRaises(tf.errors.OutOfRangeError):
      self.take(1)

  def test_merged_counts_are_those_of_one_take(self):
    one_by_one = self._make_intake()
    for number in range(4):
      self.intake.put(self._one(number))
      one_by_one.put(self._one(number))
    _, together = self.take(4)
    parts = [tf.function(one_by_one.take_batch, autograph=False)(2)[1] for _ in range(2)]
    merged = intake_lib.merge(parts)
    self.assertEqual(merged.environment_frames, together.environment_frames)
    np.testing.assert_array_equal(merged.actor_ids, together.actor_ids)
    np.testing.assert_array_equal(merged.parameter_versions, together.parameter_versions)
    self.assertCountEqual(zip(*(values.numpy().tolist() for values in merged.episodes)),
                          zip(*(values.numpy().tolist() for values in together.episodes)))


if __name__ == '__main__':
  absltest.main()
