"""Lets child processes that run Python import the same modules as this process."""

import os
import sys


def environment() -> dict[str, str]:
  """Returns the environment variables of this process, with a PYTHONPATH that has this process's sys.path."""
  return dict(os.environ, PYTHONPATH=os.pathsep.join(path for path in sys.path if path))
