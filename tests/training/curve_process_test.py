"""Tests that the curve is drawn by another process, which does not disturb this one.

If metrics.jsonl of a run is a named pipe, the other process waits for as long as a test wants.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

from absl.testing import absltest
import psutil

from scalable_agents.processes import python_path
from scalable_agents.records import learning_curve
from scalable_agents.records import run_directory
from scalable_agents.tests.actor import waiting
from scalable_agents.training import curve_process

# Begins to draw in the run directory given as its argument, and waits.
_TRAINER = '''
import sys, time
from scalable_agents.training import curve_process
assert not {'tensorflow', 'matplotlib'} & set(sys.modules), sys.modules
curve_process.CurveProcess(sys.argv[1], print).begin()
time.sleep(1000)
'''


class CurveProcessTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.logdir = self.enterContext(tempfile.TemporaryDirectory())
    run_directory.open_run(self.logdir, {'level_name': 'catch'}, ()).close()
    self.metrics = pathlib.Path(self.logdir, run_directory.METRICS)
    self.picture = pathlib.Path(self.logdir, run_directory.LEARNING_CURVE)
    self.said = []
    self.curve = curve_process.CurveProcess(self.logdir, self.said.append)

  def _write_row(self):
    self.metrics.write_text(json.dumps({'environment_frames': 100, 'wall_seconds': 1., 'episode_return': 1.}) + '\n')

  def _drawing_process(self, parent=None):
    """Returns the drawing process, once it has lowered its priority, which it does just before it begins."""
    niceness = min(psutil.Process().nice() + 10, 19)
    children = psutil.Process(parent).children
    waiting.wait_until(lambda: [child.nice() for child in children()] == [niceness])
    child, = children()
    return child

  def test_regression_a_mistake_in_the_last_picture_does_not_end_a_complete_run(self):
    with absltest.mock.patch.object(learning_curve, 'draw', side_effect=ValueError('no font')):
      self.curve.finish()
    self.assertEqual(self.said, ['learning_curve.png could not be drawn: no font'])

  def test_a_picture_is_drawn_in_another_process(self):
    self._write_row()
    with absltest.mock.patch.object(learning_curve, 'draw', side_effect=AssertionError('drawn in this process')):
      self.curve.begin()
      waiting.wait_until(self.picture.exists)
    self.assertEmpty(self.said)
    waiting.wait_until(lambda: not psutil.Process().children())  # The next test looks for its own.

  def test_one_at_a_time_that_holds_up_nothing(self):
    os.mkfifo(self.metrics)
    with run_directory.open_run(self.logdir, {'level_name': 'catch'}, ()):
      self.curve.begin()
      child = self._drawing_process()
      self.curve.begin()
      self.assertEqual(psutil.Process().children(), [child])
    run_directory.open_run(self.logdir, {'level_name': 'catch'}, ()).close()  # The child does not hold the run's lock.
    self.assertNotEqual(os.getpgid(child.pid), os.getpgid(0))  # It does not get a terminal's Ctrl-C.
    child.kill()
    waiting.wait_until(lambda: self.said)
    self.assertEqual(self.said, ['learning_curve.png could not be drawn: exit code -9, see tensorflow.log'])

  def test_it_ends_with_the_training_process(self):
    os.mkfifo(self.metrics)
    trainer = subprocess.Popen([sys.executable, '-c', _TRAINER, self.logdir], env=python_path.environment())
    self.addCleanup(trainer.wait)
    self.addCleanup(trainer.kill)
    child = self._drawing_process(trainer.pid)
    trainer.send_signal(signal.SIGKILL)
    child.wait(waiting.PATIENCE_SECONDS)

  def test_regression_one_whose_trainer_has_ended_before_draws_nothing(self):
    self._write_row()
    subprocess.run([sys.executable, '-m', curve_process.__name__, self.logdir], check=True,
                   env=python_path.environment() | {'SCALABLE_AGENTS_PARENT': str(os.getppid())})
    self.assertFalse(self.picture.exists())

  def test_what_goes_wrong_is_one_line(self):
    self.metrics.write_text('what is this\n')
    for draw in (self.curve.begin, self.curve.finish):
      self.said.clear()
      draw()
      waiting.wait_until(lambda: self.said)
      self.assertLen(self.said, 1)
      self.assertRegex(self.said[0], '^learning_curve.png could not be drawn: .*metrics.jsonl, line 1 is damaged .*$')

  def test_one_that_hangs_is_ended(self):
    os.mkfifo(self.metrics)
    with absltest.mock.patch.object(curve_process, '_PATIENCE_SECONDS', 0.1):
      self.curve.begin()
      waiting.wait_until(lambda: self.said)
    self.assertEqual(self.said, ['learning_curve.png could not be drawn: it took longer than 0.1 s'])
    self.assertEmpty(psutil.Process().children())

  def test_the_last_picture_does_not_wait_for_one_that_hangs(self):
    os.mkfifo(self.metrics)
    self.curve.begin()
    self._drawing_process()
    os.remove(self.metrics)
    self._write_row()
    self.curve.finish()
    self.assertTrue(self.picture.exists())
    self.assertEmpty(self.said)
    self.assertEmpty(psutil.Process().children())

  def test_the_last_picture_is_there_at_the_end(self):
    self._write_row()
    self.curve.begin()
    self.curve.finish()
    self.assertTrue(self.picture.exists())
    self.assertEmpty(self.said)
    self.assertEmpty(psutil.Process().children())


if __name__ == '__main__':
  absltest.main()
