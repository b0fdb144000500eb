"""Loads objects by reference ('module:NAME'), and lets child processes find the same modules as this process."""

import importlib
import os
import sys
from typing import Any


def environment() -> dict[str, str]:
  """Returns the environment variables of this process, with a PYTHONPATH that has this process's sys.path."""
  return dict(os.environ, PYTHONPATH=os.pathsep.join(path for path in sys.path if path))


def load(reference: str) -> Any:
  """Returns the object that 'module:NAME' names, for example a Definition. Raises ImportError or AttributeError."""
  module, _, name = reference.partition(':')
  return getattr(importlib.import_module(module), name)
