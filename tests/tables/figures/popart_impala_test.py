"""Tests that the figures of PopArt-IMPALA show the correct numbers."""

import os
import shutil

from absl.testing import absltest
import numpy as np

from scalable_agents.environments import scores
from scalable_agents.population import population_directory
from scalable_agents.tables.figures import popart_impala as popart_figures
from scalable_agents.tests.tables import pictures
from scalable_agents.tests.tables import run_directories

_GAMES = 'pong,breakout'


class PopArtFiguresTest(run_directories.TestCase):

  def _make(self, name, medians, mean=(1., 2.), pong=(-20., 10.), frames=1000, **flags):
    """Makes a run of PopArt on two games, with two rows."""
    run_directories.make(
        self.folder, name, frames=frames, curves={'pong': pong, 'breakout': [None, 20.]},
        more={'suite_score/median': medians, 'popart/mean/pong': mean, 'popart/scale/pong': [0.5, 0.25],
              'popart/mean/breakout': [0., 1.], 'popart/scale/breakout': [1., 1.]},
        **{'binary': 'popart_impala_atari57', 'level_name': _GAMES, 'value_normalization': 'popart'} | flags)

  def _agents(self):
    return popart_figures.by_agent(self.read())

  def test_scores_have_a_line_per_agent_from_worst_to_best(self):
    self._make('popart_1', [10., 30.])
    self._make('popart_2', [20., 50.])
    self._make('multi_head', [None, 20.], value_normalization='none')
    axes, = pictures.panels(self, popart_figures.draw_scores, self._agents())
    lines = {line.get_label(): line.get_ydata() for line in axes.lines}
    self.assertEqual(set(lines), {'MultiHead-IMPALA', 'PopArt-IMPALA, 2 runs',
                                  'as good as MultiHead-IMPALA at 600 frames, 1/1.7 of its frames'})
    np.testing.assert_allclose(lines['PopArt-IMPALA, 2 runs'][[0, -1]], [15., 40.])
    np.testing.assert_allclose(lines['MultiHead-IMPALA'], np.full(300, 20.))
    area = axes.collections[1].get_paths()[0].vertices
    self.assertEqual((area[:, 1].min(), area[:, 1].max()), (10., 50.))
    self.assertEqual(axes.get_ylabel(), 'median human-normalised score (%)')

  def test_an_agent_that_ended_earlier_says_no_share_of_its_frames(self):
    self._make('popart', [10., 30.])
    self._make('multi_head', [5., 20.], frames=400, value_normalization='none')
    axes, = pictures.panels(self, popart_figures.draw_scores, self._agents())
    meeting = axes.lines[-1]
    self.assertGreater(meeting.get_xdata()[0], 400)
    self.assertRegex(meeting.get_label(), r'^as good as MultiHead-IMPALA at \d+ frames$')

  def test_statistics(self):
    self._make('run', [1., 2.])
    panels = pictures.panels(self, popart_figures.draw_statistics, self.read()[0])
    self.assertEqual([axes.get_title('left') for axes in panels], ['breakout', 'pong', '', ''])
    lines = [[*axes.lines[0].get_ydata()] for axes in panels]
    self.assertEqual(lines, [[0., 1.], [1., 2.], [20.], [-20., 10.]])  # Above: mu. Below: returns.

  def test_runs_with_the_same_name_have_a_figure_each(self):
    for number, name in enumerate(('x/a/run', 'y/a/run', 'z/a_run')):
      self._make(name, [1., 2. + number])
    names = [name for name in popart_figures.pictures(self.read()) if name.startswith('popart_statistics')]
    self.assertEqual(names, ['popart_statistics_a_run', 'popart_statistics_a_run_2', 'popart_statistics_a_run_3'])

  def test_statistics_of_other_levels(self):
    run_directories.make(self.folder, 'run', frames=1000, curves={'catch': [-1., 0.]}, binary='popart_impala_atari57',
                         more={'popart/mean/catch': [3., 5.], 'popart/scale/catch': [0.5, 0.25]},
                         level_name='catch', value_normalization='popart')
    upper, lower = pictures.panels(self, popart_figures.draw_statistics, self.read()[0])
    np.testing.assert_allclose(upper.lines[0].get_ydata(), [3., 5.])
    area = upper.collections[0].get_paths()[0].vertices
    self.assertEqual((area[:, 1].min(), area[:, 1].max()), (2.5, 5.25))
    np.testing.assert_allclose(lower.lines[0].get_ydata(), [-1., 0.])

  def test_levels_have_a_bar_per_agent(self):
    self._make('popart', [1., 2.])
    self._make('multi_head', [1., 2.], pong=(-21., -15.), value_normalization='none')
    axes, = pictures.panels(self, popart_figures.draw_levels, self._agents())
    levels = [label.get_text() for label in axes.get_yticklabels()]
    self.assertEqual(levels, ['pong', 'breakout'])
    self.assertLen(axes.containers, 2)
    for bars in axes.containers:
      returns = {'breakout': 20., 'pong': -15. if bars.get_label() == 'MultiHead-IMPALA' else 10.}
      for bar in bars:
        level = levels[round(bar.get_y() + bar.get_height() / 2)]
        self.assertAlmostEqual(bar.get_width(), scores.human_normalised(level, returns[level]))

  def test_whole_suites_have_the_papers_scores(self):
    self._make('run', [10., 30.], level_name='atari57', reward_transform='none')
    axes, = pictures.panels(self, popart_figures.draw_scores, self._agents())
    lines = {line.get_label(): line.get_ydata()[0] for line in axes.lines[1:]}
    self.assertEqual(lines, {'IMPALA: the paper, random starts: median': 0.3,
                             'PopArt-IMPALA: the paper, random starts: median': 107.0})

  def test_dmlab_has_mean_capped_scores(self):
    run_directories.make(self.folder, 'run', binary='popart_impala_dmlab30', value_normalization='popart',
                         frames=1000, curves={'rooms_watermaze': [1., 2.]},
                         more={'suite_score/mean_capped': [5., 6.]}, action_set='popart')
    axes, = pictures.panels(self, popart_figures.draw_scores, self._agents())
    self.assertEqual(axes.get_ylabel(), 'mean capped human-normalised score (%)')
    lines = pictures.ends(axes)
    self.assertEqual(lines, {'PopArt-IMPALA': 6., 'IMPALA: the paper, train: mean capped': 60.6,
                             'PopArt-IMPALA: the paper, train: mean capped': 73.5})

  def test_of_a_population_the_fittest_member_is_drawn(self):
    for index, fitness in enumerate((10., 30., 20.)):
      name = f'population/member_0{index}'
      self._make(name, [fitness, 2 * fitness], population_size=3)
      population_directory.write_fitness(os.path.join(self.folder, name),
                                         population_directory.Fitness(1000, fitness, {'learning_rate': 6e-4}))
    axes, = pictures.panels(self, popart_figures.draw_scores, self._agents())
    self.assertEqual([(line.get_label(), line.get_ydata()[-1]) for line in axes.lines], [('PopArt-IMPALA', 60.)])

  def test_runs_that_cannot_be_compared(self):
    self._make('one', [1., 2.], reward_transform='none')
    self._make('seed', [1., 2.], reward_transform='none', seed=2)
    self._agents()
    self._make('clipped', [1., 2.], reward_transform='abs_one')
    with self.assertRaisesRegex(ValueError, r'different values of --reward_transform \(abs_one, none\): want runs of'):
      self._agents()
    shutil.rmtree(os.path.join(self.folder, 'clipped'))
    self._make('other', [1., 2.], reward_transform='none', popart_decay=0.1)
    with self.assertRaisesRegex(ValueError, 'the runs of PopArt-IMPALA have different values of --popart_decay'):
      self._agents()

  def test_nothing_to_draw(self):
    run_directories.make(self.folder, 'run', binary='popart_impala_atari57', level_name='catch')
    runs = self.read()
    self.assertIsNone(popart_figures.draw_scores(self._agents()))
    self.assertIsNone(popart_figures.draw_statistics(runs[0]))
    self.assertIsNone(popart_figures.draw_levels(self._agents()))


if __name__ == '__main__':
  absltest.main()
