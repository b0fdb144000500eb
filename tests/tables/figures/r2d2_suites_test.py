"""Tests the scores of R2D2 on whole suites: which runs a line and a bar show, and their numbers."""

from absl.testing import absltest
import numpy as np

from scalable_agents.environments import scores
from scalable_agents.tables.figures import curves
from scalable_agents.tables.figures import r2d2_suites
from scalable_agents.tables.results import r2d2_published
from scalable_agents.tests.tables import pictures
from scalable_agents.tests.tables import run_directories

_ATARI, _DMLAB = scores.SUITES['atari57'], scores.SUITES['dmlab30']


def _legend(axes):
  return [text.get_text() for text in axes.figure.legends[0].get_texts()]


class R2d2SuitesTest(run_directories.TestCase):

  def _make(self, name, level, shares, **settings):
    """Makes a run whose returns are these human-normalised scores."""
    returns = [run_directories.mean_return(level, share) for share in shares]
    return run_directories.r2d2(self.folder, name, level_name=level, frames=1000, curves={level: returns}, **settings)

  def _impala(self, name, level, shares, **settings):
    returns = [run_directories.mean_return(level, share) for share in shares]
    run_directories.make(self.folder, name, level_name=level, frames=1000, curves={level: returns}, agent='impala',
                         **settings)

  def _returns(self):
    return curves.returns_of(r2d2_suites.by_agent(self.read()))

  def test_the_median_is_over_games_and_a_game_is_the_mean_over_runs(self):
    for name, game, share in (('a', 'pong', 0.5), ('b', 'pong', 0.7), ('c', 'breakout', 2.), ('d', 'qbert', 3.)):
      self._make(name, game, (0., share), seed=ord(name))
    self._make('e', 'pong', (0., 1.), use_lstm=False)
    self._make('f', 'breakout', (0., 2.), use_lstm=False)
    self._make('g', 'pong', (0., 1.), discount=0.99)
    by_frames, by_hours = pictures.panels(self, r2d2_suites.draw_scores, _ATARI, self._returns())
    paper = r2d2_published.PAPER.level_scores['atari57']['R2D2']
    lines = pictures.lines(by_frames)
    self.assertEqual(_legend(by_frames),
                     ['R2D2, 3 levels', "R2D2, 3 levels: the paper's final score", 'Feed-Forward, 2 levels'])
    np.testing.assert_allclose([lines[name][-1] for name in _legend(by_frames)],
                               [200., scores.human_normalised('breakout', paper['breakout']), 150.])
    np.testing.assert_allclose(lines['R2D2, 3 levels'][0], 0., atol=1e-9)
    self.assertEqual(by_hours.lines[0].get_xdata()[-1], 1 / 60)  # The second row is from second 60.
    np.testing.assert_allclose(by_hours.lines[0].get_ydata(), lines['R2D2, 3 levels'])

  def test_evaluated_runs_have_the_hours_of_their_frames(self):
    for game in ('pong', 'breakout'):
      logdir = self._make(game, game, (0., 0.5))
      run_directories.evaluate(logdir, game, _ATARI.scores[game], 1500)
    panels = pictures.panels(self, r2d2_suites.draw_scores, _ATARI, self._returns())
    for axes, ends in zip(panels, ((750., 1500.), (0.5 / 60, 1 / 60)), strict=True):
      line = axes.lines[0]
      self.assertEqual(line.get_label(), 'R2D2, evaluated, 2 levels')
      np.testing.assert_allclose(line.get_xdata()[[0, -1]], ends)
      np.testing.assert_allclose(line.get_ydata()[[0, -1]], [0., 100.], atol=1e-9)

  def test_dmlab_has_capped_scores_also_of_impala(self):
    for level, share in (('rooms_watermaze', 2.), ('natlab_fixed_large_map', 0.4)):
      self._make(f'r2d2_{level}', level, (0., share), samples_per_period=1.54)
      self._make(f'plus_{level}', level, (0., share / 2), torso='deep', reward_transform='optimistic_asymmetric',
                 target_update_interval=400, batch_size=32, samples_per_period=0.77)
      self._impala(f'again_{level}', level, (0., share / 4), action_set='popart')
      self._impala(f'original_{level}', level, (0., share / 8))
    self._impala('all', 'rooms_watermaze', (0., 1.), total_environment_frames=10)  # Of another number of frames.
    axes, _ = pictures.panels(self, r2d2_suites.draw_scores, _DMLAB, self._returns())
    ends = pictures.ends(axes)
    np.testing.assert_allclose([ends[f'{name}, 2 levels'] for name in ('R2D2', 'R2D2+', 'IMPALA, deep (re-run)')],
                               [70., 60., 30.])
    self.assertEqual(axes.get_ylabel(), 'mean capped human-normalised score (%)')
    papers = [label for label in _legend(axes) if label.endswith("the paper's final score")]
    self.assertEqual([label.partition(', 2 levels:')[0] for label in papers],
                     ['R2D2', 'R2D2+', 'IMPALA, deep (re-run)', 'IMPALA, deep (original)'])

  def test_runs_of_impala_with_other_settings_are_apart(self):
    for level in ('pong', 'breakout'):
      for name, settings in (('vtrace', {}), ('none', {'off_policy_correction': 'none'})):
        self._impala(f'{name}_{level}', level, (0., 0.5), torso='shallow', **settings)
    self.assertEqual({name: len(runs) for name, runs in r2d2_suites.by_agent(self.read()).items()}, {
        'IMPALA, shallow (original), off_policy_correction=vtrace': 2,
        'IMPALA, shallow (original), off_policy_correction=none': 2})

  def test_bars_are_means_over_seeds_with_the_papers_scores(self):
    self._make('a', 'rooms_watermaze', (0.9, 0.5))
    self._make('b', 'rooms_watermaze', (0., 0.7), seed=2)
    self._make('c', 'rooms_collect_good_objects_train', (0., 0.3))
    self._impala('d', 'rooms_watermaze', (0., 0.2), action_set='popart', torso='shallow')
    axes, = pictures.panels(self, r2d2_suites.draw_bars, _DMLAB, self._returns())
    self.assertEqual([text.get_text() for text in axes.get_yticklabels()],
                     ['rooms_collect_good_objects_train', 'rooms_watermaze'])
    np.testing.assert_allclose([bar.get_width() for bar in axes.patches], [30., 60., 20.])
    paper = r2d2_published.PAPER.level_scores['dmlab30']
    marks, _ = (line.get_xdata() for line in axes.lines if line.get_linestyle() == 'None')
    np.testing.assert_allclose(marks, [
        scores.human_normalised(level, paper['R2D2'][level])
        for level in ('rooms_collect_good_objects_test', 'rooms_watermaze')])

  def test_a_suite_without_two_levels_is_not_drawn(self):
    self._make('a', 'pong', (0., 1.))
    self._make('b', 'rooms_watermaze', (0., 1.))
    for suite in (_ATARI, _DMLAB):
      self.assertIsNone(r2d2_suites.draw_scores(suite, self._returns()))
      self.assertIsNone(r2d2_suites.draw_bars(suite, self._returns()))

  def test_levels_without_common_frames_have_no_score(self):
    self._make('a', 'pong', (0., 1.))
    run_directories.r2d2(self.folder, 'b', level_name='breakout', frames=100, curves={'breakout': [1., 2.]})
    axes, _ = pictures.panels(self, r2d2_suites.draw_scores, _ATARI, self._returns())
    self.assertEmpty(axes.lines[:-1])  # By hours they have one.


if __name__ == '__main__':
  absltest.main()
