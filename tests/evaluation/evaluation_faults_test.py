"""Tests how evaluation ends when checkpoints, policies, environments or directories fail: with one line."""

import dataclasses
import fcntl
import glob
import io
import os
import shutil
import signal
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from scalable_agents.actor import actor_pool
from scalable_agents.evaluation import evaluation
from scalable_agents.records import errors
from scalable_agents.records import run_directory
from scalable_agents.tests.evaluation import evaluation_testing
from scalable_agents.tests.training import faulty_environments
from scalable_agents.tests.training import training

_STAY = 1


class EvaluationFaultsTest(evaluation_testing.EvaluationTestCase):

  def test_regression_advice_to_delete_a_checkpoint_is_not_given_beside_a_trainer(self):
    config, run = self.make_run()
    checkpoints = run_directory.path(run.logdir, run_directory.CHECKPOINTS)
    training.make_run(run.logdir, config)[1].save(2)
    os.truncate(os.path.join(checkpoints, 'ckpt-2.index'), 10)
    with self.assertRaisesRegex(run_directory.RunDirectoryError, r'ckpt-2 is damaged .*: delete .*ckpt-1'):
      self.evaluate(config, run)
    # Locks the run as a trainer in another process does.
    with open(run_directory.path(run.logdir, '.lock'), 'w', encoding='utf-8') as lock:
      fcntl.flock(lock, fcntl.LOCK_EX)
      lock.write('process 1 on other')
      lock.flush()
      with self.assertRaisesRegex(run_directory.RunDirectoryError,
                                  r'ckpt-2 is damaged .*: process 1 on other trains there: leave its files alone'):
        self.evaluate(config, run)
      with open(os.path.join(checkpoints, 'checkpoint'), 'w', encoding='utf-8'):
        pass
      with self.assertRaisesRegex(run_directory.RunDirectoryError,
                                  'checkpoints/checkpoint is damaged: process 1 on other trains there: leave its'):
        self.evaluate(config, run)

  @parameterized.parameters('moved', 'removed', 'replaced')
  def test_regression_a_directory_that_is_gone_ends_the_evaluation(self, what):
    config, run = self.make_run()
    moved, other = f'{run.logdir}_moved', f'{run.logdir}_other'
    shutil.copytree(run.logdir, other)

    def remove():
      if os.path.exists(other):
        if what == 'removed':
          shutil.rmtree(run.logdir)
        else:
          os.rename(run.logdir, moved)
        if what == 'replaced':
          os.rename(other, run.logdir)

    screen = evaluation_testing.Reacting('episodes', remove)
    before = sorted(os.listdir(other))
    with self.assertRaisesRegex(run_directory.RunDirectoryError, f'^{run.logdir} was moved or removed[^\n]*$'):
      self.evaluate(config, run, screen, test_num_episodes=10**6, log_interval_seconds=0.1)
    self.assertEmpty(evaluation_testing.children())
    if what == 'replaced':
      self.assertEqual(sorted(os.listdir(run.logdir)), before)
    else:
      self.assertFalse(os.path.exists(run.logdir))

  def test_a_damaged_checkpoint_is_one_line_and_the_evaluation_before_stays(self):
    config, run = self.make_run()
    before = self.evaluate(config, run)
    data, = glob.glob(run_directory.path(run.logdir, run_directory.CHECKPOINTS) + '/*.data*')
    os.truncate(data, 1000)
    with self.assertRaisesRegex(run_directory.RunDirectoryError, 'checkpoint .* is damaged'):
      self.evaluate(config, run)
    self.assertEqual(self.stored(run), before)
    self.assertEmpty(evaluation_testing.children())

  def test_regression_a_checkpoint_without_its_index_is_damaged(self):
    config, run = self.make_run()
    checkpoints = run_directory.path(run.logdir, run_directory.CHECKPOINTS)
    training.make_run(run.logdir, config)[1].save(2)
    os.remove(os.path.join(checkpoints, 'ckpt-2.index'))
    with self.assertRaisesRegex(run_directory.RunDirectoryError,
                                r'^checkpoint \S*/ckpt-2 is damaged [^\n]*: delete [^\n]* to go on from ckpt-1'):
      self.evaluate(config, run)

  def test_a_checkpoint_of_another_network_is_refused(self):
    config, run = self.make_run()
    with self.assertRaisesRegex(run_directory.RunDirectoryError, 'does not fit'):
      self.evaluate(dataclasses.replace(config, use_lstm=True), run)

  @parameterized.parameters(False, True)
  def test_a_policy_whose_logits_are_not_finite(self, has_video):
    config, run = self.make_run(always=_STAY, bias=np.nan)
    video = os.path.join(self.create_tempdir().full_path, 'a.mp4') if has_video else ''
    with self.assertRaisesRegex(
        errors.UserError, f"^{run.logdir}/.*: the agent's outputs are not finite with the parameters of update 20"):
      self.evaluate(config, run, video=video)
    self.assertFalse(os.path.exists(run_directory.path(run.logdir, run_directory.EVALUATION)))
    self.assertEmpty(evaluation_testing.children())

  def test_an_environment_whose_rewards_are_not_numbers(self):
    level = faulty_environments.level(faulty_environments.InfiniteReward)
    config, run = self.make_run(level)
    with self.assertRaisesRegex(errors.UserError, f'^{level}: an environment gave rewards that are not finite'):
      self.evaluate(config, run)

  def test_without_a_checkpoint_there_is_nothing_to_evaluate(self):
    config, run = self.make_run()
    logdir = self.create_tempdir().full_path
    run_directory.open_run(logdir, {}, ()).close()
    with self.assertRaisesRegex(errors.UserError, f'^{logdir}: there is no checkpoint: train first'):
      self.evaluate(config, run, logdir=logdir)
    self.assertCountEqual(os.listdir(logdir), ['.evaluation_lock', '.lock', 'config.json'])

  def test_what_cannot_be_written_is_said_before_playing(self):
    config, run = self.make_run()
    with self.assertRaisesRegex(errors.UserError, '^--video=/missing/a.mp4: No such file or directory'):
      self.evaluate(config, run, video='/missing/a.mp4')
    with mock.patch.object(os, 'access', return_value=False):
      with self.assertRaisesRegex(run_directory.RunDirectoryError, f'^{run.logdir}: no permission to write: '):
        self.evaluate(config, run)

  def test_an_environment_without_pictures_is_one_line(self):
    config, run = self.make_run(faulty_environments.level(faulty_environments.Sound))
    path = os.path.join(self.create_tempdir().full_path, 'sound.mp4')
    with self.assertRaisesRegex(errors.UserError, r'^--video: environment 0 \(gymnasium:\S+\) could not be made: '
                                'ValueError: .*pictures'):
      self.evaluate(config, run, video=path)
    self.assertFalse(os.path.exists(path))

  def test_an_environment_that_cannot_be_made_is_a_users_error(self):
    config, run = self.make_run()
    with self.assertRaisesRegex(errors.UserError, "unknown level 'catsh'"):
      self.evaluate(dataclasses.replace(config, level_name='catsh'), run)

  def test_environments_that_cannot_be_kept_alive_are_a_users_error(self):
    config, run = self.make_run()
    kill_all = lambda: [os.kill(worker, signal.SIGKILL) for worker in evaluation_testing.children()]
    screen = evaluation_testing.Reacting('episodes', kill_all)
    with mock.patch.object(actor_pool, 'MAXIMUM_EARLY_ENDS', 1):
      with self.assertRaisesRegex(errors.UserError, 'environment worker [01] failed'):
        self.evaluate(config, run, screen, test_num_episodes=10**6, log_interval_seconds=0.1)
    self.assertEmpty(evaluation_testing.children())
    self.assertNotIn(run_directory.EVALUATION, os.listdir(run.logdir))

  @parameterized.parameters(('on a terminal', evaluation_testing.Terminal), ('elsewhere', io.StringIO))
  def test_a_fault_is_one_line_and_evaluation_goes_on(self, unused_where, screen_class):
    screen = screen_class()
    progress = evaluation._Progress(mock.Mock(), mock.Mock(num_episodes=5), 1., screen)
    with self.assertLogs(level='WARNING') as logs:
      progress.report_fault('environment worker 0 is replaced: ValueError: a reason\nTraceback\n  a line\nand more')
    progress.close()
    self.assertIn('environment worker 0 is replaced: ValueError: a reason\n', screen.getvalue())
    self.assertIn('a line', logs.output[0])


if __name__ == '__main__':
  absltest.main()
