"""Tests the training binary without its screen, its log or its terminal: the training continues or ends cleanly."""

import os
import signal

from absl.testing import absltest

from scalable_agents.agents import impala_atari57
from scalable_agents.records import run_directory
from scalable_agents.tests.training import faulty_environments
from scalable_agents.tests.training import training

_FLAGS = ('--torso=shallow', '--num_environments=4', '--num_environment_workers=1', '--batch_size=4',
          '--unroll_length=10', '--log_interval_seconds=0.2')
_FRAMES = 2_000


def _prepared(before):
  """Returns Python's arguments to run these lines of code and then, in the same process, the binary."""
  return ('-c', f'import os, signal, sys\n{before}\n'
          f'os.execv(sys.executable, [sys.executable, "-m", {impala_atari57.__name__!r}, *sys.argv[1:]])')


class ScreenTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.logdir = os.path.join(self.create_tempdir().full_path, 'run')

  def _train(self, *flags, before='', number=None):
    """Runs the lines `before` and trains, until signal `number` if it is given. Returns exit code and screen."""
    with training.Training(self.logdir, *_FLAGS, *flags, program=_prepared(before)) as run:
      if number is not None:
        run.wait_for_rows(1)
      code, _ = run.end(number)
      return code, run.screen()

  def test_standard_streams_that_are_closed_and_a_hang_up_that_is_ignored(self):
    before = 'signal.signal(signal.SIGHUP, signal.SIG_IGN)\nos.closerange(0, 3)'
    with training.Training(self.logdir, *_FLAGS, '--level_name=catch', program=_prepared(before)) as run:
      run.wait_for_rows(1)
      run.process.send_signal(signal.SIGHUP)
      run.wait_for_rows(2)
      code, _ = run.end(signal.SIGTERM)
    self.assertEqual(code, 0)
    self.assertTrue(os.listdir(run_directory.path(self.logdir, run_directory.CHECKPOINTS)))

  def test_screen_and_log_that_are_full_and_environments_that_print(self):
    os.makedirs(self.logdir)
    os.symlink('/dev/full', run_directory.path(self.logdir, run_directory.LIBRARY_LOG))
    code, _ = self._train(f'--level_name={faulty_environments.level(faulty_environments.Talkative)}',
                          f'--total_environment_frames={_FRAMES}',
                          before='for d in (1, 2):\n  os.dup2(os.open("/dev/full", os.O_WRONLY), d)')
    self.assertEqual(code, 0)
    last = training.rows(self.logdir)[-1]
    self.assertGreaterEqual(last['environment_frames'], _FRAMES)
    self.assertEqual(last['environment_restarts'], 0)

  def test_a_terminal_that_is_closed_leaves_a_checkpoint(self):
    code, screen = self._train('--level_name=catch', number=signal.SIGHUP,
                               before='signal.signal(signal.SIGHUP, signal.SIG_DFL)')  # Tests may run under nohup.
    self.assertEqual(code, 0, screen)
    self.assertRegex(screen, r'[\d,]+ frames trained, run the same command to continue\n$')


if __name__ == '__main__':
  absltest.main()
