"""Copies a worker's stderr to this process's stderr, and keeps its last part for messages.

When C or C++ code ends its process, it gives the reason only on stderr. So do programs that it starts.
"""

import collections
import contextlib
import os
import threading
import time
from typing import BinaryIO

_STDERR = 2  # The file descriptor of stderr.
_PIECE_BYTES = 4096
_KEPT_PIECES = 16
_SHOWN_LINES = 3
_SHOWN_CHARACTERS = 300


class WorkerStderr:
  """Reads the pipe of one worker in a thread, until all its writers have closed it."""

  def __init__(self, pipe: BinaryIO):
    """Starts the thread.

    Args:
      pipe: the end to read from. The thread closes it.
    """
    self._pipe = pipe
    self._kept = collections.deque(maxlen=_KEPT_PIECES)  # (time of reading in ns, bytes).
    self._thread = threading.Thread(target=self._read, name='worker stderr', daemon=True)
    self._thread.start()

  def wait(self, seconds: float):
    """Waits until all output of the worker has been read, which takes a moment after its process has ended.

    Args:
      seconds: the longest time to wait. If a program that the worker has started keeps the pipe open, the thread
        continues until this program ends.
    """
    self._thread.join(seconds)

  def last_words(self, since_ns: int) -> str:
    """Returns the last lines, joined to one line, or '' if there are none.

    Indented lines are left out, because they belong to stack traces of Python and Lua.

    Args:
      since_ns: only output that was read after this time (time.monotonic_ns) is returned.
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
        with contextlib.suppress(OSError):  # The screen may be closed.
          os.write(_STDERR, piece)
