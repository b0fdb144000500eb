"""What Python programs started from here need to find the same modules."""

import os
import sys


def environment() -> dict[str, str]:
  """The environment variables with which a child process finds the modules that this process finds."""
  return dict(os.environ, PYTHONPATH=os.pathsep.join(path for path in sys.path if path))
