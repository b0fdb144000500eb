"""Child processes of a launcher. Their output is shown line by line with their names, and their ends are recorded.

Only one thread may use this module, because a child gets its parent's death signal when the thread that forked it ends.
"""

from collections.abc import Iterable, Sequence
import os
import selectors
import signal
import subprocess
import time
from typing import TextIO

from scalable_agents.actor import parent_death
from scalable_agents.actor import python_path

SHORT_LIVES = 3  # After this many short lives in a row, a child is not started again.
SHORT_LIFE_SECONDS = 60.
_TICK_SECONDS = 0.2
_ERROR = 'error: '  # The beginning of a program's one-line error message; see run_flags.run_main.


class Children:
  """The children of one launcher."""

  def __init__(self, stream: TextIO, short_life_seconds: float = SHORT_LIFE_SECONDS):
    """Makes a launcher's set of children, which is empty.

    Args:
      stream: gets the children's output.
      short_life_seconds: a process that ends within this many seconds of its start has had a short life.
    """
    self._stream, self._short_life_seconds = stream, short_life_seconds
    self._selector = selectors.DefaultSelector()

  def add(self, name: str, command: Sequence[str]) -> 'Child':
    """Returns a new child, which is not started yet.

    Args:
      name: shown before each line of its output.
      command: the program and its arguments.
    """
    return Child(name, command, self._short_life_seconds, self._selector, self.say)

  def say(self, text: str):
    """Shows the user a line."""
    print(text, file=self._stream, flush=True)

  def listen(self):
    """Shows new output of the children. Waits for a moment if there is none."""
    for key, _ in self._selector.select(_TICK_SECONDS):
      key.data.read()

  def wait(self, children: Iterable['Child'], seconds: float) -> list['Child']:
    """Listens until these children have ended or the time is over. Returns those that are still running."""
    running, deadline = [child for child in children if child.is_running()], time.monotonic() + seconds
    while running and time.monotonic() < deadline:
      self.listen()
      running = [child for child in running if child.is_running()]
    return [child for child in running if child.is_running()]  # A child may have ended since the last check.

  def end(self, children: Iterable['Child'], number: int, seconds: float):
    """Ends children and calls `bury` for each.

    Args:
      children: the children. Some may have ended already, or were never started.
      number: the signal that tells a child to end.
      seconds: a child that has not ended after this many seconds is killed.
    """
    present = [child for child in children if child.process]
    for child in present:
      child.process.send_signal(number)
    for child in self.wait(present, seconds):
      self.say(f'{child.name} has not ended within {seconds:g} s: it is killed')
      child.process.kill()
      child.process.wait()
    for child in present:
      child.bury()

  def close(self):
    """Releases resources. Must be called when all children have ended."""
    self._selector.close()


class Child:
  """One child, which can be started several times.

  Attributes:
    name: the child's name.
    process: the running process, from `start` until `bury`; else None.
    code: exit code of the last process, or minus the number of the signal that ended it. None before the first end.
    last_error: the last process's line after 'error: ', or ''.
    refusal: `last_error` if the last process printed nothing else and exited with code 1; else None.
    short_lives: the number of short lives in a row.
  """

  def __init__(self, name, command, short_life_seconds, selector, say):
    self.name = name
    self._command, self._short_life_seconds, self._selector, self._say = command, short_life_seconds, selector, say
    self.process = None
    self.code = None
    self.last_error = ''
    self.refusal = None
    self.short_lives = 0

  def start(self):
    """Starts the process. It has a session of its own, so that only the launcher gets Ctrl-C."""
    self._began, self._unfinished_line, self.last_error, self._has_spoken = time.monotonic(), b'', '', False
    self.process = subprocess.Popen(
        self._command, bufsize=0, env=python_path.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=parent_death.leaving_with_parent(signal.SIGTERM))
    os.set_blocking(self.process.stdout.fileno(), False)
    self._selector.register(self.process.stdout, selectors.EVENT_READ, self)
    self._is_heard = True

  def is_running(self) -> bool:
    return self.process is not None and self.process.poll() is None

  def has_ended(self) -> bool:
    """Returns whether the process has ended and `bury` was not called yet."""
    return self.process is not None and self.process.poll() is not None

  def read(self):
    """Shows the complete lines that the process has written."""
    while block := self.process.stdout.read(1 << 16):
      *lines, self._unfinished_line = (self._unfinished_line + block).split(b'\n')
      for line in lines:
        self._show(line.decode(errors='replace'))
    if block is not None and self._is_heard:  # At its end, the pipe would wake the selector again and again.
      self._stop_hearing()

  def bury(self) -> str:
    """Records the end of the process. Must be called when it has ended. Returns `reason()`."""
    self.read()
    if self._unfinished_line:
      self._show(self._unfinished_line.decode(errors='replace'))
    if self._is_heard:  # A program that the process has started may still have its stdout open.
      self._stop_hearing()
    self.process.stdout.close()
    self.code, self.process = self.process.returncode, None
    self.refusal = self.last_error if self.code == 1 and not self._has_spoken else None
    self.short_lives = self.short_lives + 1 if time.monotonic() - self._began < self._short_life_seconds else 0
    return self.reason()

  def reason(self) -> str:
    """Returns how the last process has ended, for a message."""
    if self.code < 0:
      return f'by {signal.Signals(-self.code).name}'
    return f'with exit code {self.code}' + f' ({self.last_error})' * bool(self.last_error)

  def _stop_hearing(self):
    self._selector.unregister(self.process.stdout)
    self._is_heard = False

  def _show(self, line):
    if line.startswith(_ERROR):  # The message about the child's end shows this line.
      self.last_error = line.removeprefix(_ERROR)
    else:
      self._has_spoken = True
      self._say(f'{self.name}: {line}')
