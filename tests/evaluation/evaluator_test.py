"""Evaluation counts the right episodes, on made-up unrolls and through real worker processes."""

import threading

from absl.testing import absltest
from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st
import numpy as np
import tensorflow as tf

from scalable_agents.actor import actor_pool
from scalable_agents.actor import environment_workers
from scalable_agents.actor import unroll as unroll_lib
from scalable_agents.agents import impala
from scalable_agents.evaluation import evaluator as evaluator_lib
from scalable_agents.tests.actor import waiting

_EPISODES = 'scalable_agents.tests.actor.episode_environment:Episodes'
_DEADLINE_SECONDS = 300.


def _rows(done, episode_return, episode_length):
  return np.array(done, bool), np.array(episode_return, np.float32), np.array(episode_length, np.int32)


class QuotasTest(parameterized.TestCase):

  @parameterized.parameters(
      (200, [0] * 32, [7] * 8 + [6] * 24),
      (4, [0] * 4, [1] * 4),
      (2, [0] * 3, [1, 1, 0]),
      (3, [0, 1, 0, 1, 0], [1, 2, 1, 1, 1]),
  )
  def test_known_shares(self, num_episodes, level_ids, want):
    self.assertEqual(evaluator_lib.quotas(num_episodes, level_ids), want)

  @hypothesis.settings(deadline=None, derandomize=True)
  @hypothesis.given(st.integers(1, 500), st.lists(st.integers(0, 5), min_size=1, max_size=64))
  def test_shares_add_up_and_are_even(self, num_episodes, level_ids):
    shares = evaluator_lib.quotas(num_episodes, level_ids)
    for level in set(level_ids):
      of_level = [share for share, its_level in zip(shares, level_ids) if its_level == level]
      self.assertEqual(sum(of_level), num_episodes)
      self.assertLessEqual(max(of_level) - min(of_level), 1)


class EvaluatorTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self._finished, self._filled = [], []

  def _evaluator(self, num_episodes, level_ids):
    return evaluator_lib.Evaluator(num_episodes, level_ids, lambda: self._finished.append(True), self._filled.append)

  def test_the_first_episodes_of_each_environment_count(self):
    evaluator = self._evaluator(3, [0, 0])  # Quotas 2 and 1.
    evaluator.add(1, *_rows([True, False, True], [5, 6, 7], [4, 4, 8]))
    self.assertEqual((evaluator.num_played, evaluator.num_episodes), (1, 3))
    evaluator.add(0, *_rows([False, True, False], [1, 2, 3], [4, 8, 4]))
    evaluator.add(1, *_rows([True, True, True], [8, 8, 8], [4, 4, 4]))
    self.assertEmpty(self._finished)
    self.assertEqual(self._filled, [1])
    evaluator.add(0, *_rows([False, False, True], [0, 0, -4], [4, 8, 12]))
    evaluator.add(0, *_rows([True, True, True], [9, 9, 9], [4, 4, 4]))
    self.assertEqual(self._finished, [True])
    self.assertEqual(self._filled, [1, 0])
    self.assertEqual(evaluator.num_played, 3)
    self.assertEqual(evaluator.episodes(0), [(2., 8), (-4., 12), (5., 4)])

  def test_levels_are_told_apart(self):
    evaluator = self._evaluator(1, [0, 1])
    evaluator.add(1, *_rows([True], [11], [4]))
    evaluator.add(0, *_rows([True], [10], [8]))
    self.assertEqual(evaluator.episodes(0), [(10., 8)])
    self.assertEqual(evaluator.episodes(1), [(11., 4)])
    self.assertEqual(self._finished, [True])

  def test_row_0_does_not_count(self):
    evaluator = self._evaluator(2, [0])
    done, episode_return, episode_length = _rows([True, False, True], [7, 1, 2], [40, 4, 8])
    output = unroll_lib.EnvironmentOutput(
        reward=None, discount=None, done=tf.constant(done), episode_return=tf.constant(episode_return),
        episode_length=tf.constant(episode_length), observation=None)
    unroll = unroll_lib.Unroll(level_id=None, actor_id=tf.constant(0), stream_id=None, index=None, agent_state=None,
                               earlier_frames=None, environment_output=output, agent_output=None,
                               parameter_version=None)
    tf.function(evaluator.put)(unroll)
    self.assertEqual(evaluator.episodes(0), [(2., 8)])


class ProcessesTest(absltest.TestCase):

  def _play(self, environments, num_episodes, unroll_length):
    """Plays with one worker process per environment; returns the evaluator and the pool."""
    workers = environment_workers.EnvironmentWorkers(
        _EPISODES, [dict(arguments, seed=seed) for seed, arguments in enumerate(environments)], len(environments))
    self.addCleanup(workers.close)
    spec = impala.BehaviourOutput(tf.TensorSpec([], tf.int32), tf.TensorSpec([2]))
    level_ids = [0] * len(environments)
    pool = actor_pool.ActorPool(workers, unroll_length, spec, (), level_ids, report=lambda line: None)
    self.addCleanup(pool.close)
    finished = threading.Event()
    evaluator = evaluator_lib.Evaluator(num_episodes, level_ids, finished.set, pool.retire)

    def act():
      batch = pool.next_batch()
      zeros = tf.nest.map_structure(
          lambda tensor: tf.zeros([tf.size(batch.actor_id), *tensor.shape], tensor.dtype), spec)
      pool.complete_batch(batch.id, tf.constant(0, tf.int64), zeros, ())

    pool.start()
    results = [waiting.start(actor_pool.endless(body)) for body in (act, lambda: evaluator.put(pool.next_unroll()))]
    self.assertTrue(finished.wait(_DEADLINE_SECONDS))
    pool.close()
    for result in results:
      with self.assertRaises(tf.errors.CancelledError):
        result()
    return evaluator, pool

  def test_short_episodes_are_not_favoured(self):
    evaluator, pool = self._play([{'length': 1}, {'length': 2}, {'length': 300}], num_episodes=9, unroll_length=5)
    self.assertEqual(
        evaluator.episodes(0),
        [(1., 4), (2., 4), (3., 4), (1., 8), (2., 8), (3., 8), (1., 1200), (2., 1200), (3., 1200)])
    # While the last environment plays its three episodes, the others rest, rather than playing hundreds.
    self.assertBetween(pool.statistics().steps, 900, 900 + 200)

  def test_a_restarted_environment_goes_on_with_its_quota(self):
    # Unrolls of one step: no finished episode lies in the unroll that the fault cuts off.
    evaluator, pool = self._play(
        [{'length': 2, 'first_streams': 2, 'faulty_episode': 3}, {'length': 3}], num_episodes=10, unroll_length=1)
    self.assertEqual(pool.restarts, 1)
    self.assertEqual([episode.episode_return for episode in evaluator.episodes(0)], [1, 2, 1, 2, 3, 1, 2, 3, 4, 5])
    self.assertEqual([episode.length for episode in evaluator.episodes(0)], [8] * 5 + [12] * 5)


if __name__ == '__main__':
  absltest.main()
