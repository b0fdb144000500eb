"""Tests of a sweep's samples: seeds are combined, and samples are sorted per level and line, best first."""

import pathlib

from absl.testing import absltest

from scalable_agents.environments import atari57
from scalable_agents.environments import scores
from scalable_agents.population import population_directory
from scalable_agents.records import run_directory
from scalable_agents.tables.papers import layout
from scalable_agents.tables.papers import sweep
from scalable_agents.tables.results import runs
from scalable_agents.tests.tables import run_directories


class SweepTest(run_directories.TestCase):

  def _samples(self):
    return sweep.samples(self.read())

  def _pong(self, index, final, **settings):
    return run_directories.single_game(self.folder, f'{index}_{len(settings)}_{settings.get("seed", 1)}',
                                       curves={'pong': [-21.0, final]}, sweep_index=index, **settings)

  def test_samples_are_sorted_by_their_last_score(self):
    for index, final in enumerate((-3.0, 20.0, 4.0)):
      self._pong(index, final)
    found = self._samples()
    self.assertEqual([(sample.flags['sweep_index'], sample.score.mean) for sample in found],
                     [(1, 20.0), (2, 4.0), (0, -3.0)])
    self.assertEqual({(sample.level, sample.line) for sample in found}, {('pong', 'deep, vtrace')})

  def test_seeds_of_a_sample_are_averaged(self):
    self._pong(0, 1.0, seed=1)
    self._pong(0, 3.0, seed=2, total_environment_frames=200_000_000, frames=50_000_000)
    sample, = self._samples()
    self.assertEqual((sample.score, sample.frames), ((2.0, 2**0.5, 2), 50_000_000))

  def test_a_sample_has_no_score_until_all_its_seeds_have_one(self):
    self._pong(0, 3.0, seed=1)
    self._pong(0, None, seed=2)
    sample, = self._samples()
    self.assertIsNone(sample.score)

  def test_of_a_population_the_fittest_member_counts(self):
    for member, (fitness, final) in enumerate(((1., 9.), (2., 4.))):
      logdir = run_directories.single_game(self.folder, f'population/member_0{member}', curves={'pong': [-21., final]},
                                           population_size=2, learning_rate=1e-4 * (1 + member))
      population_directory.write_fitness(logdir, population_directory.Fitness(1, fitness, {'learning_rate': 1e-4}))
    sample, = self._samples()
    self.assertEqual((sample.score, sample.flags['learning_rate']), ((4., None, 1), 2e-4))

  def test_agents_have_rows_of_their_own(self):
    self._pong(0, 1.0)
    self._pong(0, 3.0, binary='popart_impala_atari57', value_normalization='popart')
    lines = [sample.line for sample in self._samples()]
    self.assertEqual(lines, ['deep, IMPALA, vtrace', 'deep, PopArt-IMPALA, vtrace'])

  def test_an_agent_with_a_number_in_its_name_has_a_row(self):
    self._pong(0, 1.0)
    self._pong(0, 3.0, agent='net_2_layers', off_policy_correction='none')
    found, _ = runs.read([f'{self.folder}/*'], evaluated=False, agents=None)
    self.assertEqual([sample.line for sample in sweep.samples(found)],
                     ['deep, IMPALA, vtrace', 'deep, agent=net_2_layers, none'])

  def test_agents_without_a_correction_are_compared_with_impala(self):
    """Figure 4. They have other settings, which are not in the names of the lines."""
    for index, score in enumerate((1., 2.)):
      self._pong(index, score, batch_size=32)
      self._pong(index, score, agent='a3c', off_policy_correction=None, batch_size=1)
      for batching in ('sync_step', 'dynamic_batching'):
        self._pong(index, score, agent='a2c', off_policy_correction=None, batching=batching, seed=len(batching))
    self.assertEqual(list(dict.fromkeys(sample.line for sample in self._samples())), [
        'deep, A3C', 'deep, IMPALA, vtrace', 'deep, batched A2C, batching=dynamic_batching',
        'deep, batched A2C, batching=sync_step'])

  def test_methods_have_rows_of_their_own(self):
    self._pong(0, 1.0)
    self._pong(0, 3.0, off_policy_correction='none')
    self.assertEqual([sample.line for sample in self._samples()], ['deep, none', 'deep, vtrace'])

  def test_whatever_else_differs_makes_lines_of_their_own(self):
    for policy_lag in (0, 2, 10):
      for clip_rho_threshold in (1., 100.):
        for index in range(2):
          run_directories.single_game(
              self.folder, f'{policy_lag}_{clip_rho_threshold}_{index}', curves={'pong': [10. * policy_lag + index]},
              policy_lag=policy_lag, clip_rho_threshold=clip_rho_threshold, sweep_index=index,
              learning_rate=1e-3 * (index + 1))
    run_directories.single_game(self.folder, 'other', level_name='breakout', curves={'breakout': [1.0]}, policy_lag=7)
    found = self._samples()
    self.assertEqual([sample.line for sample in found[1::2]], [  # There are two samples of each line.
        f'deep, vtrace, clip_rho_threshold={rho}, policy_lag={lag}' for rho in (1, 100) for lag in (0, 2, 10)])
    self.assertEqual(found[0].line, 'deep, vtrace')  # On breakout no setting differs.
    self.assertEqual([sample.score.mean for sample in found[1:]], [1, 0, 21, 20, 101, 100] * 2)
    self.assertEqual([row[2] for row in sweep.table(found).rows[1:]], ['1', '2'] * 6)

  def test_lengths_are_lines_too_and_what_old_runs_lack_is_the_default(self):
    for index, settings in enumerate(({}, {'policy_lag': 0, 'clip_rho_threshold': 1.0},
                                      {'total_environment_frames': 1_234_567_890})):
      self._pong(index, index + 1., **settings)
    self.assertEqual([(sample.line, sample.score.mean) for sample in self._samples()],
                     [('deep, vtrace, total_environment_frames=200_000_000', 2),
                      ('deep, vtrace, total_environment_frames=200_000_000', 1),
                      ('deep, vtrace, total_environment_frames=1_234_567_890', 3)])

  def test_the_best_three_of_each_line(self):
    for index, final in enumerate((1.0, 2.0, None, 6.0, 3.0)):
      self._pong(index, final)
    self._pong(0, 9.0, policy_lag=10)
    best = sweep.best_three(self._samples())
    self.assertEqual({line: [sample.score.mean for sample in samples] for line, samples in best.items()},
                     {('pong', 'deep, vtrace, policy_lag=0'): [6, 3, 2], ('pong', 'deep, vtrace, policy_lag=10'): [9]})

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

  def test_regression_different_numbers_of_frames_do_not_look_equal(self):
    self._pong(0, 1.0, frames=333_133_333, total_environment_frames=333_333_333)
    row, = sweep.table(self._samples()).rows
    self.assertEqual(row[-1], '333_133_333 of 333_333_333 frames')

  def test_the_table(self):
    for index, final in enumerate((1.0, 2.0, 6.0, 3.0)):
      self._pong(index, final, learning_rate=0.0012345 * (index + 1), frames=5_000_000)
    table = sweep.table(self._samples())
    self.assertEqual(table.columns, ['level', 'setting', 'rank', 'sample', 'learning_rate', 'entropy_cost',
                                     'rmsprop_epsilon', 'final score, this run', 'run'])
    self.assertEqual(table.rows[0], ['pong', 'deep, vtrace', '1', '2', '0.0037', '0.01', '0.01',
                                     layout.Number((6.0, None, 1), 2), '5M of 200M frames'])
    self.assertEqual([row[2] for row in table.rows], ['1', '2', '3', '4'])
    self.assertEqual([row[3] for row in table.rows], ['2', '3', '1', '0'])
    self.assertIn('pong, deep, vtrace: the mean of the best 3 samples is 3.67.', table.notes)

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
