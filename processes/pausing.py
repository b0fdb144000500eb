"""Stops a process with all its descendants for a while, and continues them.

A stopped process cannot end by itself, and SIGTERM has no effect until it continues. So the process that stops others
starts a guard process. The guard continues them when its parent ends for any reason.
"""

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
    self._guard = subprocess.Popen([sys.executable, '-m', __name__, str(process.pid)], env=python_path.environment(),
                                   stdin=subprocess.PIPE, process_group=0)

  def __enter__(self) -> 'Guarded':
    return self

  def __exit__(self, *unused_exception):
    with self._guard:
      self._guard.kill()

  def send(self, number: int):
    """Sends a signal to the process and its descendants, which may have sessions of their own."""
    if self._process.poll() is None:
      send(self._process.pid, number)


def send(process_id: int, number: int):
  """Sends a signal to a process and its descendants, if they exist."""
  with contextlib.suppress(psutil.NoSuchProcess):
    process = psutil.Process(process_id)
    for one in (process, *process.children(recursive=True)):
      with contextlib.suppress(psutil.NoSuchProcess):
        one.send_signal(number)


if __name__ == '__main__':  # The guard.
  sys.stdin.read()  # Ends with the process that started the guard.
  send(int(sys.argv[1]), signal.SIGCONT)
