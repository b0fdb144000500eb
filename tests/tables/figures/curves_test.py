"""Tests which runs a curve shows, and its numbers."""


from absl.testing import absltest
from matplotlib import figure
import numpy as np

from scalable_agents.tables.figures import curves
from scalable_agents.tests.tables import pictures
from scalable_agents.tests.tables import run_directories


class CurvesTest(run_directories.TestCase):

  def test_returns_have_a_panel_per_level_and_a_line_per_group(self):
    for name, pong in (('a_1', [-20., 10.]), ('a_2', [-20., 20.]), ('b', [-21., -15.])):
      run_directories.make(self.folder, name, frames=1000, level_name='pong,breakout',
                           curves={'pong': pong, 'breakout': [None, 20.]})
    runs = self.read()
    panels = pictures.panels(self, curves.draw_returns, curves.rows_of({'A': runs[:2], 'B': runs[2:]}))
    found = {axes.get_title('left'): {line.get_label(): [*line.get_ydata()[[0, -1]]] for line in axes.lines}
             for axes in panels}
    self.assertEqual(found, {'breakout': {'A, 2 runs': [20., 20.], 'B': [20., 20.]},
                             'pong': {'A, 2 runs': [-20., 15.], 'B': [-21., -15.]}})
    self.assertEqual(panels[1].get_xlim(), (0., 1025.))

  def test_without_returns_nothing_is_drawn(self):
    run_directories.make(self.folder, 'run')
    runs = self.read()
    self.assertIsNone(curves.draw_returns(curves.rows_of({'A': runs})))

  def test_a_line_has_the_mean_and_the_area_the_range(self):
    axes = figure.Figure().subplots()
    row = lambda frames, score: {'environment_frames': frames, 'score': score}
    rows = {'A': [[row(0, 0.), row(10, 10.)], [row(5, 1.), row(20, 16.)]]}
    curves.draw_lines(axes, rows, 'score', curves.styles_of(rows))
    line, = axes.lines
    np.testing.assert_allclose(line.get_xydata()[[0, -1]], [[5., 3.], [10., 8.]])
    area = axes.collections[0].get_paths()[0].vertices
    self.assertEqual((area[:, 1].min(), area[:, 1].max()), (1., 10.))

  def test_runs_without_common_frames_have_no_mean(self):
    axes = figure.Figure().subplots()
    rows = {'A': [[{'environment_frames': 1, 'score': 1.}], [{'environment_frames': 9, 'score': 2.}]]}
    curves.draw_lines(axes, rows, 'score', curves.styles_of(rows))
    self.assertEmpty(axes.lines)

  def test_points_are_in_the_order_of_frames(self):
    rows = [{'environment_frames': 3, 'score': 1.}, {'environment_frames': 2, 'score': 2.},
            {'environment_frames': 4, 'score': None}, {'environment_frames': 5}]
    np.testing.assert_array_equal(curves.points(rows, 'score'), [[2., 2.], [3., 1.]])
    self.assertEqual(curves.points(rows, 'other').shape, (0, 2))


if __name__ == '__main__':
  absltest.main()
