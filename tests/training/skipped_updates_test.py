"""Tests what the user is told of updates that were skipped, and when a run ends because of them."""

from unittest import mock

from absl.testing import absltest
import numpy as np
import tensorflow as tf

from scalable_agents.agents import configs
from scalable_agents.agents import impala
from scalable_agents.learner import learner_step
from scalable_agents.records import errors
from scalable_agents.tests.training import unrolls
from scalable_agents.training import skipped_updates

_SKIPPED, _MADE = {'update_skipped': 1.}, {'update_skipped': 0.}


class SkippedUpdatesTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.said = []
    self.learner = mock.Mock(culprit=lambda unused_metrics: 'loss/total')
    self.unroll = unrolls.random_unroll(impala.Agent(unrolls.environment_spec(), configs.ImpalaConfig()))
    self.clock = mock.Mock(monotonic=mock.Mock(return_value=0.))
    self.enterContext(mock.patch.object(skipped_updates, 'time', self.clock))

  def _make(self, **settings):
    return skipped_updates.SkippedUpdates(('left', 'right'), 'actor {}'.format, self.said.append, **settings)

  def _add(self, skipped, metrics=_SKIPPED, unroll=None):
    skipped.add(self.learner, 1_007, metrics, [learner_step.Batch(unroll or self.unroll)])

  def test_the_user_is_told_at_most_once_a_minute(self):
    skipped = self._make()
    for seconds in (0., 1., 59., 61.):
      self.clock.monotonic.return_value = seconds
      self._add(skipped)
      self._add(skipped, _MADE)
    advice = ('Begin another run (--logdir) with a lower --learning_rate, or with smaller rewards, for example with '
              '--reward_transform=abs_one')
    self.assertEqual(self.said, [f'an update was skipped: loss/total was not finite. {advice}',
                                 f'3 updates were skipped: loss/total was not finite. {advice}'])

  def test_only_flags_that_the_agent_has_are_advised(self):
    self.learner.config = object()
    self._add(self._make())
    self.assertEndsWith(self.said[0], 'with a lower --learning_rate, or with smaller rewards')

  def test_ten_in_a_row_end_the_run(self):
    skipped = self._make()
    for _ in range(9):
      self._add(skipped)
    self._add(skipped, _MADE)
    for _ in range(9):
      self._add(skipped)
    with self.assertRaisesRegex(errors.UserError, '^update 1,007: loss/total was not finite, for the 10th time in a '):
      self._add(skipped)

  def test_a_member_of_a_population_goes_on_unless_an_environment_is_at_fault(self):
    skipped = self._make(is_member=True)
    for _ in range(11):
      self._add(skipped)
    self.assertEqual(self.said, ['an update was skipped: loss/total was not finite. The member goes on: it can still '
                                 'copy another member'])
    environment = self.unroll.environment_output
    unroll = self.unroll._replace(
        environment_output=environment._replace(reward=tf.fill(environment.reward.shape, np.nan)))
    with self.assertRaisesRegex(errors.UserError, 'for the 12th time in a row; .*that are not finite numbers'):
      self._add(skipped, unroll=unroll)

  def test_an_environment_that_was_at_fault_before_a_good_update_does_not_end_a_member(self):
    skipped = self._make(is_member=True)
    environment = self.unroll.environment_output
    unroll = self.unroll._replace(
        environment_output=environment._replace(reward=tf.fill(environment.reward.shape, np.nan)))
    self._add(skipped, unroll=unroll)  # The user is told of this one,
    self._add(skipped, unroll=unroll)  # but not yet of this one.
    self._add(skipped, _MADE)
    for _ in range(11):
      self._add(skipped)
    skipped = self._make()
    self._add(skipped, unroll=unroll)
    self._add(skipped, unroll=unroll)
    self._add(skipped, _MADE)
    with self.assertRaisesRegex(errors.UserError, 'for the 10th time in a row; .* Begin another run'):
      for _ in range(10):
        self._add(skipped)

  def test_the_environments_at_fault_are_named(self):
    environment = self.unroll.environment_output
    reward = environment.reward.numpy()
    reward[3, 1:] = np.nan, np.inf  # Actors 1 and 2.
    unroll = self.unroll._replace(level_id=tf.constant([0, 1, 0]),
                                  environment_output=environment._replace(reward=tf.constant(reward)))
    self._add(self._make(), unroll=unroll)
    self.assertEndsWith(self.said[0], 'correct the environment: right (actor 1), left (actor 2)')
    of_rows = lambda ids: tf.broadcast_to(ids, reward.shape)  # As with a replay.
    # Row 3 has the last rewards of its episodes, and the first observations of others, of actors 5, 6 and 7.
    levels = tf.where(np.arange(len(reward))[:, np.newaxis] < 3, of_rows([0, 1, 0]), of_rows([1, 0, 1]))
    actors = tf.where(np.arange(len(reward))[:, np.newaxis] <= 3, of_rows([0, 1, 2]), of_rows([5, 6, 7]))
    self._add(self._make(), unroll=unroll._replace(actor_id=actors, level_id=levels))
    self.assertEndsWith(self.said[1], 'correct the environment: right (actor 1), left (actor 2)')

  def test_huge_rewards_are_a_fault_too(self):
    environment = self.unroll.environment_output
    reward = environment.reward.numpy()
    reward[2, 1] = -3e38
    self._add(self._make(), unroll=self.unroll._replace(
        level_id=tf.constant([0, 1, 0]), environment_output=environment._replace(reward=tf.constant(reward))))
    self.assertEndsWith(self.said[0], 'An environment gave rewards of up to 3e+38 (absolute); correct the environment: '
                        'right (actor 1)')

  def test_a_level_at_the_limit_of_popart_is_named_once(self):
    skipped = self._make()
    for sigma in (999_999., 1e6, 1e6):
      self._add(skipped, _MADE | {'popart/scale': np.array([1., sigma], np.float32)})
    self.assertLen(self.said, 1)
    self.assertStartsWith(self.said[0], "PopArt's standard deviation is at its limit of 1e+06, so that these levels may"
                          ' spoil the policy: right. Correct')

  def test_with_peers_the_fault_may_be_elsewhere(self):
    self._add(self._make(have_peers=True))
    self.assertEndsWith(self.said[0], 'first see whether another learner names a faulty environment')


if __name__ == '__main__':
  absltest.main()
