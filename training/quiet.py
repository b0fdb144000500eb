"""Keeps the chatter of libraries off the screen, TensorFlow's start-up lines above all.

TensorFlow's C++ code writes to file descriptor 2. `start` gives that descriptor to a file without a name, while
Python's sys.stderr goes on to the screen; `keep_log` puts what has been collected into the run directory's log and
sends the rest there. A crash inside a library must not vanish with that: until there is a log, a small process
watches, and prints what was collected if this one dies; afterwards the text is in the log, and faulthandler shows
on the screen where Python was. Some library may repeat a warning for weeks, so `keep_small` takes the middle out of the
file when it has become large.
"""

import atexit
import contextlib
import faulthandler
import fcntl
import logging
import os
import signal
import sys
import tempfile
import threading
import time
from typing import Any, Iterator, NoReturn, TextIO

from scalable_agents.actor import standard_streams
from scalable_agents.records import run_directory
from scalable_agents.training import kernels

_STDERR = 2
_LIBRARY_LOGGERS = ('imageio_ffmpeg', 'matplotlib', 'py.warnings', 'tensorflow')

_MAXIMUM_BYTES = 16_000_000  # Of what libraries say; when there is more, these parts stay:
_FIRST_BYTES = 1_000_000
_LAST_BYTES = 4_000_000
_LEFT_OUT = b'\n[... left out here, as this file had become large ...]\n'
_SIZE_CHECK_SECONDS = 10.

_collected = None  # The file without a name; None while nothing is redirected.
_library_stream = None
_release_watcher = None


def start():
  """Redirects descriptor 2. To be called before TensorFlow and absl are imported, and before there are threads.

  Until run_flags.run_main, Ctrl-C ends the process at once: an exception would show a traceback through TensorFlow.
  So does SIGTERM until there is a log.
  TensorFlow computes with the kernels that kernels.choose asks for. Writing to the screen or the log never fails.
  """
  global _collected, _library_stream
  if _collected is not None:
    return
  kernels.choose()
  standard_streams.make_unfailing()
  for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, _leave)
  screen_stream = standard_streams.UnfailingStream(os.dup(_STDERR))
  _collected = tempfile.TemporaryFile()
  _start_watcher(screen_stream.fileno())
  os.dup2(_collected.fileno(), _STDERR)
  sys.stderr = screen_stream
  faulthandler.enable(screen_stream)
  _library_stream = standard_streams.UnfailingStream(_STDERR, closefd=False)
  logging.captureWarnings(True)
  logging.getLogger().addHandler(logging.NullHandler())  # Else TensorFlow adds a handler that writes to sys.stderr.
  for name in _LIBRARY_LOGGERS:
    logger = logging.getLogger(name)
    logger.addHandler(logging.StreamHandler(_library_stream))
    logger.propagate = False
  from absl import logging as absl_logging  # Remembers sys.stderr.  pylint: disable=g-import-not-at-top
  absl_logging.get_absl_handler().python_handler.stream = _library_stream


def leave(code: int) -> NoReturn:
  """Ends the process at once, whatever other threads are at. Python's own way out cannot, and may crash in them."""
  _dismiss_watcher()
  os._exit(code)


def _leave(number: int, unused_frame: Any):
  leave(128 + number)


def keep_log(path: str):
  """Appends what was collected to a file, and from now on all that libraries say. Nothing without `start`.

  Raises:
    run_directory.RunDirectoryError: the file cannot be opened for writing.
  """
  if _collected is None:
    return
  with run_directory.one_line_errors(path):
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    copied = _copy(0, log)
    os.dup2(log, _STDERR)
    _copy(copied, log)  # What another thread has written since.
    os.close(log)
  _dismiss_watcher()
  signal.signal(signal.SIGTERM, signal.SIG_DFL)  # It needs no Python to run, and from now on shows nothing either.


def keep_small():
  """From now on looks every few seconds whether the file has become large, in a thread. Nothing without `start`."""
  if _collected is not None:
    threading.Thread(target=_watch_size, name='log size', daemon=True).start()


@contextlib.contextmanager
def aside() -> Iterator[None]:
  """Inside the block, what Python code prints goes where libraries' messages go: an environment's package, say."""
  with standard_streams.UnfailingStream(_STDERR, closefd=False) as stream:
    with contextlib.redirect_stdout(stream):
      yield


def note(text: str):
  """Writes a line of our own where libraries' messages go: into the log, once there is one. Nothing without `start`."""
  if _library_stream is not None:
    print(text, file=_library_stream)


def screen() -> TextIO:
  """Where messages to the user go: the stderr this process was started with. Fit to be a child's stderr, too."""
  return sys.stderr


def _watch_size():
  while True:
    time.sleep(_SIZE_CHECK_SECONDS)
    with contextlib.suppress(OSError):  # It is tried again.
      if os.fstat(_STDERR).st_size > _MAXIMUM_BYTES:
        _take_out_the_middle()


def _take_out_the_middle():
  """Shortens the file in place: this process, its workers and their libraries have it open.

  What another thread or process writes between the last two calls is lost.
  """
  # All that write there must do so at the end, wherever that is. Descriptors that come from one `open` share the flag.
  fcntl.fcntl(_STDERR, fcntl.F_SETFL, fcntl.fcntl(_STDERR, fcntl.F_GETFL) | os.O_APPEND)
  file = os.open(f'/proc/self/fd/{_STDERR}', os.O_RDWR)  # Has a flag of its own, and may write in the middle.
  try:
    fcntl.flock(file, fcntl.LOCK_EX)  # A training and an evaluation of it may come to this at the same time.
    size = os.fstat(file).st_size
    if size <= _MAXIMUM_BYTES:
      return
    source = size - _LAST_BYTES
    target = _FIRST_BYTES + os.pwrite(file, _LEFT_OUT, _FIRST_BYTES)
    while block := os.pread(file, 1 << 16, source):
      source += len(block)
      target += os.pwrite(file, block, target)
    os.ftruncate(file, target)
  finally:
    os.close(file)


def _copy(position: int, target: int) -> int:
  """Writes what was collected from a position on, or as much as can be, to a descriptor; returns where it ends."""
  while block := os.pread(_collected.fileno(), 1 << 16, position):
    with contextlib.suppress(OSError):  # A full disk ends no training.
      os.write(target, block)
    position += len(block)
  return position


def _start_watcher(screen_descriptor: int):
  """Forks a process that waits for this one. A byte in the pipe dismisses it; an end without one is a crash."""
  global _release_watcher
  watched, alive = os.pipe()
  watcher = os.fork()
  if not watcher:
    try:
      signal.signal(signal.SIGINT, signal.SIG_IGN)
      os.close(alive)
      if not os.read(watched, 1):
        _copy(0, screen_descriptor)
    finally:
      os._exit(0)
  os.close(watched)
  _release_watcher = watcher, alive
  atexit.register(_dismiss_watcher)


def _dismiss_watcher():
  global _release_watcher
  if _release_watcher is None:
    return
  watcher, alive = _release_watcher
  _release_watcher = None
  with contextlib.suppress(BrokenPipeError):  # A signal to the whole group has ended it.
    os.write(alive, b'.')
  os.close(alive)
  os.waitpid(watcher, 0)
