"""Tests of the results table of PopArt-IMPALA: which runs are in which cell, their scores, and what departs."""

from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents.agents import registry
from scalable_agents.environments import atari57
from scalable_agents.environments import dmlab30
from scalable_agents.environments import scores
from scalable_agents.launch import atari57_protocol
from scalable_agents.launch import dmlab30_protocol
from scalable_agents.tables.papers import popart_tables
from scalable_agents.tests.tables import binary_flags
from scalable_agents.tests.tables import run_directories

_PRESETS = registry.PRESETS
_POPULATION = {'learning_rate_decay': False}
_ATARI = binary_flags.of(_PRESETS['popart_impala_atari57'].config, atari57_protocol.Protocol(), population_size=24,
                         **_POPULATION)
_DMLAB = binary_flags.of(_PRESETS['popart_impala_dmlab30'].config, _PRESETS['popart_impala_dmlab30'].protocol,
                         population_size=8, **_POPULATION)
_IMPALA_DMLAB = binary_flags.of(_PRESETS['impala_dmlab30'].config, dmlab30_protocol.Protocol(action_set='popart'),
                                population_size=8, **_POPULATION)
_SUITES = {suite.name: suite for suite in (atari57.SUITE, dmlab30.SUITE)}


def _means(suite, share, levels=None):
  """Returns the mean returns of an agent with this human-normalised score on these levels, else on those of tests."""
  return {level: suite.scores[level].random + share * (suite.scores[level].human - suite.scores[level].random)
          for level in levels or suite.test_levels}


class PopArtTablesTest(run_directories.TestCase):

  def _rows(self):
    """Returns the table's rows as dicts from (agent, benchmark, score) to (this run, run), and the notes."""
    table = popart_tables.table(self.read(True))
    return {tuple(row[:3]): (row[4].value and row[4].value.mean, row[6]) for row in table.rows}, table.notes

  def _make(self, name, flags, share, binary, **others):
    suite = _SUITES[flags['level_name']]
    protocol = {'action_set': flags['action_set']} if 'action_set' in flags else {}
    run_directories.make(self.folder, name, _means(suite, share), binary=binary,
                         episodes=others.get('test_num_episodes', suite.test_episodes),
                         protocol={'dmlab': protocol} if protocol else {}, **{**flags, **others})

  def test_the_papers_numbers(self):
    rows = {tuple(row[:3]): row[3].value for row in popart_tables.table([]).rows}
    self.assertLen(rows, 12)
    self.assertEqual(rows['PopArt-IMPALA', 'Atari-57', 'random starts: median'], 110.7)
    self.assertEqual(rows['PopArt-IMPALA', 'DMLab-30', 'test: mean capped'], 72.8)
    self.assertEqual(rows['IMPALA', 'Atari-57 (unclipped)', 'human starts: median'], 1.0)

  def test_the_defaults_are_in_full(self):
    """With the paper's frames, populations and settings nothing departs."""
    self._make('atari', _ATARI, 0.5, 'popart_impala_atari57')
    self._make('clipped', _ATARI, 0.6, 'popart_impala_atari57', reward_transform='abs_one')
    for number in range(3):  # Populations.
      self._make(f'dmlab_{number}/member', _DMLAB, 0.7, 'popart_impala_dmlab30')
      self._make(f'impala_{number}/member', _IMPALA_DMLAB, 0.4, 'impala_dmlab30')
    rows, notes = self._rows()
    self.assertLen(notes, 1)
    for key, share in ((('PopArt-IMPALA', 'Atari-57 (unclipped)', 'random starts: median'), 50),
                       (('PopArt-IMPALA', 'Atari-57', 'random starts: median'), 60),
                       (('PopArt-IMPALA', 'DMLab-30', 'test: mean capped'), 70),
                       (('IMPALA', 'DMLab-30', 'test: mean capped'), 40)):
      self.assertAlmostEqual(rows[key][0], share)
      self.assertEqual(rows[key][1], 'in full')
    self.assertEqual(rows['IMPALA', 'Atari-57', 'random starts: median'], (None, 'not run'))
    for agent in ('IMPALA', 'PopArt-IMPALA'):
      self.assertEqual(rows[agent, 'Atari-57', 'human starts: median'],
                       (None, 'cannot be reproduced: the human start states are not public'))

  def test_what_is_smaller_or_different_is_named(self):
    self._make('atari', _ATARI | {'population_size': 1, 'learning_rate_decay': True}, 0.5, 'popart_impala_atari57',
               frames=2_000_000, popart_decay=0.01, torso='shallow', use_lstm=True, num_learners=8)
    self.assertEqual(
        self._rows()[0]['PopArt-IMPALA', 'Atari-57 (unclipped)', 'random starts: median'][1],
        'scaled down: 2M of 11.4B frames, 1 of 24 members; departs from the paper: torso=shallow, '
        'use_lstm=True, num_learners=8, popart_decay=0.01')

  @parameterized.parameters(
      ({'use_lstm': True, 'unroll_length': 100}, 'in full'),
      ({'use_lstm': True}, 'departs from the paper: use_lstm=True'),
      ({'unroll_length': 100}, 'departs from the paper: unroll_length=100'),
      ({'use_lstm': True, 'unroll_length': 100, 'discount': 0.9}, 'departs from the paper: discount=0.9'))
  def test_both_readings_of_the_paper_are_the_papers(self, others, extent):
    self._make('atari', _ATARI, 0.5, 'popart_impala_atari57', **others)
    self.assertEqual(self._rows()[0]['PopArt-IMPALA', 'Atari-57 (unclipped)', 'random starts: median'][1], extent)

  def test_the_training_score_is_that_of_the_last_episodes(self):
    curves = {level: [0., mean] for level, mean in _means(dmlab30.SUITE, 0.25, dmlab30.LEVELS).items()}
    self._make('dmlab', _DMLAB, 0.7, 'popart_impala_dmlab30', curves=curves, test_num_episodes=10)
    mean, extent = self._rows()[0]['PopArt-IMPALA', 'DMLab-30', 'train: mean capped']
    self.assertAlmostEqual(mean, 25.)
    self.assertEqual(extent, 'scaled down: 1 of 3 seeds')  # Whatever the evaluation was.
    self.assertEqual(self._rows()[0]['PopArt-IMPALA', 'DMLab-30', 'test: mean capped'][1],
                     'scaled down: 10 of 500 episodes, 1 of 3 seeds')

  def test_the_training_score_is_of_runs_that_have_one(self):
    flags = _DMLAB | {'population_size': 1, 'learning_rate_decay': True}
    for seed, share in ((1, 0.25), (3, 0.35)):
      curves = {level: [0., mean] for level, mean in _means(dmlab30.SUITE, share, dmlab30.LEVELS).items()}
      self._make(f'short_{seed}', flags, 0.7, 'popart_impala_dmlab30', curves=curves, frames=20_000_000, seed=seed)
    self._make('without_rows', flags, 0.7, 'popart_impala_dmlab30', seed=2)
    mean, extent = self._rows()[0]['PopArt-IMPALA', 'DMLab-30', 'train: mean capped']
    self.assertAlmostEqual(mean, 30.)
    self.assertEqual(extent, 'scaled down: 20M of 10B frames, 1 of 8 members, 2 of 3 seeds')

  def test_runs_that_are_not_shown_are_named(self):
    flags = _DMLAB | {'population_size': 1}
    self._make('papers', flags, 0.5, 'popart_impala_dmlab30')
    self._make('fast', flags, 0.7, 'popart_impala_dmlab30', popart_decay=0.01)
    rows, notes = self._rows()
    self.assertAlmostEqual(rows['PopArt-IMPALA', 'DMLab-30', 'test: mean capped'][0], 70.)
    self.assertEqual(notes[1], 'DMLab-30: PopArt-IMPALA: of 2 runs these are shown, the best of 2 settings: '
                               f'{self.folder}/fast')

  @parameterized.parameters(
      ({'value_normalization': 'none'}, 'popart_impala_dmlab30', 'MultiHead-IMPALA'),
      ({'use_pixel_control': True}, 'popart_impala_dmlab30', 'Pixel-PopArt-IMPALA'),
      ({'action_set': 'impala'}, 'impala_dmlab30', 'IMPALA-original'),
      ({'action_set': None}, 'impala_dmlab30', 'IMPALA-original'),  # Older runs.
      ({'level_name': 'rooms_watermaze'}, 'popart_impala_dmlab30', 'PopArt-IMPALA'))
  def test_other_runs_are_named_below(self, others, binary, name):
    suite = dmlab30.SUITE
    flags = (_DMLAB if binary.startswith('popart') else _IMPALA_DMLAB) | others
    means = {level: 1. for level in ([flags['level_name']] if flags['level_name'] != 'dmlab30' else suite.test_levels)}
    run_directories.make(self.folder, 'run', means, binary=binary, **flags)
    rows, notes = self._rows()
    self.assertEqual(notes[1], 'Not in the table (other agents, other levels, or not V-trace): '
                               f'{self.folder}/run ({name} on {flags["level_name"]})')
    self.assertEqual({run[0] for run in rows.values()}, {None})

  def test_the_score_is_that_of_the_suite(self):
    self.assertEqual((scores.SUITES['atari57'].summary, scores.SUITES['dmlab30'].summary), ('median', 'mean_capped'))


if __name__ == '__main__':
  absltest.main()
