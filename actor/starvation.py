"""Finds out whether environment workers wait for a core because other programs use the machine."""

from collections.abc import Sequence
import os
import time
from typing import NamedTuple

from scalable_agents.processes import machine


class _Look(NamedTuple):
  """What has been counted until a moment."""
  seconds: float
  stepping_seconds: float
  others_seconds: float
  waits: dict[int, float]  # Process id -> seconds.


class Starvation:
  """Compares what has been counted at two moments."""

  def __init__(self):
    self._last = None

  def look(self, stepping_seconds: float, workers: Sequence[int]) -> bool:
    """Returns whether workers have starved since the last call. Returns False at the first call.

    They have if they waited for a core for more than half of their stepping time, and other programs used at least a
    quarter of the cores. Otherwise the cores are used by the run itself. Under a CPU quota it is not known why a worker
    waits.

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
