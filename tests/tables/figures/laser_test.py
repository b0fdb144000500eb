"""Tests that LASER's figures show the correct numbers, and that they are drawn only for runs with the data."""

import math

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from scalable_agents.environments import scores
from scalable_agents.tables.figures import laser as laser_figures
from scalable_agents.tables.results import laser_published
from scalable_agents.tests.tables import pictures
from scalable_agents.tests.tables import run_directories

_DRAW = (laser_figures.draw_data_efficiency, laser_figures.draw_ablations, laser_figures.draw_rejected)
_SHARED = {'shared_replay': 'here:1'}
_IMPALA = {'agent': 'impala', 'replay_share': 0.}


def _area(axes, number):
  """Returns the lowest and the highest value of the area around a line at its end."""
  vertices = axes.collections[number].get_paths()[0].vertices
  at_end = vertices[vertices[:, 0] == vertices[:, 0].max(), 1]
  return at_end.min(), at_end.max()


class LaserFiguresTest(run_directories.TestCase):

  def _make(self, name, final, level='catch', frames=10_000, **settings):
    """Makes a run whose 200 returns rise from 0 to `final` in steps, or has the returns `final`."""
    returns = final if isinstance(final, (list, dict)) else [final * (number // 4) / 49 for number in range(200)]
    run_directories.laser(self.folder, name, returns, level_name=level, total_environment_frames=frames, **settings)

  def _panels(self, draw):
    return pictures.panels(self, draw, self.read())

  def test_a_line_is_the_mean_over_seeds_from_the_worst_to_the_best(self):
    for seed, final in enumerate((1., 2., 6.)):
      self._make(f'laser_{seed}', final, seed=seed)
    self._make('impala', 2., **_IMPALA)
    axes, = self._panels(laser_figures.draw_data_efficiency)
    lines = pictures.lines(axes)
    self.assertEqual(list(lines), ['LASER, 3 repetitions', 'IMPALA'])
    np.testing.assert_allclose(lines['LASER, 3 repetitions'], 3. * np.arange(50) / 49)
    np.testing.assert_allclose(lines['IMPALA'], 2. * np.arange(50) / 49)
    np.testing.assert_allclose(_area(axes, 0), (1., 6.))
    np.testing.assert_allclose(axes.lines[0].get_xdata(), 200. * np.arange(1, 51))
    self.assertEqual((axes.get_title('left'), axes.get_ylabel()),
                     ('catch; returns averaged over 200 frames', 'training return'))

  def test_a_sweep_has_its_best_agent_at_each_time(self):
    first, second = [5.] * 100 + [1.] * 100, [2.] * 100 + [8.] * 100
    for repetition in (0, 1):
      for index, returns in enumerate((first, second)):
        self._make(f'{repetition}/agent_{index}', [value + repetition for value in returns],
                   learning_rate=1e-4 * (index + 1), **_SHARED)
    axes, = self._panels(laser_figures.draw_data_efficiency)
    (label, line), = pictures.lines(axes).items()
    self.assertEqual(label, 'LASER, best of 2 agents, 2 repetitions')
    np.testing.assert_allclose(line, [5.5] * 25 + [8.5] * 25)

  def test_buckets_have_the_papers_width_in_long_runs(self):
    self._make('run', [1.] * 100 + [3.] * 100, 'pong', 100_000_000)
    axes, = self._panels(laser_figures.draw_data_efficiency)
    self.assertEqual(axes.get_title('left'), 'pong; returns averaged over 1M frames')
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [1.] * 50 + [3.] * 50)
    labels = {label: values[0] for label, values in pictures.lines(axes).items() if "paper's" in label}
    self.assertEqual(labels, {f"{laser_published.SHARED_200M}: 21.0 (the paper's table 2)": 21.,
                              f"{laser_published.RAINBOW}: 20.9 (the paper's table 2)": 20.9})
    self.assertLess(axes.get_ylim()[1], 4.)  # The curve is visible, although it is far below the paper's score.

  def test_on_lab_the_best_agent_is_taken_after_ten_buckets_are_averaged(self):
    # Each of 500 buckets of 10 million frames has two episodes.
    for index, pair in enumerate(([0., 0., 2., 2.], [2., 2., 0., 0.])):
      self._make(f'agent_{index}', 250 * pair, 'rooms_watermaze', 5_000_000_000, learning_rate=1e-4 * (index + 1),
                 **_SHARED)
    axes, = self._panels(laser_figures.draw_data_efficiency)
    self.assertEqual(axes.get_title('left'), 'rooms_watermaze; returns averaged over 100M frames')
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [1.] * 50)

  def test_several_games_have_the_median_score_of_the_best_agent(self):
    shares = {'pong': (0.9, 0.1), 'qbert': (0.2, 0.5), 'breakout': (0.1, 0.4)}
    reference = scores.SUITES['atari57'].scores
    for level, of_agents in shares.items():
      random, human = reference[level]
      for index, share in enumerate(of_agents):
        self._make(f'{level}/agent_{index}', [random + share * (human - random)] * 200, level,
                   learning_rate=3e-4 * (index + 1), **_SHARED)
    axes, = self._panels(laser_figures.draw_data_efficiency)
    lines = pictures.lines(axes)
    np.testing.assert_allclose(lines['LASER, best of 2 agents, 3 levels'], [40.] * 50)
    self.assertEqual(axes.get_ylabel(), 'median human-normalised score (%)')
    paper = laser_published.PAPER.level_scores['atari57'][laser_published.RAINBOW]
    median = scores.summarise({level: paper[level] for level in shares}).median
    np.testing.assert_allclose(
        lines[f"{laser_published.RAINBOW}: {median:,.1f} (the paper's table 2, 3 levels)"][0], median)

  def test_levels_trained_together_have_a_panel_of_their_own(self):
    reference = scores.SUITES['atari57'].scores
    self._make('two', {level: [reference[level].human] * 100 for level in ('pong', 'qbert')}, 'pong,qbert')
    self._make('one', 1., 'pong')
    self._make('tasks', {'catch': [1.] * 100, 'recall': [0.] * 100, 'chain': [0.2] * 100}, 'catch,recall,chain')
    panels = {axes.get_title('left').split(';')[0]: axes for axes in self._panels(laser_figures.draw_data_efficiency)}
    self.assertCountEqual(panels, ['pong', 'pong,qbert: 2 levels', 'catch,recall,chain: 3 levels'])
    np.testing.assert_allclose(pictures.lines(panels['pong,qbert: 2 levels'])['LASER, 2 levels'], [100.] * 50)
    np.testing.assert_allclose(pictures.lines(panels['catch,recall,chain: 3 levels'])['LASER, 3 levels'], [0.4] * 50)
    self.assertEqual(panels['catch,recall,chain: 3 levels'].get_ylabel(), 'mean training return')

  def test_frames_beyond_the_end_of_training_do_not_count(self):
    self._make('run', 1., frames=10_000)
    run_directories.laser(self.folder, 'late', [1.] * 103, level_name='catch', total_environment_frames=10_000,
                          frames=10_300, seed=2)
    axes, = self._panels(laser_figures.draw_data_efficiency)
    self.assertEqual(axes.lines[0].get_xdata()[-1], 10_000)
    self.assertIn('200 frames', axes.get_title('left'))

  def test_an_unfinished_run_ends_the_curve_of_its_sweep(self):
    self._make('a', 1., learning_rate=1e-4)
    run_directories.laser(self.folder, 'b', [0.5] * 100, level_name='catch', total_environment_frames=10_000,
                          frames=5_000, learning_rate=2e-4)
    axes, = self._panels(laser_figures.draw_data_efficiency)
    self.assertLen(pictures.lines(axes)['LASER, best of 2 agents'], 25)

  def test_figure_1_has_sweeps_of_two_lengths_and_one_without_a_replay(self):
    for name, frames, settings in (('shared/a', 5_000, _SHARED), ('shared_long/a', 20_000, _SHARED),
                                   ('none/a', 20_000, {'replay_share': 0.}),
                                   ('naive/a', 20_000, _SHARED | {'trust_region_threshold': math.inf})):
      self._make(name, 1., frames=frames, **settings)
    axes, = self._panels(laser_figures.draw_data_efficiency)
    ends = {line.get_label(): line.get_xdata()[-1] for line in axes.lines}
    self.assertEqual(ends, {'LASER, total_environment_frames=5_000': 4_800., 'No replay': 20_000.,
                            'LASER, total_environment_frames=20_000': 20_000.})

  def test_ablations_are_only_in_the_figure_of_variants(self):
    for number, flags in enumerate(({}, {'learn_online': False}, {'trust_region_threshold': math.inf}, _IMPALA)):
      self._make(f'run_{number}', float(number), **flags)
    for draw, expected in (
        (laser_figures.draw_data_efficiency, {'LASER': 0., 'IMPALA': 3.}),
        (laser_figures.draw_ablations, {'LASER': 0., 'No trust region': 2., 'Pure replay': 1., 'IMPALA': 3.})):
      axes, = self._panels(draw)
      self.assertEqual(pictures.ends(axes), expected)

  def test_variants_of_one_level_only_are_compared(self):
    self._make('a', 1.)
    self._make('b', 1., 'recall')
    self._make('c', 1., 'recall', learn_online=False)
    panels = self._panels(laser_figures.draw_ablations)
    self.assertEqual([axes.get_title('left').split(';')[0] for axes in panels], ['recall'])

  def test_the_rejected_share_has_a_line_per_variant_and_a_panel_for_new_and_replayed_steps(self):
    for name, online, replayed, flags in (
        ('a', [0.1, 0.2], [0.4, 0.8], {}), ('b', [0.3, 0.4], [0.2, 0.4], {'seed': 2}),
        ('c', [0., 0.], [0., 0.05], {'trust_region_threshold': 0.5})):
      self._make(name, 1., curves={'catch': [0., 1.]},
                 more={'rejected/online': online, 'rejected/replayed': replayed}, **flags)
    self._make('none', 1., learn_online=False, curves={'catch': [0., 1.]})
    left, right = self._panels(laser_figures.draw_rejected)
    self.assertEqual([axes.get_title('left') for axes in (left, right)], ['catch: new steps', 'catch: replayed steps'])
    for axes, ends in ((left, (0.3, 0.)), (right, (0.6, 0.05))):
      lines = pictures.lines(axes)
      self.assertEqual(list(lines), ['LASER, b = 0.1, 2 runs', 'LASER, b = 0.5'])
      np.testing.assert_allclose([values[-1] for values in lines.values()], ends)

  @parameterized.parameters(*_DRAW)
  def test_without_data_nothing_is_drawn(self, draw):
    run_directories.laser(self.folder, 'no_episodes')
    self._make('impala', 1., **_IMPALA)
    self.assertIsNone(draw([run for run in self.read() if run.agent == 'laser']))
    self.assertIsNone(draw([run for run in self.read() if run.agent == 'impala']))
    self.assertIsNone(draw([]))


if __name__ == '__main__':
  absltest.main()
