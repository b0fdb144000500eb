"""Tests the report of an evaluation, and the file of finished levels."""

import json

from absl.testing import absltest
import numpy as np

from scalable_agents.evaluation import evaluation_results
from scalable_agents.evaluation import evaluator as evaluator_lib
from scalable_agents.records import run_directory


class ReportTest(absltest.TestCase):

  def test_report(self):
    result = {'mean': -20.25, 'median': -20., 'human_normalised': 1.2747, 'human_normalised_capped': 1.2747,
              'episode_returns': [-20., -20.5], 'episode_lengths': [3812, 3100]}
    protocol = {'num_episodes': 2, 'environment_frames': 40_960, 'learner_steps': 16}
    without = dict(result, human_normalised=None, human_normalised_capped=None)
    report = lambda **levels: evaluation_results.report({'levels': levels, 'suite': None, 'protocol': protocol})
    self.assertEqual(report(pong=result), '''\
pong: 2 episodes after 40,960 frames of training (16 updates)
  mean return             -20.25
  median return           -20.00
  human-normalised          1.27 %  (of the mean; random 0 %, human 100 %)
  mean length           3,456.00 frames''')
    self.assertEqual(report(catch=without), '''\
catch: 2 episodes after 40,960 frames of training (16 updates)
  mean return             -20.25
  median return           -20.00
  mean length           3,456.00 frames''')

  def test_report_of_several_levels(self):
    result = {'mean': -20.25, 'median': -20., 'human_normalised': 1.2747}
    without = dict(result, human_normalised=None)
    self.assertEqual(evaluation_results.report({
        'levels': {'pong': result, 'catch': without},
        'suite': {'suite_score': 1.3, 'suite_score/mean_capped': 1.2747, 'suite_score/above_human': 0},
        'protocol': {'num_episodes': 2, 'environment_frames': 40_960, 'learner_steps': 16}}), '''\
2 episodes of each of 2 levels after 40,960 frames of training (16 updates)
level                                             mean      median  normalised
pong                                            -20.25      -20.00      1.27 %
catch                                           -20.25      -20.00
human-normalised over the levels: mean capped 1.27 %, levels above human: 0''')


class LevelsTest(absltest.TestCase):

  def test_numbers_of_a_level(self):
    evaluator = evaluator_lib.Evaluator(4, [0], lambda: None)
    evaluator.add(0, np.ones(4, bool), np.array([0., 10., 20., 170.]), np.full(4, 8))
    result, = evaluation_results.of_levels(evaluator, ['breakout'], [0]).values()
    self.assertEqual((result['mean'], result['median']), (50., 15.))
    self.assertAlmostEqual(result['human_normalised'], 100 * (50. - 1.7) / (30.5 - 1.7))
    self.assertEqual(result['human_normalised_capped'], 100.)


_RESULT = {'mean': -1., 'median': -1., 'human_normalised': None, 'human_normalised_capped': None,
           'episode_returns': [-1., -1.], 'episode_lengths': [40, 44]}


class FinishedLevelsTest(absltest.TestCase):

  def test_only_results_of_the_same_evaluation_count(self):
    logdir = self.create_tempdir().full_path
    protocol = {'atari': {'noop_max': 4}}
    identity = {'checkpoint': 'ckpt-1', 'actions': 'sampled', 'num_episodes': 2, 'seed': 1}
    make = lambda identity, protocol: evaluation_results.FinishedLevels(logdir, identity, protocol, ())
    make(identity, protocol).keep({'sound': _RESULT})
    self.assertEqual(make(identity, protocol).results, {'sound': _RESULT})
    make(identity, protocol).keep({'slow': _RESULT})  # What continues it can be interrupted, too.
    self.assertEqual(make(identity, protocol).results, {'sound': _RESULT, 'slow': _RESULT})
    others = [(identity | change, protocol) for change in (
        {'checkpoint': 'ckpt-7'}, {'actions': 'greedy'}, {'num_episodes': 30}, {'seed': 0})]
    for other in (*others, (identity, {}), (identity, {'atari': {'noop_max': 5}})):
      self.assertEmpty(make(*other).results)
      self.assertTrue(make(*other).are_others)

  def test_a_file_that_cannot_be_read_does_not_count(self):
    logdir, of = self.create_tempdir().full_path, {'checkpoint': 'ckpt-1'}
    evaluation_results.FinishedLevels(logdir, of, {}, ()).keep({'sound': _RESULT})
    file = run_directory.path(logdir, run_directory.EVALUATION_UNFINISHED)
    with open(file, encoding='utf-8') as stream:
      whole = stream.read()
    for text in (whole[:-5], '[]', ''):
      with open(file, 'w', encoding='utf-8') as stream:
        stream.write(text)
      self.assertEmpty(evaluation_results.FinishedLevels(logdir, of, {}, ()).results)

  def test_they_count_whatever_the_free_settings_are(self):
    """Settings such as the folder of the maps do not matter."""
    logdir, of = self.create_tempdir().full_path, {'checkpoint': 'ckpt-1'}
    left = {'of': of | {'protocol': {'atari': {'noop_max': 4}}}, 'levels': {'sound': _RESULT}}
    with open(run_directory.path(logdir, run_directory.EVALUATION_UNFINISHED), 'w', encoding='utf-8') as file:
      json.dump(left, file)
    for noop_max, finished in ((4, ['sound']), (5, [])):
      now = {'atari': {'noop_max': noop_max, 'renderer': 'hardware'}}
      found = evaluation_results.FinishedLevels(logdir, of, now, ('renderer',))
      self.assertEqual(list(found.results), finished)


if __name__ == '__main__':
  absltest.main()
