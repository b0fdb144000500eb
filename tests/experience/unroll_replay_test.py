"""Tests of the replay of unrolls: content, recurrent states, priorities and memory."""

from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from scalable_agents.experience import unroll_replay
from scalable_agents.processes import machine
from scalable_agents.records import errors
from scalable_agents.tests.experience import streams as streams_lib

_LENGTH = 4


def _state(stream, index):
  """The recurrent state that an actor has before row 0 of an unroll."""
  return {'place': np.float32([stream.id, index]), 'other': np.float32(100 * stream.id + index + 0.5)}


class UnrollReplayTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.streams = {stream_id: streams_lib.Stream(stream_id) for stream_id in (1, 2, 3)}

  def _make(self, **settings):
    stream = self.streams[1]
    return unroll_replay.UnrollReplay(stream.spec(_LENGTH, _state(stream, 0)), streams_lib.FRAME_STACKS, **dict(
        capacity=1000, batch_size=8, minimum_size=1) | settings)

  def _insert(self, replay, indices):
    """Inserts these unrolls of all streams."""
    insert = tf.function(replay.insert, autograph=False)
    for index in indices:
      insert(streams_lib.batch(
          [stream.unroll(index, _LENGTH, _state(stream, index)) for stream in self.streams.values()]))

  def _draw(self, replay, number, seed=1):
    draw = tf.function(lambda: replay.draw(number, tf.constant(seed, tf.int64)), autograph=False)
    return tf.nest.map_structure(lambda x: x.numpy(), draw())

  def test_unrolls_come_back_as_they_were_with_their_states(self):
    """Also after unrolls were lost."""
    replay = self._make()
    self._insert(replay, [*range(8), *range(11, 18)])
    replayed = self._draw(replay, 100)
    came = set()
    for b in range(100):
      stream, index = self.streams[replayed.unroll.stream_id[b]], replayed.unroll.index[b]
      came.add(index)
      streams_lib.check(replayed.unroll, b, self.streams, (stream.id, index * _LENGTH))
      for name, values in _state(stream, index).items():
        np.testing.assert_array_equal(replayed.unroll.agent_state[name][b], values)
    self.assertContainsSubset({0, 1, 6, 13, 14, 15, 16}, came)
    self.assertNoCommonElements({8, 9, 10}, came)
    self.assertEqual(replay.metrics()['replay_gaps'], 3)

  def test_unrolls_are_drawn_uniformly_without_priorities(self):
    replay = self._make()
    self._insert(replay, range(5))  # The fifth unroll of each stream is not complete yet.
    replayed = self._draw(replay, 6000)
    np.testing.assert_allclose(replayed.probability, 1 / 12, rtol=1e-5)
    _, counts = np.unique(replayed.key, return_counts=True)
    self.assertLen(counts, 12)
    np.testing.assert_allclose(counts, 500, atol=100)  # Four standard deviations are 86.
    replay.update(tf.constant(replayed.key[:1]), tf.constant([1e6]))  # Nothing changes.
    np.testing.assert_allclose(self._draw(replay, 10).probability, 1 / 12, rtol=1e-5)

  def test_unrolls_are_drawn_in_proportion_to_their_priorities(self):
    replay = self._make(priority_exponent=0.5)
    self._insert(replay, range(3))
    keys = np.arange(6)
    replay.update(tf.constant(keys), tf.constant([1., 4., 9., 16., 25., 36.]))
    replayed = self._draw(replay, 21_000)
    want = np.arange(1, 7) / 21
    np.testing.assert_allclose(replayed.probability, want[replayed.key], rtol=1e-5)
    np.testing.assert_allclose(np.bincount(replayed.key), 21_000 * want, atol=300)  # Four standard deviations are 272.

  def test_new_unrolls_have_the_largest_priority_so_far(self):
    replay = self._make(priority_exponent=1.)
    self._insert(replay, range(2))                                       # Keys 0 to 2 have the priority 1.
    np.testing.assert_allclose(self._draw(replay, 10).probability, 1 / 3, rtol=1e-5)
    replay.update(tf.constant([0, 1], tf.int64), tf.constant([8., 0.5]))
    self._insert(replay, [2])                                            # Keys 3 to 5 have 8.
    replay.update(tf.constant([0], tf.int64), tf.constant([2.]))         # The largest one so far is still 8.
    self._insert(replay, [3])                                            # Keys 6 to 8 have 8.
    replayed = self._draw(replay, 500)
    want = np.array([2., 0.5, 1., 8., 8., 8., 8., 8., 8.])
    np.testing.assert_allclose(replayed.probability, (want / want.sum())[replayed.key], rtol=1e-5)
    self.assertContainsSubset(range(3, 9), replayed.key)

  def test_keeps_as_many_agent_steps_as_the_capacity_says(self):
    replay = self._make(capacity=6 * _LENGTH + 3)
    self._insert(replay, range(10))
    self.assertEqual(replay.metrics()['replay_size'], 6 * _LENGTH)
    self.assertEqual(set(self._draw(replay, 100).unroll.index), {7, 8})  # The oldest ones have left it first.
    smallest = self._make(capacity=1)
    self._insert(smallest, range(3))
    self.assertEqual(smallest.metrics()['replay_size'], _LENGTH)

  @parameterized.parameters((6 * _LENGTH, True), (6 * _LENGTH + 1, False))
  def test_is_ready_from_the_minimum_size_on(self, minimum_size, is_ready):
    replay = self._make(minimum_size=minimum_size)
    self._insert(replay, range(3))
    self.assertEqual(replay.is_ready(), is_ready)
    self.assertEqual(replay.metrics()['replay_filled'], 6 * _LENGTH / minimum_size)

  def test_metrics(self):
    replay = self._make(capacity=6 * _LENGTH, priority_exponent=1.)
    self._insert(replay, range(5))
    self._draw(replay, 7)
    replay.update(tf.constant([0, 11], tf.int64), tf.constant([1., 1.]))  # The first one has left the replay.
    metrics = replay.metrics()
    self.assertGreater(metrics.pop('replay_megabytes'), 0)
    self.assertEqual(metrics, {'replay_size': 6 * _LENGTH, 'replay_filled': 1., 'replay_gaps': 0,
                               'replay_stale_updates': 1, 'unrolls_replayed': 7})
    self.assertEmpty(replay.warnings())

  def test_saves_and_restores_priorities_and_states(self):
    replay, path = self._make(priority_exponent=1.), self.create_tempdir().full_path + '/replay'
    self._insert(replay, range(4))
    replay.update(tf.range(9, dtype=tf.int64), tf.range(1., 10.))
    replay.save(path)
    restored = self._make(priority_exponent=1.)
    restored.restore(path)
    tf.nest.map_structure(np.testing.assert_array_equal, self._draw(replay, 20), self._draw(restored, 20))
    self._insert(restored, [4, 5, 6])  # Keys 9 to 11, of unroll 5, have the largest priority so far.
    replayed, want = self._draw(restored, 300), np.array([*range(1, 10), 9, 9, 9])
    np.testing.assert_allclose(replayed.probability, (want / want.sum())[replayed.key], rtol=1e-5)
    self.assertContainsSubset(range(9, 12), replayed.key)
    with self.assertRaises(ValueError):
      self._make(capacity=999).restore(path)

  def test_rewards_that_are_not_finite_are_stored_as_0(self):
    for stream in self.streams.values():
      stream.rows['environment_output'].reward[5:7] = np.nan, -np.inf
    replay = self._make()
    self._insert(replay, range(4))
    replayed = self._draw(replay, 50)
    rewards = replayed.unroll.environment_output.reward[:, replayed.unroll.index == 1]
    np.testing.assert_array_equal(rewards[1:3], np.zeros_like(rewards[1:3]))
    self.assertTrue(np.all(rewards[[0, 3, 4]] != 0))

  def test_what_does_not_fit_into_memory_is_refused(self):
    with mock.patch.object(machine, 'memory_bytes', lambda: 1_000_000_000):
      with self.assertRaisesRegex(
          errors.UserError, r'^--replay_capacity=20000000, --batch_size=8: a full replay of 20,000,000 agent steps '
          r'takes 1\.9 GB and two batches take 0\.0 GB, but the machine has 1\.0 GB of memory: '
          r'--replay_capacity=\d+ would fit$') as caught:
        self._make(capacity=20_000_000)
      self._make(capacity=int(str(caught.exception).rpartition('--replay_capacity=')[2].split()[0]))


if __name__ == '__main__':
  absltest.main()
