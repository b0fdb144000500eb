"""Tests of tools/compare_runs.py with run directories that are made here."""

import contextlib
import csv
import io
import json
import os
import re
import shutil
import sys
from unittest import mock

from absl.testing import absltest
from matplotlib import image
import numpy as np

from scalable_agents.processes import run_flags
from scalable_agents.records import errors
from scalable_agents.tables.results import intervals
from scalable_agents.tests import source_tree
from scalable_agents.tools import compare_runs


class CompareRunsTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = self.create_tempdir().full_path

  def _run(self, name, values, agent='impala', **flags):
    """Makes a run whose metric has these values after 100, 200, … frames. None: the row does not have it."""
    logdir = os.path.join(self.folder, name)
    os.makedirs(logdir)
    with open(os.path.join(logdir, 'config.json'), 'w', encoding='utf-8') as file:
      json.dump({'agent': agent, 'flags': {'level_name': 'catch', 'logdir': logdir, **flags}}, file)
    with open(os.path.join(logdir, 'metrics.jsonl'), 'w', encoding='utf-8') as file:
      for number, value in enumerate(values, start=1):
        row = {'environment_frames': 100 * number, 'wall_seconds': number, 'loss/total': -number}
        file.write(json.dumps(row | ({} if value is None else {'episode_return': value})) + '\n')
    return logdir

  def _compare(self, pattern='*', metric='episode_return'):
    output, screen = os.path.join(self.folder, 'output'), io.StringIO()
    config = compare_runs.CompareConfig(os.path.join(self.folder, pattern), metric, output)
    self.skipped = io.StringIO()
    with mock.patch.object(run_flags, 'config_from_flags', return_value=config), contextlib.redirect_stdout(screen), \
        contextlib.redirect_stderr(self.skipped):
      compare_runs.main()
    return output, screen.getvalue()

  def test_a_run_that_goes_on_is_named(self):
    for seed, returns in enumerate(([0., 1.], [0.])):
      run = self._run(f'run_{seed}', returns, seed=seed, total_environment_frames=200)
    self._compare()
    self.assertEqual(self.skipped.getvalue(), f'not finished: {run}: 100 of 200 frames\n')

  def test_regression_a_run_whose_last_row_lacks_the_metric_is_finished(self):
    self._run('run', [0., None], total_environment_frames=200)
    self._compare()
    self.assertEmpty(self.skipped.getvalue())

  def test_regression_large_numbers_keep_their_digits(self):
    self._run('run', [12_345_678., 12_345_999.])
    output, screen = self._compare()
    self.assertIn('at the end 12,345,999', screen)
    with open(os.path.join(output, 'episode_return.csv'), encoding='utf-8') as file:
      self.assertEqual([row['episode_return'] for row in csv.DictReader(file)], ['12345678', '12345999'])

  def test_runs_that_differ_only_in_their_seeds_are_a_group(self):
    for seed in range(3):
      self._run(f'a{seed}', [0., seed, seed / 2], seed=seed, learning_rate=0.1, num_environments=seed)
      self._run(f'b{seed}', [0., 10.], seed=seed, learning_rate=0.2)
    output, screen = self._compare()
    self.assertEqual(screen.splitlines()[2::2], ['learning_rate=0.1', 'learning_rate=0.2'])
    self.assertRegex(screen, r'learning_rate=0.1\n  3 runs; at the end 0\.5 \(\S+ to \S+\); best 1 \(\S+ to \S+\)\n')
    self.assertRegex(screen, r'learning_rate=0.2\n  3 runs; at the end 10 \(10 to 10\); best 10 \(10 to 10\)\n')
    with open(os.path.join(output, 'episode_return.csv'), encoding='utf-8', newline='') as file:
      rows = list(csv.reader(file))
    self.assertEqual(rows[0], ['group', 'run', 'seed', 'environment_frames', 'episode_return'])
    self.assertLen(rows, 1 + 3 * 3 + 3 * 2)
    self.assertEqual(rows[1], ['learning_rate=0.1', os.path.join(self.folder, 'a0'), '0', '100', '0'])
    with open(os.path.join(output, 'episode_return.png'), 'rb') as file:
      self.assertStartsWith(file.read(), b'\x89PNG')

  def test_what_does_not_change_the_result_makes_no_group(self):
    """Also an older run without a setting whose value was the default then, and a comma in a name."""
    self._run('a,1', [1., 2.], level_name='pong', seed=1, vtrace_lambda=1.0, measure_delta_q=True)
    self._run('a,2', [1., 4.], level_name='pong', seed=2)
    _, screen = self._compare('*')
    self.assertRegex(screen, r'all runs\n  2 runs; at the end 3 ')
    _, screen = self._compare('a,1')
    self.assertRegex(screen, r'all runs\n  1 run; at the end 2;')

  def test_an_older_run_has_the_defaults_of_settings_that_it_lacks(self):
    self._run('old', [1., 2.], level_name='pong')
    self._run('same', [1., 4.], level_name='pong', centre_pixels=False)
    self._run('other', [1., 8.], level_name='pong', centre_pixels='mean')
    _, screen = self._compare()
    self.assertRegex(screen, r'centre_pixels=none\n  2 runs; at the end 3 .*\n'
                             r'centre_pixels=mean\n  1 run; at the end 8;')

  def test_a_run_of_several_learners_counts_once(self):
    for task, name in enumerate(('run', 'run_learner_1')):
      self._run(name, [1., 2.], job_name='learner', task=task)
    _, screen = self._compare()
    self.assertRegex(screen, r'all runs\n  1 run; at the end 2;')
    self.assertRegex(self.skipped.getvalue(), '^skipped: .*/run_learner_1: the directory of learner 1 of a run: want ')

  def test_a_copy_of_a_run_is_no_further_seed(self):
    run = self._run('run', [1., 2.])
    shutil.copytree(run, f'{run}_copy')
    _, screen = self._compare()
    self.assertRegex(screen, r'all runs\n  1 run; at the end 2;')
    self.assertEqual(self.skipped.getvalue(), f'skipped: {run}_copy: a copy of {run}\n')

  def test_shared_replays_at_several_addresses_make_no_group(self):
    for seed, address in enumerate(('127.0.0.1:40001', '127.0.0.1:40913', '')):
      self._run(f'run_{seed}', [1., 2.], agent='laser', seed=seed, shared_replay=address)
    _, screen = self._compare()
    self.assertRegex(screen, r'shared_replay=True\n  2 runs; .*\nshared_replay=False\n  1 run; ')

  def test_several_learners_and_plain_colours_make_groups(self):
    for seed, flags in enumerate(({}, {'learner_addresses': 'a:1,b:1', 'task': 0}, {'num_learners': 2},
                                  {'dataset_path': '/images'}, {'dataset_path': 'dummy'})):
      self._run(f'run_{seed}', [1., 2.], seed=seed, **flags)
    _, screen = self._compare()
    self.assertEqual(screen.splitlines()[2::2], [
        'dataset_path=images or none, num_learners=1', 'dataset_path=images or none, num_learners=2',
        'dataset_path=plain colours, num_learners=1'])
    self.assertEqual(re.findall('[0-9]+ runs?', screen), ['2 runs', '2 runs', '1 run'])

  def test_a_setting_of_another_type_is_one_line(self):
    self._run('run', [1., 2.], learner_addresses=7)
    with self.assertRaisesRegex(errors.UserError, 'run/config.json: --learner_addresses=7: want text: put the file '):
      self._compare()

  def test_older_runs_do_not_name_their_agent(self):
    for number, agent in enumerate(('impala', None)):
      logdir = self._run(f'run_{number}', [1., 2.], agent=agent, seed=number)
      with open(os.path.join(logdir, 'config.json'), encoding='utf-8') as file:
        config = json.load(file) | {'command_line': ['python', '-m', 'scalable_agents.agents.impala_atari57']}
      with open(os.path.join(logdir, 'config.json'), 'w', encoding='utf-8') as file:
        json.dump({name: value for name, value in config.items() if value is not None}, file)
    _, screen = self._compare()
    self.assertRegex(screen, r'all runs\n  2 runs;')

  def test_the_interquartile_mean_and_its_interval(self):
    middle, low, high = intervals.interquartile_mean([-100., 1., 2., 3., 4., 5., 6., 100.])
    self.assertAlmostEqual(middle, (2 + 3 + 4 + 5) / 4)  # Without the two smallest and the two largest.
    for runs in (1, 2, 5):  # However many equal runs there are, the second and the fifth task count half.
      tasks = intervals.interquartile_mean([[-100., 0., 2., 3., 4., 100.]] * runs)
      self.assertAlmostEqual(tasks.middle, (0.5 * 0 + 2 + 3 + 0.5 * 4) / 3)
    self.assertBetween(low, -30., middle)
    self.assertBetween(high, middle, 40.)
    values = np.random.RandomState(1).normal(size=40)
    drawn = np.sort(np.random.RandomState(2).choice(values, size=[20_000, 40]), axis=-1)[:, 10:30].mean(axis=-1)
    want = np.percentile(drawn, [2.5, 97.5])  # Of the middle halves.
    _, low, high = intervals.interquartile_mean(values)
    np.testing.assert_allclose([low, high], want, atol=0.1 * (want[1] - want[0]))
    self.assertEqual(intervals.interquartile_mean([7.])[0], 7.)
    self.assertTrue(np.isnan(intervals.interquartile_mean([7.])[1:]).all())

  def test_the_interval_is_the_same_each_time_and_leaves_numpys_generator_alone(self):
    values = np.random.RandomState(0).normal(size=[5, 6])
    np.random.seed(1)
    expected = np.random.uniform(size=3)
    np.random.seed(1)
    first = intervals.interquartile_mean(values)
    np.testing.assert_array_equal(np.random.uniform(size=3), expected)
    self.assertEqual(intervals.interquartile_mean(values), first)

  def test_agents_are_groups_and_rows_without_the_metric_are_left_out(self):
    self._run('a', [None, 1., 2.])
    self._run('b', [3.] * 2, agent='r2d2')
    _, screen = self._compare()
    self.assertRegex(screen, 'agent=impala\n  1 run; at the end 2; best 2\nagent=r2d2\n  1 run; at the end 3; best 3\n')
    _, screen = self._compare('a', 'loss/total')
    self.assertRegex(screen, '^wrote .*loss_total.csv.*\nloss/total: .*\nall runs\n  1 run; at the end -3; best -1\n$')

  def test_runs_of_a_single_row_are_points(self):
    pictures = []
    for name, value in (('a', 1.), ('b', 2.)):
      self._run(name, [value])
    self._run('c', [1., 2.])
    for patterns in ('a', '?'):
      output, _ = self._compare(patterns)
      pictures.append(image.imread(os.path.join(output, 'episode_return.png')))
    blue = [np.sum(picture[55:, :, 2] - picture[55:, :, 0] > 0.2) for picture in pictures]
    self.assertGreater(blue[0], 20)  # Pixels of the points, below the legend.
    self.assertGreater(blue[1], 1.5 * blue[0])

  def test_a_run_counts_once_and_its_name_may_have_brackets(self):
    logdir = self._run('a[1]', [1., 2.])
    os.symlink(logdir, os.path.join(self.folder, 'link'))
    self.assertEqual([run.logdir for run in compare_runs.read(f'{logdir},{logdir}/,{self.folder}/*', 'loss/total')],
                     [logdir])

  def test_runs_that_cannot_be_read_are_skipped_and_named(self):
    self._run('a', [1., 2.])
    self._run('b', [None])
    damaged = os.path.join(self._run('c', [3.]), 'config.json')
    with open(damaged, 'w', encoding='utf-8') as file:
      file.write('{')
    self._run('d', [3., 4.])
    _, screen = self._compare()
    self.assertIn('  2 runs; at the end 3 ', screen)
    self.assertRegex(self.skipped.getvalue(), '^skipped: .*/c/config.json, line 1 is damaged .*\n'
                                              "skipped: .*/b: no metric 'episode_return': want .*\n$")
    with self.assertRaisesRegex(errors.UserError, '^.*/b: no metric'):
      self._compare('[bc]')
    self.assertRegex(self.skipped.getvalue(), '^skipped: .*/c/config.json, line 1 is damaged .*\n$')

  def test_without_rliable_there_are_a_figure_and_a_table_of_single_runs(self):
    self._run('a', [1., 2.])
    self._run('b', [3., 4.])
    with mock.patch.dict(sys.modules, rliable=None):  # It cannot be imported.
      _, screen = self._compare('a')
      self.assertIn('at the end 2; best 2\n', screen)
      with self.assertRaisesRegex(errors.UserError, ' -m pip install rliable==') as raised:
        self._compare()
    self.assertTrue(os.path.exists(os.path.join(self.folder, 'output', 'episode_return.png')))
    pins = (source_tree.ROOT / 'requirements-plots.txt').read_text(encoding='utf-8').splitlines()
    self.assertEndsWith(str(raised.exception), f'{sys.executable} -m pip install '
                        + ' '.join(pin for pin in pins if '==' in pin))

  def test_long_names_fit_into_the_figure(self):
    for number in range(4):
      self._run(f'a{number}', [0., number], learning_rate=number / 7, entropy_cost=number / 9,
                reward_transform=f'a_transform_with_a_long_name_{number}', torso='shallow' if number % 2 else 'deep')
    output, _ = self._compare()
    picture = image.imread(os.path.join(output, 'episode_return.png'))
    self.assertTrue((picture[:170, -5:] == 1.).all())  # The legend is not cut off at the right.

  def test_what_cannot_be_compared_is_one_line(self):
    with self.assertRaisesRegex(errors.UserError, '^--runs: .*/x: no such run directory$'):
      self._compare('x')
    self._run('a', [None])
    with self.assertRaisesRegex(errors.UserError, "/a: no metric 'episode_return': want one of environment_frames, "):
      self._compare('a')
    self._run('b', [])
    with self.assertRaisesRegex(errors.UserError, '/b: has no metrics yet$'):
      self._compare('b')


if __name__ == '__main__':
  absltest.main()
