"""Loads objects by reference ('module:NAME'), and lets child processes find the same modules as this process."""

import importlib
import os
import sys
from typing import Any


def environment() -> dict[str, str]:
  """Returns the environment variables of this process, and in PYTHONPATH its sys.path, for `python -m`.

  Without PYTHONSAFEPATH, the child would look in the current folder first, where a user may have a random.py.
  """
  paths = [path or os.getcwd() for path in sys.path]  # An empty one is the current folder, in a notebook for example.
  return dict(os.environ, PYTHONPATH=os.pathsep.join(paths), PYTHONSAFEPATH='1')


def load(reference: str) -> Any:
  """Returns the object that 'module:NAME' names, for example a Definition. Raises ImportError or AttributeError."""
  module, _, name = reference.partition(':')
  return getattr(importlib.import_module(module), name)
