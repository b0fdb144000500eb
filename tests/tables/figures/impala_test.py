"""Tests that the figures show the correct numbers in every bar, line and point."""

import os

from absl.testing import absltest
import numpy as np

from scalable_agents.environments import dmlab30
from scalable_agents.population import population_directory
from scalable_agents.records import run_directory
from scalable_agents.tables.figures import drawing
from scalable_agents.tables.figures import impala as impala_figures
from scalable_agents.tables.papers import paper_tables
from scalable_agents.tables.papers import sweep
from scalable_agents.tables.results import published
from scalable_agents.tests.tables import pictures
from scalable_agents.tests.tables import run_directories

_PBT = published.LEVEL_SCORES['dmlab30']['IMPALA, deep, PBT']


class FiguresTest(run_directories.TestCase):

  def _gathered(self, number, pattern='*'):
    return paper_tables.gather(paper_tables.TABLES[number], self.read(True, pattern))[0]

  def _title(self, axes):
    """Returns the title of the picture, which may be the title of its legend."""
    return axes.figure.get_suptitle() + ''.join(legend.get_title().get_text() for legend in axes.figure.legends)

  def test_bars_without_runs_are_the_papers(self):
    for suite, number, panels, levels, title in (
        ('dmlab30', 'B.1', 2, 30, "the paper's test scores (table B.1)"),
        ('atari57', 'C.1', 3, 57, "evaluation scores and the paper's scores (table C.1)")):
      drawn = pictures.panels(self, impala_figures.draw_bars, suite, self._gathered(number))
      self.assertLen(drawn, panels)
      self.assertIn(title, self._title(drawn[0]))
      for axes in drawn:
        self.assertLen(axes.patches, levels)
        self.assertEqual([text.get_text() for text in axes.texts], ['not run'])

  def test_bars_are_human_normalised_and_at_their_level(self):
    for seed in (1, 2):
      run_directories.make(self.folder, str(seed), {level: mean * seed for level, mean in _PBT.items()}, seed=seed)
    first, axes = pictures.panels(self, impala_figures.draw_bars, 'dmlab30', self._gathered('B.1'))
    labels = {label.get_text(): position for position, label in zip(first.get_yticks(), first.get_yticklabels())}
    bars = {round(bar.get_y() + bar.get_height() / 2, 3): bar.get_width() for bar in axes.patches}
    self.assertLen(bars, 60)
    random, human = dmlab30.SCORES['rooms_watermaze']
    position = labels['rooms_watermaze']
    self.assertAlmostEqual(bars[round(position + 0.2, 3)], 100 * (31.1 - random) / (human - random))
    self.assertAlmostEqual(bars[round(position - 0.2, 3)], 100 * (1.5 * 31.1 - random) / (human - random))
    self.assertEqual([text.get_text() for text in axes.texts], ['scaled down: 1 of 24 members'])
    spread, = [bars.errorbar for bars in axes.containers if getattr(bars, 'errorbar', None)]
    low, high = spread.lines[2][0].get_segments()[int(position)][:, 0]  # Of the seeds' scores 31.1 and 62.2.
    self.assertAlmostEqual((high - low) / 2, 100 * (31.1 * 0.5**0.5) / (human - random))

  def test_learning_curves_have_the_papers_score_of_the_level_for_testing(self):
    for seed in (1, 2):
      run_directories.make(self.folder, f'population_{seed}/member_00', _PBT, population_size=24, seed=seed,
                           curves={level: [None, 1.0, 2.0, 4.0] for level in dmlab30.LEVELS[:3]})
    panels = pictures.panels(self, impala_figures.draw_learning_curves, 'dmlab30',
                             self._gathered('3', 'population_*/member_*'))
    self.assertEqual([axes.get_title(loc='left') for axes in panels], list(dmlab30.LEVELS[:3]))
    self.assertStartsWith(self._title(panels[0]), 'Training returns')
    for axes, level in zip(panels, dmlab30.TEST_LEVELS):
      first, second, paper = axes.lines
      np.testing.assert_allclose(first.get_xydata(), [[5e9 / 30, 1], [7.5e9 / 30, 2], [1e10 / 30, 4]])  # Per level.
      np.testing.assert_array_equal(second.get_ydata(), first.get_ydata())
      self.assertEqual(set(paper.get_ydata()), {_PBT[level]})

  def test_a_members_curve_is_that_of_its_ancestors(self):
    level = dmlab30.LEVELS[0]
    logdirs = [run_directories.make(self.folder, f'population/member_0{index}', _PBT, population_size=24, frames=400,
                                    curves={level: curve})
               for index, curve in enumerate(([1., 2., 30., 40.], [10., 20., 3., 4.]))]
    copied = {'learning_rate': 1e-3}
    for logdir in logdirs:
      population_directory.write_fitness(logdir, population_directory.Fitness(400, 0., copied))
    population_directory.append_evolution(logdirs[0], population_directory.Evolution(300, 0., 1, 200, copied))
    (axes,) = pictures.panels(self, impala_figures.draw_learning_curves, 'dmlab30',
                              self._gathered('3', 'population/member_00'))
    np.testing.assert_allclose(axes.lines[0].get_xydata(), [[100 / 30, 10], [200 / 30, 20], [400 / 30, 40]])

  def test_an_agent_whose_levels_are_not_printed_has_the_line_of_the_one_whose_are(self):
    run_directories.make(self.folder, 'run', _PBT, torso='shallow', curves={'rooms_watermaze': [1.0, 2.0]})
    axes, = pictures.panels(self, impala_figures.draw_learning_curves, 'dmlab30', self._gathered('3'))
    self.assertEqual([line.get_label() for line in axes.lines],
                     ['IMPALA, shallow', "IMPALA, deep, PBT: the paper's test scores (table B.1)"])
    self.assertEqual(set(axes.lines[1].get_ydata()), {31.1})

  def test_long_curves_are_thinned_out_and_keep_their_end(self):
    run_directories.single_game(self.folder, 'run', 20.0, curves={'pong': list(range(5001))})
    axes, = pictures.panels(self, impala_figures.draw_learning_curves, 'atari57', self._gathered('C.1'))
    curve = axes.lines[0].get_ydata()
    self.assertBetween(len(curve), 400, 502)
    self.assertEqual(curve[-1], 5000)

  def test_without_curves_nothing_is_drawn(self):
    run_directories.single_game(self.folder, 'run', 20.0)
    self.assertIsNone(impala_figures.draw_learning_curves('atari57', self._gathered('C.1')))

  def test_stability_is_falling_and_leaves_out_what_has_no_score(self):
    for index, (correction, final) in enumerate((('vtrace', 3.0), ('vtrace', 9.0), ('none', 1.0), ('vtrace', None))):
      run_directories.single_game(self.folder, str(index), curves={'pong': [final]} if final else None,
                                  off_policy_correction=correction, sweep_index=index)
    for seed, final in ((1, 100.), (2, 104.)):
      run_directories.single_game(
          self.folder, f'other_{seed}', curves={'breakout': [final]}, level_name='breakout', seed=seed)
    panels = pictures.panels(self, impala_figures.draw_stability, sweep.samples(self.read()))
    self.assertEqual([axes.get_title(loc='left') for axes in panels], ['breakout', 'pong'])
    self.assertIn('final training scores', self._title(panels[0]))
    lines = {container.get_label(): container[0].get_xydata() for container in panels[1].containers}
    np.testing.assert_array_equal(lines['deep, vtrace'], [[1, 9], [2, 3]])
    np.testing.assert_array_equal(lines['deep, none'], [[1, 1]])
    (low, high), = panels[0].containers[0].lines[2][0].get_segments()  # Mean and standard deviation over seeds.
    np.testing.assert_allclose([low[1], high[1]], [102 - 8**0.5, 102 + 8**0.5])

  def test_sweep_curves_are_the_mean_of_the_best_three_samples(self):
    finals = (8.0, 2.0, 6.0, 4.0)  # The second sample is not among the best three.
    for index, final in enumerate(finals):
      for seed, more in enumerate((-1., -1., 2.)):  # Their mean is the sample's curve.
        run_directories.single_game(self.folder, f'{index}_{seed}', curves={'pong': [None, 0., final + more]},
                                    frames=300, sweep_index=index, learning_rate=1e-3 * (index + 1), seed=seed)
    run_directories.single_game(self.folder, 'lag', curves={'pong': [1., 2.]}, frames=200, policy_lag=10)
    axes, = pictures.panels(self, impala_figures.draw_sweep_curves, sweep.samples(self.read()))
    self.assertIn('by final training score', self._title(axes))
    lines = {line.get_label(): line.get_xydata() for line in axes.lines}
    self.assertEqual(
        list(lines), [f'deep, vtrace, policy_lag={best}' for best in ('0: best 3 of 4', '10: best 1 of 1')])
    curve, lagging = lines.values()
    np.testing.assert_allclose([curve[0], curve[-1]], [[200, 0], [300, 6]])
    np.testing.assert_allclose(np.interp(250, *curve.T), 3, rtol=0.01)
    np.testing.assert_allclose([lagging[0], lagging[-1]], [[100, 1], [200, 2]])

  def test_action_values_have_the_mean_of_the_best_three_and_of_all_samples(self):
    for values, finals in (('bootstrapped', (8., 2., 6., 4.)), ('one_step', (1., 3.))):
      for index, final in enumerate(finals):
        run_directories.single_game(self.folder, f'{values}_{index}', curves={'pong': [0., final]}, frames=200,
                                    sweep_index=index, learning_rate=1e-3 * (index + 1), action_values=values)
    run_directories.single_game(self.folder, 'other', level_name='breakout', curves={'breakout': [1., 2.]})
    run_directories.single_game(self.folder, 'a3c', agent='a3c', off_policy_correction=None, curves={'pong': [1., 2.]})
    panels = pictures.panels(self, impala_figures.draw_action_values, sweep.samples(self.read()))
    name = 'deep, IMPALA, vtrace, action_values='
    self.assertEqual([{line.get_label(): line.get_ydata()[-1] for line in axes.lines} for axes in panels],
                     [{f'{name}bootstrapped': 6., f'{name}one_step': 2.},
                      {f'{name}bootstrapped': 5., f'{name}one_step': 2.}])
    self.assertEqual([axes.get_title('left') for axes in panels],
                     ['pong: mean of best 3 samples', 'pong: mean of all samples'])

  def test_one_estimate_of_action_values_is_not_drawn(self):
    for name, values in (('old', None), ('new', 'bootstrapped')):
      run_directories.single_game(self.folder, name, curves={'pong': [1., 2.]}, action_values=values)
    self.assertIsNone(impala_figures.draw_action_values(sweep.samples(self.read())))

  def test_a_sweep_without_scores_has_no_curves(self):
    run_directories.single_game(self.folder, '0')
    for draw in (impala_figures.draw_sweep_curves, impala_figures.draw_action_values):
      self.assertIsNone(draw(sweep.samples(self.read())))

  def test_schedules_have_a_line_per_member_and_the_fittest_bold(self):
    members = {'learning_rate': [[(0, 1.0), (500, 1.0)], [(0, 2.0), (100, 3.0), (400, 3.0)]],
               'entropy_cost': [[(0, 0.1), (500, 0.1)], [(0, 0.2), (400, 0.2)]]}
    fittest = {'learning_rate': [[(100, 3.0), (400, 3.0)]], 'entropy_cost': [[(100, 0.2), (400, 0.2)]]}
    panels = pictures.panels(self, impala_figures.draw_schedules, members, fittest, 'member_01')
    self.assertEqual([axes.get_title(loc='left') for axes in panels], ['learning_rate', 'entropy_cost'])
    self.assertIn('figure F.1', self._title(panels[0]))
    for axes in panels:
      self.assertEqual(axes.get_yscale(), 'log')
      self.assertEqual([line.get_linewidth() for line in axes.lines], [0.9, 0.9, 2.4])
      self.assertEqual({line.get_drawstyle() for line in axes.lines}, {'steps-post'})
    np.testing.assert_array_equal(panels[0].lines[1].get_xydata(), [[0, 2], [100, 3], [400, 3]])
    np.testing.assert_array_equal(panels[0].lines[2].get_xydata(), [[100, 3], [400, 3]])

  def test_a_folder_that_is_gone_is_named(self):
    picture = impala_figures.draw_bars('dmlab30', self._gathered('B.1'))
    with self.assertRaisesRegex(run_directory.RunDirectoryError, 'gone'):
      drawing.save(picture, os.path.join(self.folder, 'gone', 'picture.png'))


if __name__ == '__main__':
  absltest.main()
