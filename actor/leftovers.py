"""Ends what environments have started, emulators and simulators, together with their worker, however that ended.

A process can leave its group, its session and its parent. It keeps its environment variables, and so all that descends
from a worker has the worker's mark among them. The process that has the workers looks for the mark where a worker has
ended. Should that process itself be gone, by `kill -9` say, a keeper does: this file as a program. It imports nothing
that takes time or memory.
"""

import contextlib
import os
import signal
import sys
import time

VARIABLE = 'SCALABLE_AGENTS_WORKER'  # Its value is the mark.
_LOOK_SECONDS = 0.01
_PATIENCE_SECONDS = 5.  # With processes that the kernel cannot end yet.


def kill(mark: str):
  """Kills all processes whose mark begins with this one, and what they start meanwhile."""
  deadline = time.monotonic() + _PATIENCE_SECONDS
  looks_in_vain = 0
  while looks_in_vain < 2 and time.monotonic() < deadline:  # During exec a process shows no environment variables.
    if looks_in_vain:
      time.sleep(_LOOK_SECONDS)
    marked = _marked(mark)
    looks_in_vain = 0 if marked else looks_in_vain + 1
    for pid in marked:
      try:
        os.kill(pid, signal.SIGKILL)
      except OSError:
        pass  # It has ended by itself.


@contextlib.contextmanager
def ending():
  """On leaving the block, kills the programs started in it: by environments that this process makes, to check them."""
  os.environ[VARIABLE] = mark = f'{os.urandom(8).hex()}.'
  try:
    yield
  finally:
    del os.environ[VARIABLE]
    kill(mark)


def _marked(mark):
  """The ids of these processes; zombies are not among them."""
  entry, found = f'\0{VARIABLE}={mark}'.encode(), []
  for name in filter(str.isdecimal, os.listdir('/proc')):
    try:
      with open(f'/proc/{name}/environ', 'rb') as file:
        if entry in b'\0' + file.read():
          found.append(int(name))
    except OSError:
      pass  # It is another user's, or has ended.
  return found


def main(mark: str):
  """Waits for the end of stdin, in a process that is nobody's child, and kills what has the mark."""
  if os.fork():
    os._exit(0)
  os.setsid()
  os.chdir('/')
  signal.signal(signal.SIGTERM, signal.SIG_IGN)
  os.read(0, 1)
  kill(mark)


if __name__ == '__main__':
  main(sys.argv[1])
