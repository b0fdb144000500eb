"""Redirects the messages of libraries, such as TensorFlow's start-up lines, from the screen to a log file.

TensorFlow's C++ code writes to file descriptor 2. `start` redirects this descriptor to a temporary file without a name.
Python's sys.stderr still writes to the screen. `keep_log` moves the collected text to the log in the run directory, and
redirects the descriptor to the log.

The message of a crash inside a library must not be lost. Until there is a log, a small helper process watches this
process, and prints the collected text if this process dies. Afterwards the message is in the log, and faulthandler
prints the Python stack to the screen.

A library may repeat a warning for weeks. So `keep_small` removes the middle of the file when it has become large.
"""

import atexit
from collections.abc import Iterator
import contextlib
import faulthandler
import fcntl
import logging
import os
import signal
import sys
import threading
import time
from typing import Any, BinaryIO, NoReturn, TextIO

from scalable_agents.processes import kernels
from scalable_agents.processes import standard_streams
from scalable_agents.records import run_directory

_STDERR = 2
_LIBRARY_LOGGERS = ('imageio_ffmpeg', 'matplotlib', 'py.warnings', 'tensorflow')

_MAXIMUM_BYTES = 16_000_000  # The largest size of the log. A larger log is reduced to its first and last part:
_FIRST_BYTES = 1_000_000
_LAST_BYTES = 4_000_000
_LEFT_OUT = b'\n[... this part was removed because the file had become large ...]\n'
_SIZE_CHECK_SECONDS = 10.

_collected = None  # The temporary file; None if `start` was not called.
_library_stream = None
_release_watcher = None


def start():
  """Redirects descriptor 2. It must be called before TensorFlow and absl are imported, and before threads are started.

  Until run_flags.run_main, Ctrl-C ends the process at once, because an exception would show a traceback through
  TensorFlow. Until there is a log, SIGTERM also ends the process at once. `start` also calls kernels.choose, and makes
  writing to the screen or the log never fail.
  """
  global _collected, _library_stream
  if _collected is not None:
    return
  kernels.choose()
  standard_streams.make_unfailing()
  for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, _leave)
  signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # If it was ignored, the watcher could not be waited for.
  screen_stream = standard_streams.UnfailingStream(os.dup(_STDERR))
  _collected = open(os.memfd_create('messages'), 'w+b')  # In memory, since the disk may be full.
  _start_watcher(_collected, screen_stream.fileno())
  os.dup2(_collected.fileno(), _STDERR)
  sys.stderr = screen_stream
  faulthandler.enable(screen_stream)
  _library_stream = standard_streams.UnfailingStream(_STDERR, closefd=False)
  logging.captureWarnings(True)
  # Without this handler, TensorFlow would add one that writes to sys.stderr.
  logging.getLogger().addHandler(logging.NullHandler())
  for name in _LIBRARY_LOGGERS:
    logger = logging.getLogger(name)
    logger.addHandler(logging.StreamHandler(_library_stream))
    logger.propagate = False
  from absl import logging as absl_logging  # Stores sys.stderr.
  absl_logging.get_absl_handler().python_handler.stream = _library_stream


def leave(code: int) -> NoReturn:
  """Ends the process at once. A normal exit would wait for other threads, or crash in them."""
  _dismiss_watcher()
  os._exit(code)


def _leave(number: int, unused_frame: Any):
  leave(128 + number)


def keep_log(path: str):
  """Appends the collected messages and all later ones to a file. Does nothing if `start` was not called.

  Args:
    path: the log's path.
  Raises:
    run_directory.RunDirectoryError: the file cannot be opened for writing.
  """
  if _collected is None:
    return
  with run_directory.one_line_errors(path):
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    copied = _copy(_collected, 0, log)
    os.dup2(log, _STDERR)
    _copy(_collected, copied, log)  # Another thread may have written to the temporary file meanwhile.
    os.close(log)
  _dismiss_watcher()
  signal.signal(signal.SIGTERM, signal.SIG_DFL)  # The default works even if no Python code runs, and prints nothing.


def keep_small():
  """Starts a thread that keeps the file below its largest size. Does nothing if `start` was not called."""
  if _collected is not None:
    threading.Thread(target=_watch_size, name='log size', daemon=True).start()


@contextlib.contextmanager
def stdout_to_log() -> Iterator[None]:
  """Within the block, sys.stdout goes where libraries' messages go, for example while an environment is imported."""
  with standard_streams.UnfailingStream(_STDERR, closefd=False) as stream:
    with contextlib.redirect_stdout(stream):
      yield


def note(text: str):
  """Writes a line where libraries' messages go, for example to the log. Does nothing if `start` was not called."""
  if _library_stream is not None:
    print(text, file=_library_stream)


def screen() -> TextIO:
  """Returns the stream for messages to the user: the stderr of the process's start. It can be a child's stderr."""
  return sys.stderr


def _watch_size():
  while True:
    time.sleep(_SIZE_CHECK_SECONDS)
    with contextlib.suppress(OSError):  # The next check tries again.
      if os.fstat(_STDERR).st_size > _MAXIMUM_BYTES:
        _take_out_the_middle()


def _take_out_the_middle():
  """Shortens the file in place, because this process, its workers and their libraries have it open.

  Text that another thread or process writes between the last two calls is lost.
  """
  # All writers must append to the end, wherever it is. Descriptors of the same `open` share this flag.
  fcntl.fcntl(_STDERR, fcntl.F_SETFL, fcntl.fcntl(_STDERR, fcntl.F_GETFL) | os.O_APPEND)
  file = os.open(f'/proc/self/fd/{_STDERR}', os.O_RDWR)  # This descriptor does not append, so it can write anywhere.
  try:
    fcntl.flock(file, fcntl.LOCK_EX)  # A trainer and an evaluation of the same run may do this at the same time.
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


def _copy(collected: BinaryIO, position: int, target: int) -> int:
  """Copies the collected text from a position on to a descriptor. Returns the position of the text's end."""
  while block := os.pread(collected.fileno(), 1 << 16, position):
    with contextlib.suppress(OSError):  # A full disk must not end the training.
      os.write(target, block)
    position += len(block)
  return position


def _start_watcher(collected: BinaryIO, screen_descriptor: int):
  """Forks a process that waits for the end of this one. A byte in the pipe ends it. If none comes, this one crashed."""
  global _release_watcher
  watched, alive = os.pipe()
  watcher = os.fork()
  if not watcher:
    try:
      signal.signal(signal.SIGINT, signal.SIG_IGN)
      os.close(alive)
      if not os.read(watched, 1):
        _copy(collected, 0, screen_descriptor)
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
  with contextlib.suppress(BrokenPipeError):  # A signal to the whole process group may have ended the watcher.
    os.write(alive, b'.')
  os.close(alive)
  os.waitpid(watcher, 0)
