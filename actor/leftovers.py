"""Kills the programs that environments have started, such as emulators and simulators, when their worker has ended.

A process can leave its process group, its session and its parent, but few programs change their environment variables.
So a worker has a mark in an environment variable, which its descendants inherit. When a worker has ended, the training
process kills all processes with the mark, and all processes in their process groups and sessions. Its own process group
and session are spared; workers are in its session, and each has a process group of its own.

If the training process itself has ended, for example by `kill -9`, a watchdog process does the same. It first gives
the workers time to close their environments. The watchdog is this file, run as a program. It imports nothing that takes
time or memory. A program is not found if it is started both without the mark and in a process group or session of its
own.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
import contextlib
import os
import signal
import sys
import time
from typing import NamedTuple

CLOSE_SECONDS = 2.  # A worker's time for the current step and for closing its environments when it is told to exit.
VARIABLE = 'SCALABLE_AGENTS_WORKER'  # The environment variable with the mark.
_LOOK_SECONDS = 0.01
_PATIENCE_SECONDS = 5.  # Time limit for processes that the kernel cannot end yet.


class _Process(NamedTuple):
  pid: int
  parent: int
  group: int
  session: int


class _Place(NamedTuple):
  """Where a process is."""
  group: int
  session: int


def kill(mark: str, groups: Iterable[int] = ()):
  """Kills all processes whose mark begins with `mark`, all processes in their groups, and those that they start.

  Args:
    mark: the beginning of a mark.
    groups: ids of further process groups, whose leaders may have ended.
  """
  own = _own_place()
  _kill(lambda: _marked(mark, groups, own))


@contextlib.contextmanager
def cleanup() -> Iterator[None]:
  """A context manager that kills, at its end, the programs that were started inside it.

  It is for a process that makes an environment of its own, to check a level.
  """
  os.environ[VARIABLE] = mark = f'{os.urandom(8).hex()}.'
  before = _descendants()
  try:
    yield
  finally:
    del os.environ[VARIABLE]
    kill(mark)
    _kill(lambda: _descendants() - before)  # A process that was forked, but executed no program, has no mark.


def _kill(find: Callable[[], Collection[int]]):
  """Kills the processes that `find` returns, until it returns none."""
  deadline = time.monotonic() + _PATIENCE_SECONDS
  looks_in_vain = 0
  # It looks twice, because a process has no visible environment variables during exec.
  while looks_in_vain < 2 and time.monotonic() < deadline:
    if looks_in_vain:
      time.sleep(_LOOK_SECONDS)
    found = find()
    looks_in_vain = 0 if found else looks_in_vain + 1
    for pid in found:
      with contextlib.suppress(OSError):  # It has ended by itself.
        os.kill(pid, signal.SIGKILL)


def _own_place() -> _Place:
  return _Place(os.getpgrp(), os.getsid(0))


def _marked(mark: str, groups: Iterable[int], spared: _Place) -> set[int]:
  """Returns the ids of the processes that `kill` kills. The processes in `spared` die only if they have the mark."""
  entry = f'\0{VARIABLE}={mark}'.encode()
  processes = list(_processes())
  marked = set()
  for process in processes:
    # The file cannot be read if the process has ended or belongs to another user.
    with contextlib.suppress(OSError), open(f'/proc/{process.pid}/environ', 'rb') as file:
      if entry in b'\0' + file.read():
        marked.add(process.pid)
  groups = {*groups, *(process.group for process in processes if process.pid in marked)} - {spared.group}
  sessions = {process.session for process in processes if process.pid in marked} - {spared.session}
  return marked | {process.pid for process in processes if process.group in groups or process.session in sessions}


def _descendants() -> set[int]:
  """Returns the ids of this process's children, their children, and so on."""
  found, last = set(), {os.getpid()}
  processes = list(_processes())
  while last:
    last = {process.pid for process in processes if process.parent in last}
    found |= last
  return found


def _processes() -> Iterator[_Process]:
  """Yields all processes except zombies."""
  for name in filter(str.isdecimal, os.listdir('/proc')):
    with contextlib.suppress(OSError), open(f'/proc/{name}/stat', encoding='ascii', errors='replace') as file:
      # See proc(5). The second field is a name in parentheses, which may contain any characters.
      state, parent, group, session, *_ = file.read().rpartition(')')[2].split()
      if state not in 'ZX':
        yield _Process(int(name), int(parent), int(group), int(session))


def main(mark: str):
  """Waits in a detached process for the end of stdin, and kills the processes with the mark."""
  parents = _own_place()
  if os.fork():
    os._exit(0)
  os.setsid()
  os.chdir('/')
  signal.signal(signal.SIGTERM, signal.SIG_IGN)
  os.read(0, 1)
  deadline = time.monotonic() + 1.25 * CLOSE_SECONDS
  while _marked(mark, (), parents) and time.monotonic() < deadline:  # Workers close their environments first.
    time.sleep(10 * _LOOK_SECONDS)  # A look reads about every process.
  _kill(lambda: _marked(mark, (), parents))


if __name__ == '__main__':
  main(sys.argv[1])
