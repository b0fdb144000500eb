"""A folder of compiled maps that all DeepMind Labs of a machine share, because compiling a map takes seconds.

`check` tests whether the folder can be used. `Announcing` reports when Lab compiles a map.

If Lab gets a map that it cannot read, it ends its process without an exception. So an entry of the cache is a SHA-256
digest followed by the map. An entry that does not match its digest is removed, and the map is compiled again. An entry
is first written under a temporary name and then renamed, so that processes can share the folder without locks.
"""

import contextlib
import hashlib
import os
import re
import secrets
import tempfile
import zipfile

from scalable_agents.environments import long_work

_SUFFIX = '.map'
_KEY = re.compile(r'[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199}')
_DIGEST = hashlib.sha256


def check(folder: str) -> None:
  """Checks that the folder is writable or can be made. Leaves no files behind.

  Raises:
    ValueError: it is not writable and cannot be made.
  """
  existing = os.path.abspath(folder)
  while not os.path.lexists(existing):
    existing = os.path.dirname(existing)
  try:
    with tempfile.TemporaryFile(dir=existing):
      pass
  except OSError as error:
    raise ValueError(
        f'level_cache: {folder}: compiled maps cannot be kept there: {existing}: {error.strerror}') from error


class LevelCache:
  """The `level_cache` argument of `deepmind_lab.Lab`. An error with a file is a miss, never an exception."""

  def __init__(self, folder: str):
    """Makes the folder if it does not exist.

    Raises:
      OSError: it cannot be made.
    """
    os.makedirs(folder, exist_ok=True)
    self._folder = folder

  def fetch(self, key: str, pk3_path: str) -> bool:
    """Copies the map of this key to `pk3_path`, which may exist already. Returns False if there is no such map."""
    if not _KEY.fullmatch(key):
      return False
    entry = os.path.join(self._folder, key + _SUFFIX)
    try:
      if not os.path.isfile(entry):  # Reading from a pipe could block for ever.
        return False
      with open(entry, 'rb') as file:
        digest, pk3 = file.read(_DIGEST().digest_size), file.read()
      if _DIGEST(pk3).digest() != digest:
        os.remove(entry)
        return False
      _put(pk3, pk3_path)
    except OSError:
      return False
    return True

  def write(self, key: str, pk3_path: str) -> None:
    """Stores the map at `pk3_path` under this key, if the file is a map."""
    if not _KEY.fullmatch(key) or not _is_map(pk3_path):
      return
    with contextlib.suppress(OSError):
      with open(pk3_path, 'rb') as file:
        pk3 = file.read()
      _put(_DIGEST(pk3).digest() + pk3, os.path.join(self._folder, key + _SUFFIX))


class Announcing:
  """A `level_cache` for Lab that reports when Lab compiles a map. It wraps a LevelCache, or nothing.

  Lab calls `fetch` for every map. If there is none, Lab compiles the map and then calls `write`.
  """

  def __init__(self, cache: LevelCache | None):
    self._cache = cache

  def fetch(self, key: str, pk3_path: str) -> bool:
    """See LevelCache."""
    if self._cache and self._cache.fetch(key, pk3_path):
      return True
    long_work.begin()
    return False

  def write(self, key: str, pk3_path: str) -> None:
    """See LevelCache."""
    long_work.end()
    if self._cache:
      self._cache.write(key, pk3_path)


def _is_map(path):
  """Returns whether a file is a zip archive that contains one map and whose checksums are all correct."""
  try:
    with zipfile.ZipFile(path) as archive:
      return sum(name.endswith('.bsp') for name in archive.namelist()) == 1 and archive.testzip() is None
  except Exception:  # Damaged archives raise many kinds of errors in zipfile and zlib.
    return False


def _put(content, path):
  """Writes a file atomically: a reader sees either the whole old content or the whole new content."""
  # A file of `tempfile` could not be read by other users of the machine.
  temporary = os.path.join(os.path.dirname(path), f'.{secrets.token_hex(16)}.tmp')
  try:
    with open(temporary, 'xb') as file:
      file.write(content)
    os.replace(temporary, path)
  except BaseException:
    with contextlib.suppress(OSError):
      os.remove(temporary)
    raise
