"""A process that calls one function after another, with a time limit for each."""

from collections.abc import Callable, Sequence
from concurrent import futures
import multiprocessing
import os
import re
import signal
import tempfile
import time
from typing import Any

from scalable_agents.processes import parent_death
from scalable_agents.records import settings

_STDERR = 2
# Lines of TensorFlow's libraries, and of Python.
_FATAL, _ERROR = re.compile(r'F\d{4} |\w*Error: '), re.compile(r'E\d{4} ')


class PartError(Exception):
  """A function has raised an exception, or its process has ended. The message is one line."""


class PartTimeoutError(Exception):
  """A function has not returned in time."""


class MeasuringProcess:
  """Calls functions in a process of its own. Its state is kept between calls.

  The process prints nothing to the screen. If it dies, the error has the last line of its stderr that says why.

  After a function that took too long, or that ended the process, the next call is in a new process.
  """

  def __init__(self):
    """Starts no process yet."""
    self._process: Any = None
    self._pipe: Any = None
    self._stderr = tempfile.TemporaryFile()

  def call(self, function: Callable[..., Any], *arguments: Any, deadline: float) -> Any:
    """Returns what a function returns.

    Args:
      function, *arguments: sent to the process by pickle.
      deadline: of time.monotonic().
    Raises:
      PartError: the function has raised an exception, or the process has ended.
      PartTimeoutError: it has not returned until the deadline. The process is killed.
    """
    self._start()
    try:
      self._pipe.send((function, arguments))
      if not self._pipe.poll(max(deadline - time.monotonic(), 0.)):
        self.close()
        raise PartTimeoutError
      worked, result = self._pipe.recv()
    except (EOFError, ConnectionError) as error:
      self._process.join()
      code = self._process.exitcode
      self.close()
      how = f'was killed by {signal.Signals(-code).name}' if code < 0 else f'ended with exit code {code}'
      raise PartError(f'its process {how}{self._reason()}') from error
    if not worked:
      raise PartError(result)
    return result

  def _start(self):
    if self._process:
      return
    self._stderr.truncate(0)
    context = multiprocessing.get_context('spawn')
    self._pipe, theirs = context.Pipe()
    self._process = context.Process(target=_serve, daemon=True, args=(
        theirs, f'/proc/{os.getpid()}/fd/{self._stderr.fileno()}'))
    self._process.start()
    theirs.close()

  def _reason(self):
    """Returns the last error in the process's stderr, after a colon; '' if there is none."""
    self._stderr.seek(0)
    lines = self._stderr.read().decode('utf-8', 'replace').splitlines()
    errors = [line for line in lines if _FATAL.match(line)] or [line for line in lines if _ERROR.match(line)]
    return f': {settings.shown(errors[-1])}' if errors else ''

  def close(self):
    """Ends the process, also while it measures."""
    if self._process:
      self._pipe.close()
      self._process.kill()
      self._process.join()
      self._process = None


def at_once(processes: Sequence[MeasuringProcess], function: Callable[..., Any], *arguments: Any,
            deadline: float) -> list[Any]:
  """Calls a function in several processes at the same time. Returns all results. Raises the errors of `call`."""
  for process in processes:
    process._start()  # Here, because a process ends with the thread that has started it.
  with futures.ThreadPoolExecutor(len(processes)) as threads:
    return [call.result() for call in [
        threads.submit(process.call, function, *arguments, deadline=deadline) for process in processes]]


def _serve(pipe, stderr):
  parent_death.signal_at_parents_end(signal.SIGKILL)
  os.dup2(os.open(stderr, os.O_WRONLY | os.O_APPEND), _STDERR)
  while True:
    try:
      function, arguments = pipe.recv()
    except EOFError:
      return
    try:
      pipe.send((True, function(*arguments)))
    except Exception as error:  # For the row of this function; the next one may work.
      pipe.send((False, settings.shown(f'{type(error).__name__}: {error}')))
