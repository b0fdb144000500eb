"""The folders that are made for a run. They are removed again if the run fails before its first update."""

from collections.abc import Iterable
import contextlib
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
