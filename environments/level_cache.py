"""A folder of compiled maps, for all DeepMind Labs of a machine: compiling one takes seconds, fetching it does not.

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

_SUFFIX = '.map'
_KEY = re.compile(r'[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199}')
_DIGEST = hashlib.sha256


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
