"""The versions of the packages that can change a result. A run writes them to config.json."""

import importlib.metadata
import platform

_PACKAGES = ('ale-py', 'dm-env', 'dm-sonnet', 'gymnasium', 'numpy', 'tensorflow')


def installed() -> dict[str, str | None]:
  """Returns package -> version; None if it is not installed. Python counts as a package."""
  versions: dict[str, str | None] = {'python': platform.python_version()}
  for package in _PACKAGES:
    try:
      versions[package] = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
      versions[package] = None
  return versions
