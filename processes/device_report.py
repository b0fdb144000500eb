"""Finds out where runs learn and act, for programs that start these runs but do not import TensorFlow themselves."""

import functools
import subprocess
import sys

from scalable_agents.processes import python_path

_DESCRIBE = '''
from scalable_agents.processes import kernels
kernels.choose()
from scalable_agents.processes import devices
devices.grow_memory()
print(devices.describe([devices.choose()], devices.choose()))
'''


def tell() -> None:
  """Prints where each run will learn and act; nothing if `read` has no answer."""
  if line := read():
    print(f'each run {line}', flush=True)


@functools.cache  # The process takes some seconds.
def read() -> str:
  """Returns the line of devices.describe from a process that imports TensorFlow; '' if that process fails."""
  done = subprocess.run([sys.executable, '-c', _DESCRIBE], env=python_path.environment(), stdin=subprocess.DEVNULL,
                        capture_output=True, text=True, check=False)
  return done.stdout.strip()
