"""Records in which order this process waits for the disk and puts files in force."""

from collections.abc import Iterator
import contextlib
import os
from unittest import mock


@contextlib.contextmanager
def recorded() -> Iterator[list[tuple[str, str]]]:
  """Yields a growing list: ('sync', name) for os.fsync of a file or folder, ('replace', old name) for os.replace."""
  events = []
  fsync, replace = os.fsync, os.replace

  def record_sync(descriptor):
    fsync(descriptor)
    events.append(('sync', os.path.basename(os.readlink(f'/proc/self/fd/{descriptor}'))))

  def record_replace(old, new):
    replace(old, new)
    events.append(('replace', os.path.basename(old)))

  with mock.patch.multiple(os, fsync=record_sync, replace=record_replace):
    yield events
