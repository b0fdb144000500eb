"""Child processes of a launcher. Their output is shown line by line with their names, and their ends are recorded.

Only one thread may use this module, because a child gets its parent's death signal when the thread that forked it ends.
"""

from collections.abc import Callable, Iterable, Sequence
import os
import selectors
import signal
import subprocess
import time
from typing import BinaryIO, TextIO, cast

from scalable_agents.processes import parent_death
from scalable_agents.processes import python_path
from scalable_agents.processes import stop_signals

SAVING_SECONDS = 7200.  # The longest time for a process to save a checkpoint, perhaps with a large replay.
_UNTOLD_SECONDS = 20.   # The user is told who still saves after this time.
_EARLY_END_SECONDS = 60.  # A process that ends within this time of its start ends early.
_MAXIMUM_EARLY_ENDS = 3   # After this many early ends in a row, a child is not started again.
_TICK_SECONDS = 0.2
_ERROR = 'error: '  # The beginning of a program's one-line error message; see run_flags.run_main.


class Children:
  """The children of one launcher."""

  def __init__(self, stream: TextIO):
    """Makes a launcher's set of children, which is empty. `stream` gets their output."""
    self._stream = stream
    self._selector = selectors.DefaultSelector()

  def add(self, name: str, command: Sequence[str]) -> 'Child':
    """Returns a new child, which is not started yet.

    Args:
      name: shown before each line of its output.
      command: the program and its arguments.
    """
    return Child(name, command, self._selector, self.say)

  def say(self, text: str):
    """Shows the user a line."""
    print(text, file=self._stream, flush=True)

  def listen(self):
    """Shows new output of the children. Waits for a moment if there is none."""
    for key, _ in self._selector.select(_TICK_SECONDS):
      key.data.read()

  def wait(self, children: Iterable['Child'], seconds: float,
           is_over: Callable[[], bool] = lambda: False) -> list['Child']:
    """Listens until these children have ended, or the time or `is_over`. Returns those that are still running."""
    running, deadline = [child for child in children if child.is_running()], time.monotonic() + seconds
    while running and time.monotonic() < deadline and not is_over():
      self.listen()
      running = [child for child in running if child.is_running()]
    return [child for child in running if child.is_running()]  # A child may have ended since the last check.

  def end(self, children: Iterable['Child'], number: int, seconds: float,
          signals: stop_signals.StopSignals | None = None) -> list[str]:
    """Ends children and calls `reap` for each.

    Args:
      children: the children. Some may have ended already, or were never started.
      number: the signal that tells a child to end.
      seconds: a child that has not ended after this many seconds is killed.
      signals: counts the signals to this process. If it is given and children still save after a while, the user is
        told, and a signal from then on kills them at once.
    Returns:
      A message for each child that has ended neither well nor by the signal, for example because the disk is full.
    """
    present = running = [child for child in children if child.process]
    for child in present:
      child.send_signal(number)
    if signals and (running := self.wait(present, _UNTOLD_SECONDS)):
      self.say(f'waiting up to {seconds / 3600:g} h for {", ".join(child.name for child in running)} to save; '
               'Ctrl-C kills, and what is not saved by then is lost')
    told = signals.count if signals else 0
    for child in self.wait(running, seconds, lambda: signals is not None and signals.count > told):
      self.say(f'{child.name} has not ended: it is killed')
      child.send_signal(signal.SIGKILL, wait=True)
    reasons = {child: child.reap() for child in present}
    return [f'{child.name} ended {reason}' for child, reason in reasons.items()
            if child.code and not child.ended_by(number)]

  def close(self):
    """Releases resources. Must be called when all children have ended."""
    self._selector.close()


class Child:
  """One child, which can be started several times.

  Attributes:
    name: the child's name.
    process: the running process, from `start` until `reap`; else None.
    code: exit code of the last process, or minus the number of the signal that ended it. None before the first end.
    last_error: the last process's line after 'error: ', or ''.
    refusal: `last_error` if the last process exited with code 1, and neither it nor an earlier one has printed anything
      else; else None. A child that has worked before does not refuse: an error at its next start may be a full disk.
  """

  def __init__(self, name: str, command: Sequence[str], selector: selectors.BaseSelector, say: Callable[[str], None]):
    self.name = name
    self._command = command
    self._selector = selector
    self._say = say
    self.process: subprocess.Popen | None = None
    self.code: int | None = None
    self.last_error = ''
    self.refusal = None
    self._early_ends = 0  # In a row.
    self._has_output = False  # Beside `last_error`, of any of its processes.

  def start(self):
    """Starts the process. It has a session of its own, so that only the launcher gets Ctrl-C."""
    self._began = time.monotonic()
    self._unfinished_line = b''
    self.last_error = ''
    self.process = subprocess.Popen(
        self._command, bufsize=0, env=python_path.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=parent_death.leaving_with_parent(signal.SIGTERM))
    self._output = cast(BinaryIO, self.process.stdout)
    os.set_blocking(self._output.fileno(), False)
    self._selector.register(self._output, selectors.EVENT_READ, self)
    self._is_registered = True

  def send_signal(self, number: int, wait: bool = False):
    """Sends the running process a signal, and may wait for its end."""
    process = self._started()
    process.send_signal(number)
    if wait:
      process.wait()

  def is_running(self) -> bool:
    """Returns whether the process was started and has not ended."""
    return self.process is not None and self.process.poll() is None

  def has_ended(self) -> bool:
    """Returns whether the process has ended and `reap` was not called yet."""
    return self.process is not None and self.process.poll() is not None

  def read(self):
    """Shows the complete lines that the process has written."""
    while block := self._output.read(1 << 16):
      *lines, self._unfinished_line = (self._unfinished_line + block).split(b'\n')
      for line in lines:
        self._show(line.decode(errors='replace'))
    if block is not None and self._is_registered:  # At its end, the pipe would wake the selector again and again.
      self._unregister()

  def reap(self) -> str:
    """Records the end of the process. Must be called when it has ended. Returns `reason()`."""
    self.read()
    if self._unfinished_line:
      self._show(self._unfinished_line.decode(errors='replace'))
    if self._is_registered:  # A program that the process has started may still have its stdout open.
      self._unregister()
    self._output.close()
    self.code = self._started().returncode
    self.process = None
    self.refusal = self.last_error if self.code == 1 and not self._has_output else None
    self._early_ends = self._early_ends + 1 if time.monotonic() - self._began < _EARLY_END_SECONDS else 0
    return self.reason()

  def reason(self) -> str:
    """Returns how the last process has ended, for a message."""
    if self.code is not None and self.code < 0:
      return f'by {signal.Signals(-self.code).name}'
    return f'with exit code {self.code} ({self.last_error})' if self.last_error else f'with exit code {self.code}'

  def ended_by(self, number: int) -> bool:
    """Returns whether a signal has ended the last process, by its default action or as a shell reports it."""
    return self.code in (-number, 128 + number)

  def why_not_again(self) -> str:
    """Returns a message if the process has ended early too often to be started again, else ''."""
    if self._early_ends < _MAXIMUM_EARLY_ENDS:
      return ''
    return (f'it ended {_MAXIMUM_EARLY_ENDS} times in a row within {_EARLY_END_SECONDS:g} s of its start, '
            f'the last time {self.reason()}')

  def start_again(self):
    """Starts the process after its end, and tells the user."""
    self._say(f'{self.name} ended {self.reason()}: it is started again')
    self.start()

  def _started(self) -> subprocess.Popen:
    if self.process is None:
      raise RuntimeError(f'{self.name} has not been started')
    return self.process

  def _unregister(self):
    self._selector.unregister(self._output)
    self._is_registered = False

  def _show(self, line):
    if line.startswith(_ERROR):  # The message about the child's end shows this line.
      self.last_error = line.removeprefix(_ERROR)
    else:
      self._has_output = True
      self._say(f'{self.name}: {line}')
