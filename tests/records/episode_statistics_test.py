"""Episode statistics against plain lists, and through a checkpoint."""

import os
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st
import numpy as np
import tensorflow as tf

from scalable_agents.records import episode_statistics

_EPISODE = st.tuples(st.integers(0, 2), st.floats(-1e6, 1e6, width=32), st.integers(1, 108_000))


def _add(statistics, episodes):
  level_ids, returns, lengths = zip(*episodes)
  statistics.add(np.array(level_ids, np.int32), np.array(returns, np.float32), np.array(lengths, np.int32))


class EpisodeStatisticsTest(parameterized.TestCase):

  def test_before_the_first_episode(self):
    statistics = episode_statistics.EpisodeStatistics(['pong'])
    self.assertEqual(statistics.metrics(), {'episodes': 0, 'episode_return': None, 'episode_length': None,
                                            'episode_return/pong': None})
    statistics.add(np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros(0, np.int32))
    self.assertEqual(statistics.metrics()['episodes'], 0)

  def test_the_last_hundred_episodes_count(self):
    statistics = episode_statistics.EpisodeStatistics(['pong'])
    _add(statistics, [(0, -1000., 7)] * 30 + [(0, x, 2 * x) for x in range(1, 101)])
    self.assertEqual(statistics.metrics(), {'episodes': 130, 'episode_return': 50.5, 'episode_length': 101.,
                                            'episode_return/pong': 50.5})

  def test_a_suite_is_scored_once_every_level_has_finished_an_episode_since(self):
    scored = []

    def score(returns):
      scored.append(returns)
      return {'suite_score': sum(returns.values())}

    statistics = episode_statistics.EpisodeStatistics(['a', 'b'], suite_score=score)
    _add(statistics, [(0, 1., 5), (0, 3., 5)])
    self.assertEqual(scored, [])
    self.assertNotIn('suite_score', statistics.metrics())
    _add(statistics, [(1, 10., 5)])
    self.assertEqual(scored, [{'a': 2., 'b': 10.}])
    _add(statistics, [(1, 30., 5)])
    self.assertEqual(statistics.metrics()['suite_score'], 12.)

    restarted = episode_statistics.EpisodeStatistics(['a', 'b'], suite_score=score)
    restarted.deserialize(statistics.serialize())
    self.assertEqual(restarted.metrics()['suite_score'], 12.)
    _add(restarted, [(1, 50., 5), (0, 5., 5)])
    self.assertEqual(scored[1:], [{'a': 5., 'b': 40.}])
    self.assertEqual(restarted.metrics()['suite_score'], 45.)

  @hypothesis.settings(deadline=None, derandomize=True)
  @hypothesis.given(updates=st.lists(st.lists(_EPISODE, min_size=1, max_size=9), max_size=8), window=st.integers(1, 12))
  def test_matches_plain_lists_before_and_after_a_restart(self, updates, window):
    statistics = episode_statistics.EpisodeStatistics(['a', 'b', 'c'], window)
    for update in updates:
      _add(statistics, update)
    episodes = [episode for update in updates for episode in update]
    wanted = {'episodes': len(episodes)}
    for name, column in (('episode_return', 1), ('episode_length', 2)):
      wanted[name] = np.mean([x[column] for x in episodes][-window:]) if episodes else None
    for level_id, level in enumerate('abc'):
      returns = [x[1] for x in episodes if x[0] == level_id][-window:]
      wanted[f'episode_return/{level}'] = np.mean(returns) if returns else None
    restarted = episode_statistics.EpisodeStatistics(['a', 'b', 'c'], window)
    restarted.add([1], [123.], [456])  # To be forgotten.
    restarted.deserialize(statistics.serialize())
    for got in (statistics, restarted):
      self.assertEqual(got.metrics(), wanted)
      self.assertEqual(got.metrics()['episode_return'], wanted['episode_return'])
    _add(statistics, [(2, 0.1, 3)])
    _add(restarted, [(2, 0.1, 3)])
    self.assertEqual(restarted.metrics(), statistics.metrics())

  def test_comes_back_from_a_checkpoint(self):
    statistics = episode_statistics.EpisodeStatistics(['a', 'b'])
    statistics.add([0, 1], [1., 0.1], [10, 20])
    restored = episode_statistics.EpisodeStatistics(['a', 'b'])
    with tempfile.TemporaryDirectory() as directory:
      path = tf.train.Checkpoint(statistics=statistics).save(os.path.join(directory, 'ckpt'))
      tf.train.Checkpoint(statistics=restored).restore(path).assert_consumed()
    self.assertEqual(restored.metrics(), statistics.metrics())
    self.assertEqual(restored.metrics()['episode_return/b'], 0.1)

  def test_state_of_other_levels_is_refused(self):
    state = episode_statistics.EpisodeStatistics(['a', 'b']).serialize()
    with self.assertRaisesRegex(ValueError, r"want levels \('a', 'c'\), got \('a', 'b'\)"):
      episode_statistics.EpisodeStatistics(['a', 'c']).deserialize(state)

  @parameterized.parameters(([0, 0], [1.], [1, 2]), ([0], [1.], []))
  def test_columns_of_different_lengths_are_refused(self, level_ids, returns, lengths):
    with self.assertRaisesRegex(ValueError, 'as many level ids as returns and lengths'):
      episode_statistics.EpisodeStatistics(['a']).add(level_ids, returns, lengths)

  @parameterized.parameters(-1, 2)
  def test_unknown_levels_are_refused(self, level_id):
    statistics = episode_statistics.EpisodeStatistics(['a', 'b'])
    with self.assertRaisesRegex(ValueError, 'want level ids from 0 to 1'):
      statistics.add([0, level_id], [1., 1.], [1, 1])
    self.assertEqual(statistics.metrics()['episodes'], 0)


if __name__ == '__main__':
  absltest.main()
