"""What a row of metrics.jsonl says of the updates since the row before, and of where their time went."""

import contextlib
import time

import numpy as np


class MetricsRow:
  """Gathers the figures of an interval; `finish` gives them and begins the next one."""

  def __init__(self, host):
    """`host`: the ActorHost whose pool is asked for its statistics."""
    self._host = host
    self._updates = []

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

  def add(self, update_metrics):
    """Adds an update's figures: name -> number."""
    self._updates.append(update_metrics)

  def finish(self, environment_frames: int):
    """Returns the row and begins the next interval.

    Args:
      environment_frames: trained for so far.
    Returns:
      dict. The figures of updates are means over the interval. `time/…` are shares of it: the learner waited for
      data; actors were held up because the queue was full; inference had nothing to do; environments were stepping.
      `bottleneck` is the part that was busy for the largest share: learner, inference or environments.
    """
    statistics = self._host.pool.statistics()
    seconds = max(self.age(), 1e-9)
    since = type(statistics)(*(now - then for now, then in zip(statistics, self._statistics)))
    row = {'environment_frames': environment_frames,
           'frames_per_second': (environment_frames - self._frames) / seconds}
    for name in self._updates[0] if self._updates else ():
      if name not in ('culprit', 'update_skipped'):
        row[name] = float(np.mean([update[name] for update in self._updates]))
    # Workers count a message's steps once they are done, and some may have begun in the interval before.
    stepping = min(since.stepping_ns * 1e-9 / seconds / self._host.num_workers, 1.)
    row |= {
        'inference_batch_size': since.rows / since.batches if since.batches else None,
        'environment_restarts': self._host.pool.restarts,
        'time/learner_waits': self._waited_seconds / seconds,
        'time/queue_full': since.blocked_ns * 1e-9 / seconds,
        'time/inference_idle': since.inference_waiting_ns * 1e-9 / seconds / self._host.num_loops,
        'time/environments_stepping': stepping,
    }
    busy = {'learner': 1 - row['time/learner_waits'], 'inference': 1 - row['time/inference_idle'],
            'environments': stepping}
    row['bottleneck'] = max(busy, key=busy.get)
    self._updates = []
    self.begin(environment_frames)
    return row
