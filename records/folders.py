"""The folders of a run: which are made for it, their removal if it fails early, and a wait until they are on disk."""

from collections.abc import Iterable
import contextlib
import errno
import os


def missing(directory: str) -> list[str]:
  """Returns the directory and its parents that do not exist, deepest first."""
  found, folder = [], os.path.abspath(directory)
  while not os.path.lexists(folder):
    found.append(folder)
    folder = os.path.dirname(folder)
  return found


def remove(folders: Iterable[str]):
  """Removes folders in order, until one is not empty."""
  with contextlib.suppress(OSError):
    for folder in folders:
      os.rmdir(folder)


def sync(path: str):
  """Waits until a file, or a folder with everything in it, is on the disk, so that a power cut cannot damage it.

  Raises:
    OSError: it is not there, or the disk has failed.
  """
  if os.path.isdir(path):
    for name in os.listdir(path):
      sync(os.path.join(path, name))
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  except OSError as error:
    if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # Some file systems cannot do this, above all for folders.
      raise
  finally:
    os.close(descriptor)
