"""Tests the style that all figures share."""

from absl.testing import absltest
from absl.testing import parameterized
from matplotlib.backends import backend_agg
import numpy as np

from scalable_agents.tables.figures import drawing


class DrawingTest(parameterized.TestCase):

  @parameterized.parameters(('a', 2), ('a label that is so long that two of them do not fit', 1))
  def test_the_legend_is_not_cut_off_and_takes_nothing_from_the_panels(self, label, columns):
    heights = []
    for number in (1, 8):
      picture, ((axes,),) = drawing.grid(1, 1, 4.6, 3)
      for index in range(number):
        axes.plot([0, 1], [index, index], label=f'{label} {index}')
      drawing.title_and_legend(picture, 'A title that is wider than the picture would be without it', [axes])
      renderer = backend_agg.FigureCanvasAgg(picture).get_renderer()
      picture.draw(renderer)
      box, panel = (part.get_window_extent(renderer) for part in (picture.legends[0], axes))
      self.assertBetween(box.x1, 0, picture.bbox.width)
      self.assertGreater(box.y0, panel.y1)
      heights.append(panel.height)
    self.assertLen({round(text.get_window_extent(renderer).x0) for text in picture.legends[0].get_texts()}, columns)
    np.testing.assert_allclose(*heights, rtol=0.1)

  def test_a_line_of_one_point_is_a_mark(self):
    _, ((axes,),) = drawing.grid(1, 1, 4, 3)
    for frames in (np.array([5., 5.]), np.array([5., 6.])):
      drawing.mean_and_range(axes, frames, np.ones([1, 2]), 'a', drawing.line_style(0))
    self.assertEqual([line.get_marker() for line in axes.lines], ['o', 'None'])

  @parameterized.parameters((0., '0'), (0.25, '0.25'), (-21, '-21'), (2_500, '2,500'), (25_000, '25K'),
                            (1_200_000, '1,200K'), (12_500_000, '12.5M'))
  def test_returns_are_short(self, value, text):
    _, ((axes,),) = drawing.grid(1, 1, 4, 3)
    drawing.returns_axis(axes)
    self.assertEqual(axes.yaxis.get_major_formatter()(value, 0), text)

  @parameterized.parameters((0., 1800.), (-30., 50.))
  def test_an_axis_of_scores_begins_below_the_lowest_one(self, lowest, highest):
    _, ((axes,),) = drawing.grid(1, 1, 4, 3)
    axes.plot([0, 1], [lowest, highest])
    drawing.vertical_scores_axis(axes)
    self.assertBetween(axes.get_ylim()[0], lowest - 10, lowest)

  def test_regression_a_panel_that_shares_the_axis_cuts_off_no_score_of_another(self):
    _, ((left, right),) = drawing.grid(1, 2, 8, 3, sharey=True)
    for axes, lowest in ((left, -60.), (right, -20.)):
      axes.plot([0, 1], [lowest, 300.])
    for axes in (left, right):
      drawing.vertical_scores_axis(axes)
    self.assertBetween(left.get_ylim()[0], -70, -60)

  def test_bars_of_many_agents_can_be_told_apart(self):
    styles = [drawing.bar_style(drawing.line_style(number)) for number in range(24)]
    self.assertLen({tuple(style.values()) for style in styles}, 24)


if __name__ == '__main__':
  absltest.main()
