"""Stops a process with all its descendants for a while, and continues them.

A stopped process cannot end by itself, and SIGTERM has no effect until it continues. So the process that stops others
starts a guard process. The guard continues them when its parent ends for any reason.
"""

from collections.abc import Iterable
import contextlib
import signal
import subprocess
import sys

import psutil

from scalable_agents.processes import python_path


class Guarded:
  """A child process that can be stopped. It should end with this process, see parent_death.py. A context manager."""

  def __init__(self, process: subprocess.Popen):
    """Starts the guard."""
    self._process = process
    # The guard has a process group of its own, so that it gets no signals from the terminal.
    self._guard = subprocess.Popen([sys.executable, '-m', __name__], env=python_path.environment(), bufsize=0,
                                   stdin=subprocess.PIPE, process_group=0)

  def __enter__(self) -> 'Guarded':
    return self

  def __exit__(self, *unused_exception):
    with self._guard:
      self._guard.kill()

  def send(self, number: int):
    """Sends a signal to the process and its descendants, which may have sessions of their own."""
    if self._process.poll() is not None:
      return
    with contextlib.suppress(psutil.NoSuchProcess):
      process = psutil.Process(self._process.pid)
      family = (process, *process.children(recursive=True))
      if number == signal.SIGSTOP:
        # The guard is told before, as it cannot find the descendants of a process that has ended.
        assert self._guard.stdin is not None
        self._guard.stdin.write(b''.join(b'%d\n' % one.pid for one in family))
      _send(family, number)


def _send(processes: Iterable[psutil.Process], number: int):
  """Sends a signal to those of the processes that exist."""
  for process in processes:
    with contextlib.suppress(psutil.NoSuchProcess):
      process.send_signal(number)


def _guard():
  """Continues the processes that standard input names, when the process that started the guard has ended."""
  stopped = set()
  for line in sys.stdin:
    with contextlib.suppress(psutil.NoSuchProcess):
      stopped.add(psutil.Process(int(line)))
  _send(stopped, signal.SIGCONT)


if __name__ == '__main__':
  _guard()
