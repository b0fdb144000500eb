"""Tests of the table of off-policy corrections: the paper's numbers, the best hyper-parameters, and what is named."""

from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents.agents import registry
from scalable_agents.environments import dmlab
from scalable_agents.launch import dmlab30_protocol
from scalable_agents.learner import off_policy
from scalable_agents.tables.papers import layout
from scalable_agents.tables.papers import off_policy_table
from scalable_agents.tables.papers import sweep
from scalable_agents.tests.tables import binary_flags
from scalable_agents.tests.tables import run_directories

_PRESETS = registry.PRESETS
_TASK = 'seekavoid_arena_01'


class OffPolicyTableTest(run_directories.TestCase):

  def setUp(self):
    super().setUp()
    self.number = 0

  def _make(self, final, level='catch', **settings):
    """Makes a run that ends with this return."""
    self.number += 1
    run_directories.make(self.folder, f'run_{self.number}', curves={level: [None, 0., final]}, level_name=level,
                         **{'total_environment_frames': 30_000, 'agent': 'impala'} | settings)

  def _table(self):
    table = off_policy_table.table(sweep.samples(self.read()))
    return {tuple(row[:3]): row[3:] for row in table.rows}, table.notes

  def test_without_runs_it_has_all_numbers_of_the_paper(self):
    rows, notes = self._table()
    self.assertLen(rows, 40)
    self.assertLen(notes, 2)
    for key, number in (((_TASK, 'with', 'V-trace'), 46.9), ((_TASK, 'without', 'No-correction'), 16.1),
                        (('rooms_watermaze', 'without', '1-Step'), 51.8),
                        (('explore_goal_locations_small', 'with', 'epsilon-correction'), 101.5)):
      self.assertEqual(rows[key], [layout.Number(number, 1), layout.Number(None, 1), layout.Number(None, 1), 'not run'])
    for task in off_policy_table.TASKS:
      self.assertIn(task, dmlab.LEVELS)

  def test_a_correction_of_ones_own_has_a_row(self):
    self._make(7., off_policy_correction='mine', replay_share=0.)
    rows, _ = self._table()
    self.assertLen(rows, 41)
    self.assertEqual(rows['catch', 'without', 'mine'][1].value[0], 7.)

  def test_the_corrections_are_those_of_the_agent(self):
    self.assertCountEqual(off_policy_table.CORRECTIONS.values(), off_policy.CORRECTIONS)

  def test_a_small_task_has_the_mean_and_spread_over_seeds(self):
    for correction, share, finals in (('vtrace', 0., (1., 3.)), ('vtrace', 0.5, (2., 4.)), ('none', 0.5, (-1., 0.)),
                                      ('epsilon', None, (5.,))):
      for seed, final in enumerate(finals):
        self._make(final, off_policy_correction=correction, replay_share=share, seed=seed)
    rows, _ = self._table()
    self.assertLen(rows, 44)
    for (replay, method), score, extent in (
        (('without', 'V-trace'), (2., 2**0.5, 2), 'best 1 of 1, 2 runs, 30K frames'),
        (('with', 'V-trace'), (3., 2**0.5, 2), 'best 1 of 1, 2 runs, 30K frames'),
        (('with', 'No-correction'), (-0.5, 0.5**0.5, 2), 'best 1 of 1, 2 runs, 30K frames'),
        (('without', 'epsilon-correction'), (5., None, 1), 'best 1 of 1, 1 run, 30K frames')):
      paper, score_here, difference, extent_here = rows['catch', replay, method]
      self.assertEqual((score_here.value, extent_here), (score, extent))
      self.assertEqual((paper.value, difference.value), (None, None))

  def test_it_is_the_mean_of_the_three_best_hyper_parameters(self):
    for index, finals in enumerate(((1.,), (9., 11.), (4.,), (None,), (40., 60.))):
      for seed, final in enumerate(finals):
        self._make(final, sweep_index=index, learning_rate=1e-4 * (index + 1), seed=seed)
    rows, _ = self._table()
    self.assertEqual(rows['catch', 'without', 'V-trace'][1].value, ((50. + 10. + 4.) / 3, None, 1))
    self.assertEqual(rows['catch', 'without', 'V-trace'][3], 'best 3 of 5, 5 runs, 30K frames')

  def test_its_frames_are_those_of_the_shortest_of_the_three_best(self):
    for index, (final, frames) in enumerate(((9., 30_000), (8., 20_000), (7., 40_000), (1., 5_000))):
      self._make(final, sweep_index=index, learning_rate=1e-4 * (index + 1), frames=frames)
    rows, _ = self._table()
    self.assertEqual(rows['catch', 'without', 'V-trace'][3], 'best 3 of 4, 3 runs, 20K frames')

  def test_a_run_without_episodes_has_no_score(self):
    self._make(None)
    rows, _ = self._table()
    self.assertEqual(rows['catch', 'without', 'V-trace'][3], 'no run has finished an episode')

  @parameterized.parameters(
      ({'policy_lag': 0}, {'policy_lag': 7}, 4.5,
       'with the fewest departures from the paper: deep, vtrace, policy_lag=0'),
      ({'clip_rho_threshold': 1.}, {'clip_rho_threshold': 10.}, 4.5,
       'with the fewest departures from the paper: deep, vtrace, clip_rho_threshold=1'),
      ({'policy_lag': 3}, {'policy_lag': 7}, 6.5,
       'the best of those with the fewest departures from the paper: deep, vtrace, policy_lag=7'))
  def test_an_ablation_does_not_stand_for_the_agent(self, worse, better, mean, note):
    for index, final in enumerate((1., 8.)):
      self._make(final, learning_rate=1e-4 * (index + 1), **worse)
      self._make(final + 2, learning_rate=1e-4 * (index + 1), **better)
    rows, notes = self._table()
    self.assertEqual(rows['catch', 'without', 'V-trace'][1].value.mean, mean)
    self.assertEqual(notes[-1], f'catch, V-trace, without replay: of 2 settings this one is shown, {note}')

  def test_an_ablation_with_a_score_goes_before_runs_that_have_none(self):
    self._make(None)
    self._make(2., policy_lag=7)
    rows, _ = self._table()
    self.assertEqual(rows['catch', 'without', 'V-trace'][1].value.mean, 2.)

  @parameterized.parameters(
      ({}, 'scaled down: 1 of 24 hyper-parameters'),
      ({'replay_share': 0.25}, 'scaled down: 1 of 24 hyper-parameters; departs from the paper: replay_share=0.25'),
      ({'torso': 'deep', 'reward_transform': 'soft_asymmetric', 'total_environment_frames': 10_000},
       'scaled down: 1 of 24 hyper-parameters, 10K of 1B frames; departs from the paper: torso=deep, '
       'reward_transform=soft_asymmetric'))
  def test_what_is_smaller_or_different_is_named_for_the_papers_tasks(self, others, extent):
    flags = binary_flags.of(_PRESETS['impala_dmlab30'].config, dmlab30_protocol.Protocol(), torso='shallow',
                            replay_share=0.5,
                            reward_transform='abs_one')
    self._make(46., _TASK, defaults=flags, **{'total_environment_frames': 1_000_000_000} | others)
    rows, _ = self._table()
    paper, score, difference, extent_here = rows[_TASK, 'with', 'V-trace']
    self.assertEqual((paper.value, score.value.mean, extent_here), (46.9, 46., f'best 1 of 1, 1 run; {extent}'))
    self.assertAlmostEqual(difference.value, -0.9)

  def test_a_whole_sweep_is_in_full(self):
    flags = binary_flags.of(_PRESETS['impala_dmlab30'].config, dmlab30_protocol.Protocol(), torso='shallow',
                            reward_transform='abs_one')
    for index in range(24):
      self._make(index, _TASK, defaults=flags, total_environment_frames=1_000_000_000, sweep_index=index,
                 learning_rate=1e-4 * (index + 1))
    rows, _ = self._table()
    self.assertEqual(rows[_TASK, 'without', 'V-trace'][1].value.mean, 22.)
    self.assertEqual(rows[_TASK, 'without', 'V-trace'][3], 'best 3 of 24, 3 runs; in full')


if __name__ == '__main__':
  absltest.main()
