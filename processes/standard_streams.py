"""Standard streams to which writing never fails.

Training must continue when the process cannot write to its screen or log: the disk is full, the terminal has closed,
the reader of a pipe has ended, or the stream was closed when the process started. Output that cannot be written is
dropped.
"""

import io
import os
import sys


class UnfailingStream(io.TextIOWrapper):
  """A text stream on a file descriptor. It writes line by line, and drops output that the system does not accept."""

  def __init__(self, descriptor: int, closefd: bool = True):
    """Makes the stream.

    Args:
      descriptor: the file descriptor.
      closefd: whether closing the stream also closes the descriptor.
    """
    super().__init__(io.BufferedWriter(_UnfailingFile(descriptor, 'w', closefd=closefd)), errors='backslashreplace',
                     line_buffering=True)


class _UnfailingFile(io.FileIO):

  def write(self, data):
    try:
      written = super().write(data)
    except OSError:
      written = None
    return memoryview(data).nbytes if written is None else written  # None: a non-blocking descriptor is full.


def make_unfailing():
  """Replaces sys.stdout and sys.stderr by UnfailingStreams, and opens closed descriptors among 0, 1 and 2. Idempotent.

  It must be called before files are opened. Otherwise a file could get the number of a closed standard stream, and
  output for the screen would be written to the file.
  """
  open_closed_descriptors()
  for name, descriptor in (('stdout', 1), ('stderr', 2)):
    if not isinstance(getattr(sys, name), UnfailingStream):
      setattr(sys, name, UnfailingStream(descriptor, closefd=False))


def open_closed_descriptors():
  """Opens /dev/null for each of the descriptors 0, 1 and 2 that is closed."""
  for descriptor in range(3):
    try:
      os.fstat(descriptor)
    except OSError:
      os.open(os.devnull, os.O_RDWR)  # It gets the lowest free number.
      os.set_inheritable(descriptor, True)  # Like other standard streams.
