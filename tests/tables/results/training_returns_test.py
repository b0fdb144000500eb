"""Tests of the returns of training episodes: last means and means of buckets, against sums over single episodes."""

import os

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from scalable_agents.records import run_directory
from scalable_agents.tables.results import training_returns
from scalable_agents.tests.tables import run_directories


def _episodes(number, seed=0):
  """Returns [number, 2]: frames in order, and returns."""
  random = np.random.RandomState(seed)
  return np.stack([np.sort(random.randint(1, 1000, number)), random.normal(size=number)], axis=1)


class TrainingReturnsTest(run_directories.TestCase):

  def _read(self, *arguments, **settings):
    run_directories.laser(self.folder, 'run', *arguments, **settings)
    run, = self.read()
    return training_returns.read(run)

  def test_episodes_are_read_by_level(self):
    found = self._read({'pong': [1., 2.], 'qbert': [5.]}, level_name='pong,qbert', frames=100)
    self.assertEqual((found.frames, found.frames_per_level), (100, 50))
    np.testing.assert_array_equal(found.of_levels['pong'], [[50, 1], [100, 2]])
    np.testing.assert_array_equal(found.of_levels['qbert'], [[100, 5]])

  def test_the_frames_are_those_of_the_last_row_of_metrics(self):
    logdir = run_directories.laser(self.folder, 'run', [1.], frames=100)
    with open(os.path.join(logdir, 'metrics.jsonl'), 'w', encoding='utf-8') as stream:
      stream.write('{"environment_frames": 300, "wall_seconds": 1.0}\n')
    run, = self.read()
    self.assertEqual(training_returns.read(run).frames, 300)

  def test_a_run_without_episodes_has_no_returns(self):
    self.assertEqual(self._read(), (0, 1, {}))

  def test_a_damaged_row_is_one_line(self):
    logdir = run_directories.laser(self.folder, 'run', [1., 2.])
    with open(os.path.join(logdir, 'episodes.csv'), 'a', encoding='utf-8') as stream:
      stream.write('many,pong,1,1\n')
    run, = self.read()
    with self.assertRaisesRegex(run_directory.RunDirectoryError, 'episodes.csv, line 4'):
      training_returns.read(run)

  @parameterized.parameters(0, 1, 500, 999, 5000)
  def test_the_last_mean_is_over_the_last_hundred_episodes_before(self, at_most):
    episodes = _episodes(300)
    chosen = [value for at, value in episodes if at <= at_most][-100:]
    found = training_returns.last(episodes, at_most)
    if not chosen:
      self.assertIsNone(found)
    else:
      np.testing.assert_allclose(found, (sum(chosen) / len(chosen), len(chosen)))

  def test_fewer_episodes_are_counted(self):
    self.assertEqual(training_returns.last(np.array([[10., 1.], [20., 4.]]), 20), (2.5, 2))

  @parameterized.parameters(1, 7, 100, 400)
  def test_a_bucket_is_the_mean_of_its_episodes(self, width):
    episodes, number = _episodes(40), 1000 // width - 1
    found = training_returns.buckets(episodes, width, number)
    self.assertLen(found, number)
    for bucket, value in enumerate(found):
      chosen = [of_one for at, of_one in episodes if bucket * width < at <= (bucket + 1) * width]
      if chosen:
        np.testing.assert_allclose(value, sum(chosen) / len(chosen))

  def test_empty_buckets_are_interpolated_but_not_beyond_the_ends(self):
    episodes = np.array([[15., 2.], [20., 4.], [50., 9.]])
    np.testing.assert_array_equal(training_returns.buckets(episodes, 10, 6), [np.nan, 3., 5., 7., 9., np.nan])

  def test_buckets_before_all_episodes_are_empty(self):
    np.testing.assert_array_equal(training_returns.buckets(np.array([[50., 9.]]), 10, 2), [np.nan, np.nan])


if __name__ == '__main__':
  absltest.main()
