"""The checksum of C++ sources. By it, Python recognises a library that was built from other sources.

setup.py reads this file, too. It builds the checksum into each library.
"""

from collections.abc import Sequence
import glob
import hashlib
import os
import pathlib

OPS = ('actor', 'learner', 'ops', 'replay')  # The folders with the code of the ops.


class LibraryError(ImportError):
  """The C++ library is missing or older than the code. The message says what to do."""


def checksum(root: str, folders: Sequence[str]) -> str:
  """Returns the checksum of the C++ files in these folders below `root`; '' where there are none, as in a wheel."""
  paths = sorted(path for folder in folders for name in ('*.cc', '*.h')  # Not the copies that editors make.
                 for path in glob.glob(os.path.join(root, folder, 'cc', name)))
  if not paths:
    return ''
  found = hashlib.sha256()
  for path in paths:
    with open(path, 'rb') as file:
      found.update(file.read())
  return found.hexdigest()


def is_stale(library: str, folders: Sequence[str]) -> bool:
  """Returns whether a library was built from other sources than those beside it. Those of Bazel, links, never were.

  Args:
    library: the path of the library, in a subfolder of the root.
    folders: the folders with its sources, below the root.
  """
  here = checksum(os.path.dirname(os.path.dirname(library)), folders)
  return bool(here) and not os.path.islink(library) and here.encode() not in pathlib.Path(library).read_bytes()


def check(library: str, folders: Sequence[str]) -> None:
  """Raises LibraryError if a library `is_stale`."""
  if is_stale(library, folders):
    raise LibraryError(f'{library} is older than this code: run `make setup`')
