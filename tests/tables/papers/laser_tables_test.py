"""Tests of LASER's tables: which runs are in which cell, their scores, and what departs from the paper."""

import math

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from scalable_agents.agents import laser_sweep
from scalable_agents.agents import registry
from scalable_agents.environments import scores
from scalable_agents.tables.papers import laser_tables
from scalable_agents.tables.results import departures
from scalable_agents.tables.results import laser_published
from scalable_agents.tables.results import runs as runs_lib
from scalable_agents.tests.tables import binary_flags
from scalable_agents.tests.tables import run_directories

_PRESETS = registry.PRESETS
_M = 1_000_000
_SHARED = {'shared_replay': 'here:1'}
_ONE_AGENT = 'scaled down: 1 of 9 agents, 1 of 2 repetitions'
_mean = run_directories.mean_return
_SINGLE = {'batch_size': 256, 'replay_share': 0.875, 'replay_capacity': 15 * _M, 'learning_rate_decay': True}


class LaserTablesTest(run_directories.TestCase):

  def _make(self, name, returns, level='pong', config=_PRESETS['laser_atari57'].config,
            protocol=_PRESETS['laser_atari57'].protocol, agent='laser', **others):
    """Makes a run that was started with the flags of a binary, and `others`. It has 200 episodes of these returns."""
    flags = binary_flags.of(config, protocol, **{'level_name': level, 'total_environment_frames': 50 * _M} | {
        setting: value for setting, value in others.items() if setting != 'frames'})
    returns = returns if isinstance(returns, (list, dict)) else 200 * [returns]
    run_directories.laser(self.folder, name, returns, defaults=flags, frames=others.get('frames'), agent=agent)

  def _table(self, number='2', returns_every=1):
    """Returns a table as a dict of its first columns -> column -> value, and the notes."""
    table = laser_tables.table(number, [run._replace(returns_every=returns_every) for run in self.read()])
    for row in table.rows:
      self.assertLen(row, len(table.columns))
    first = 1 if number == '2' else 3
    return {row[0] if first == 1 else tuple(row[:first]): dict(zip(table.columns, row))
            for row in table.rows}, [note.replace(f'{self.folder}/', '') for note in table.notes]

  def _cell(self, agent, level='pong'):
    row = self._table()[0][level]
    score = row[f'{agent}: this run'].value
    return score and tuple(score), row[f'{agent}: run']

  def _sweep(self, name, best, agents=9, level='pong', **others):
    """Makes a sweep whose agents have returns of `best` and less."""
    for index, (rate, entropy) in enumerate(laser_sweep._GRID[:agents]):
      self._make(f'{name}/agent_{index:02d}', best - (index + 3) % agents, level, learning_rate=rate,
                 entropy_cost=entropy, seed=index, **others)

  def test_the_papers_numbers_and_why_they_differ(self):
    rows = {tuple(row[:3]): [number.value for number in row[3:5]] for row in laser_tables.table('1', []).rows}
    for key, printed, again in (
        (('LASER: Shared Experience Replay', 'Atari-57, 200M frames', 'median (%)'), 448, 412.40),
        (('LASER: Shared Experience Replay', 'Atari-57, 50M frames', 'median (%)'), 370, 364.96),
        (('LASER: Experience Replay (no sweep)', 'Atari-57, 200M frames', 'median (%)'), 431, 454.91)):
      self.assertEqual(rows[key][0], printed)
      self.assertAlmostEqual(rows[key][1], again, delta=0.005)
    self.assertEqual(rows['LASER: Experience Replay', 'Atari-57, 50M frames', 'median (%)'], [233, None])
    self.assertEqual(rows['PopArt-IMPALA', 'DMLab-30, 10B frames', 'mean capped (%)'], [73.5, None])
    for number in laser_tables.NUMBERS:
      text = ' '.join(laser_tables.table(number, []).notes)
      for part in ('448 and 412.4', '431 and 454.9', '370 and 365.0', 'median would be 449.5 and the mean 1698.8'):
        self.assertIn(part, text)

  @parameterized.parameters(
      (laser_published.SHARED_50M, 50, _SHARED), (laser_published.SHARED_200M, 200, _SHARED),
      (laser_published.OWN_50M, 50, {}))
  def test_a_whole_sweep_is_in_full_and_has_its_best_agent(self, agent, millions, others):
    for repetition in range(2):
      self._sweep(f'{repetition}', 20. - 2 * repetition, total_environment_frames=millions * _M, **others)
    self.assertEqual(self._cell(agent), ((19., 2**0.5, 2), 'in full'))

  def test_the_single_agent_is_in_full(self):
    self._make('run', 20., **_SINGLE, total_environment_frames=200 * _M)
    self._make('again', 18., **_SINGLE, total_environment_frames=200 * _M, seed=2)
    self.assertEqual(self._cell(laser_published.SINGLE_200M), ((19., 2**0.5, 2), 'in full'))
    self.assertNotIn(f'{laser_published.OWN_50M}: this run', self._table()[0]['pong'])

  def test_a_score_is_the_mean_of_the_last_hundred_episodes_before_the_frames(self):
    returns = [*np.random.RandomState(0).normal(size=400)]
    self._make('run', returns, **_SHARED, total_environment_frames=200 * _M)
    for agent, end in ((laser_published.SHARED_50M, 100), (laser_published.SHARED_200M, 400)):
      np.testing.assert_allclose(self._cell(agent)[0][0], np.mean(returns[end - 100:end]))

  def test_the_best_agent_has_the_highest_median_over_all_games(self):
    shares = {'pong': (0.9, 0.1), 'qbert': (0.2, 0.5), 'breakout': (0.1, 0.4)}
    for level, of_agents in shares.items():
      for index, share in enumerate(of_agents):
        self._make(f'{level}/agent_{index}', _mean(level, share), level, learning_rate=3e-4 * (index + 1), **_SHARED)
    rows, notes = self._table()
    for level in shares:
      self.assertAlmostEqual(rows[level][f'{laser_published.SHARED_50M}: this run'].value.mean,
                             _mean(level, shares[level][1]))
    self.assertIn(f'{laser_published.SHARED_50M}: of 6 runs these are shown, the best agent of each sweep: '
                  'breakout/agent_1, pong/agent_1, qbert/agent_1', notes)
    self.assertEqual(rows['median (%)'][f'{laser_published.SHARED_50M}: run'],
                     'scaled down: 3 of 57 levels, 2 of 9 agents, 1 of 2 repetitions')

  @parameterized.parameters(
      ({'frames': 10 * _M}, 'scaled down: 10M of 50M frames, 1 of 9 agents, 1 of 2 repetitions'),
      ({'batch_size': 64, 'torso': 'shallow'},
       f'{_ONE_AGENT}; departs from the paper: torso=shallow, batch_size=64'),
      ({'learning_rate': 5e-4}, f'{_ONE_AGENT}; departs from the paper: learning_rate=0.0005'),
      ({'learning_rate_decay': True}, f'{_ONE_AGENT}; departs from the paper: learning_rate_decay=True'),
      ({'trust_region_threshold': 0.7}, _ONE_AGENT),
      ({'trust_region_threshold': math.inf},
       f'{_ONE_AGENT}; departs from the paper: trust_region_threshold=inf'),
      ({'noop_max': 30, 'relevance': 'kl_mu'},
       f'{_ONE_AGENT}; departs from the paper: relevance=kl_mu, noop_max=30'))
  def test_what_is_smaller_or_different_is_named(self, others, extent):
    self._make('run', 20., **_SHARED | others)
    self.assertEqual(self._cell(laser_published.SHARED_50M), ((20., None, 1), extent))

  def test_fewer_episodes_are_named(self):
    self._make('run', 43 * [20.], **_SINGLE, total_environment_frames=200 * _M)
    self.assertEqual(self._cell(laser_published.SINGLE_200M)[1], 'scaled down: 43 of 100 episodes')

  def test_a_run_without_episodes_has_no_score(self):
    self._make('run', [], **_SINGLE)
    self.assertEqual(self._cell(laser_published.SINGLE_200M), (None, 'not run'))
    self.assertEqual(self._table()[1][-1], f'{laser_published.SINGLE_200M}: left out: run (no training episodes: an '
                                           'excerpt needs --returns_every)')

  def test_agents_without_episodes_are_left_out_and_named(self):
    self._sweep('sweep', 20., agents=3, **_SHARED)
    self._make('sweep/agent_03', [], learning_rate=1e-3, **_SHARED)
    self.assertEqual(self._cell(laser_published.SHARED_50M)[1], 'scaled down: 3 of 9 agents, 1 of 2 repetitions')
    self.assertEqual(self._table()[1][-1], (
        f'{laser_published.SHARED_50M}: of 3 runs these are shown, the best agent of each sweep: sweep/agent_00; left '
        'out: sweep/agent_03 (no training episodes: an excerpt needs --returns_every)'))

  def test_an_excerpt_without_episodes_at_the_papers_frames_is_left_out_and_named(self):
    self._make('run', 400 * [20.], **_SHARED, total_environment_frames=200 * _M)
    short, long = (f'{name}: this run' for name in (laser_published.SHARED_50M, laser_published.SHARED_200M))
    rows, notes = self._table(returns_every=20 * _M)
    self.assertEqual((rows['pong'][short].value, rows['pong'][long].value), (None, (20., None, 1)))
    self.assertEqual(notes[-1], f'{laser_published.SHARED_50M}: left out: run (an excerpt with '
                                '--returns_every=20000000)')
    self.assertEqual(self._table(returns_every=25 * _M)[0]['pong'][short].value, (20., None, 1))

  @parameterized.parameters(({'total_environment_frames': 50 * _M, 'frames': 50 * _M + 4},),
                            ({'total_environment_frames': 200 * _M, 'frames': 30 * _M},))
  def test_an_excerpt_has_the_episodes_at_its_end(self, others):
    self._make('run', 20., **_SHARED, **others)
    row = self._table(returns_every=20 * _M)[0]['pong']
    self.assertEqual(row[f'{laser_published.SHARED_50M}: this run'].value, (20., None, 1))

  def test_a_run_with_all_episodes_may_be_longer_with_any_number_of_levels(self):
    levels = scores.SUITES['dmlab30'].levels  # 10 billion is not a multiple of their number.
    self._make('run', dict.fromkeys(levels, [1.] * 100), 'dmlab30', _PRESETS['laser_dmlab30'].config,
               _PRESETS['popart_impala_dmlab30'].protocol, total_environment_frames=20_000 * _M, **_SHARED)
    row = self._table('1')[0]['LASER: Shared Experience Replay', 'DMLab-30, 10B frames', 'median (%)']
    self.assertIsNotNone(row['this run'].value)

  def test_the_best_setting_is_shown(self):
    for threshold, best in ((0.1, 3.), (0.2, 7.), (0.4, 5.)):
      self._make(f'{threshold}', best, **_SINGLE, trust_region_threshold=threshold)
    self.assertEqual(self._cell(laser_published.SINGLE_200M)[0], (7., None, 1))
    self.assertIn(f'{laser_published.SINGLE_200M}: of 3 runs these are shown, the best of 3 settings, the best agent '
                  'of each sweep: 0.2', self._table()[1])

  def test_the_best_setting_has_the_most_levels_of_any_repetition(self):
    for level, seeds in (('pong', (1, 2)), ('qbert', (1,))):
      for seed in seeds:
        self._make(f'{level}_{seed}', _mean(level, 0.1), level, **_SINGLE, seed=seed)
    self._make('other', 20., **_SINGLE, trust_region_threshold=0.2)
    self.assertAlmostEqual(self._cell(laser_published.SINGLE_200M)[0][0], _mean('pong', 0.1))

  def test_the_best_setting_has_the_highest_mean_of_its_repetitions(self):
    for threshold, best in ((0.1, (-10., 15.)), (0.2, (10., 12.))):
      for seed, score in enumerate(best):
        self._make(f'{threshold}_{seed}', score, **_SINGLE, trust_region_threshold=threshold, seed=seed)
    self.assertEqual(self._cell(laser_published.SINGLE_200M)[0], (11., 2**0.5, 2))

  def test_a_run_beyond_the_papers_frames_is_a_repetition_of_one_that_ended_there(self):
    self._make('short', 10., **_SINGLE, total_environment_frames=200 * _M, seed=1)
    self._make('long', 20., **_SINGLE, total_environment_frames=400 * _M, seed=2)
    self.assertEqual(self._cell(laser_published.SINGLE_200M)[0], (15., 50**0.5, 2))

  def test_frames_beyond_the_papers_do_not_count(self):
    self._make('long', 400 * [20.], **_SHARED, total_environment_frames=200 * _M)
    self._make('short', 900., 'qbert', **_SHARED, total_environment_frames=200 * _M, frames=10 * _M)
    self.assertEqual(self._table()[0]['median (%)'][f'{laser_published.SHARED_50M}: run'],
                     'scaled down: 2 of 57 levels, 10M to 50M of 50M frames, 1 of 9 agents, 1 of 2 repetitions')

  @parameterized.parameters(
      ({}, _ONE_AGENT),
      ({'learning_rate_decay': True}, f'{_ONE_AGENT}; departs from the paper: learning_rate_decay=True, '
                                      'total_environment_frames=200_000_000'))
  def test_a_longer_run_departs_where_its_learning_rate_depends_on_the_end(self, others, extent):
    self._make('run', 400 * [20.], **_SHARED, total_environment_frames=200 * _M, **others)
    self.assertEqual(self._cell(laser_published.SHARED_50M)[1], extent)

  def test_a_shared_run_of_50_million_frames_has_no_score_at_200_million(self):
    self._make('run', 20., **_SHARED)
    self.assertEqual(self._cell(laser_published.SHARED_200M), (None, 'not run'))

  def test_of_unequal_runs_of_a_level_the_longest_are_shown(self):
    self._make('short', 21., **_SINGLE, total_environment_frames=_M)
    self._make('long', 3., **_SINGLE, total_environment_frames=2 * _M)
    self.assertEqual(self._cell(laser_published.SINGLE_200M), ((3., None, 1), 'scaled down: 2M of 200M frames'))

  def test_a_run_that_was_stopped_early_does_not_count_as_the_longest(self):
    self._make('stopped', 21., **_SINGLE, total_environment_frames=200 * _M, frames=_M)
    self._make('complete', 3., **_SINGLE, total_environment_frames=2 * _M)
    self.assertEqual(self._cell(laser_published.SINGLE_200M), ((3., None, 1), 'scaled down: 2M of 200M frames'))

  def test_ablations_are_left_out_unless_they_are_alone(self):
    self._make('naive', 21., **_SHARED, trust_region_threshold=math.inf)
    self.assertEqual(self._cell(laser_published.SHARED_50M)[0], (21., None, 1))
    self._make('laser', 20., **_SHARED)
    self.assertEqual(self._cell(laser_published.SHARED_50M)[0], (20., None, 1))
    self.assertIn('Ablations, which are not in the table: naive (Naive sharing)', self._table()[1])

  def test_runs_of_other_agents_and_levels_are_named_below(self):
    self._make('catch', 1., 'catch')
    self._make('two', {'pong': [1.], 'qbert': [1.]}, 'pong,qbert')
    run_directories.single_game(self.folder, 'impala', agent='impala')
    for number in laser_tables.NUMBERS:
      self.assertEqual(self._table(number)[1][-1], 'None of these agents (want runs of LASER on single games of '
                                                   'Atari-57, or on dmlab30, or of popart_impala_dmlab30 '
                                                   '--use_pixel_control): catch, impala, two')

  def test_dmlab30_has_training_scores(self):
    levels = scores.SUITES['dmlab30'].levels
    for index, more in enumerate((0., 0.1)):
      self._make(f'agent_{index}', {level: [_mean(level, 0.02 * place + more)] * 100
                                    for place, level in enumerate(levels)}, 'dmlab30', _PRESETS['laser_dmlab30'].config,
                 _PRESETS['popart_impala_dmlab30'].protocol, learning_rate=1e-4 * (index + 1), sweep_index=index,
                 total_environment_frames=10_000 * _M, **_SHARED)
    rows, _ = self._table('1')
    for measure, score in (('median (%)', 39.), ('mean capped (%)', 39.)):
      row = rows['LASER: Shared Experience Replay', 'DMLab-30, 10B frames', measure]
      self.assertAlmostEqual(row['this run'].value.mean, score)
      self.assertEqual(row['run'], 'scaled down: 2 of 10 agents, 1 of 3 repetitions')
    self.assertEqual(self._table('2')[1][-1], 'Not Atari: agent_0, agent_1')

  def test_popart_with_pixel_control_has_training_scores(self):
    levels = scores.SUITES['dmlab30'].levels
    preset = _PRESETS['popart_impala_dmlab30']
    for index, (score, others) in enumerate((
        (0.4, {}), (0.5, {}), (0.9, {'use_pixel_control': False}), (0.9, {'value_normalization': 'none'}))):
      flags = {'use_pixel_control': True, 'population_size': 10, 'learning_rate_decay': False} | others
      self._make(f'population_{index}/member_00', {level: [_mean(level, score)] * 100 for level in levels}, 'dmlab30',
                 preset.config, preset.protocol, agent='popart_impala', total_environment_frames=10_000 * _M, **flags)
    rows, notes = self._table('1')
    row = rows['PopArt-IMPALA+PixelControl (their implementation)', 'DMLab-30, 10B frames', 'mean capped (%)']
    self.assertAlmostEqual(row['this run'].value.mean, 45.)  # Of two populations.
    self.assertEqual(row['run'], 'scaled down: 1 of 10 agents, 2 of 3 repetitions')
    self.assertIn('population_2/member_00, population_3/member_00', notes[-2] + notes[-1])

  def test_every_setting_departs_that_is_not_free(self):
    free = binary_flags.FREE | {'shared_replay', 'trust_region_threshold'}
    shown_otherwise = {'level_name', 'population_size', 'num_learners', 'off_policy_correction'}
    for name, config, protocol, others in (
        (laser_published.SINGLE_200M, _PRESETS['laser_atari57'].config, _PRESETS['laser_atari57'].protocol, _SINGLE),
        (laser_published.SHARED_50M, _PRESETS['laser_atari57'].config, _PRESETS['laser_atari57'].protocol, {}),
        (laser_published.SHARED_DMLAB, _PRESETS['laser_dmlab30'].config, _PRESETS['popart_impala_dmlab30'].protocol,
         {})):
      agent = laser_published.AGENTS[name]
      flags = binary_flags.of(config, protocol, **others, total_environment_frames=agent.frames)
      found = lambda changed: departures.departures(runs_lib.Run('', flags | changed, None, 'laser'), agent)
      self.assertEmpty(found({}))
      not_departing = free | ({'renderer', 'level_cache', 'dataset_path'} if agent.suite == 'dmlab30' else set())
      for setting, other in binary_flags.others(flags, shown_otherwise).items():
        self.assertEqual(found({setting: other}), {} if setting in not_departing else {setting: other}, setting)

  def test_the_sweep_on_atari_is_the_papers(self):
    for rate, entropy in laser_sweep._GRID:
      self.assertIn(rate, departures._LASER_GRID['learning_rate'])
      self.assertIn(entropy, departures._LASER_GRID['entropy_cost'])


if __name__ == '__main__':
  absltest.main()
