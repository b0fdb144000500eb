"""Draws a run's learning curve: while training in a process of its own, the last one in the training process.

To draw takes a second of Python's lock and a hundred megabytes, which the training process has better use for.
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

_NICENESS = 10  # Of the process, so that environments and learner come first.
_PATIENCE_SECONDS = 120.


class CurveProcess:
  """Draws the curve of one run, one picture at a time. What goes wrong is a line for the user and ends nothing."""

  def __init__(self, logdir: str, say: Callable[[str], None]):
    """Draws nothing yet.

    Args:
      logdir: the run directory.
      say: shows the user a line; called from a thread.
    """
    self._logdir, self._say = logdir, say
    self._thread = self._process = None
    self._finished, self._lock = False, threading.Lock()

  def begin(self):
    """Begins a picture and returns at once. Does nothing while the one before is still being drawn."""
    if self._thread is None or not self._thread.is_alive():
      self._thread = threading.Thread(target=self._run, name='learning curve', daemon=True)
      self._thread.start()

  def finish(self):
    """Draws the last picture, in this process: the training is over, and no other process has to start for that."""
    with self._lock:
      self._finished = True  # A picture that is half drawn would be older than the one that comes now.
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
    """Why there is no new picture; '' if there is one, or if none is wanted any more."""
    try:
      with self._lock:
        if self._finished:
          return ''
        # A session of its own: the terminal's Ctrl-C is for the training process.
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
  """Draws the curve of the run directory that is the argument. What a user can mend is printed, with exit code 1."""
  parent_death.signal_at_parents_end(signal.SIGKILL)
  os.nice(_NICENESS)
  try:
    learning_curve.draw(sys.argv[1])
  except run_directory.RunDirectoryError as error:
    print(error)
    sys.exit(1)


if __name__ == '__main__':
  _main()
