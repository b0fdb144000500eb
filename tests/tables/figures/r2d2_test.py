"""Tests that the figures of R2D2 show the correct numbers, and that they are drawn only for runs with the data."""

import pathlib

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from scalable_agents.records import run_directory
from scalable_agents.tables.figures import r2d2 as r2d2_figures
from scalable_agents.tests.tables import pictures
from scalable_agents.tests.tables import run_directories

_DRAW = (r2d2_figures.draw_delta_q, r2d2_figures.draw_actors, r2d2_figures.draw_ablations, r2d2_figures.draw_memory)


def _legend(axes):
  return [text.get_text() for text in axes.figure.legends[0].get_texts()]


class R2d2FiguresTest(run_directories.TestCase):

  def _make(self, name, returns=(1., 2.), level='pong', **settings):
    """Makes a run with two rows."""
    return run_directories.r2d2(self.folder, name, level_name=level, frames=1000, curves={level: returns}, **settings)

  def _measured(self, name, first, last, **settings):
    return self._make(name, measure_delta_q=True, more={'delta_q/first': first, 'delta_q/last': last}, **settings)

  def _panels(self, draw):
    return pictures.panels(self, draw, self.read())

  def test_delta_q_has_bars_and_returns_per_strategy_and_level(self):
    self._measured('a', [None, 4.], [1., 2.], returns=(0., 6.), recurrent_state='zero', burn_in=0)
    self._measured('b', [1., 2.], [0., 1.], returns=(1., 8.))
    self._measured('c', [2.5, 9., 1.], [1.5, 8., 0.], returns=(3., 5., 10.), seed=2)  # The median counts.
    self._measured('d', [1., 1.], [1., 1.], level='breakout')
    breakout, _, left, right = self._panels(r2d2_figures.draw_delta_q)
    self.assertEqual([axes.get_title('left') for axes in (breakout, left)], ['breakout', 'pong'])
    bars = {bars.get_label(): [bar.get_height() for bar in bars] for bars in left.containers
            if hasattr(bars, 'patches')}
    self.assertEqual(bars, {'zero state, burn-in 0': [4., 1.5], 'stored state, burn-in 40, 2 runs': [2., 1.]})
    places = [bar.get_x() + bar.get_width() / 2 for bars in left.containers if hasattr(bars, 'patches') for bar in bars]
    np.testing.assert_allclose(places, [-0.2, 0.8, 0.2, 1.2])
    spread, = [bars.errorbar for bars in left.containers if getattr(bars, 'errorbar', None)]
    np.testing.assert_allclose(spread.lines[2][0].get_segments()[0][:, 1], [2 - 0.5**0.5, 2 + 0.5**0.5])
    lines = pictures.lines(right)
    np.testing.assert_allclose([lines[label][-1] for label in bars], [6., 9.])
    self.assertEqual(right.get_xlabel(), 'environment frames')
    self.assertCountEqual(_legend(left), ['stored state, burn-in 40', *bars])

  def test_evaluations_during_training_are_drawn_where_all_runs_of_a_line_have_them(self):
    measured = self._measured('a', [None, 4.], [1., 2.], returns=(0., 6.))
    run_directories.evaluate(measured, 'pong', (3., 8.), 1000)
    self._measured('b', [None, 3.], [1., 2.], returns=(0., 5.), recurrent_state='zero')
    _, right = self._panels(r2d2_figures.draw_delta_q)
    self.assertEqual(pictures.ends(right),
                     {'stored state, burn-in 40, evaluated': 8., 'zero state, burn-in 40, training': 5.})
    self.assertEqual(right.get_ylabel(), 'mean return')

  def test_a_level_has_evaluations_of_its_version_for_testing(self):
    for name, last, settings in (('a', 9., {}), ('b', 7., {'discount': 0.99})):
      run_directories.evaluate(self._make(name, level='rooms_collect_good_objects_train', **settings),
                               'rooms_collect_good_objects_test', (2., last), 1000)
    self._make('c', level='rooms_collect_good_objects_train', seed=2, use_lstm=False)
    axes, = self._panels(r2d2_figures.draw_ablations)
    self.assertEqual(pictures.ends(axes),
                     {'R2D2, evaluated': 9., 'Discount, evaluated': 7., 'Feed-Forward, training': 2.})

  def test_runs_without_delta_q_are_left_out(self):
    self._measured('a', [None, None], [1., 2.])
    self._make('b')
    self._make('c', measure_delta_q=True)
    self.assertIsNone(r2d2_figures.draw_delta_q(self.read()))

  def test_ablations_have_a_panel_per_level_and_a_line_per_variant(self):
    self._make('a', (1., 9.), discount=0.99)
    self._make('b', (1., 5.))
    self._make('c', (3., 7.), seed=2)
    self._make('d', (1., 3.), use_lstm=False)
    self._make('e', level='qbert')  # There is no ablation.
    axes, = self._panels(r2d2_figures.draw_ablations)
    self.assertEqual(axes.get_title('left'), 'pong')
    self.assertEqual(pictures.ends(axes),
                     {'R2D2, 2 runs': 6., 'Feed-Forward': 3., 'Discount': 9.})
    self.assertEqual(_legend(axes), ['R2D2, 2 runs', 'Feed-Forward', 'Discount'])

  def test_memory_has_a_panel_per_quantity_with_the_whole_history_first(self):
    histories = {'40': (2., 0.5, 1.), 'inf': (10., 1., 0.), '120': (8., 0.75, 0.5), '0': (1., 0.25, 2.)}
    more = {history: (value + 2, match, difference) for history, (value, match, difference) in histories.items()}
    self._make('a', histories=histories)
    self._make('b', histories={history: more[history] for history in ('inf', '120', '40')}, seed=2)
    self._make('c', histories=histories, recurrent_state='zero')
    self._make('d', seed=3)
    panels = self._panels(r2d2_figures.draw_memory)
    self.assertEqual([axes.get_ylabel() for axes in panels],
                     ['mean return', 'greedy action match (%)', 'difference of max Q'])
    stored, zero = 'stored state, burn-in 40, 2 runs', 'zero state, burn-in 40'
    self.assertEqual([pictures.lines(axes)[stored] for axes in panels],
                     [[11., 9., 3.], [100., 75., 50.], [0., 0.5, 1.]])
    self.assertEqual([pictures.lines(axes)[zero] for axes in panels],
                     [[10., 8., 2., 1.], [100., 75., 50., 25.], [0., 0.5, 1., 2.]])
    self.assertEqual([*panels[0].lines[1].get_xdata()], [0, 1, 2])
    self.assertEqual([text.get_text() for text in panels[0].get_xticklabels()], ['∞', '120', '40', '0'])

  @parameterized.parameters(
      ('[]',), ('{"pong": {"inf": {}}}',), ('{"pong": {"long": {"mean_return": 1}}}',), ('{"pong": ',),
      ('{"pong": {"inf": {"mean_return": NaN, "greedy_match": 1, "value_difference": 0}}}',))
  def test_damaged_results_are_one_line(self, text):
    file = pathlib.Path(self._make('run'), run_directory.RESTRICTED_HISTORY)
    file.write_text(text, encoding='utf-8')
    with self.assertRaisesRegex(run_directory.RunDirectoryError,
                                f'^{file}(, line 1)? is damaged .*: run `scalable-agents r2d2_history` again$'):
      r2d2_figures.draw_memory(self.read())

  def test_lag_and_delta_q_have_a_row_per_number_of_actors(self):
    for number, lags in ((256, (1400., 1600.)), (64, (5000., 6000.))):
      for seed, lag in enumerate(lags, start=1):
        for level in ('pong', 'breakout'):
          run_directories.r2d2(
              self.folder, f'{level}_{number}_{seed}', level_name=level, seed=seed, num_environments=number,
              samples_per_period=256 / number, measure_delta_q=True, frames=1000, curves={level: [0., 1., 1.]},
              more={'policy_lag': [lag, 9 * lag, 1.], 'delta_q/first': [3., 1., 9.], 'delta_q/last': [9., 1., 0.]})
    self._measured('unknown', [9., 9.], [9., 9.], num_environments='auto')
    panels = self._panels(r2d2_figures.draw_actors)
    self.assertEqual([axes.get_title('left') for axes in panels], ['256 actors'] * 3 + ['64 actors'] * 3)
    self.assertEqual([text.get_text() for text in panels[0].get_xticklabels()], ['breakout', 'pong'])
    heights = [[bar.get_height() for bar in axes.patches] for axes in panels]
    self.assertEqual(heights, [[1500.] * 2, [3.] * 2, [1.] * 2, [5500.] * 2, [3.] * 2, [1.] * 2])
    self.assertEqual(panels[0].get_ylim(), panels[3].get_ylim())
    self.assertEqual(_legend(panels[0]), ['stored state, burn-in 40'])

  def test_one_number_of_actors_is_not_compared(self):
    self._measured('a', [1., 2.], [1., 2.], num_environments=256)
    self._measured('b', [1., 2.], [1., 2.], num_environments=256, seed=2)
    self.assertIsNone(r2d2_figures.draw_actors(self.read()))

  def test_a_level_with_one_variant_has_a_panel_with_the_papers_score(self):
    self._make('a', (1., 9.))
    self._make('b', (1., 7.), level='catch')
    drawn = r2d2_figures.pictures(self.read())
    self.assertEqual([name for name, picture in drawn.items() if picture], ['r2d2_levels'])
    panels = drawn['r2d2_levels'].axes
    self.assertEqual([axes.get_title('left') for axes in panels], ['catch', 'pong'])
    self.assertEqual([pictures.ends(axes) for axes in panels],
                     [{'R2D2': 7.}, {'R2D2': 9., "R2D2: the paper's final score": 21.0}])

  @parameterized.parameters(*_DRAW)
  def test_without_data_nothing_is_drawn(self, draw):
    self._make('pong')
    self._make('watermaze', level='rooms_watermaze')
    run_directories.r2d2(self.folder, 'without_rows', level_name='breakout')
    self.assertIsNone(draw(self.read()))
    self.assertIsNone(draw([]))


if __name__ == '__main__':
  absltest.main()
