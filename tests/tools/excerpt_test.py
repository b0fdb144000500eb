"""Tests of tools/excerpt.py with a run directory that is made here."""

import errno
import json
import os
import shutil
from unittest import mock

from absl.testing import absltest
import numpy as np

from scalable_agents.population import population_directory
from scalable_agents.records import errors
from scalable_agents.records import run_directory
from scalable_agents.records import run_rows
from scalable_agents.tables.results import runs
from scalable_agents.tables.results import training_returns
from scalable_agents.tools import excerpt

_FLAGS = {'level_name': 'breakout', 'torso': 'shallow', 'use_lstm': False, 'seed': 1, 'total_environment_frames': 1_000,
          'off_policy_correction': 'vtrace', 'learning_rate': 0.5, 'entropy_cost': 0.25, 'rmsprop_epsilon': 0.125}


class ExcerptTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.run_folder = self.create_tempdir('original').full_path
    config = {'agent': 'impala', 'flags': _FLAGS | {'logdir': self.run_folder, 'clip_rho_threshold': 'inf'},
              'command_line': ['/home/me/bin/python', '-m', 'x', '--seed=1', f'--logdir={self.run_folder}']}
    self._write('config.json', json.dumps(config))
    self._write('evaluation.json', json.dumps({
        'levels': {'breakout': {'mean': 2.5, 'episode_returns': [2, 3]}},
        'protocol': {'environment_frames': 1_000, 'num_episodes': 2, 'actions': 'sampled', 'rewards': 'raw'}}))
    self._write('metrics.jsonl', ''.join(
        json.dumps({'environment_frames': frames, 'wall_seconds': 1., 'episode_return': frames / 2}) + '\n'
        for frames in range(1, 1_001)))
    self._write('learning_curve.png', 'a picture')
    self._write('tensorflow.log', self.run_folder)
    os.makedirs(os.path.join(self.run_folder, 'checkpoints'))

  def _write(self, name, text):
    with open(os.path.join(self.run_folder, name), 'w', encoding='utf-8') as file:
      file.write(text)

  def test_the_copy_is_a_run_that_the_tables_read(self):
    output = self.create_tempdir('copies').full_path + '/new/copy'
    excerpt.write(excerpt.ExcerptConfig(self.run_folder, output))
    self.assertCountEqual(os.listdir(output),
                          ['config.json', 'evaluation.json', 'metrics.jsonl', 'learning_curve.png'])
    (original,), (copy,) = (runs.read([logdir], evaluated=True)[0] for logdir in (self.run_folder, output))
    self.assertEqual(copy.evaluation, original.evaluation)
    self.assertEqual(copy.flags, original.flags | {'logdir': output})
    frames = [row['environment_frames'] for row in run_rows.read_metrics(output)]
    self.assertEqual((frames[0], frames[-1]), (1, 1_000))
    self.assertBetween(len(frames), 150, 201)
    self.assertLess(max(after - before for before, after in zip(frames, frames[1:], strict=False)), 10)

  def test_the_copied_episodes_give_the_same_returns(self):
    draw = np.random.default_rng(0)
    frames = np.sort(draw.integers(1, 1_001, 900))
    returns = [f'{value:.3f}' for value in draw.normal(size=900)]
    returns[500] = 'nan'  # It counts in neither.
    levels = draw.choice(['breakout', 'pong'], 900, p=[0.8, 0.2])
    self._write('episodes.csv', 'frames,level,return,length\n' + ''.join(
        f'{at},{level},{value},7\n' for at, level, value in zip(frames, levels, returns, strict=True)))
    self._write('config.json', json.dumps({'agent': 'impala', 'flags': _FLAGS | {'level_name': 'breakout,pong'}}))
    output = self.create_tempdir('copies').full_path
    excerpt.write(excerpt.ExcerptConfig(self.run_folder, output, rows=2, curve=False, returns_every=300))
    self.assertCountEqual(os.listdir(output), ['config.json', 'evaluation.json', 'episodes.csv', 'metrics.jsonl'])
    self.assertLen(run_rows.read_metrics(output), 2)
    self.assertBetween(len(list(run_rows.read_episodes(output))), 300, 400)
    original, copy = (training_returns.read(runs.read([logdir], evaluated=False)[0][0])
                      for logdir in (self.run_folder, output))
    self.assertEqual(copy.frames, original.frames)
    copied, = runs.read([output], evaluated=False)[0]
    self.assertEqual(copied.returns_every, 300)
    with self.assertRaisesRegex(errors.UserError, '=400: .* is an excerpt with --returns_every=300: want a multiple'):
      excerpt.write(excerpt.ExcerptConfig(output, self.create_tempdir('of_copy').full_path, returns_every=400))
    excerpt.write(excerpt.ExcerptConfig(self.run_folder, without := self.create_tempdir('without').full_path))
    with self.assertRaisesRegex(errors.UserError, '=300: .* has no training episodes. An excerpt has them only if'):
      excerpt.write(excerpt.ExcerptConfig(without, self.create_tempdir('of_copy').full_path, returns_every=300))
    for level in ('breakout', 'pong'):
      for mark in (600, 1_200):  # Frames of both levels.
        self.assertEqual(training_returns.last(copy.of_levels[level], mark),
                         training_returns.last(original.of_levels[level], mark))

  def test_members_of_a_population_keep_their_fitness(self):
    fitness = population_directory.Fitness(1_000, 5., {'learning_rate': 1e-4})
    population_directory.write_fitness(self.run_folder, fitness)
    output = self.create_tempdir('copies').full_path
    excerpt.write(excerpt.ExcerptConfig(self.run_folder, output))
    self.assertEqual(population_directory.read_fitness(output), fitness)

  def test_regression_files_of_the_figures_of_populations_and_r2d2_are_copied(self):
    names = ('evolution.jsonl', 'restricted_history.json')
    for name in names:
      self._write(name, f'{name}\n')
    output = self.create_tempdir('copies').full_path
    excerpt.write(excerpt.ExcerptConfig(self.run_folder, output))
    for name in names:
      with open(os.path.join(output, name), encoding='utf-8') as file:
        self.assertEqual(file.read(), f'{name}\n')
      os.remove(os.path.join(self.run_folder, name))
    excerpt.write(excerpt.ExcerptConfig(self.run_folder, output))
    self.assertNoCommonElements(names, os.listdir(output))

  def test_an_excerpt_replaces_an_earlier_one(self):
    output = self.create_tempdir('copies').full_path
    excerpt.write(excerpt.ExcerptConfig(self.run_folder, output))
    os.remove(os.path.join(self.run_folder, 'evaluation.json'))
    excerpt.write(excerpt.ExcerptConfig(self.run_folder, output, curve=False))
    self.assertCountEqual(os.listdir(output), ['config.json', 'metrics.jsonl'])

  def test_regression_an_excerpt_at_home_replaces_an_earlier_one(self):
    home = self.create_tempdir('home').full_path
    with absltest.mock.patch.dict(os.environ, HOME=home):
      for _ in range(2):
        excerpt.write(excerpt.ExcerptConfig(self.run_folder, '~/copy'))
    self.assertIn('config.json', os.listdir(f'{home}/copy'))

  def test_regression_what_refused_commands_leave_behind_is_removed(self):
    output = self.create_tempdir('copies').full_path
    left_behind = ('.evaluation_lock', '.lock', 'tensorflow.log')
    for name in left_behind:
      open(os.path.join(output, name), 'wb').close()
    with self.assertRaisesRegex(errors.UserError, 'has other files, such as .evaluation_lock: choose another folder'):
      excerpt.write(excerpt.ExcerptConfig(self.run_folder, output))  # It is no excerpt.
    for name in left_behind:
      os.remove(os.path.join(output, name))
    excerpt.write(excerpt.ExcerptConfig(self.run_folder, output))
    before = os.listdir(output)
    for name in left_behind:
      open(os.path.join(output, name), 'wb').close()
    excerpt.write(excerpt.ExcerptConfig(self.run_folder, output))
    self.assertCountEqual(os.listdir(output), before)

  def test_regression_metrics_that_cannot_be_read_are_one_line(self):
    file = os.path.join(self.run_folder, 'metrics.jsonl')
    os.remove(file)
    os.mkdir(file)
    output = self.create_tempdir('copies').full_path
    with self.assertRaisesRegex(run_directory.RunDirectoryError, f'^{file}: Is a directory: [^\n]*$'):
      excerpt.write(excerpt.ExcerptConfig(self.run_folder, output))

  def test_a_damaged_row_leaves_an_earlier_excerpt_as_it_is(self):
    output = self.create_tempdir('copies').full_path
    config = excerpt.ExcerptConfig(self.run_folder, output, returns_every=300)
    self._write('episodes.csv', 'frames,level,return,length\n' + ''.join(f'{at},breakout,1,7\n' for at in range(600)))
    excerpt.write(config)
    before = {name: open(os.path.join(output, name), 'rb').read() for name in os.listdir(output)}
    self._write('episodes.csv', 'frames,level,return,length\n1,breakout,1,7\nwhat is this\n3,breakout,1,7\n')
    with self.assertRaisesRegex(errors.UserError, 'episodes.csv, line 3 is damaged'):
      excerpt.write(config)
    self.assertEqual({name: open(os.path.join(output, name), 'rb').read() for name in os.listdir(output)}, before)

  def test_a_full_disk_leaves_an_earlier_excerpt_as_it_is(self):
    output = self.create_tempdir('copies').full_path
    excerpt.write(excerpt.ExcerptConfig(self.run_folder, output))
    before = {name: open(os.path.join(output, name), 'rb').read() for name in os.listdir(output)}
    with mock.patch.object(shutil, 'copyfile', side_effect=OSError(errno.ENOSPC, 'No space left on device')):
      with self.assertRaisesRegex(run_directory.RunDirectoryError, f'^{output}: No space left on device'):
        excerpt.write(excerpt.ExcerptConfig(self.run_folder, output, rows=2))
    self.assertEqual({name: open(os.path.join(output, name), 'rb').read() for name in os.listdir(output)}, before)

  def test_the_excerpt_of_another_run_is_not_replaced(self):
    output = self.create_tempdir('copies').full_path
    excerpt.write(excerpt.ExcerptConfig(self.run_folder, output))
    os.makedirs(os.path.join(output, '.new_after_kill_9'))
    excerpt.write(excerpt.ExcerptConfig(self.run_folder, output))
    self._write('config.json', json.dumps({'agent': 'impala', 'flags': _FLAGS | {'seed': 77}}))
    with self.assertRaisesRegex(errors.UserError, 'has the excerpt of another run: choose another folder, or'):
      excerpt.write(excerpt.ExcerptConfig(self.run_folder, output))
    self.assertNotEqual(run_directory.read_config(output)['flags']['seed'], 77)

  def test_a_damaged_config_is_named_before_anything_is_written(self):
    output = self.create_tempdir('copies').full_path
    for flags in ({}, {'level_name': 'pong,pong'}):
      self._write('config.json', json.dumps({'agent': 'impala', 'flags': flags}))
      with self.assertRaisesRegex(errors.UserError, 'config.json: --level_name='):
        excerpt.write(excerpt.ExcerptConfig(self.run_folder, output, returns_every=300))
    self.assertEmpty(os.listdir(output))

  def test_no_path_of_the_original_remains(self):
    self.addCleanup(os.chdir, os.getcwd())
    os.chdir(self.create_tempdir('here').full_path)
    excerpt.write(excerpt.ExcerptConfig(self.run_folder, 'copy'))
    with open('copy/config.json', encoding='utf-8') as file:
      text = file.read()
    self.assertNotIn(self.run_folder, text)
    self.assertNotIn('/home/me', text)
    self.assertEqual(json.loads(text)['command_line'], ['python', '-m', 'x', '--seed=1'])

  def test_it_does_not_write_over_the_run_nor_copy_another_folder(self):
    with self.assertRaisesRegex(errors.UserError, 'this is the run directory itself'):
      excerpt.write(excerpt.ExcerptConfig(self.run_folder, self.run_folder))
    self.assertLen(run_rows.read_metrics(self.run_folder), 1_000)
    other = self.create_tempdir('other').full_path
    os.makedirs(os.path.join(other, 'checkpoints'))
    with self.assertRaisesRegex(errors.UserError, 'has other files, such as checkpoints: choose another folder'):
      excerpt.write(excerpt.ExcerptConfig(self.run_folder, other))
    self.assertEqual(os.listdir(other), ['checkpoints'])
    empty = self.create_tempdir('empty').full_path
    with self.assertRaisesRegex(run_directory.RunDirectoryError, 'no run has been started there'):
      excerpt.write(excerpt.ExcerptConfig(empty, empty + '/copy'))
    self.assertEmpty(os.listdir(empty))


if __name__ == '__main__':
  absltest.main()
