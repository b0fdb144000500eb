"""The processor cores and the memory that this process may use, and how long processes use cores or wait for one.

A container, a job of Slurm or a slice of systemd limits cores and memory with control groups, which can be nested. A
limit of any group from this process's group up to the root holds. See cgroups(7) and mountinfo in proc(5).

Run as a script, this file prints the cores that may be used and all cores, then bytes of memory: those that may be
used, all, and those that are free. It needs no other file of this project.
"""

from collections.abc import Iterator
import contextlib
import math
import os
import re
import resource

import psutil

_ROOT = '/'  # The folder with /proc and with the folders where control groups are mounted.
_CGROUP = re.compile(r'(\d+):([^:]*):(/.*)')  # Hierarchy, controllers, path.
_MOUNT = re.compile(r'\S+ \S+ \S+ (/\S*) (/\S*) .*- cgroup(2?) \S+ (\S+)')  # Mounted part, folder, version, options.
_VERSION_2 = 'version 2'
_CORE = re.compile(r'cpu(\d+) (\d+) (\d+) (\d+) .*')  # Ticks in user mode, with niceness, and in the kernel.


def allow_open_files(number: int) -> float:
  """Raises this process's limit of open files to this number, as far as it may. Returns the limit, perhaps infinite."""
  soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  if soft == resource.RLIM_INFINITY:
    return math.inf
  wanted = number if hard == resource.RLIM_INFINITY else min(number, hard)
  if soft < wanted:
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
  return max(soft, wanted)


def num_cores() -> int:
  """Returns the number of cores that affinity and cpusets allow, or the smallest CPU quota, rounded to whole cores."""
  cores = len(os.sched_getaffinity(0))  # The kernel applies cpusets to the affinity.
  for folder in _groups('cpu'):
    for quota in (_numbers(folder, 'cpu.max'), [*_numbers(folder, 'cpu.cfs_quota_us'),
                                                *_numbers(folder, 'cpu.cfs_period_us')]):
      if len(quota) == 2 and min(quota) > 0:  # Processor time and the period, both in microseconds.
        cores = min(cores, max(1, round(quota[0] / quota[1])))
  return cores


def processor() -> str:
  """Returns the name of the processor, such as AMD EPYC 9R14; 'unknown processor' where the kernel does not tell it."""
  with open('/proc/cpuinfo', encoding='utf-8', errors='replace') as lines:
    names = [line.partition(':')[2].strip() for line in lines if line.startswith('model name')]
  return names[0] if names else 'unknown processor'


def memory_bytes() -> int:
  """Returns the memory of the machine, or the smallest limit."""
  limits = [psutil.virtual_memory().total]
  for folder in _groups('memory'):
    limits += _numbers(folder, 'memory.max') + _numbers(folder, 'memory.limit_in_bytes')
  return min(limit for limit in limits if limit > 0)


def free_memory_bytes() -> int:
  """Returns the memory that is free on the machine, or less where a control group's limit leaves less."""
  free = [psutil.virtual_memory().available]
  for folder in _groups('memory'):
    for limit, usage in (('memory.max', 'memory.current'), ('memory.limit_in_bytes', 'memory.usage_in_bytes')):
      numbers = _numbers(folder, limit) + _numbers(folder, usage)
      if len(numbers) == 2 and numbers[0] > 0:
        # A group's usage contains the cache of files. The kernel gives up the inactive part of it first.
        free.append(max(0, numbers[0] - numbers[1] + _inactive_file_bytes(folder)))
  return min(free)


def processor_wait_seconds(pid: int) -> float:
  """Returns for how long a process's main thread was ready to run and got no core. 0 if the kernel does not say.

  The C++ of the actor pool has the same, actor/cc/processor_wait.h.
  """
  numbers = _numbers(os.path.join(_ROOT, 'proc', str(pid)), 'schedstat')
  return numbers[1] * 1e-9 if len(numbers) == 3 else 0.


def other_programs_seconds() -> float:
  """Returns the processor time of other programs on the cores that this process may use.

  The time of this process and of the processes that it has started does not count. Only the difference between two
  calls has a meaning. It is not positive if the kernel does not report how much the cores were used.
  """
  cores = os.sched_getaffinity(0)
  ticks = sum(int(user) + int(nice) + int(kernel) for core, user, nice, kernel in _fields('proc/stat', _CORE)
              if int(core) in cores)
  own = 0.
  for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
    with contextlib.suppress(psutil.Error):  # A process may end at this moment.
      own += sum(process.cpu_times()[:4])  # Also that of its ended children.
  return ticks / os.sysconf('SC_CLK_TCK') - own


def _groups(controller: str) -> Iterator[str]:
  """Yields the folders of this process's group and of the groups above it, as far as they can be seen.

  Args:
    controller: a controller of version 1, which has a hierarchy of its own. In version 2 there is only one hierarchy.
  """
  paths = {}
  for number, controllers, path in _fields('proc/self/cgroup', _CGROUP):
    paths |= {_VERSION_2: path} if number == '0' else dict.fromkeys(controllers.split(','), path)
  for mounted, folder, version, options in _fields('proc/self/mountinfo', _MOUNT):
    if version != '2' and controller not in options.split(','):
      continue
    path = paths.get(_VERSION_2 if version == '2' else controller, '/')
    # In a container, only a part of the hierarchy may be mounted. A group outside this part cannot be seen.
    below = os.path.relpath(path, mounted)
    names = [] if below.split('/')[0] in ('.', '..') else below.split('/')
    for length in range(len(names), -1, -1):
      yield os.path.join(_ROOT, folder.lstrip('/'), *names[:length])


def _fields(path: str, form: re.Pattern) -> list[list[str]]:
  """Returns the fields of those lines of a file below _ROOT that have this form; [] if it cannot be read."""
  try:
    with open(os.path.join(_ROOT, path), encoding='utf-8', errors='surrogateescape') as file:
      return [list(map(_unescaped, match.groups())) for match in map(form.fullmatch, file.read().split('\n')) if match]
  except OSError:
    return []


def _numbers(folder: str, name: str) -> list[int]:
  """Returns the whole numbers in a file; none if it cannot be read or has another content, such as 'max' (no limit)."""
  with contextlib.suppress(OSError, ValueError):
    with open(os.path.join(folder, name), encoding='ascii') as file:
      return [int(word) for word in file.read().split()]
  return []


def _inactive_file_bytes(folder: str) -> int:
  """Returns the inactive cache of files of a control group and of the groups in it; 0 if the kernel does not say."""
  with contextlib.suppress(OSError, ValueError):
    with open(os.path.join(folder, 'memory.stat'), encoding='ascii') as file:
      statistics = {name: int(number) for name, number in map(str.split, file)}
      # Version 1 counts the groups inside apart.
      return statistics.get('total_inactive_file', statistics.get('inactive_file', 0))
  return 0


def _unescaped(field: str) -> str:
  """Returns a field of mountinfo. Its spaces are written as an octal code."""
  return re.sub(r'\\([0-7]{3})', lambda match: chr(int(match[1], 8)), field)


if __name__ == '__main__':
  print(num_cores(), os.cpu_count(), memory_bytes(), psutil.virtual_memory().total, free_memory_bytes())
