"""Imports modules of users' own, which need not be installed: the current folder is searched too."""

import importlib
import os
import sys
import types


def import_module(name: str) -> types.ModuleType:
  """Imports a module from sys.path or from the current folder.

  With `bazel run`, the current folder is the one where the command was given.

  Raises:
    ImportError: there is no such module (the message says where it was looked for), or the module raises it.
  """
  folder = os.path.abspath(os.environ.get('BUILD_WORKING_DIRECTORY', ''))
  if folder not in sys.path:
    sys.path.append(folder)
  try:
    return importlib.import_module(name)
  except ModuleNotFoundError as error:
    if error.name is None or not f'{name}.'.startswith(f'{error.name}.'):
      raise  # The module is there, but needs another one.
    raise ImportError(f'no module {error.name}: looked in {folder}, in PYTHONPATH and among the packages of '
                      f'{sys.executable}') from None
