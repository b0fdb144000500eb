"""Child processes of a launcher: what they say is shown line by line with their names, and how they end is remembered.

One thread, so that a child may be told to leave with its parent: that is the thread that forked it.
"""

import os
import selectors
import signal
import subprocess
import time
from typing import Iterable, Sequence, TextIO

from scalable_agents.actor import parent_death
from scalable_agents.actor import python_path

SHORT_LIVES = 3  # So many in a row, and a child is not worth another start.
SHORT_LIFE_SECONDS = 60.
_TICK_SECONDS = 0.2
_ERROR = 'error: '  # So begins the line with which a program refuses what its user has said; see run_flags.run_main.


class Children:
  """The children of one launcher."""

  def __init__(self, stream: TextIO, short_life_seconds: float = SHORT_LIFE_SECONDS):
    """Has none yet.

    Args:
      stream: what children say goes there.
      short_life_seconds: a life is short that ends within so many seconds of its start.
    """
    self._stream, self._short_life_seconds = stream, short_life_seconds
    self._selector = selectors.DefaultSelector()

  def add(self, name: str, command: Sequence[str]) -> 'Child':
    """Returns a child, which is not started yet."""
    return Child(name, command, self._short_life_seconds, self._selector, self.say)

  def say(self, text: str):
    """Shows the user a line."""
    print(text, file=self._stream, flush=True)

  def listen(self):
    """Shows what children say, for a moment."""
    for key, _ in self._selector.select(_TICK_SECONDS):
      key.data.read()

  def wait(self, children: Iterable['Child'], seconds: float) -> list['Child']:
    """Listens until all of these have ended, or so many seconds have passed. Returns those that are running still."""
    running, deadline = [child for child in children if child.is_running()], time.monotonic() + seconds
    while running and time.monotonic() < deadline:
      self.listen()
      running = [child for child in running if child.is_running()]
    return [child for child in running if child.is_running()]  # One may have ended while this process had no processor.

  def end(self, children: Iterable['Child'], number: int, seconds: float):
    """Ends and buries children.

    Args:
      children: of which some may have ended, or never have been started.
      number: the signal that tells a child to leave.
      seconds: a child that has not left so many seconds later is killed.
    """
    present = [child for child in children if child.process]
    for child in present:
      child.process.send_signal(number)
    for child in self.wait(present, seconds):
      self.say(f'{child.name} has not left within {seconds:g} s: it is killed')
      child.process.kill()
      child.process.wait()
    for child in present:
      child.bury()

  def close(self):
    """To be called when all have ended."""
    self._selector.close()


class Child:
  """One child: its process while there is one, and what became of those before."""

  def __init__(self, name, command, short_life_seconds, selector, say):
    self.name = name
    self._command, self._short_life_seconds, self._selector, self._say = command, short_life_seconds, selector, say
    self.process = None   # From `start` until `bury`.
    # Of the process that was buried last; minus the number of the signal if one has ended it. None: there was none.
    self.code = None
    self.last_error = ''  # What it said behind 'error: '.
    self.refusal = None   # The same, if it did nothing but refuse.
    self.short_lives = 0  # In a row.

  def start(self):
    """Starts the process, in a session of its own: Ctrl-C is for the launcher alone."""
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
    """Whether there is something to bury."""
    return self.process is not None and self.process.poll() is not None

  def read(self):
    """Shows the complete lines that the process has written."""
    while block := self.process.stdout.read(1 << 16):
      *lines, self._unfinished_line = (self._unfinished_line + block).split(b'\n')
      for line in lines:
        self._show(line.decode(errors='replace'))
    if block is not None and self._is_heard:  # Nobody can write there any more, which would wake the launcher for ever.
      self._stop_hearing()

  def bury(self) -> str:
    """To be called when the process has ended. Returns how it has."""
    self.read()
    if self._unfinished_line:
      self._show(self._unfinished_line.decode(errors='replace'))
    if self._is_heard:  # Something that it has started has its stdout still.
      self._stop_hearing()
    self.process.stdout.close()
    self.code, self.process = self.process.returncode, None
    self.refusal = self.last_error if self.code == 1 and not self._has_spoken else None
    self.short_lives = self.short_lives + 1 if time.monotonic() - self._began < self._short_life_seconds else 0
    return self.reason()

  def reason(self) -> str:
    """How the process that was buried last has ended."""
    if self.code < 0:
      return f'by {signal.Signals(-self.code).name}'
    return f'with exit code {self.code}' + f' ({self.last_error})' * bool(self.last_error)

  def _stop_hearing(self):
    self._selector.unregister(self.process.stdout)
    self._is_heard = False

  def _show(self, line):
    if line.startswith(_ERROR):  # Shown where its end is.
      self.last_error = line.removeprefix(_ERROR)
    else:
      self._has_spoken = True
      self._say(f'{self.name}: {line}')
