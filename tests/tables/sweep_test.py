"""Samples of a sweep: seeds together, best first, per level and method."""

import pathlib

from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents.environments import atari57
from scalable_agents.environments import scores
from scalable_agents.learner import run_directory
from scalable_agents.tables import layout
from scalable_agents.tables import runs as runs_lib
from scalable_agents.tables import sweep
from scalable_agents.tests.tables import run_directories


class SweepTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = self.create_tempdir().full_path

  def _samples(self):
    runs, faults = runs_lib.read([f'{self.folder}/*'], evaluated=False)
    self.assertEmpty(faults)
    return sweep.samples(runs)

  def _pong(self, index, final, **settings):
    return run_directories.single_game(self.folder, f'{index}_{len(settings)}_{settings.get("seed", 1)}',
                                       curves={'pong': [-21.0, final]}, sweep_index=index, **settings)

  def test_samples_are_sorted_by_their_last_score(self):
    for index, final in enumerate((-3.0, 20.0, 4.0)):
      self._pong(index, final)
    found = self._samples()
    self.assertEqual([(sample.flags['sweep_index'], sample.score.mean) for sample in found],
                     [(1, 20.0), (2, 4.0), (0, -3.0)])
    self.assertEqual({(sample.level, sample.method) for sample in found}, {('pong', 'deep, vtrace')})

  def test_seeds_of_a_sample_are_averaged(self):
    self._pong(0, 1.0, seed=1)
    self._pong(0, 3.0, seed=2, total_environment_frames=200_000_000)
    sample, = self._samples()
    self.assertEqual(sample.score, (2.0, 2**0.5, 2))

  def test_methods_have_rows_of_their_own(self):
    self._pong(0, 1.0)
    self._pong(0, 3.0, off_policy_correction='none')
    self.assertEqual([sample.method for sample in self._samples()], ['deep, none', 'deep, vtrace'])

  def test_a_suite_is_scored_as_the_paper_does(self):
    means = {level: 100.0 for level in atari57.LEVELS}
    run_directories.make(self.folder, 'run', level_name='atari57',
                         curves={level: [mean] for level, mean in means.items()})
    sample, = self._samples()
    self.assertEqual(sample.score.mean, scores.summarise(means).median)
    self.assertEqual(sweep.unit('atari57'), 'median human-normalised return (%)')
    self.assertEqual(sweep.unit('dmlab30'), 'mean capped human-normalised return (%)')
    self.assertEqual(sweep.unit('pong'), 'return')

  def test_what_has_no_score_yet_is_last(self):
    self._pong(0, None)
    self._pong(1, -20.0)
    run_directories.single_game(self.folder, 'no_rows')
    run_directories.make(self.folder, 'suite', level_name='atari57', curves={'pong': [1.0]})
    found = self._samples()
    self.assertEqual([(sample.level, sample.score and sample.score.mean) for sample in found],
                     [('atari57', None), ('pong', -20.0), ('pong', None), ('pong', None)])

  def test_the_table(self):
    for index, final in enumerate((1.0, 2.0, 6.0, 3.0)):
      self._pong(index, final, learning_rate=0.0012345 * (index + 1), frames=5_000_000)
    table = sweep.table(self._samples())
    self.assertEqual(table.columns, ['level', 'network, correction', 'rank', 'sample', 'learning_rate', 'entropy_cost',
                                     'rmsprop_epsilon', 'final score, this run', 'run'])
    self.assertEqual(table.rows[0], ['pong', 'deep, vtrace', '1', '2', '0.0037', '0.01', '0.01',
                                     layout.Number((6.0, None, 1), 2), '5M of 200M frames'])
    self.assertEqual([row[2] for row in table.rows], ['1', '2', '3', '4'])
    self.assertEqual([row[3] for row in table.rows], ['2', '3', '1', '0'])
    self.assertIn('pong, deep, vtrace: on average the best 3 samples have 3.67.', table.notes)

  def test_what_was_not_drawn_has_no_number(self):
    self._pong(-1, 1.0)
    run_directories.single_game(self.folder, 'before_sweeps', curves={'pong': [2.0]})
    self.assertEqual([row[3] for row in sweep.table(self._samples()).rows], ['–', '–'])

  def test_a_damaged_file_is_named(self):
    logdir = self._pong(0, 1.0)
    with open(pathlib.Path(logdir, 'metrics.jsonl'), 'a', encoding='utf-8') as stream:
      stream.write('what is this\n')
    with self.assertRaisesRegex(run_directory.RunDirectoryError, 'metrics.jsonl, line 3 is damaged'):
      self._samples()


if __name__ == '__main__':
  absltest.main()
