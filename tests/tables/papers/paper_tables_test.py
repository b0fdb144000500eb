"""Tests that the paper's rows give its summaries, and that runs are in the correct rows."""

from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents.environments import scores
from scalable_agents.tables.papers import layout
from scalable_agents.tables.papers import paper_tables
from scalable_agents.tables.results import published
from scalable_agents.tests.tables import run_directories


class PaperTablesTest(run_directories.TestCase):

  def _make(self, number):
    """Returns the table of the folder's runs, as dicts of column -> value by the first column, and its notes."""
    table = paper_tables.TABLES[number]
    made = paper_tables.make(table, *paper_tables.gather(table, self.read(True)))
    for row in made.rows:
      self.assertLen(row, len(made.columns))
    return {row[0]: dict(zip(made.columns, row)) for row in made.rows}, made.notes

  # The summary that follows from the paper's rows, and the printed one.
  @parameterized.parameters(
      ('dmlab30', 'IMPALA, deep, PBT', 'mean_capped', 49.36, 49.4),
      ('dmlab30', 'IMPALA-Experts, deep', 'mean_capped', 44.45, 44.5),
      ('atari57', 'IMPALA, deep, experts', 'mean', 957.28, 957.6),
      ('atari57', 'IMPALA, deep, experts', 'median', 191.82, 191.8),
      ('atari57', 'IMPALA, shallow, experts', 'mean', 466.06, 466.4),
      ('atari57', 'IMPALA, shallow, experts', 'median', 93.23, 93.2),
      ('atari57', 'IMPALA, deep, multi-task', 'mean', 176.61, 176.9),
      ('atari57', 'IMPALA, deep, multi-task', 'median', 59.71, 59.7),
      ('atari57', 'Reactor, experts', 'median', 186.83, 187.0))
  def test_aggregates(self, suite, agent, measure, again, printed):
    self.assertAlmostEqual(getattr(paper_tables.recomputed(suite, agent), measure), again, delta=0.005)
    self.assertEqual(published.SUMMARIES[suite][agent][measure], printed)
    self.assertAlmostEqual(again, printed, delta=0.36)  # The paper's means of Atari are 0.3 above its rows.

  def test_levels_that_are_not_all_there_make_no_aggregate(self):
    self.assertIsNone(paper_tables.recomputed('atari57', 'ACKTR'))
    self.assertIsNone(paper_tables.recomputed('dmlab30', 'A3C, deep'))

  def test_a3c_has_rows_of_its_own(self):
    for name, settings in (('impala', {'agent': 'impala'}), ('a3c', {'agent': 'a3c', 'off_policy_correction': None})):
      for index, share in enumerate((0.1, 0.2)):
        means = {test: run_directories.mean_return(level, share * len(name)) for level, test in zip(
            scores.SUITES['dmlab30'].levels, scores.SUITES['dmlab30'].test_levels)}
        run_directories.make(self.folder, f'{name}_{index}', means, learning_rate=1e-4 * (index + 1),
                             num_environments=70, **settings)
    rows, _ = self._make('3')
    self.assertAlmostEqual(rows['A3C, deep']['mean capped: this run'].value.mean, 60.)
    self.assertEqual(rows['A3C, deep']['run'], 'scaled down: 2 of 24 hyper-parameters, 70 of 210 actors')
    self.assertAlmostEqual(rows['IMPALA, deep']['mean capped: this run'].value.mean, 100.)
    run_directories.single_game(self.folder, 'game', 100., agent='a3c', off_policy_correction=None, torso='shallow',
                                level_name='breakout')
    rows, _ = self._make('4')
    self.assertEqual(rows['A3C, shallow, experts']['run'], 'scaled down: 1 of 57 levels')

  def test_the_papers_own_scores_as_runs_give_its_aggregates(self):
    published_means = published.LEVEL_SCORES['dmlab30']
    run_directories.make(self.folder, 'pbt', published_means['IMPALA, deep, PBT'], population_size=24)
    for level, mean in published_means['IMPALA-Experts, deep'].items():
      run_directories.make(self.folder, level, {level: mean}, level_name=level, total_environment_frames=333_333_333)
    rows, notes = self._make('3')
    extents = {'IMPALA, deep, PBT': 'in full', 'IMPALA-Experts, deep': 'scaled down: 1 of 24 hyper-parameters'}
    for name, extent in extents.items():
      row = rows[name]
      self.assertEqual(row['run'], extent)
      self.assertEqual(row['mean capped: this run'].value.mean, row['mean capped: from its levels'].value)
      self.assertLess(abs(row['mean capped: difference'].value), 0.06)
    self.assertLen(notes, 2)
    rows, _ = self._make('B.1')
    for row in rows.values():
      for name, extent in extents.items():
        self.assertLess(abs(row[f'{name}: difference'].value), 0.06)
        self.assertEqual(row[f'{name}: run'], extent)
    self.assertEqual(rows['mean capped (%), from these rows']['IMPALA, deep, PBT: difference'], layout.Number(0.0, 2))

  def test_a_population_with_8_learners_has_its_row(self):
    run_directories.make(self.folder, 'run', published.LEVEL_SCORES['dmlab30']['IMPALA, deep, PBT'], population_size=24,
                         num_learners=8, learning_rate_decay=False)
    rows, _ = self._make('3')
    self.assertEqual({name: row['run'] for name, row in rows.items() if row['run'] != 'not run'},
                     {'IMPALA, deep, PBT, 8 learners': 'in full'})

  def test_a_run_is_in_its_row_only(self):
    run_directories.make(self.folder, 'run', published.LEVEL_SCORES['dmlab30']['IMPALA, deep, PBT'], episodes=10,
                         frames=2_000_000)
    rows, _ = self._make('3')
    self.assertEqual({name: row['run'] for name, row in rows.items() if row['run'] != 'not run'},
                     {'IMPALA, deep': 'scaled down: 1 of 24 hyper-parameters, 2M of 10B frames, 10 of 500 episodes'})
    self.assertAlmostEqual(rows['IMPALA, deep']['mean capped: difference'].value, 49.36 - 46.5, delta=0.01)

  def test_a_games_mean_is_beside_the_papers(self):
    for seed, mean in ((1, 18.0), (2, 20.0)):
      run_directories.single_game(self.folder, f'run{seed}', mean, seed=seed, frames=8_000_000)
    rows, _ = self._make('C.1')
    pong = rows['pong']
    self.assertEqual(pong['IMPALA, deep, experts: paper'].value, 20.98)
    self.assertEqual(pong['IMPALA, deep, experts: this run'].value, (19.0, 2**0.5, 2))
    self.assertAlmostEqual(pong['IMPALA, deep, experts: difference'].value, -1.98)
    self.assertEqual(pong['IMPALA, deep, experts: run'], 'scaled down: 8M of 200M frames')
    self.assertEqual(pong['IMPALA, shallow, experts: run'], 'not run')
    self.assertEqual(rows['qbert']['IMPALA, deep, experts: run'], 'not run')
    self.assertEqual(rows['median (%)']['IMPALA, deep, experts: run'], 'scaled down: 1 of 57 levels, 8M of 200M frames')
    self.assertNotIn('ACKTR: this run', pong)

  def test_runs_that_are_not_shown_are_named(self):
    run_directories.single_game(self.folder, 'a', 18.0)
    run_directories.single_game(self.folder, 'b', 19.0, batch_size=32, discount=0.9)
    run_directories.single_game(self.folder, 'c', 19.0, use_lstm=True)
    run_directories.make(self.folder, 'd', {'catch': 1.0}, level_name='catch')
    _, notes = self._make('4')
    self.assertEqual(notes[-3:], [
        f'None of these agents (a single level of atari57, deep, LSTM, vtrace, population of 1, 1 learner): '
        f'{self.folder}/c',
        f'None of these agents (catch, deep, LSTM, vtrace, population of 1, 1 learner): {self.folder}/d',
        f'IMPALA, deep, experts: of 2 runs these are shown, the best of 2 settings: {self.folder}/a'])

  def test_shorter_runs_of_a_level_are_named(self):
    run_directories.single_game(self.folder, 'a', 18.0)
    run_directories.single_game(self.folder, 'b', 19.0, total_environment_frames=10)
    _, notes = self._make('4')
    self.assertEqual(notes[-1], 'IMPALA, deep, experts: of 2 runs these are shown, the longest of each level: '
                                f'{self.folder}/a')


if __name__ == '__main__':
  absltest.main()
