"""Tests which runs are averaged and which are chosen, and how their extent is described."""

import os
import statistics

from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents.environments import atari57
from scalable_agents.environments import dmlab30
from scalable_agents.environments import scores
from scalable_agents.tables.results import published
from scalable_agents.tables.results import results
from scalable_agents.tables.results import runs as runs_lib
from scalable_agents.tests.tables import run_directories

_EXPERTS = published.AGENTS['IMPALA, deep, experts']
_MULTI_TASK = published.AGENTS['IMPALA, deep, multi-task']
_PAPER = published.LEVEL_SCORES['atari57']['IMPALA, deep, experts']


class ResultsTest(run_directories.TestCase):

  def setUp(self):
    super().setUp()
    self.names = iter(range(1000))

  def _expert(self, mean, **settings):
    return run_directories.single_game(self.folder, f'run_{next(self.names):03d}', mean, **settings)

  def _multi_task(self, factor=1., levels=atari57.LEVELS, population=None, others=(), **settings):
    """Makes a member of a population. Without `population`, it has a population of its own.

    Args:
      factor: the mean returns, in those of the paper.
      levels, population: the levels that it has played, and the folder of its population.
      others: level -> another mean return.
      **settings: see run_directories.make.
    Returns:
      The path.
    """
    settings = {'total_environment_frames': 11_400_000_000, 'population_size': 24, 'episodes': 200} | settings
    means = {level: factor * _PAPER[level] for level in levels} | dict(others)
    number = next(self.names)
    folder = os.path.join(self.folder, population or f'population_{number:03d}')
    return run_directories.make(folder, f'member_{number:02d}', means, level_name='atari57', use_lstm=False, **settings)

  def _result(self, agent):
    runs = self.read(True)
    for run in runs:
      self.assertEqual(runs_lib.agent_of(run, [agent]), agent)
    return results.Result(agent, runs)

  def test_without_runs(self):
    result = results.Result(_EXPERTS, [])
    self.assertEqual(result.level('pong'), results.Cell(None, 'not run'))
    self.assertEqual(result.summary('median'), results.Cell(None, 'not run'))

  def test_seeds_are_averaged(self):
    for seed, mean in ((1, 18.0), (2, 20.0), (3, 19.0)):
      self._expert(mean, seed=seed)
    self.assertEqual(self._result(_EXPERTS).level('pong'), results.Cell(results.Score(19.0, 1.0, 3), 'in full'))

  def test_how_many_runs_depart_from_the_paper_is_said(self):
    for seed, actions in ((1, 'sampled'), (2, 'greedy'), (3, 'greedy')):
      self._expert(18.0, seed=seed, protocol={'actions': actions})
    self.assertEqual(self._result(_EXPERTS).level('pong').extent,
                     'departs from the paper: test_policy=greedy in 2 of 3 runs')

  def test_a_single_seed_has_no_spread(self):
    self._expert(18.0)
    self.assertEqual(self._result(_EXPERTS).level('pong').score, results.Score(18.0, None, 1))

  @parameterized.parameters(
      ({}, 'in full'),
      ({'frames': 8_000_000}, 'scaled down: 8M of 200M frames'),
      ({'frames': 199_999_999}, 'scaled down: 199M of 200M frames'),
      ({'frames': 300_000_000}, 'in full'),
      ({'episodes': 10}, 'scaled down: 10 of 200 episodes'),
      ({'episodes': 10, 'frames': 123_456}, 'scaled down: 123K of 200M frames, 10 of 200 episodes'),
      ({'protocol': {'atari': {'sticky_actions': 0.25, 'noop_max': 0}}},
       'departs from the paper: noop_max=0, sticky_actions=0.25'),
      ({'protocol': {'atari': {'full_action_set': False, 'sticky_actions': 0.0}}}, 'in full'),
      ({'protocol': {'atari': {'episode_end_on_life_loss': False}}}, 'in full'),  # It is only for training.
      ({'protocol': {'atari': {'episode_end_on_life_loss': True}}},
       'departs from the paper: episode_end_on_life_loss=True'),
      ({'protocol': {'atari': None, 'dmlab': None, 'actions': 'sampled'}}, 'in full'),
      ({'protocol': {'actions': 'epsilon 0.001'}}, 'departs from the paper: test_policy=epsilon 0.001'),
      ({'optimizer': 'adam', 'discount': 0.9, 'unroll_length': 5, 'clip_gradient_norm': 0., 'batch_size': 32},
       'departs from the paper: optimizer=adam, discount=0.9, unroll_length=5, clip_gradient_norm=0'))
  def test_what_is_less_or_other_than_in_the_paper_is_said(self, settings, extent):
    self._expert(18.0, **settings)
    self.assertEqual(self._result(_EXPERTS).level('pong').extent, extent)

  @parameterized.parameters((True, 'in full'), (False, 'departs from the paper: full_action_set=False'))
  def test_all_games_at_once_are_played_with_all_actions(self, full_action_set, extent):
    self._multi_task(protocol={'atari': {'full_action_set': full_action_set}})
    self.assertEqual(self._result(_MULTI_TASK).level('pong').extent, extent)

  def test_seeds_may_have_run_in_different_places(self):
    for seed in (1, 2):
      self._expert(18.0 + seed, seed=seed, job_name='learner', learner_addresses=f'host-{seed}:4500', task=0,
                   parameter_refresh=str(seed))
    result = self._result(_EXPERTS)
    self.assertEqual(result.num_settings, 1)
    self.assertEqual(result.level('pong').score.seeds, 2)

  def test_of_a_population_the_best_member_is_shown(self):
    for index, factor in enumerate((0.5, 1.0, 0.8)):
      self._multi_task(factor, population='population', seed=index + 1, sweep_index=index,
                       learning_rate=1e-3 * (index + 1))
    result = self._result(_MULTI_TASK)
    self.assertEqual(result.num_settings, 1)
    self.assertEqual([run.flags['sweep_index'] for run in result.runs], [1])
    cell = result.level('pong')
    self.assertEqual((cell.score, cell.extent), (results.Score(_PAPER['pong']), 'in full'))

  def test_populations_are_repetitions_whichever_their_best_members_are(self):
    for population, factors in (('population_a', (0.5, 1.0)), ('population_b', (0.6, 0.1))):
      for index, factor in enumerate(factors):
        self._multi_task(factor, population=population, seed=index + 1, sweep_index=index,
                         learning_rate=1e-3 / (index + 1))
    score = self._result(_MULTI_TASK).level('breakout').score
    self.assertEqual(score.seeds, 2)
    self.assertAlmostEqual(score.mean, 0.8 * _PAPER['breakout'])

  @parameterized.parameters(
      ({'action_set': 'popart', 'renderer': 'hardware', 'level_cache': '/maps'},
       'scaled down: 1 of 24 hyper-parameters; departs from the paper: action_set=popart'),
      ({'dataset_path': 'dummy'},
       'scaled down: 1 of 24 hyper-parameters; departs from the paper: dataset_path=dummy'),
      ({'dataset_path': '/images'}, 'scaled down: 1 of 24 hyper-parameters'))
  def test_another_protocol_of_lab_is_said(self, protocol, extent):
    agent = published.AGENTS['IMPALA, deep']
    run_directories.make(self.folder, f'run_{next(self.names)}', dict.fromkeys(dmlab30.TEST_LEVELS, 1.),
                         protocol={'dmlab': protocol})
    self.assertEqual(self._result(agent).level('rooms_watermaze').extent, extent)

  def test_the_best_of_a_whole_sweep_is_in_full(self):
    agent = published.AGENTS['IMPALA, deep']
    for index in range(24):
      for seed in (1, 2):
        means = dict.fromkeys(dmlab30.TEST_LEVELS, float(index == 7))
        run_directories.make(self.folder, f'run_{index:03d}_{seed}', means, seed=seed, sweep_index=index,
                             learning_rate=1e-4 * (index + 1))
      if index == 22:
        self.assertEqual(self._result(agent).level('rooms_watermaze').extent, 'scaled down: 23 of 24 hyper-parameters')
    # These are not of the sweep.
    run_directories.make(self.folder, 'run_other', dict.fromkeys(dmlab30.TEST_LEVELS, 2.), discount=0.9)
    result = self._result(agent)
    self.assertEqual({run.flags['sweep_index'] for run in result.runs}, {7})
    self.assertEqual(result.summary('mean_capped').extent, 'in full')
    self.assertEqual(result.level('rooms_watermaze'), results.Cell(results.Score(1., 0., 2), 'in full'))

  def test_a_single_sample_goes_before_a_better_one_with_other_settings(self):
    agent = published.AGENTS['IMPALA, deep']
    for index, (value, settings) in enumerate(((1., {}), (2., {'discount': 0.9}))):
      run_directories.make(self.folder, f'run_{index}', dict.fromkeys(dmlab30.TEST_LEVELS, value), **settings)
    self.assertEqual(self._result(agent).level('rooms_watermaze').score.mean, 1.)

  def test_regression_a_sweep_counts_for_the_levels_that_it_played(self):
    agent = published.AGENTS['IMPALA-Experts, deep']
    levels = list(zip(dmlab30.LEVELS, dmlab30.TEST_LEVELS, strict=True))
    for level, test_level in levels:
      for index in range(24 if level == 'rooms_watermaze' else 1):
        run_directories.make(self.folder, f'{level}_{index}', {test_level: float(index == 0)}, level_name=level,
                             total_environment_frames=agent.frames, sweep_index=index,
                             learning_rate=1e-4 * (index + 1))
    result = self._result(agent)
    self.assertEqual(result.level('rooms_watermaze').extent, 'in full')
    self.assertEqual(result.level('rooms_keys_doors_puzzle').extent, 'scaled down: 1 of 24 hyper-parameters')
    self.assertEqual(result.summary('mean_capped').extent, 'scaled down: 1 of 24 hyper-parameters')

  def test_what_is_less_and_what_is_other_are_both_said(self):
    self._expert(18.0, discount=0.9, frames=8_000_000)
    self.assertEqual(self._result(_EXPERTS).level('pong').extent,
                     'scaled down: 8M of 200M frames; departs from the paper: discount=0.9')
    self.assertEqual(self._result(_EXPERTS).summary('mean').extent,
                     'scaled down: 1 of 57 levels, 8M of 200M frames; departs from the paper: discount=0.9')

  def test_seeds_may_be_of_different_versions(self):
    self._expert(18.0, seed=1)
    self._expert(20.0, seed=2, vtrace_lambda=1.0, synchronous=False)
    result = self._result(_EXPERTS)
    self.assertEqual(result.num_settings, 1)
    self.assertEqual(result.level('pong'), results.Cell(results.Score(19.0, 2**0.5, 2), 'in full'))

  def test_learners_in_one_process_or_in_several_are_one_setting(self):
    for seed, settings in enumerate(({'num_learners': 8}, {'learner_addresses': 'a:1,b:1', 'num_learners': 4}, {})):
      means = dict.fromkeys(dmlab30.TEST_LEVELS, 1.)
      run_directories.make(self.folder, f'run_{next(self.names)}', means, seed=seed, **settings)
    self.assertEqual(self._result(published.AGENTS['IMPALA, deep, PBT, 8 learners']).num_settings, 2)

  def test_regression_different_numbers_of_frames_do_not_look_equal(self):
    agent = published.AGENTS['IMPALA-Experts, deep']
    run_directories.make(self.folder, 'run', {'rooms_watermaze': 1.}, level_name='rooms_watermaze',
                         total_environment_frames=agent.frames, frames=agent.frames - 200_000)
    self.assertIn('333_133_333 of 333_333_333 frames', self._result(agent).level('rooms_watermaze').extent)

  @parameterized.parameters((12_500_000, '12.5M'), (200_000_000, '200M'))
  def test_seeds_that_got_differently_far_are_given_as_a_range(self, frames, shown):
    self._expert(18.0, frames=8_000_000, seed=1)
    self._expert(19.0, frames=frames, seed=2)
    self.assertEqual(self._result(_EXPERTS).level('pong').extent, f'scaled down: 8M to {shown} of 200M frames')

  def test_experts_sum_up_only_once_every_level_is_there(self):
    for level in atari57.LEVELS[:-1]:
      self._expert(_PAPER[level], level_name=level)
    self.assertEqual(self._result(_EXPERTS).summary('median'), results.Cell(None, 'scaled down: 56 of 57 levels'))
    self._expert(_PAPER[atari57.LEVELS[-1]], level_name=atari57.LEVELS[-1])
    cell = self._result(_EXPERTS).summary('median')
    self.assertEqual(cell, results.Cell(results.Score(scores.summarise(_PAPER).median), 'in full'))

  def test_experts_of_each_seed_are_summed_up_for_themselves(self):
    for seed, factor in ((1, 1.0), (2, 0.5)):
      for level in atari57.LEVELS:
        self._expert(factor * _PAPER[level], level_name=level, seed=seed)
    self._expert(0.0, level_name='pong', seed=3)  # It counts for its level, but is not a whole suite.
    result = self._result(_EXPERTS)
    half = {level: 0.5 * mean for level, mean in _PAPER.items()}
    medians = [scores.summarise(_PAPER).median, scores.summarise(half).median]
    score = result.summary('median').score
    self.assertEqual(score.seeds, 2)
    self.assertAlmostEqual(score.mean, statistics.fmean(medians))
    self.assertAlmostEqual(score.spread, statistics.stdev(medians))
    self.assertAlmostEqual(result.level('pong').score.mean, _PAPER['pong'] / 2)
    self.assertEqual(result.level('pong').score.seeds, 3)

  def test_regression_a_suite_has_as_many_seeds_as_are_complete(self):
    agent = _EXPERTS._replace(seeds=3)
    for level in atari57.LEVELS:
      for seed in (1, 2, 4 if level == 'pong' else 3):
        self._expert(_PAPER[level], level_name=level, seed=seed)
    result = self._result(agent)
    self.assertEqual(result.level('pong').extent, 'in full')
    cell = result.summary('median')
    self.assertEqual((cell.score.seeds, cell.extent), (2, 'scaled down: 2 of 3 seeds'))

  def test_an_evaluation_that_is_not_finished_does_not_sum_up(self):
    self._multi_task(levels=atari57.LEVELS[:10])
    self.assertEqual(self._result(_MULTI_TASK).summary('median'), results.Cell(None, 'scaled down: 10 of 57 levels'))

  def test_levels_of_different_seeds_do_not_sum_up(self):
    for seed, level in enumerate(atari57.LEVELS, start=1):
      self._expert(_PAPER[level], level_name=level, seed=seed)
    self.assertEqual(self._result(_EXPERTS).summary('median'), results.Cell(None, 'no seed has all levels'))

  def test_runs_of_one_seed_are_repetitions_too(self):
    self._multi_task(1.0)
    self._multi_task(0.9)
    self.assertEqual(self._result(_MULTI_TASK).summary('median').score.seeds, 2)

  def test_of_several_settings_the_best_is_shown(self):
    for seed, factor in ((1, 0.9), (2, 0.8)):
      self._multi_task(factor, discount=0.9, seed=seed)
    for seed, factor in ((1, 0.1), (2, 1.0)):
      self._multi_task(factor, discount=0.8, seed=seed)
    result = self._result(_MULTI_TASK)
    self.assertEqual(result.num_settings, 2)
    self.assertLen(result.runs, 2)
    self.assertAlmostEqual(result.level('breakout').score.mean, 0.85 * _PAPER['breakout'])

  def test_the_best_setting_has_the_highest_median_not_the_highest_mean(self):
    self._multi_task(1.0, others={'pong': 1e6}, discount=0.9)
    self._multi_task(2.0, discount=0.8)
    result = self._result(_MULTI_TASK)
    self.assertEqual(result.num_settings, 2)
    self.assertAlmostEqual(result.level('breakout').score.mean, 2 * _PAPER['breakout'])

  def test_the_papers_settings_go_before_other_settings_in_full(self):
    self._multi_task(0.9, optimizer='adam')
    self._multi_task(0.5, total_environment_frames=10_000_000)
    cell = self._result(_MULTI_TASK).level('breakout')
    self.assertAlmostEqual(cell.score.mean, 0.5 * _PAPER['breakout'])
    self.assertEqual(cell.extent, 'scaled down: 10M of 11.4B frames')

  @parameterized.named_parameters(
      ('is_scaled_down', {'total_environment_frames': 10_000_000}), ('has_other_settings', {'optimizer': 'adam'}),
      ('has_fewer_levels', {'levels': atari57.LEVELS[:56], 'discount': 0.9}))
  def test_a_run_as_in_the_paper_goes_before_a_better_one_that(self, others):
    self._multi_task(0.5)
    self._multi_task(0.9, **others)
    self.assertAlmostEqual(self._result(_MULTI_TASK).level('breakout').score.mean, 0.5 * _PAPER['breakout'])

  def test_of_an_experts_level_the_longest_runs_are_shown(self):
    self._expert(20.0, total_environment_frames=8_000_000)
    self._expert(15.0, total_environment_frames=50_000_000)
    self._expert(300.0, level_name='breakout', total_environment_frames=8_000_000)
    result = self._result(_EXPERTS)
    self.assertEqual(result.num_settings, 1)
    self.assertEqual(result.level('pong'), results.Cell(results.Score(15.0), 'scaled down: 50M of 200M frames'))
    self.assertEqual(result.level('breakout').extent, 'scaled down: 8M of 200M frames')
    self.assertEqual(result.summary('mean').extent, 'scaled down: 2 of 57 levels, 8M to 50M of 200M frames')

  def test_a_run_that_was_stopped_early_does_not_count_as_the_longest(self):
    self._expert(-20.0, frames=1_000_000)
    self._expert(20.0, total_environment_frames=100_000_000)
    result = self._result(_EXPERTS)
    self.assertEqual(result.level('pong'), results.Cell(results.Score(20.0), 'scaled down: 100M of 200M frames'))
    self.assertEndsWith(result.note, 'the longest of each level: ' + os.path.join(self.folder, 'run_001'))
    self._expert(18.0, frames=150_000_000, seed=2)  # With the first run, which has the same wanted frames.
    self.assertEqual(self._result(_EXPERTS).level('pong').extent, 'scaled down: 1M to 150M of 200M frames')

  @parameterized.parameters(400_000_000, 201_000_000)
  def test_regression_a_run_of_more_frames_than_the_papers_does_not_hide_the_one_in_full(self, frames):
    self._expert(20.0)
    self._expert(15.0, total_environment_frames=400_000_000, frames=frames)
    self.assertEqual(self._result(_EXPERTS).level('pong'), results.Cell(results.Score(20.0), 'in full'))

  def test_a_run_of_more_frames_than_the_papers_goes_before_a_shorter_one(self):
    self._expert(20.0, total_environment_frames=100_000_000)
    self._expert(15.0, total_environment_frames=400_000_000, frames=300_000_000)
    self.assertEqual(self._result(_EXPERTS).level('pong'), results.Cell(
        results.Score(15.0), 'departs from the paper: total_environment_frames=400_000_000'))

  def test_of_runs_that_got_equally_far_those_that_will_go_further_are_shown(self):
    self._expert(15.0, total_environment_frames=100_000_000, frames=50_000_000)
    self._expert(20.0, total_environment_frames=50_000_000)
    self.assertEqual(self._result(_EXPERTS).level('pong'),
                     results.Cell(results.Score(15.0), 'scaled down: 50M of 200M frames'))

  def test_plain_colours_and_the_number_of_learners_make_settings(self):
    paths = ('/images', '/other/images', '', 'dummy')
    for number, path in enumerate(paths):
      self._expert(18.0, seed=number, dataset_path=path)
    self._expert(18.0, learner_addresses='a:1,b:1', task=0)
    *one, dummy, two = (results.settings_of(run, expert=True) for run in self.read(True))
    self.assertEqual([each == one[0] for each in one], [True] * 3)
    self.assertEqual({name for name in dummy if dummy[name] != one[0][name]}, {'dataset_path'})
    self.assertEqual({name for name in two if two[name] != one[0].get(name)}, {'num_learners'})

  def test_where_and_how_fast_a_run_was_does_not_make_a_setting(self):
    self._expert(18.0, seed=1, num_environments=4, xla='auto')
    self._expert(20.0, seed=2, num_environments=32, xla='never')
    self.assertEqual(self._result(_EXPERTS).num_settings, 1)

  @parameterized.parameters((0, '0'), (999, '999'), (1000, '1K'), (1999, '1.99K'), (12_567_000, '12.5M'),
                            (8_000_000, '8M'), (333_333_333, '333M'), (11_400_000_000, '11.4B'))
  def test_frames_are_short(self, frames, text):
    self.assertEqual(results.short(frames), text)

  @parameterized.parameters((999, '999'), (1000, '1K'), (1999, '1.999K'), (100_500_000, '100.5M'), (10**7, '10M'),
                            (333_333_333, '333.333333M'), (2 * 10**9, '2B'), (100_100_000_001, '100.100000001B'))
  def test_frames_are_exact(self, frames, text):
    self.assertEqual(results.exact(frames), text)


if __name__ == '__main__':
  absltest.main()
