"""Tests the figures of training of the IMPALA paper: which runs stand for an agent, and their numbers."""

import contextlib
import io
import os

from absl.testing import absltest
import numpy as np

from scalable_agents.environments import scores
from scalable_agents.tables.figures import impala_training
from scalable_agents.tables.figures import popart_impala
from scalable_agents.tests.tables import pictures
from scalable_agents.tests.tables import run_directories

_DMLAB = scores.SUITES['dmlab30']


class ImpalaTrainingTest(run_directories.TestCase):

  def _make(self, name, shares, **settings):
    """Makes a run on the whole suite whose score takes these values. Each level has the same score."""
    curves = {level: [run_directories.mean_return(level, share / 100) for share in shares] for level in _DMLAB.levels}
    run_directories.make(self.folder, name, curves=curves, frames=1000, agent=settings.pop('agent', 'impala'),
                         more={'suite_score/mean_capped': shares}, **settings)

  def _panels(self, draw):
    return pictures.panels(self, draw, impala_training.best(self.read(), _DMLAB), _DMLAB)

  def test_the_best_sample_of_each_agents_sweep_is_drawn_against_frames_and_hours(self):
    for index, score in enumerate((30., 46., 20.)):
      self._make(f'deep_{index}', [1., score], sweep_index=index, learning_rate=1e-4 * (index + 1))
    self._make('again', [1., 44.], sweep_index=1, learning_rate=2e-4, seed=2)
    self._make('unlucky', [1., 10.], sweep_index=3, learning_rate=4e-4)
    self._make('lucky', [1., 60.], sweep_index=3, learning_rate=4e-4, seed=2)  # The best seed, but not the best mean.
    self._make('a3c', [1., 23.], agent='a3c', off_policy_correction=None)
    self._make('a2c', [1., 25.], agent='a2c', off_policy_correction=None, torso='shallow')
    self._make('population', [1., 49.], population_size=24)
    by_frames, by_hours = self._panels(impala_training.draw_scores)
    papers = {name: f"{name}: the paper's final score" for name in ('IMPALA, deep, best of 4', 'A3C, deep',
                                                                    'IMPALA, deep, PBT')}
    ends = pictures.ends(by_frames)
    np.testing.assert_allclose([ends[name] for name in (
        'IMPALA, deep, best of 4', 'A3C, deep', 'batched A2C, shallow', 'IMPALA, deep, PBT')], [45., 23., 25., 49.])
    self.assertEqual([ends[papers[name]] for name in papers], [46.5, 23.8, 49.4])
    self.assertEqual([line.get_xdata()[-1] for line in (by_frames.lines[0], by_hours.lines[0])], [1000., 1 / 60])

  def test_regression_popart_impala_is_not_drawn_as_impala(self):
    for name, normalization, score in (('popart', 'popart', 70.), ('heads', 'none', 40.)):
      self._make(f'{name}/member_00', [1., score], agent='popart_impala', value_normalization=normalization,
                 population_size=8)
    by_frames, _ = self._panels(impala_training.draw_scores)
    self.assertEqual(pictures.ends(by_frames), {'PopArt-IMPALA, deep, PBT': 70., 'MultiHead-IMPALA, deep, PBT': 40.})

  def test_regression_agents_that_the_paper_does_not_have_are_not_drawn_as_the_papers(self):
    for name, score, settings in (('plain', 70., {}), ('no_correction', 40., {'off_policy_correction': 'none'}),
                                  ('no_memory', 30., {'use_lstm': False})):
      self._make(name, [1., score], torso='shallow', **settings)
    by_frames, _ = self._panels(impala_training.draw_scores)
    self.assertEqual(pictures.ends(by_frames), {
        'IMPALA, shallow': 70., "IMPALA, shallow: the paper's final score": 37.1, 'IMPALA, shallow, none': 40.,
        'IMPALA, shallow, no LSTM': 30.})

  def test_experts_are_drawn_against_the_frames_of_all_of_them(self):
    for level, score in (('rooms_watermaze', 0.5), ('natlab_fixed_large_map', 3.)):
      returns = [run_directories.mean_return(level, 0.), run_directories.mean_return(level, score)]
      run_directories.make(self.folder, level, level_name=level, frames=100, total_environment_frames=100,
                           agent='impala', curves={level: returns})
    by_frames, by_hours = self._panels(impala_training.draw_scores)
    line = by_frames.lines[0]
    self.assertEqual(line.get_label(), 'IMPALA-Experts, deep, 2 levels')
    # The paper's scores on these two levels, table B.1.
    papers = 100 * np.mean([(26.9 - 4.1) / (54. - 4.1), (34.7 - 2.2) / (36.9 - 2.2)])
    name = "IMPALA-Experts, deep, 2 levels: the paper's final score"
    self.assertAlmostEqual(pictures.ends(by_frames)[name], papers, delta=0.05)
    np.testing.assert_allclose(line.get_xydata()[[0, -1]], [[100., 0.], [200., 75.]], atol=1e-9)
    self.assertEqual(by_hours.lines[0].get_xdata()[-1], 1 / 60)

  def test_a_short_trial_is_not_averaged_with_the_run_in_full(self):
    for name, frames, score in (('trial', 10, -1.), ('full', 1_000, 0.5)):
      returns = [run_directories.mean_return('rooms_watermaze', share) for share in (0., score)]
      run_directories.make(self.folder, name, level_name='rooms_watermaze', frames=frames, agent='impala',
                           total_environment_frames=frames, curves={'rooms_watermaze': returns})
    said = self.enter_context(contextlib.redirect_stderr(io.StringIO()))
    (_, (run,)), = impala_training.best(self.read(), _DMLAB).items()
    self.assertEqual(os.path.basename(run.logdir), 'full')
    self.assertEqual(said.getvalue(), f'skipped: {self.folder}/trial: another run of this level has the same settings '
                                      'and more frames\n')

  def test_the_best_setting_of_experts_on_one_level_is_that_of_the_level(self):
    for name, rate, score in (('a', 1e-4, 0.3), ('b', 2e-4, 0.5), ('c', 3e-4, 0.4)):
      run_directories.make(self.folder, name, level_name='rooms_watermaze', learning_rate=rate, agent='impala', curves={
          'rooms_watermaze': [run_directories.mean_return('rooms_watermaze', score)] * 2})
    for runs in (self.read(), self.read()[::-1]):
      (label, (run,)), = impala_training.best(runs, _DMLAB).items()
      self.assertEqual((label, run.flags['learning_rate']), ('IMPALA-Experts, deep, best of 3', 2e-4))

  def test_runs_that_have_no_returns_yet_do_not_displace_others(self):
    for level in ('rooms_watermaze', 'natlab_fixed_large_map'):
      run_directories.make(self.folder, level, level_name=level, agent='impala', curves={
          level: [run_directories.mean_return(level, 0.5)] * 2})
    for level in _DMLAB.levels[:4]:
      run_directories.make(self.folder, f'begun_{level}', level_name=level, learning_rate=1e-3, agent='impala',
                           curves={level: [None]})
    (_, chosen), = impala_training.best(self.read(), _DMLAB).items()
    self.assertEqual({run.flags['level_name'] for run in chosen}, {'rooms_watermaze', 'natlab_fixed_large_map'})

  def test_regression_experts_whose_curves_have_no_common_frames_do_not_displace_others(self):
    levels = _DMLAB.levels[:3]
    for number, level in enumerate(levels):
      run_directories.make(self.folder, f'curve_{level}', level_name=level, agent='impala', curves={
          level: [run_directories.mean_return(level, share) for share in (0.2, 0.5, 1. + number)]})
      run_directories.make(self.folder, f'point_{level}', level_name=level, agent='impala', learning_rate=1e-3,
                           frames=1_000 + number, curves={level: [run_directories.mean_return(level, 0.95 + number)]})
    (_, chosen), = impala_training.best(self.read(), _DMLAB).items()
    self.assertEqual({run.flags['learning_rate'] for run in chosen}, {6e-4})

  def test_bars_are_training_scores_of_each_level(self):
    self._make('deep', [1., 40.])
    axes, = self._panels(impala_training.draw_bars)
    np.testing.assert_allclose([bar.get_width() for bar in axes.patches], [40.] * 30)

  def test_runs_on_other_levels_are_not_drawn(self):
    run_directories.single_game(self.folder, 'catch', level_name='catch', curves={'catch': [1., 2.]}, agent='impala')
    self.assertEqual(set(impala_training.pictures(self.read()).values()), {None})

  def test_the_best_agent_meets_the_others_where_its_curve_reaches_their_last_score(self):
    curves_of = {'a': np.array([[0., 0.], [10., 20.], [20., 40.]]), 'b': np.array([[0., 0.], [30., 20.]]),
                 'c': np.array([[0., 0.], [15., 25.]])}
    self.assertEqual(popart_impala.meetings(curves_of), {'b': (10., 20., 30.), 'c': (20., 25., 15.)})
    self.assertEqual(popart_impala.meetings({}), {})


if __name__ == '__main__':
  absltest.main()
