"""The figures of a row of metrics.jsonl that are measured between two rows: of updates, and of where time went."""

import contextlib
import time
from typing import Any, Mapping, Sequence

import numpy as np

_STANDSTILL = 0.05  # If every part is busy for less than this share of an interval, something hangs.


class MetricsRow:
  """Gathers the figures of an interval; `finish` returns them and begins the next one."""

  def __init__(self, host, levels: Sequence[str] = (), earlier_restarts: int = 0):
    """Begins nothing yet.

    Args:
      host: the ActorHost whose pool is asked for its statistics.
      levels: names of the run's levels, for figures of which there is one per level.
      earlier_restarts: `environment_restarts` of earlier processes.
    """
    self._host = host
    self._levels = tuple(levels)
    self._earlier_restarts = earlier_restarts
    self._updates = []
    self._names = ()  # Of the figures of updates.

  @property
  def updates(self) -> int:
    """Updates in this interval."""
    return len(self._updates)

  def age(self) -> float:
    """Seconds since the interval began."""
    return time.monotonic() - self._began

  def begin(self, environment_frames: int):
    """Begins an interval, with the frames trained for so far. Figures added and not yet given stay."""
    self._began = time.monotonic()
    self._waited_seconds = 0.
    self._frames = environment_frames
    self._statistics = self._host.pool.statistics()

  @contextlib.contextmanager
  def waiting(self):
    """Inside the block the learner waits for data."""
    began = time.monotonic()
    try:
      yield
    finally:
      self._waited_seconds += time.monotonic() - began

  def add(self, update_metrics: Mapping[str, Any]):
    """Adds an update's figures: name -> number, or array with a number per level: one figure `name/level` of each."""
    figures = {}
    for name, value in update_metrics.items():
      if np.ndim(value):
        figures |= {f'{name}/{level}': number for level, number in zip(self._levels, value, strict=True)}
      else:
        figures[name] = value
    self._updates.append(figures)

  def finish(self, environment_frames: int):
    """Returns the row and begins the next interval.

    Args:
      environment_frames: trained for so far.
    Returns:
      dict. The figures of updates are means of the finite ones in the interval, or None. `time/…` are shares of the
      interval: the learner waited for data; the queue was full, so that actors waited; inference had nothing to do;
      environments were stepping. `bottleneck` is the part that was busy for the largest share: learner, inference or
      environments. If all actors are in other processes, it is learner or actors.
    """
    statistics = self._host.pool.statistics()
    seconds = max(self.age(), 1e-9)
    since = type(statistics)(*(now - then for now, then in zip(statistics, self._statistics)))
    row = {'environment_frames': environment_frames,
           'frames_per_second': (environment_frames - self._frames) / seconds}
    if self._updates:
      self._names = [name for name in self._updates[0] if name not in ('culprit', 'update_skipped')]
    for name in self._names:
      finite = [update[name] for update in self._updates if np.isfinite(update[name])]
      row[name] = float(np.mean(finite)) if finite else None
    # A worker counts the time of its steps when they are done; some may have begun in the interval before.
    stepping = min(since.stepping_ns * 1e-9 / seconds / self._host.num_workers, 1.)
    row |= {
        'inference_batch_size': since.rows / since.batches if since.batches else None,
        'environment_restarts': self._earlier_restarts + self._host.pool.restarts,
        'time/learner_waits': self._waited_seconds / seconds,
        'time/queue_full': since.blocked_ns * 1e-9 / seconds,
        'time/inference_idle': since.inference_waiting_ns * 1e-9 / seconds / self._host.num_loops,
        'time/environments_stepping': stepping,
    }
    busy = {'learner': 1 - row['time/learner_waits'], 'inference': 1 - row['time/inference_idle'],
            'environments': stepping}
    if self._host.rests:
      row['bottleneck'] = 'actors' if row['time/learner_waits'] > 0.5 else 'learner'
    else:  # If nothing is busy, an environment hangs: only steps that have ended count as stepping.
      row['bottleneck'] = max(busy, key=busy.get) if max(busy.values()) > _STANDSTILL else 'environments'
    self._updates = []
    self.begin(environment_frames)
    return row
