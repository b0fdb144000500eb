"""Draws a run's learning curve: during training in a process of its own, and at the end in the training process.

Drawing holds Python's lock for a second and takes a hundred megabytes, which would slow the training process down.
"""

import os
import signal
import subprocess
import sys
import threading
from typing import Callable

from scalable_agents.actor import parent_death
from scalable_agents.actor import python_path
from scalable_agents.records import learning_curve
from scalable_agents.records import run_directory

_NICENESS = 10  # Gives the process a lower priority than environments and learner.
_PATIENCE_SECONDS = 120.


class CurveProcess:
  """Draws the curve of one run, one picture at a time. After an error it shows a line, and training continues."""

  def __init__(self, logdir: str, say: Callable[[str], None]):
    """Starts no process yet.

    Args:
      logdir: the run directory.
      say: shows the user a line. It is called from a thread.
    """
    self._logdir, self._say = logdir, say
    self._thread = self._process = None
    self._finished, self._lock = False, threading.Lock()

  def begin(self):
    """Starts to draw a picture and returns at once. Does nothing while the picture before is being drawn."""
    if self._thread is None or not self._thread.is_alive():
      self._thread = threading.Thread(target=self._run, name='learning curve', daemon=True)
      self._thread.start()

  def finish(self):
    """Draws the last picture in this process. The training is over, so it cannot slow it down."""
    with self._lock:
      self._finished = True  # A picture that is being drawn is older than the last picture, so it is not needed.
      if self._process:
        self._process.kill()
    if self._thread:
      self._thread.join()
    try:
      learning_curve.draw(self._logdir)
    except run_directory.RunDirectoryError as error:
      self._complain(error)

  def _run(self):
    reason = self._draw()
    if reason and not self._finished:
      self._complain(reason)

  def _draw(self):
    """Draws a picture. Returns the reason if it failed; '' if it did not, or if the picture is no longer needed."""
    try:
      with self._lock:
        if self._finished:
          return ''
        # The process has a session of its own, so that only the training process gets the terminal's Ctrl-C.
        self._process = subprocess.Popen(
            [sys.executable, '-m', __name__, self._logdir], env=python_path.environment(), start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
      with self._process as process:
        try:
          said, _ = process.communicate(timeout=_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
          process.kill()
          return f'it took longer than {_PATIENCE_SECONDS:g} s'
    except OSError as error:
      return str(error)
    if not process.returncode:
      return ''
    return said.strip() or f'exit code {process.returncode}, see {run_directory.LIBRARY_LOG}'

  def _complain(self, reason):
    self._say(f'{run_directory.LEARNING_CURVE} could not be drawn: {reason}')


def _main():
  """Draws the curve of the run directory in the first argument. Prints a RunDirectoryError and exits with code 1."""
  parent_death.signal_at_parents_end(signal.SIGKILL)
  os.nice(_NICENESS)
  try:
    learning_curve.draw(sys.argv[1])
  except run_directory.RunDirectoryError as error:
    print(error)
    sys.exit(1)


if __name__ == '__main__':
  _main()
