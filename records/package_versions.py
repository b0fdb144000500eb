"""The versions of the code that can change a result. A run writes them to config.json."""

import functools
import importlib.metadata
import os
import platform
import subprocess
import zlib

_ERRORS = 'surrogateescape'  # A file may have another encoding than UTF-8.
_PACKAGES = ('ale-py', 'dm-env', 'dm-sonnet', 'gymnasium', 'numpy', 'tensorflow')


@functools.cache  # Later, the commit may differ from that of the code that this process has imported.
def installed() -> dict[str, str | None]:
  """Returns package -> version; None if it is not installed. Python counts as a package.

  The version of this project is that of its package or, in a checkout, the commit.
  """
  versions = {package: _version(package) for package in _PACKAGES}
  return {'scalable_agents': commit() or _version('scalable_agents'), 'python': platform.python_version(), **versions}


def commit() -> str:
  """Returns the commit of this checkout, and after a + a checksum of how files differ from it, if they do.

  Outside of a checkout, returns ''.
  """
  root = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
  checkout = _git(root, 'rev-parse', '--show-toplevel')
  if not checkout or os.path.realpath(checkout) != root:  # An installed package may lie inside of another checkout.
    return ''
  named = _git(root, 'describe', '--always', '--dirty=+', '--exclude=*')
  if not named.endswith('+'):
    return named
  difference = _git(root, 'diff', '--no-ext-diff', '--no-textconv', 'HEAD')  # Without programs of the user's.
  return named + f'{zlib.crc32(difference.encode(errors=_ERRORS)):08x}'


def _git(folder, *arguments):
  """Returns what git prints; '' if it fails or there is no git."""
  # Within a hook of git, GIT_DIR names the hook's repository.
  environment = {name: value for name, value in os.environ.items() if not name.startswith('GIT_')}
  try:
    return subprocess.run(['git', '--no-optional-locks', '-C', folder, *arguments], env=environment, encoding='utf-8',
                          errors=_ERRORS, stdin=subprocess.DEVNULL, capture_output=True, check=False).stdout.strip()
  except OSError:
    return ''


def _version(package):
  try:
    return importlib.metadata.version(package)
  except importlib.metadata.PackageNotFoundError:
    return None
