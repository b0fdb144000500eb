"""Ends what environments have started, emulators and simulators, together with their worker, however that ended.

A process can leave its group, its session and its parent, but few change their environment variables. So a worker has
a mark among its own, which all that descends from it inherit. The process that has the workers looks for the mark, and
for processes in the worker's session, where a worker has ended. Should that process itself be gone, by `kill -9` say, a
keeper does: this file as a program. It imports nothing that takes time or memory. Only a program that is started both
without the mark and in a session of its own is not found.
"""

import contextlib
import os
import signal
import sys
import time
from typing import Callable, Collection, Iterable, Iterator, NamedTuple

VARIABLE = 'SCALABLE_AGENTS_WORKER'  # Its value is the mark.
_LOOK_SECONDS = 0.01
_PATIENCE_SECONDS = 5.  # With processes that the kernel cannot end yet.


class _Process(NamedTuple):
  pid: int
  parent: int
  session: int


def kill(mark: str, sessions: Iterable[int] = ()):
  """Kills all processes whose mark begins with this one, those in their sessions, and what they start meanwhile.

  Args:
    mark: the beginning of a mark.
    sessions: further sessions, whose leaders may have ended.
  """
  _kill(lambda: _marked(mark, sessions))


@contextlib.contextmanager
def ending():
  """On leaving the block, kills the programs started in it: by environments that this process makes, to check them."""
  os.environ[VARIABLE] = mark = f'{os.urandom(8).hex()}.'
  before = _descendants()
  try:
    yield
  finally:
    del os.environ[VARIABLE]
    kill(mark)
    _kill(lambda: _descendants() - before)  # What has been forked and is no other program has no mark.


def _kill(find: Callable[[], Collection[int]]):
  """Kills the processes that `find` finds, until there are none."""
  deadline = time.monotonic() + _PATIENCE_SECONDS
  looks_in_vain = 0
  while looks_in_vain < 2 and time.monotonic() < deadline:  # During exec a process shows no environment variables.
    if looks_in_vain:
      time.sleep(_LOOK_SECONDS)
    found = find()
    looks_in_vain = 0 if found else looks_in_vain + 1
    for pid in found:
      try:
        os.kill(pid, signal.SIGKILL)
      except OSError:
        pass  # It has ended by itself.


def _marked(mark: str, sessions: Iterable[int]) -> set[int]:
  """The ids of the processes that `kill` kills."""
  entry = f'\0{VARIABLE}={mark}'.encode()
  processes = list(_processes())
  marked = set()
  for process in processes:
    with contextlib.suppress(OSError), open(f'/proc/{process.pid}/environ', 'rb') as file:  # Another user's; it ended.
      if entry in b'\0' + file.read():
        marked.add(process.pid)
  sessions = {*sessions, *(process.session for process in processes if process.pid in marked)} - {os.getsid(0)}
  return marked | {process.pid for process in processes if process.session in sessions}


def _descendants() -> set[int]:
  """The ids of this process's children, their children, and so on."""
  found, last = set(), {os.getpid()}
  processes = list(_processes())
  while last:
    last = {process.pid for process in processes if process.parent in last}
    found |= last
  return found


def _processes() -> Iterator[_Process]:
  """All processes without zombies."""
  for name in filter(str.isdecimal, os.listdir('/proc')):
    with contextlib.suppress(OSError), open(f'/proc/{name}/stat', encoding='ascii', errors='replace') as file:
      # See proc(5). The second field, a name in parentheses, may hold anything.
      state, parent, unused_group, session, *_ = file.read().rpartition(')')[2].split()
      if state not in 'ZX':
        yield _Process(int(name), int(parent), int(session))


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
