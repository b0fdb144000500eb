"""Tests of the comparison of replays: the smallest runs, which rate is chosen, intervals, and what goes on later."""

import contextlib
import errno
import io
import math
import os
import pathlib
import signal
import subprocess
import sys
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import psutil

from scalable_agents.processes import python_path
from scalable_agents.records import errors
from scalable_agents.tests.actor import waiting
from scalable_agents.tools import lockstep
from scalable_agents.tools import shared_replay

# Makes runs that never end, because they wait for a pipe that nobody writes to.
_ENDLESS = '''
import pathlib
from scalable_agents.processes import run_flags
from scalable_agents.tools import lockstep
from scalable_agents.tools import shared_replay
lockstep.train = pathlib.Path.read_bytes
pipes = [pathlib.Path({folder!r}, str(number)) for number in range(4)]
run_flags.run_main(lambda: shared_replay._Runs({folder!r} + "/runs.csv", 2).make(pipes))
'''


class SharedReplayTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self._folder = self.create_tempdir().full_path
    self.trained = []

  def _train(self, run):
    """Stands for lockstep.train. Without a replay, the best learning rate is the smallest; else it is the largest."""
    self.trained.append(run)
    sign = -1 if run.replay == lockstep.NO_REPLAY else 1
    return [sign * run.learning_rate * 10 + 0.01 * max(run.seed - 100, 0)] * 4

  def _run(self, lines=tuple(shared_replay.LINES)):
    """Returns what the program prints."""
    config = shared_replay.SharedReplayConfig(seeds=3, output=self._folder)
    pool = mock.patch.object(shared_replay.futures, 'ProcessPoolExecutor',
                             lambda *unused: shared_replay.futures.ThreadPoolExecutor(1))
    with pool, mock.patch.object(lockstep, 'train', self._train), contextlib.redirect_stdout(
        io.StringIO()) as screen:
      shared_replay.run(config, lines)
    return screen.getvalue().splitlines()

  def test_each_line_has_its_best_rate_and_other_seeds_judge(self):
    lines = self._run()
    self.assertStartsWith(lines[0], 'learns and acts on the CPU')
    self.assertEqual(lines[3:6], ['| no replay | 0.003 | -0.01 |  |',
                                  '| own replay, b = 0.1 | 0.03 | 0.32 | +0.33 (+0.33 to +0.33) |',
                                  '| shared replay, naive | 0.03 | 0.32 | +0.33 (+0.33 to +0.33) |'])
    self.assertLen(self.trained, 4 * 3 * 3 + 4 * 3)
    self.assertEqual({run.seed for run in self.trained}, {1, 2, 3, 101, 102, 103})
    self.assertTrue(os.path.exists(os.path.join(self._folder, 'sharing.png')))
    # After an interruption, also while a row was written, it makes only the runs that are missing.
    file = pathlib.Path(self._folder, 'runs.csv')
    *rows, cut, _ = file.read_text(encoding='utf-8').splitlines(keepends=True)
    file.write_text(''.join(rows) + cut[:-5], encoding='utf-8')
    self.trained.clear()
    self.assertEqual(self._run(), lines)
    self.assertLen(self.trained, 2)
    # With another constant it makes those again that depend on it.
    self.trained.clear()
    with mock.patch.object(lockstep, '_NUM_REPLAYED', 8):
      self.assertEqual(self._run(), lines)
    self.assertLen(self.trained, 3 * 3 * 3 + 3 * 3)
    self.assertNotIn(lockstep.NO_REPLAY, {run.replay for run in self.trained})

  def test_a_damaged_row_or_a_full_disk_is_one_line(self):
    file = pathlib.Path(self._folder, 'runs.csv')
    file.write_text('no replay,inf\n', encoding='utf-8')
    with self.assertRaisesRegex(errors.UserError, f'^{file}: a row is damaged: '):
      self._run()
    file.unlink()
    full = OSError(errno.ENOSPC, 'No space left on device')
    with mock.patch.object(shared_replay.csv, 'writer', side_effect=full), self.assertRaisesRegex(
        errors.UserError, f'^{file}: No space left on device'):
      self._run()

  def test_only_the_wanted_lines_are_run(self):
    lines = self._run(['no replay', 'shared replay, naive'])
    self.assertEqual([line.split(' | ')[0] for line in lines[3:-1]], ['| no replay', '| shared replay, naive'])
    self.assertLen(self.trained, 2 * 3 * 3 + 2 * 3)

  @parameterized.parameters((signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM))
  def test_regression_runs_end_with_the_program(self, number, code):
    pipes = [os.path.join(self._folder, str(number)) for number in range(4)]
    for pipe in pipes:
      os.mkfifo(pipe)
    program = subprocess.Popen([sys.executable, '-c', _ENDLESS.format(folder=self._folder)],
                               env=python_path.environment(), start_new_session=True)
    self.addCleanup(program.kill)
    with contextlib.ExitStack() as stack:
      for pipe in pipes[:2]:
        stack.enter_context(waiting.start(open, pipe, 'wb')())  # Waits for a run to read.
      children = psutil.Process(program.pid).children()
      os.killpg(program.pid, number)
      self.assertEqual(program.wait(300), code)
      self.assertNotEmpty(children)
      self.assertEmpty(psutil.wait_procs(children, timeout=300)[1])

  def test_the_interval_is_that_of_the_mean(self):
    low, high = shared_replay.interval(np.random.RandomState(1).normal(3., 1., size=400))
    self.assertBetween(high - low, 0.8 * 2 * 1.96 / 20, 1.2 * 2 * 1.96 / 20)
    self.assertBetween(3., low - 0.1, high + 0.1)

  def test_runs_are_repeatable(self):
    run = lockstep.Run(lockstep.SHARED, 0.1, 1e-2, 1, 1_280, 'online')
    curve = lockstep.train(run)
    self.assertLen(curve, 20)
    self.assertEqual(curve, lockstep.train(run))
    self.assertNotEqual(curve, lockstep.train(run._replace(threshold=math.inf)))
    self.assertNotEqual(curve, lockstep.train(run._replace(entropy_steps='all')))
    self.assertLen(lockstep.train(run._replace(frames=2_496)), 20)  # 39 updates, no multiple of 20.


if __name__ == '__main__':
  absltest.main()
