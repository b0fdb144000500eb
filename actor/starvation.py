"""Finds out whether environment workers wait for a core because other programs use the machine."""

from collections.abc import Sequence
import os
import time
from typing import NamedTuple

from scalable_agents.processes import machine


class _Look(NamedTuple):
  """The counts at one moment."""
  seconds: float
  stepping_seconds: float
  others_seconds: float
  waits: dict[int, float]  # Process id -> seconds.


class Starvation:
  """Compares the counts at two moments: those of two successive calls of `look`."""

  def __init__(self):
    self._last = None

  def look(self, stepping_seconds: float, workers: Sequence[int]) -> bool:
    """Returns whether workers have starved since the last call. Returns False at the first call.

    Workers have starved if they waited for a core for more than half of their stepping time while other programs used
    at least a quarter of the cores. If other programs used less, the run itself kept the cores busy. Under a CPU quota
    it is not known why a worker waits, so the result is False.

    Args:
      stepping_seconds: time that workers have stepped so far, summed over workers.
      workers: ids of their processes.
    """
    now = _Look(time.monotonic(), stepping_seconds, machine.other_programs_seconds(),
                {process: machine.processor_wait_seconds(process) for process in workers})
    before, self._last = self._last, now
    cores = len(os.sched_getaffinity(0))
    if before is None or machine.num_cores() < cores:
      return False
    waited = sum(max(now.waits[process] - before.waits[process], 0.) for process in now.waits.keys() & before.waits)
    others = (now.others_seconds - before.others_seconds) / cores
    return (waited > (now.stepping_seconds - before.stepping_seconds) / 2 and
            others >= (now.seconds - before.seconds) / 4)
