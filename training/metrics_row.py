"""Computes a row of metrics.jsonl over the interval since the last row: means over updates, and shares of time."""

from collections.abc import Mapping, Sequence
import contextlib
import time
from typing import Any

import numpy as np

from scalable_agents.actor import actor_host

_STANDSTILL = 0.05  # If no part is busy for at least this fraction of the interval, the environments hang.


class MetricsRow:
  """Collects the metrics of an interval; `finish` returns them and begins the next interval."""

  def __init__(self, host: actor_host.ActorHost, levels: Sequence[str] = (), earlier_restarts: int = 0):
    """Prepares; `begin` begins the first interval.

    Args:
      host: the ActorHost whose pool gives the statistics.
      levels: names of the run's levels, for the metrics that are measured per level.
      earlier_restarts: number of environment workers that were replaced in earlier processes of the run.
    """
    self._host = host
    self._levels = tuple(levels)
    self._earlier_restarts = earlier_restarts
    self._updates = []
    self._names = ()  # Names of the metrics of updates.

  @property
  def updates(self) -> int:
    """Number of updates in this interval."""
    return len(self._updates)

  def age(self) -> float:
    """Seconds since the interval began."""
    return time.monotonic() - self._began

  def begin(self, environment_frames: int):
    """Begins an interval. Metrics that were added but not yet returned by `finish` are kept.

    Args:
      environment_frames: number of frames of the run so far.
    """
    self._began = time.monotonic()
    self._waited_seconds = 0.
    self._frames = environment_frames
    self._statistics = self._host.pool.statistics()

  @contextlib.contextmanager
  def waiting(self):
    """Context manager that counts the time inside it as learner waiting time."""
    began = time.monotonic()
    try:
      yield
    finally:
      self._waited_seconds += time.monotonic() - began

  def add(self, update_metrics: Mapping[str, Any]):
    """Adds an update's metrics.

    Args:
      update_metrics: name -> number, or array with a number per level. An array becomes a metric `name/level` for
        each level.
    Raises:
      ValueError: an array has another shape.
    """
    metrics = {}
    for name, value in update_metrics.items():
      if np.ndim(value):
        if np.shape(value) != (len(self._levels),):
          raise ValueError(
              f'{name}: want a number, or one per level [{len(self._levels)}], got shape {np.shape(value)}')
        metrics |= {f'{name}/{level}': number for level, number in zip(self._levels, value, strict=True)}
      else:
        metrics[name] = value
    self._updates.append(metrics)

  def finish(self, environment_frames: int, waits_for: str = ''):
    """Returns the row and begins the next interval.

    Args:
      environment_frames: number of frames of the run so far.
      waits_for: what the experience waits for, outside of this process. It is the bottleneck then.
    Returns:
      A dict, with names from records/metric_table.py. A metric of updates is the mean of its finite values in the
      interval, or None if there are none. The metrics `time/…` are fractions of the interval. `bottleneck` is the part
      that was busy for the largest fraction: learner, inference or environments. If it would be environments, but they
      mostly wait for cores that other programs use, it is other jobs. If all actors are in other processes, it is
      learner or actors.
    """
    statistics = self._host.pool.statistics()
    seconds = max(self.age(), 1e-9)
    since = type(statistics)(*(now - then for now, then in zip(statistics, self._statistics, strict=True)))
    row = {'environment_frames': environment_frames,
           'frames_per_second': (environment_frames - self._frames) / seconds}
    if self._updates:
      self._names = [name for name in self._updates[0] if name not in ('culprit', 'update_skipped')]
    for name in self._names:
      finite = [update[name] for update in self._updates if np.isfinite(update[name])]
      row[name] = float(np.mean(finite)) if finite else None
    # The count is read while workers change it, so it may differ by a step.
    stepping = min(max(since.stepping_ns * 1e-9 / seconds / self._host.num_workers, 0.), 1.)
    row |= {
        'inference_batch_size': since.rows / since.batches if since.batches else None,
        'environment_restarts': self._earlier_restarts + self._host.pool.restarts,
        'time/learner_waits': self._waited_seconds / seconds,
        'time/queue_full': since.blocked_ns * 1e-9 / seconds,
        'time/inference_idle': since.inference_waiting_ns * 1e-9 / seconds / self._host.num_loops,
        'time/environments_stepping': stepping,
    }
    # If several are equally busy, the first one is named: while environments start, inference is busy with its trace.
    busy = {'environments': stepping, 'learner': 1 - row['time/learner_waits'],
            'inference': 1 - row['time/inference_idle']}
    if waits_for:
      row['bottleneck'] = waits_for
    elif self._host.is_idle:
      row['bottleneck'] = 'actors' if row['time/learner_waits'] > 0.5 else 'learner'
    else:  # If nothing is busy, a worker is being replaced.
      row['bottleneck'] = max(busy, key=lambda part: busy[part]) if max(busy.values()) > _STANDSTILL else 'environments'
      if row['bottleneck'] == 'environments' and self._host.is_starved:
        row['bottleneck'] = 'other jobs'
    self._updates = []
    self.begin(environment_frames)
    return row
