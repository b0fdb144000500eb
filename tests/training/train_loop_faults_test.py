"""Tests how training goes on or ends when environments, numbers, files or updates fail."""

import contextlib
import os
import pathlib
import shutil
import threading
import time
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import psutil

from scalable_agents.actor import actor_host
from scalable_agents.actor import environment_workers
from scalable_agents.ops import ops
from scalable_agents.records import checkpoint
from scalable_agents.records import errors
from scalable_agents.records import run_directory
from scalable_agents.tests.actor import waiting
from scalable_agents.tests.training import faulty_environments
from scalable_agents.tests.training import trainer_testing
from scalable_agents.tests.training import training
from scalable_agents.training import run_config
from scalable_agents.training import run_end
from scalable_agents.training import run_log

_learner, _values = trainer_testing.learner_calling, trainer_testing.values


def setUpModule():
  training.configure_tensorflow()


class TrainLoopFaultsTest(trainer_testing.TrainerTestCase):

  @parameterized.parameters('', 'an update', 'this learner', 'another learner')
  def test_regression_actor_hosts_are_told_of_the_end_after_the_last_save(self, failing):
    """They left before it. If it failed, the learner was started again, and waited for them for ever."""
    port = mock.Mock(unrolls_name=ops.unique_name('unrolls'), parameters_name=ops.unique_name('parameters'),
                     strategy=None, environment_restarts=3, **{'metrics.return_value': {}, 'warning.return_value': ''})

    def before(learner, unused_unroll):
      if failing == 'an update' and int(learner.update_steps) == 1:
        raise errors.UserError(failing)

    trainer = self.trainer(_learner(before), updates=2, port=port)

    def save(*unused_arguments):
      port.save()
      if failing == 'this learner':
        raise errors.UserError(failing)

    def wait_for_all():
      if failing == 'another learner':  # It has ended.
        raise errors.UserError(failing)

    with mock.patch.object(trainer._saver, 'save', save), \
         mock.patch.object(trainer._together, 'wait_for_all', wait_for_all), \
         self.assertRaisesRegex(errors.UserError, failing) if failing else contextlib.nullcontext():
      trainer.train()
    updates = 1 if failing == 'an update' else 2
    self.assertEqual(int(trainer.learner.update_steps), updates)
    self.assertEqual(training.rows(trainer.logdir)[-1]['environment_restarts'], 3)  # Those at actor hosts.
    self.assertEqual([call.args[0] for call in port.record_lags.call_args_list][:updates], [0, 1][:updates])
    calls = [name for name, *_ in port.method_calls if name.startswith(('announce', 'save', 'wait'))]
    self.assertEqual(calls, ['announce_save', 'save'] + ['announce_end'] * (not failing) +
                     ['wait_for_farewells'] * (failing != 'an update'))

  def test_a_row_that_could_not_be_written_is_written_before_the_checkpoint(self):
    trainer = self.trainer(updates=4)
    write, fails = trainer._log._metrics.write, iter([True])

    def fail_once(values):
      if next(fails, False):
        raise run_directory.RunDirectoryError('the disk is full')
      write(values)

    with mock.patch.object(trainer._log._metrics, 'write', fail_once):
      with self.assertRaisesRegex(run_directory.RunDirectoryError, 'the disk is full'):
        trainer.train()
    frames = int(trainer.learner.environment_frames)
    self.assertGreater(frames, 0)
    self.assertEqual(training.rows(trainer.logdir)[-1]['environment_frames'], frames)

  def test_the_update_after_one_whose_results_cannot_be_kept_is_recorded(self):
    # No row is due before the error.
    trainer = self.trainer(updates=9, synchronous=False, run=run_config.RunConfig(log_interval_seconds=1e6))
    add, recorded = trainer._log.add, []

    def fail_once(frames, *of_update):
      recorded.append(frames)
      if len(recorded) == 2:
        raise run_directory.RunDirectoryError('the disk is full')
      add(frames, *of_update)

    with mock.patch.object(trainer._log, 'add', fail_once):
      with self.assertRaisesRegex(run_directory.RunDirectoryError, 'the disk is full'):
        trainer.train()
    self.assertLen(recorded, 3)
    self.assertEqual(recorded[-1], int(trainer.learner.environment_frames))

  @parameterized.parameters(True, False)
  def test_a_killed_worker_is_replaced(self, synchronous):
    killed = []

    def before(learner, unused_unroll):
      if int(learner.update_steps) == 2 and not killed:
        worker, *_ = psutil.Process().children()
        killed.append(worker)
        worker.kill()
        # Otherwise the run might end with unrolls from before, while the loss is not noticed.
        waiting.wait_until(lambda: synchronous or trainer._host.pool.restarts)

    trainer = self.trainer(_learner(before), updates=40, synchronous=synchronous)
    trainer.train()
    rows = training.rows(trainer.logdir)
    self.assertLen(killed, 1)
    self.assertEqual(rows[-1]['environment_restarts'], 1)
    self.assertEqual(rows[-1]['learner_steps'], 40)
    self.assertRegex(self.screen.getvalue(), '(?m)^environment worker [01] is replaced: .*$')

  @parameterized.parameters(
      (faulty_environments.RaisingAtFirst, 60., 'RuntimeError: the game has crashed'),
      (faulty_environments.HangingAtFirst, 6., r'no answer for 6 s \(--environment_timeout_seconds\)'))
  def test_training_goes_on_where_environments_raise_or_hang(self, environment, timeout_seconds, reason):
    receive = environment_workers.EnvironmentWorkers.receive
    # On a busy machine a worker may take longer to start than an environment may take to answer.
    with mock.patch.object(environment_workers.EnvironmentWorkers, 'receive',
                           lambda self, worker, unused_seconds: receive(self, worker, waiting.PATIENCE_SECONDS)):
      trainer = self.trainer(level_name=faulty_environments.level(environment), updates=60, synchronous=False,
                             run=run_config.RunConfig(environment_timeout_seconds=timeout_seconds))
      trainer.train()
    rows, episodes = training.rows(trainer.logdir), training.episodes(trainer.logdir)
    self.assertGreaterEqual(rows[-1]['environment_restarts'], 1)
    self.assertEqual(rows[-1]['learner_steps'], 60)
    self.assertRegex(self.screen.getvalue(),
                     rf'(?m)^environment worker [01] is replaced: environment \d \(gymnasium:.*\) failed: {reason}$')
    self.assertEqual({(episode_return, length) for _, _, episode_return, length in episodes}, {('10.0', '10')})
    self.assertGreater(len(episodes), 4 * 2)  # More episodes than the first worker's environments played.

  def test_a_curve_that_cannot_be_drawn_ends_nothing(self):
    def before(learner, unused_unroll):
      if int(learner.update_steps) == 2:
        waiting.wait_until(lambda: 'could not be drawn' in self.screen.getvalue())

    trainer = self.trainer(_learner(before), updates=4)
    os.mkdir(run_directory.path(trainer.logdir, run_directory.LEARNING_CURVE))
    with mock.patch.object(run_log, '_CURVE_INTERVAL_SECONDS', 0.):
      trainer.train()
    self.assertRegex(self.screen.getvalue(), '(?m)^learning_curve.png could not be drawn: .*Is a directory')
    self.assertEqual(training.rows(trainer.logdir)[-1]['learner_steps'], 4)

  def test_an_infinite_reward_ends_the_run_and_leaves_sound_parameters(self):
    trainer = self.trainer(level_name=faulty_environments.level(faulty_environments.InfiniteReward), updates=99,
                           reward_transform='none')
    before = _values(trainer.learner.agent)
    with self.assertRaisesRegex(errors.UserError, '^update 10: loss/policy_gradient was not finite, for the 10th'):
      trainer.train()
    rows = training.rows(trainer.logdir)
    self.assertEqual([row['skipped_updates'] for row in rows], list(range(1, 11)))
    self.assertIsNone(rows[-1]['loss/total'])
    again = self.trainer(level_name=faulty_environments.level(faulty_environments.InfiniteReward), updates=99,
                         reward_transform='none', logdir=trainer.logdir)
    self.assertEqual(int(again.learner.skipped_updates), 10)
    for restored, initial in zip(_values(again.learner.agent), before, strict=True):
      np.testing.assert_array_equal(restored, initial)

  @parameterized.parameters(False, True)
  def test_an_environment_whose_rewards_are_not_numbers_is_named(self, use_lstm):
    level = faulty_environments.level(faulty_environments.RewardsOfOneNotNumbers)
    trainer = self.trainer(level_name=level, updates=40, batch_size=1, use_lstm=use_lstm)
    with mock.patch.object(trainer._experience, 'update') as take_feedback:
      trainer.train()
    self.assertEqual(take_feedback.call_count, 40)  # Also for skipped updates.
    last = training.rows(trainer.logdir)[-1]
    self.assertEqual((last['learner_steps'], last['skipped_updates']), (30, 10))  # One of four environments is faulty.
    self.assertEqual(last['episode_return'], 10.)  # The return of the other environments.
    self.assertEqual({row[2] for row in training.episodes(trainer.logdir)}, {'10.0'})
    words = [line for line in self.screen.getvalue().splitlines() if 'skipped: ' in line]
    self.assertLen(words, 1)  # There is at most one message a minute.
    self.assertRegex(words[0], rf'^an update was skipped: loss/\w+ was not finite\. .*: {level} \(actor 1\)$')
    self.assertRegex(self.screen.getvalue(), r'(?m), slowest: [\w ]+, skipped updates: 10$')
    self.assertNotIn('is replaced', self.screen.getvalue())
    words = [line for line in self.screen.getvalue().splitlines() if 'do not count' in line]
    self.assertLen(words, 1)
    self.assertStartsWith(words[0], f'{level}: returns that are not finite do not count; ')

  def test_an_environment_whose_observations_are_not_numbers_is_at_fault(self):
    trainer = self.trainer(level_name=faulty_environments.level(faulty_environments.ObservationNotNumbers), updates=99)
    with self.assertRaisesRegex(errors.UserError, "(?s)environment worker .*: observation 'vector': not finite"):
      trainer.train()

  def test_a_policy_whose_logits_are_not_finite_ends_the_run_and_is_not_saved(self):
    trainer = self.trainer(updates=99, learning_rate=1e12)
    with self.assertRaisesRegex(errors.UserError, "^the agent's outputs are not finite with the parameters of "
                                r'update \d+: .* keeps its last checkpoint: begin another run \(--logdir\) with '
                                'a lower --learning_rate$'):
      trainer.train()
    self.assertNotIn('is replaced', self.screen.getvalue())  # No environment is blamed.
    again = self.trainer(updates=99, learning_rate=1e12, logdir=trainer.logdir)
    self.assertEqual(int(again.learner.update_steps), 0)

  def test_a_mistake_in_an_update_is_raised_and_nothing_is_saved(self):
    def before(learner, unused_unroll):
      if int(learner.update_steps) == 2:
        raise ZeroDivisionError('a mistake')

    trainer = self.trainer(_learner(before), updates=5)
    with self.assertRaisesRegex(ZeroDivisionError, 'a mistake'):
      trainer.train()
    checkpoint.Checkpointer(run_directory.path(trainer.logdir, run_directory.CHECKPOINTS),
                            learner=trainer.learner).restore(partial=True)
    self.assertEqual(int(trainer.learner.update_steps), 0)  # Only the checkpoint of the run's beginning exists.
    self.assertEmpty(psutil.Process().children())

  def test_a_checkpoint_that_cannot_be_written(self):
    trainer = self.trainer()
    folder = run_directory.path(trainer.logdir, run_directory.CHECKPOINTS)
    shutil.rmtree(folder)
    with open(folder, 'w', encoding='utf-8'):
      pass  # A file is where the folder should be.
    said = '^.*/checkpoints.*a checkpoint could not be written.*$'
    with self.assertRaisesRegex(run_directory.RunDirectoryError, said):
      trainer.train()
    self.assertEmpty(psutil.Process().children())
    os.remove(run_directory.path(trainer.logdir, run_directory.METRICS))
    with self.assertRaisesRegex(run_directory.RunDirectoryError, said):
      self.trainer(logdir=trainer.logdir)  # It fails before any training.

  @parameterized.parameters('moved', 'removed', 'replaced')
  def test_regression_a_run_whose_directory_is_gone_ends_and_writes_nothing_where_it_was(self, what):
    folder = self.create_tempdir().full_path
    logdir, moved, other = (os.path.join(folder, name) for name in ('run', 'moved', 'other'))
    if what == 'replaced':
      self.trainer(logdir=other)._host.close()
    saved = None

    def before(learner, unused_unroll):
      nonlocal saved
      if int(learner.update_steps) == 2:
        while trainer._saver.is_writing:
          time.sleep(0.01)
        saved = os.path.basename(checkpoint.latest(os.path.join(logdir, 'checkpoints')))
        if what == 'removed':
          shutil.rmtree(logdir)
        else:
          os.rename(logdir, moved)
        if what == 'replaced':
          os.rename(other, logdir)

    trainer = self.trainer(_learner(before), updates=100, logdir=logdir,
                           run=run_config.RunConfig(checkpoint_interval_seconds=1e-9))
    in_others_place = {path: path.read_bytes() for path in pathlib.Path(other).rglob('*') if path.is_file()}
    with self.assertRaisesRegex(run_directory.RunDirectoryError, f'^{logdir} was moved or removed[^\n]*$'):
      trainer.train()
    self.assertEmpty(psutil.Process().children())
    if what != 'removed':
      self.assertEqual(checkpoint.latest(os.path.join(moved, 'checkpoints')), os.path.join(moved, 'checkpoints', saved))
    if what != 'replaced':
      self.assertFalse(os.path.exists(logdir))
    self.assertEqual({pathlib.Path(other, path.relative_to(logdir)): path.read_bytes()
                      for path in pathlib.Path(logdir).rglob('*') if path.is_file()},
                     in_others_place if what == 'replaced' else {})

  def test_regression_a_run_is_not_resumed_from_another_ones_directory(self):
    """The directory is replaced while the environments start."""
    folder = self.create_tempdir().full_path
    logdir, moved, other = (os.path.join(folder, name) for name in ('run', 'moved', 'other'))
    self.trainer(logdir=logdir, updates=2).train()
    self.trainer(logdir=other)._host.close()
    make_host = actor_host.ActorHost

    def replace_and_make_host(*args):
      os.rename(logdir, moved)
      os.rename(other, logdir)
      return make_host(*args)

    with mock.patch.object(actor_host, 'ActorHost', replace_and_make_host):
      trainer = self.trainer(logdir=logdir, updates=3)
    self.assertEqual(int(trainer.learner.update_steps), 2)
    with self.assertRaisesRegex(run_directory.RunDirectoryError, f'^{logdir} was moved or removed'):
      trainer.train()

  def test_environments_that_fail_end_a_run_whose_update_waits_for_other_learners(self):
    goes_on, threads = threading.Event(), []

    def before(*unused):
      threads.append(threading.current_thread())
      trainer._host.check = mock.Mock(side_effect=environment_workers.WorkerError('environments fail'))
      trainer._end.reached.set()
      goes_on.wait()
      raise ZeroDivisionError('the other learners are gone')

    trainer = self.trainer(_learner(before))
    trainer._end.have_peers = True
    with mock.patch.object(run_end, '_AGREEMENT_SECONDS', 0.1):
      with self.assertRaisesRegex(errors.UserError, '^environments fail$'):
        trainer.train()
    self.assertRegex(self.screen.getvalue(), '(?m)^ended without another checkpoint; run the same command')
    goes_on.set()
    threads[0].join()

  def test_regression_an_error_ends_a_run_whose_environments_are_stuck(self):
    """No further batch will arrive, so the trainer must not wait for the collector."""
    def before(learner, unused_unroll):
      if int(learner.update_steps) == 1:
        for worker in psutil.Process().children():
          worker.suspend()
        raise ZeroDivisionError('a mistake')

    trainer = self.trainer(_learner(before), updates=1000, synchronous=False, batch_size=64)
    with self.assertRaisesRegex(ZeroDivisionError, 'a mistake'):
      trainer.train()
    # It did not wait for the timeout.
    self.assertEqual(trainer._host.pool.restarts, 0)


if __name__ == '__main__':
  absltest.main()
