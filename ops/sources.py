"""The checksum of C++ sources. By it, Python recognises a library that was built from other sources.

setup.py reads this file, too. It builds the checksum into each library.
"""

from collections.abc import Sequence
import ctypes
import glob
import hashlib
import os

SYMBOL = 'scalable_agents_sources'  # The function in the library that returns the checksum.


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


def check(library: str, folders: Sequence[str]) -> None:
  """Checks that a library was built from the sources beside it. Those of Bazel, which are links, always are.

  Args:
    library: the path of the library, in a subfolder of the root.
    folders: the folders with its sources, below the root.
  Raises:
    LibraryError: it was built from others.
  """
  if os.path.islink(library):
    return
  here = checksum(os.path.dirname(os.path.dirname(library)), folders)
  if not here:
    return
  built_from = getattr(ctypes.CDLL(library), SYMBOL, None)
  if built_from:
    built_from.restype = ctypes.c_char_p
  if not built_from or built_from().decode() != here:
    raise LibraryError(f'{library} is older than this code: run `make setup`')
