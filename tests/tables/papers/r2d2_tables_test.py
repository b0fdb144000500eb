"""Tests of the tables of R2D2: which runs are in which cell, their scores, and what departs from the paper."""

import os

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from scalable_agents.agents import registry
from scalable_agents.environments import scores
from scalable_agents.launch import dmlab30_protocol
from scalable_agents.tables.papers import r2d2_tables
from scalable_agents.tables.results import departures
from scalable_agents.tables.results import r2d2_published
from scalable_agents.tables.results import runs as runs_lib
from scalable_agents.tests.tables import binary_flags
from scalable_agents.tests.tables import run_directories

_PRESETS = registry.PRESETS
_PROTOCOLS = {'R2D2': _PRESETS['r2d2_atari57'].protocol, 'R2D2 on DMLab-30': _PRESETS['r2d2_dmlab30'].protocol,
              'R2D2+': _PRESETS['r2d2_dmlab30'].protocol,
              'IMPALA, deep (re-run)': dmlab30_protocol.Protocol(action_set='popart')}
_CONFIGS = {'R2D2': _PRESETS['r2d2_atari57'].config, 'R2D2 on DMLab-30': _PRESETS['r2d2_dmlab30'].config,
            'R2D2+': _PRESETS['r2d2_plus_dmlab30'].config,
            'IMPALA, deep (re-run)': _PRESETS['impala_dmlab30'].config}
_LEVELS = {'R2D2': 'pong'}
_mean = run_directories.mean_return


class R2d2TablesTest(run_directories.TestCase):

  def _make(self, name, share, level=None, **others):
    """Makes a run that was started and evaluated with the flags of a binary, and `others`."""
    level = level or _LEVELS.get(name, 'rooms_watermaze')
    protocol, is_r2d2 = _PROTOCOLS[name], name.startswith('R2D2')
    flags = binary_flags.of(_CONFIGS[name], protocol, **{'level_name': level, 'num_environments': 256} | {
        setting: value for setting, value in others.items() if setting not in ('frames', 'episodes', 'actions')})
    played = protocol.environments((level,), training=False) | {
        'actions': others.get('actions', 'epsilon 0.001' if is_r2d2 else 'sampled')}
    episodes = others.get('episodes', 200 if 'atari' in played else 500)
    number = len(os.listdir(self.folder))
    run_directories.make(self.folder, f'run_{number:03d}', {level: _mean(level, share)}, episodes=episodes,
                         frames=others.get('frames'), protocol=played, agent='r2d2' if is_r2d2 else 'impala',
                         defaults=flags)

  def _table(self, number):
    """Returns a table of levels as a dict of level -> column -> value, and the notes."""
    table = r2d2_tables.table(number, self.read(True))
    for row in table.rows:
      self.assertLen(row, len(table.columns))
    return {row[0]: dict(zip(table.columns, row)) for row in table.rows}, table.notes

  def _cell(self, name, level):
    row = self._table('4' if level in scores.SUITES['atari57'].levels else '3')[0][level]
    score = row[f'{name}: this run'].value
    return score and score.mean, row[f'{name}: run']

  def test_the_papers_numbers(self):
    rows = {tuple(row[:3]): [number.value for number in row[3:5]] for row in r2d2_tables.table('1', []).rows}
    self.assertLen(rows, 21)
    for key, printed, again in (
        (('R2D2', 'Atari-57', 'median (%)'), 1920.6, 1922.73), (('R2D2', 'Atari-57', 'mean (%)'), 4024.9, 4024.93),
        (('Ape-X', 'Atari-57', 'mean (%)'), 1695.6, 1684.44), (('R2D2', 'DMLab-30', 'mean capped (%)'), 78.3, 78.33),
        (('R2D2', 'DMLab-30', 'median (%)'), 96.9, 97.18), (('R2D2+', 'DMLab-30', 'mean capped (%)'), 85.7, 85.76),
        (('IMPALA, deep (re-run)', 'DMLab-30', 'mean capped (%)'), 85.1, 85.14),
        (('IMPALA, shallow (re-run)', 'DMLab-30', 'median (%)'), 89.7, 89.62),
        (('IMPALA, deep (original)', 'DMLab-30', 'mean capped (%)'), 45.8, 44.45)):
      self.assertEqual(rows[key][0], printed)
      self.assertAlmostEqual(rows[key][1], again, delta=0.005)
    self.assertEqual(rows['R2D2, feed-forward', 'Atari-57', 'median (%)'], [589.2, None])
    # The abstract, and section 4.1: "on 52 out of 57 games", Ape-X 49.
    self.assertEqual([rows[name, 'Atari-57', 'levels above human'] for name in ('R2D2', 'Ape-X')], [[52, 52], [49, 49]])

  def test_a_whole_suite_has_a_score_and_the_papers_humans_are_named(self):
    for place, game in enumerate(scores.SUITES['atari57'].levels):
      for seed in (1, 2):
        self._make('R2D2', 0.1 * place + 0.01 * seed, game, seed=seed)
    rows = {tuple(row[:3]): row for row in r2d2_tables.table('1', self.read(True)).rows}
    row = rows['R2D2', 'Atari-57', 'median (%)']
    np.testing.assert_allclose(row[5].value, (281.5, 0.5**0.5, 2))
    self.assertEqual(row[7], 'scaled down: 2 of 3 seeds')
    self.assertIn('Human: the scores that the human-normalised scores are computed with. The paper prints alien '
                  '7127.8, fishing_derby -38.8, time_pilot 5229.1.', self._table('4')[1])

  @parameterized.parameters(*_CONFIGS)
  def test_the_defaults_are_in_full(self, name):
    for seed, share in enumerate((0.5, 0.6, 0.7)):
      self._make(name, share, total_environment_frames=10_000_000_000, seed=seed)
    level = _LEVELS.get(name, 'rooms_watermaze')
    mean, extent = self._cell(name.removesuffix(' on DMLab-30'), level)
    self.assertAlmostEqual(mean, _mean(level, 0.6))
    self.assertEqual(extent, 'in full')

  @parameterized.parameters(
      ('R2D2', {'frames': 10_000_000, 'episodes': 10}, 'scaled down: 10M of 10B frames, 10 of 200 episodes'),
      ('R2D2', {'torso': 'shallow', 'discount': 0.99},
       'departs from the paper: torso=shallow, discount=0.99'),
      ('R2D2', {'actions': 'greedy'}, 'departs from the paper: test_policy=greedy'),
      ('R2D2', {'full_action_set': False}, 'departs from the paper: full_action_set=False'),
      ('R2D2', {'measure_delta_q': True, 'save_replay': False, 'num_actors': 256, 'parameter_refresh': '100'},
       'in full'),
      ('R2D2', {'num_actors': 64, 'adam_epsilon': 0.01},
       'scaled down: 64 of 256 actors; departs from the paper: adam_epsilon=0.01'),
      ('R2D2', {'num_actors': 300}, 'departs from the paper: num_actors=300'),
      ('R2D2', {'num_environments': 1}, 'scaled down: 1 of 256 actors'),
      ('R2D2', {'num_environments': 'auto'}, 'scaled down: an unknown number of 256 actors'),
      ('R2D2+', {'job_name': 'learner', 'num_environments': 256}, 'scaled down: an unknown number of 256 actors'),
      ('R2D2+', {'job_name': 'learner', 'num_environments': 0, 'num_actors': 256}, 'in full'),
      ('R2D2 on DMLab-30', {'learning_rate': 3e-4}, 'departs from the paper: learning_rate=0.0003'),
      ('R2D2 on DMLab-30', {'reward_transform': 'optimistic_asymmetric'},
       'departs from the paper: reward_transform=optimistic_asymmetric'),
      ('R2D2+', {'reward_transform': 'optimistic_asymmetric'}, 'in full'),
      ('R2D2+', {'batch_size': 64}, 'departs from the paper: batch_size=64'),
      ('IMPALA, deep (re-run)', {'action_set': 'impala'}, 'departs from the paper: action_set=impala'),
      ('IMPALA, deep (re-run)', {'learning_rate': 3e-4}, 'in full'))  # IMPALA's was tuned.
  def test_what_is_smaller_or_different_is_named(self, name, others, extent):
    for seed in range(3):
      self._make(name, 0.5, seed=seed, **others)
    self.assertEqual(self._cell(name.removesuffix(' on DMLab-30'), _LEVELS.get(name, 'rooms_watermaze'))[1], extent)

  @parameterized.parameters(('R2D2', 2, 'scaled down: 2 of 3 seeds'), ('R2D2+', 1, 'scaled down: 1 of 3 seeds'),
                            ('IMPALA, deep (re-run)', 1, 'in full'))
  def test_fewer_seeds_than_in_the_paper_are_named(self, name, seeds, extent):
    for seed in range(seeds):
      self._make(name, 0.5, seed=seed)
    self.assertEqual(self._cell(name, _LEVELS.get(name, 'rooms_watermaze'))[1], extent)

  def test_seeds_with_different_numbers_of_actors_are_given_as_a_range(self):
    for seed, actors in enumerate((128, 64, 256)):
      self._make('R2D2', 0.5, seed=seed, num_environments=actors)
    self.assertEqual(self._cell('R2D2', 'pong')[1], 'scaled down: 64 to 256 of 256 actors')

  def test_the_level_with_the_fewest_seeds_counts(self):
    for seed in range(3):
      self._make('R2D2', 0.5, seed=seed)
    self._make('R2D2', 0.5, 'breakout')
    rows = {tuple(row[:3]): row[-1] for row in r2d2_tables.table('1', self.read(True)).rows}
    self.assertEqual(rows['R2D2', 'Atari-57', 'median (%)'], 'scaled down: 2 of 57 levels, 1 of 3 seeds')

  def test_the_feed_forward_variant_has_one_seed(self):
    self._make('R2D2', 0.5, use_lstm=False)
    rows = {tuple(row[:3]): row[-1] for row in r2d2_tables.table('1', self.read(True)).rows}
    self.assertEqual(rows['R2D2, feed-forward', 'Atari-57', 'median (%)'], 'scaled down: 1 of 57 levels')

  def test_every_setting_departs_that_is_not_free(self):
    agent = r2d2_published.PAPER.agents[0]
    flags = binary_flags.of(_CONFIGS['R2D2'], _PROTOCOLS['R2D2'])
    free = binary_flags.FREE | {'measure_delta_q'}
    shown_otherwise = {'level_name', 'population_size', 'num_learners', 'num_actors'}
    run = lambda changed: runs_lib.Run('', flags | changed, runs_lib.Evaluation({}, 0, 0), 'r2d2')
    self.assertEmpty(departures.departures(run({}), agent))
    for name, other in binary_flags.others(flags, shown_otherwise).items():
      self.assertEqual(departures.departures(run({name: other}), agent), {} if name in free else {name: other})

  def test_ablations_are_left_out(self):
    self._make('R2D2', 0.5)
    self._make('R2D2', 0.9, reward_transform='abs_one', value_rescaling=False)
    self._make('R2D2', 0.9, use_lstm=False)
    rows, notes = self._table('4')
    self.assertAlmostEqual(rows['pong']['R2D2: this run'].value.mean, _mean('pong', 0.5))
    self.assertEqual(notes[-2:], [
        f'None of these agents (a single level of atari57, dqn, no LSTM, R2D2, population of 1, 1 learner): '
        f'{self.folder}/run_002',
        f'Ablations, which are not in the table: {self.folder}/run_001 (Clipped)'])
    runs = [run for run in self.read(True) if run.flags['reward_transform'] == 'abs_one']
    alone = {row[0]: row for row in r2d2_tables.table('4', runs).rows}['pong']
    self.assertEqual(alone[-1], 'scaled down: 1 of 3 seeds; departs from the paper: value_rescaling=False, '
                     'reward_transform=abs_one')

  @parameterized.parameters(
      ({'level_name': 'pong,breakout'}, 'pong,breakout, dqn, LSTM, R2D2'),
      ({'level_name': 'recall'}, 'recall, dqn, LSTM, R2D2'),
      ({'level_name': 'rooms_watermaze'}, 'a single level of dmlab30, dqn, LSTM, R2D2'),
      ({'torso': 'deep', 'reward_transform': 'soft_asymmetric'}, 'a single level of atari57, deep, LSTM, R2D2'))
  def test_runs_of_other_levels_are_named_below(self, others, description):
    run_directories.r2d2(self.folder, 'run', 1., **others)
    rows, notes = self._table('4')
    self.assertEqual(notes[-1], f'None of these agents ({description}, population of 1, 1 learner): {self.folder}/run')
    self.assertEqual({row['R2D2: run'] for row in rows.values()}, {'not run'})


if __name__ == '__main__':
  absltest.main()
