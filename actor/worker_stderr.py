"""What an environment worker writes on stderr: all of it goes to this process's stderr, and its end is kept.

C and C++ code says on stderr alone why it ends its process, and so do the programs that it starts.
"""

import collections
import contextlib
import os
import threading
import time
from typing import BinaryIO

_STDERR = 2  # This process's file descriptor.
_PIECE_BYTES = 4096
_KEPT_PIECES = 16
_SHOWN_LINES = 3
_SHOWN_CHARACTERS = 300


class WorkerStderr:
  """Reads the pipe of one worker in a thread of its own, until nobody can write to it any more."""

  def __init__(self, pipe: BinaryIO):
    """Takes the pipe over.

    Args:
      pipe: the end to read from.
    """
    self._pipe = pipe
    self._kept = collections.deque(maxlen=_KEPT_PIECES)  # When a piece was read, and its bytes.
    self._thread = threading.Thread(target=self._read, name='worker stderr', daemon=True)
    self._thread.start()

  def wait(self, seconds: float):
    """Waits until all that the worker wrote is read, which takes a moment once its process has ended.

    Args:
      seconds: the longest time to wait. A program that the worker started may live on with the pipe; then all that
        the worker wrote is read, and the thread goes on until that program ends.
    """
    self._thread.join(seconds)

  def last_words(self, since_ns: int) -> str:
    """The last lines as one line, '' if there is none.

    Indented lines are left out: they belong to the stack traces of Python and Lua, which say least at their end.

    Args:
      since_ns: what was read before this time, of the clock time.monotonic_ns, does not count.
    """
    written = b''.join(piece for read_ns, piece in list(self._kept) if read_ns >= since_ns)
    lines = [line.rstrip() for line in written.decode('utf-8', 'replace').splitlines()]
    spoken = [line for line in lines if line and not line.startswith(('  ', '\t'))]
    text = ' / '.join(spoken[-_SHOWN_LINES:])
    return text if len(text) <= _SHOWN_CHARACTERS else '… ' + text[-_SHOWN_CHARACTERS:]

  def _read(self):
    with self._pipe:
      while piece := os.read(self._pipe.fileno(), _PIECE_BYTES):
        self._kept.append((time.monotonic_ns(), piece))
        with contextlib.suppress(OSError):  # A screen that is gone.
          os.write(_STDERR, piece)
