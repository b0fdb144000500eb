"""Standard streams to which writing never fails.

A training goes on when its screen or log cannot be written to: the disk is full, the terminal is gone, nobody reads the
pipe any more, or the stream was closed when the process started. What cannot be written is dropped.
"""

import io
import os
import sys


class UnfailingStream(io.TextIOWrapper):
  """A text stream on a file descriptor. Writes what the system accepts, line by line, and drops the rest."""

  def __init__(self, descriptor: int, closefd: bool = True):
    """Args: the descriptor, and whether it is closed with the stream."""
    super().__init__(io.BufferedWriter(_UnfailingFile(descriptor, 'w', closefd=closefd)), errors='backslashreplace',
                     line_buffering=True)


class _UnfailingFile(io.FileIO):

  def write(self, data):
    try:
      written = super().write(data)
    except OSError:
      written = None
    return memoryview(data).nbytes if written is None else written  # None: a descriptor that does not wait is full.


def make_unfailing():
  """Replaces sys.stdout and sys.stderr, where that has not been done, and opens what was closed from 0 to 2.

  To be called before files are opened: they would get the numbers of closed descriptors, and what is meant for the
  screen would land in them.
  """
  open_closed_descriptors()
  for name, descriptor in (('stdout', 1), ('stderr', 2)):
    if not isinstance(getattr(sys, name), UnfailingStream):
      setattr(sys, name, UnfailingStream(descriptor, closefd=False))


def open_closed_descriptors():
  """Opens /dev/null at each of the descriptors 0, 1 and 2 that is closed."""
  for descriptor in range(3):
    try:
      os.fstat(descriptor)
    except OSError:
      os.open(os.devnull, os.O_RDWR)  # Gets the lowest number that is free.
      os.set_inheritable(descriptor, True)  # As standard streams are.
