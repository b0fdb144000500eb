"""Runs a Python module in a process of its own, beside a training process that it must not disturb.

The process gets no signals from the terminal. The module calls `begin` first, which lowers the process's priority.
"""

from collections.abc import Callable
import os
import signal
import subprocess
import sys
import threading

from scalable_agents.processes import parent_death
from scalable_agents.processes import python_path
from scalable_agents.records import run_directory

_PARENT = 'SCALABLE_AGENTS_PARENT'  # The environment variable with the id of the training process.


class BackgroundProcess:
  """Runs one process at a time. A thread waits for its end."""

  def __init__(self, module: str, on_end: Callable[[str, str], None]):
    """Starts no process yet.

    Args:
      module: the module's name.
      on_end: called from the thread when a process has ended by itself, with its output and the reason why it failed.
        The reason is '' if it succeeded. If it failed, the output is '', and the reason is what it has printed, or its
        exit code.
    """
    self._module = module
    self._on_end = on_end
    self._thread = self._process = None
    self._finished = False
    self._lock = threading.Lock()

  @property
  def is_running(self) -> bool:
    """Whether a process is running, or its end is being reported."""
    return self._thread is not None and self._thread.is_alive()

  def begin(self, *arguments: str, text: str = '', patience_seconds: float | None = None):
    """Starts a process and returns at once. None must be running.

    Args:
      *arguments: the module's command-line arguments.
      text: its standard input.
      patience_seconds: after this time, the process is killed. None for no limit.
    """
    self._thread = threading.Thread(
        target=self._run, args=(arguments, text, patience_seconds), name=self._module, daemon=True)
    self._thread.start()

  def finish(self):
    """Kills the process if one is running, without a report. No process is started afterwards."""
    with self._lock:
      self._finished = True
      if self._process:
        self._process.kill()
    if self._thread:
      self._thread.join()

  def _run(self, arguments, text, patience_seconds):
    output, reason = self._result(arguments, text, patience_seconds)
    if not self._finished:
      self._on_end(output, reason)

  def _result(self, arguments, text, patience_seconds):
    """Runs a process. Returns what it has printed, and the reason if it failed."""
    try:
      with self._lock:
        if self._finished:
          return '', ''
        # The process has a group of its own, so that only the training process gets the terminal's Ctrl-C. It stays in
        # the session, because Linux may divide the processors between sessions (autogroups). A low priority then counts
        # only against processes of the same session.
        self._process = subprocess.Popen(
            [sys.executable, '-m', self._module, *arguments], process_group=0,
            env=python_path.environment() | {_PARENT: str(os.getpid())}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, errors='replace')
      with self._process as process:
        try:
          output, _ = process.communicate(text, timeout=patience_seconds)
        except subprocess.TimeoutExpired:
          process.kill()
          return '', f'it took longer than {patience_seconds:g} s'
    except OSError as error:
      return '', str(error)
    if not process.returncode:
      return output, ''
    return '', output.strip() or f'exit code {process.returncode}, see {run_directory.LIBRARY_LOG}'


def begin(niceness: int):
  """Adds to the niceness of this process, and makes it end with the training process. Call this first."""
  parent_death.signal_at_parents_end(signal.SIGKILL)
  if os.getppid() != int(os.environ[_PARENT]):  # It ended before this process could ask to end with it.
    sys.exit()
  os.nice(niceness)
