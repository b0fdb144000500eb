"""A folder of compiled maps, for all DeepMind Labs of a machine: compiling one takes seconds, fetching it does not.

`check` says beforehand whether the folder can be used. `Announcing` tells when Lab compiles a map.

Lab ends its process, without an exception, where it is given a map that it cannot read. So an entry is a SHA-256 digest
followed by the map, and whatever does not fit its digest is no entry: it is removed, and the map is compiled again.
Entries appear whole, under a temporary name first, so processes share the folder without locks.
"""

import contextlib
import hashlib
import os
import re
import tempfile
import zipfile

from scalable_agents.environments import long_work

_SUFFIX = '.map'
_KEY = re.compile(r'[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199}')
_DIGEST = hashlib.sha256


def check(folder: str) -> None:
  """Checks, without leaving anything, that the folder is there and can be written to, or that it can be made.

  Raises:
    ValueError: it cannot.
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
  """What `deepmind_lab.Lab` takes as its level_cache. Trouble with files makes a miss, never an exception."""

  def __init__(self, folder: str):
    """Makes the folder if need be.

    Raises:
      OSError: it is not there and cannot be made.
    """
    os.makedirs(folder, exist_ok=True)
    self._folder = folder

  def fetch(self, key: str, pk3_path: str) -> bool:
    """Copies the map of that key over `pk3_path`, where an older one may lie; False if there is none."""
    if not _KEY.fullmatch(key):
      return False
    entry = os.path.join(self._folder, key + _SUFFIX)
    try:
      if not os.path.isfile(entry):  # Waiting for what comes out of a pipe would be for ever.
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
    """Keeps the map at `pk3_path` under that key, if it is one."""
    if not _KEY.fullmatch(key) or not _is_map(pk3_path):
      return
    with contextlib.suppress(OSError):
      with open(pk3_path, 'rb') as file:
        pk3 = file.read()
      _put(_DIGEST(pk3).digest() + pk3, os.path.join(self._folder, key + _SUFFIX))


class Announcing:
  """What Lab takes as its level_cache, with a LevelCache behind it or none: says when Lab compiles a map.

  Lab asks for every map first. It compiles what it did not get, and then offers it.
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
  """Whether a file is a zip archive with one map in it, all of whose checksums fit."""
  try:
    with zipfile.ZipFile(path) as archive:
      return sum(name.endswith('.bsp') for name in archive.namelist()) == 1 and archive.testzip() is None
  except Exception:  # pylint: disable=broad-except; zipfile and zlib raise a dozen kinds over damaged archives.
    return False


def _put(content, path):
  """Gives a file its content at once: whoever opens it sees all of the old one or all of the new one."""
  descriptor, temporary = tempfile.mkstemp(prefix='.', suffix='.tmp', dir=os.path.dirname(path))
  try:
    with open(descriptor, 'wb') as file:
      file.write(content)
    os.replace(temporary, path)
  except BaseException:
    with contextlib.suppress(OSError):
      os.remove(temporary)
    raise
