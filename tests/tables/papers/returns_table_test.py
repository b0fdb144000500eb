"""Tests of tables/papers/returns_table.py: its numbers against sums by hand, and what is left empty."""

import csv

from absl.testing import absltest
import numpy as np

from scalable_agents.population import population_directory
from scalable_agents.records import errors
from scalable_agents.tables.papers import layout
from scalable_agents.tables.papers import returns_table
from scalable_agents.tables.results import runs
from scalable_agents.tests import source_tree
from scalable_agents.tests.tables import run_directories

_IMPALA = {'agent': 'impala', 'binary': 'impala_atari57', 'defaults': {
    'torso': 'shallow', 'use_lstm': False, 'off_policy_correction': 'vtrace', 'learning_rate': 6e-4}}


class ReturnsTableTest(run_directories.TestCase):

  def _run(self, name, returns, level='pong', frames=1_000, seed=1, **settings):
    """Makes a run whose episodes end at equal distances."""
    run_directories.laser(self.folder, name, returns, level_name=level, frames=frames, seed=seed,
                          **_IMPALA | {'total_environment_frames': 1_500} | settings)

  def _table(self, of_runs=None, every=500):
    return returns_table.table(returns_table.gather(of_runs or self.read(), every))

  def _rows(self, every=500):
    """Returns the rows: column -> text, without spaces at the ends."""
    lines = [line for line in layout.markdown(self._table(every=every)).splitlines()
             if line.startswith('|')]
    head, _, *rows = ([cell.strip() for cell in line.strip('|').split('|')] for line in lines)
    return [dict(zip(head, row, strict=True)) for row in rows]

  def test_returns_are_means_of_the_last_hundred_episodes_and_of_seeds(self):
    returns = np.random.RandomState(0).uniform(-21, 21, size=[2, 400]).round(2)
    for seed in (0, 1):
      self._run(str(seed), returns[seed].tolist(), seed=seed)
    row, = self._rows()
    self.assertEqual(row['500'], f'{returns[:, 100:200].mean():.2f}')
    last = returns[:, 300:].mean()
    self.assertEqual(row['1K'], f'{last:.2f}')
    self.assertEqual(row['human-normalised (%)'], f'{100 * (last + 20.7) / (14.6 + 20.7):.0f}')  # Table C.1.
    self.assertEqual(row['paper'], '20.4 (IMPALA, shallow, experts, 200M)')  # Table C.1.
    self.assertEqual((row['level'], row['agent'], row['runs']), ('pong', 'IMPALA', '2'))

  def test_regression_the_papers_score_is_exact(self):
    self._run('run', [1.] * 100, level='qbert')
    row, = self._rows()
    self.assertEqual(row['paper'], '18901.25 (IMPALA, shallow, experts, 200M)')  # Table C.1.

  def test_regression_headings_are_exact(self):
    self._run('run', [1.] * 10, frames=202_000_000, total_environment_frames=1_000_000_000)
    row, = self._rows(every=50_250_000)
    self.assertEqual(list(row)[3:7], ['50.25M', '100.5M', '150.75M', '201M'])

  def test_a_training_level_has_the_papers_score_on_its_test_level(self):
    self._run('dmlab', [5.] * 10, level='rooms_collect_good_objects_train', torso='deep', use_lstm=True)
    row, = self._rows()
    self.assertEqual(row['paper'], '9 (IMPALA-Experts, deep, 333M)')  # Table B.1.

  def test_an_agent_of_ones_own_has_a_row(self):
    self._run('own', [5.] * 10, agent='q_learner', off_policy_correction=None, torso=None, use_lstm=None)
    run, = runs.read([f'{self.folder}/own'], evaluated=False, agents=None)[0]
    row, = (line for line in layout.markdown(self._table([run])).splitlines() if 'q_learner' in line)
    self.assertIn(' 5.00 ', row)

  def test_members_of_a_population_are_not_seeds(self):
    for member, (fitness, value) in enumerate(((1., 5.), (2., -3.))):
      self._run(f'population/member_0{member}', [value] * 10, population_size=2, learning_rate=1e-4 * (1 + member))
      population_directory.write_fitness(f'{self.folder}/population/member_0{member}',
                                         population_directory.Fitness(1, fitness, {'learning_rate': 1e-4}))
    row, = self._rows()
    self.assertEqual((row['runs'], row['1K']), ('1', '-3.00'))
    self.assertIn('the fittest member counts: its own episodes, also those before it copied another member.',
                  self._table().notes[0])

  def test_a_run_that_is_behind_the_other_seeds_is_left_out_and_named(self):
    self._run('long', [1.] * 10, frames=1_500)
    self._run('short', [3.] * 10, seed=2)
    self._run('other', [5.] * 10, level='breakout')
    rows = self._rows()
    self.assertEqual([(row['level'], row['runs'], row['1K'], row['1.5K']) for row in rows[:2]],
                     [('pong', '1', '1.00', '1.00'), ('breakout', '1', '5.00', '–')])
    self.assertIn(f'Not in the table: {self.folder}/short: other seeds have more frames.',
                  self._table().notes)
    with self.assertRaisesRegex(errors.UserError, '^--returns_every=2000: want at most 1500, the frames per level of '):
      self._rows(every=2_000)

  def test_a_run_without_metrics_is_named(self):
    self._run('begun', None)
    with self.assertRaisesRegex(errors.UserError, '/begun: has no metrics yet$'):
      self._rows()

  def test_the_interquartile_mean_over_levels(self):
    games = {'pong': (-20.7, 14.6), 'breakout': (1.7, 30.5)}  # Returns of a random policy and a human, table C.1.
    shares = {'pong': (0.1, 0.2, 0.3, 0.4), 'breakout': (0.15, 0.5, 2., 9.)}
    for game, (random, human) in games.items():
      for seed, share in enumerate(shares[game]):
        self._run(f'{game}_{seed}', [random + share * (human - random)] * 10, level=game, seed=seed)
    *_, row = self._rows()
    self.assertEqual((row['level'], row['runs']), ('IQM of 2 levels', '4'))
    # The middle half of 10, 15, 20, 30, 40, 50, 200 and 900 %.
    self.assertRegex(row['1K'], r'^35 \(\d+ to \d+\)$')
    *_, row = csv.DictReader(layout.comma_separated(self._table()).splitlines())
    self.assertEqual(row['agent'], 'IMPALA')
    self.assertAlmostEqual(float(row['1K']), 35., places=9)

  def test_the_interval_is_over_seeds_not_over_levels(self):
    games = {'pong': (-20.7, 14.6, 0.1), 'breakout': (1.7, 30.5, 0.5)}  # As above, and the share of all seeds.
    for game, (random, human, share) in games.items():
      for seed in range(3):
        self._run(f'{game}_{seed}', [random + share * (human - random)] * 10, level=game, seed=seed)
    *_, row = self._rows()
    self.assertEqual(row['1K'], '30 (30 to 30)')

  def test_a_mean_that_rounds_to_zero_has_no_sign(self):
    for game, random in (('pong', -20.7), ('breakout', 1.7)):  # Table C.1.
      self._run(game, [random - 0.01] * 10, level=game)
    *_, row = self._rows()
    self.assertEqual(row['1K'], '0')

  def test_the_interquartile_mean_has_as_many_runs_of_each_level(self):
    for game, returns in (('pong', (-21., 0., 21.)), ('breakout', (1.,))):
      for seed, value in enumerate(returns):
        self._run(f'{game}_{9 - seed}', [value] * 10, level=game, seed=seed)  # By name, the last seed is the first.
    *_, row = self._rows()
    middle = np.mean([(-21. + 20.7) / (14.6 + 20.7), (1. - 1.7) / (30.5 - 1.7)])  # Of the first seeds. Table C.1.
    self.assertEqual((row['runs'], row['1K']), ('1', f'{100 * middle:.0f}'))
    notes = ' '.join(self._table().notes)
    self.assertIn('Each level has as many runs as the level with the fewest.', notes)

  def test_settings_that_differ_are_in_the_name(self):
    self._run('a', [1.])
    self._run('b', [1.], learning_rate=1e-3)
    self._run('c', [1.], agent='laser', level='catch')
    self.assertEqual([(row['agent'], row['human-normalised (%)'], row['paper']) for row in self._rows()][::2],
                     [('IMPALA, learning_rate=0.0006', '61', '20.4 (IMPALA, shallow, experts, 200M)'),
                      ('LASER', '–', '–')])

  def test_shared_replays_at_several_addresses_are_one_line(self):
    for seed in (1, 2):
      self._run(f'run_{seed}', [1.] * 10, agent='laser', seed=seed, shared_replay=f'127.0.0.1:4000{seed}')
    row, = self._rows()
    self.assertEqual((row['agent'], row['runs']), ('LASER', '2'))

  def test_a_run_without_episodes_is_left_out_and_named(self):
    self._run('run', [1.] * 10)
    self._run('excerpt', [], seed=2, curves={'pong': [1., 2.]})
    row, = self._rows()
    self.assertEqual(row['runs'], '1')
    fault = f'{self.folder}/excerpt: no training episodes; an excerpt needs --returns_every'
    self.assertIn(f'Not in the table: {fault}.', self._table().notes)
    excerpt = [run for run in self.read() if run.flags['seed'] == 2]
    with self.assertRaisesRegex(errors.UserError, f'^{fault}$'):
      self._table(excerpt)

  def test_an_excerpt_with_other_returns_is_left_out_and_named(self):
    self._run('run', [1.] * 10)
    self._run('excerpt', [3.] * 10, seed=2)
    whole, excerpt = self.read()[::-1]
    excerpt = excerpt._replace(returns_every=1_000)
    table = self._table([whole, excerpt])
    self.assertIn(f'Not in the table: {excerpt.logdir}: an excerpt with --returns_every=1000.', table.notes)
    self.assertNotIn(' 2.00 ', layout.markdown(table))  # The mean of both.
    self.assertIn(' 2.00 ', layout.markdown(self._table([whole, excerpt], 1_000)))

  def test_a_long_run_without_episodes_makes_no_columns(self):
    self._run('run', [1.] * 10)
    self._run('excerpt', [], seed=2, curves={'pong': [1., 2.]}, frames=4_000)
    row, = self._rows()
    self.assertNotIn('1.5K', row)
    with self.assertRaisesRegex(
        errors.UserError, '^--returns_every=2000: want at most 1000, the frames per level of the '):
      self._table(every=2_000)

  def test_the_papers_scores_of_laser(self):
    for name, torso, frames, shared in (('own', 'deep_4x', 200_000_000, ''), ('small', 'shallow', 10_000_000, ''),
                                        ('shared', 'deep_4x', 200_000_000, 'host:1'),
                                        ('short', 'deep_4x', 50_000_000, 'host:1')):
      self._run(name, [1.] * 10, agent='laser', torso=torso, total_environment_frames=frames, shared_replay=shared)
    self.assertCountEqual([row['paper'].partition(' ')[2] for row in self._rows()], [
        *2 * ['(LASER, no sweep, 200M, 200M)'], '(LASER, shared replay, 200M, 200M)',
        '(LASER, shared replay, 50M, 50M)'])

  def test_runs_of_other_lengths_are_apart(self):
    """The learning rate decays over the frames of a run."""
    for frames in (1_500, 3_000):
      self._run(f'{frames}', [1.], total_environment_frames=frames)
    self.assertEqual([(row['agent'], row['runs']) for row in self._rows()], [
        ('IMPALA, frames_per_level=1_500', '1'), ('IMPALA, frames_per_level=3_000', '1')])

  def test_agents_of_other_levels_are_apart(self):
    for levels in ('pong,breakout', 'pong,qbert'):
      self._run(levels, dict.fromkeys(levels.split(','), [1.] * 10), level=levels, frames=2_000,
                total_environment_frames=3_000)
    self.assertEqual([(row['agent'], row['runs']) for row in self._rows() if row['level'] == 'pong'], [
        ('IMPALA, level_name=pong,breakout', '1'), ('IMPALA, level_name=pong,qbert', '1')])

  def test_frames_of_a_run_with_several_levels_are_per_level(self):
    self._run('one', [1.] * 10, level='pong', frames=1_000)
    self._run('both', dict.fromkeys(('pong', 'breakout'), [2.] * 10 + [4.] * 10), level='pong,breakout', frames=2_000,
              total_environment_frames=3_000)
    rows = self._rows()
    self.assertCountEqual([(row['level'], row['agent'], row['500'], row['1K']) for row in rows[:3]], [
        ('pong', 'IMPALA, levels=1', '1.00', '1.00'), ('pong', 'IMPALA, levels=2', '2.00', '3.00'),
        ('breakout', 'IMPALA, levels=2', '2.00', '3.00')])
    self.assertNotIn('1.5K', rows[0])

  def test_numbers_of_others_after_equal_frames(self):
    """The file's means, by hand, beside a longer run."""
    with open(source_tree.ROOT / 'tables' / 'data' / 'dopamine_returns.csv', encoding='utf-8') as file:
      lines = [line.split(',') for line in file.read().splitlines()]
    self._run('run', [1.] * 10, frames=12_000_000)
    rows = {row['agent']: row for row in self._rows(every=2_000_000)}
    self.assertEqual(set(rows), {'IMPALA', 'DQN (Dopamine)', 'Rainbow (Dopamine)'})
    for agent in ('DQN', 'Rainbow'):
      seeds = [[float(value) for value in line[3:]] for line in lines if line[:2] == ['pong', agent]]
      row = rows[f'{agent} (Dopamine)']
      self.assertEqual((row['runs'], row['2M'], row['10M'], row['12M'], row['paper']), (
          '5', f'{np.mean([seed[1] for seed in seeds]):.2f}', f'{np.mean([seed[9] for seed in seeds]):.2f}', '–', '–'))
    self.assertEqual([row['agent'] for row in self._rows(every=1_500_000)], ['IMPALA'])


if __name__ == '__main__':
  absltest.main()
