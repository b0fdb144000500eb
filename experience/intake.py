"""The intake: the queue through which unrolls reach the learner, and the checks and counts made as they leave it.

Each unroll is looked at once, when it leaves the queue:

  1. Invalid unrolls are dropped.
  2. The unrolls of a stream are admitted in the order of their indices. Missing ones are counted.
  3. Environment frames and finished episodes are counted.
"""

from collections.abc import Callable, Sequence
import contextlib
import json
import os
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from scalable_agents.actor import unroll as unroll_lib
from scalable_agents.experience import unroll_order
from scalable_agents.learner import queue as unroll_queue
from scalable_agents.records import json_text

NO_LEVEL = -1
_ORDER = 'unroll_order.json'  # In the folder beside a checkpoint.


class Episodes(NamedTuple):
  """Finished episodes. Every field is [n]."""
  level_ids: Any  # int32; NO_LEVEL if no episode ended at this place.
  returns: Any    # float32, sums of raw rewards.
  lengths: Any    # int32, environment frames.


class Arrived(NamedTuple):
  """Counts of n unrolls that have left the queue."""
  environment_frames: Any  # [] int64.
  episodes: Episodes       # The episodes that end in these unrolls. The fields are [T * n], padded with NO_LEVEL.
  actor_ids: Any           # [n] int32.
  parameter_versions: Any  # [T, n] int64, the versions of the parameters that acted.


def merge(arrived: Sequence[Arrived]) -> Arrived:
  """Returns the counts of several takes as if they were one."""
  frames, episodes, actor_ids, versions = zip(*arrived, strict=True)
  episodes = Episodes(*(tf.concat(values, 0) for values in zip(*episodes, strict=True)))
  return Arrived(sum(frames), episodes, tf.concat(actor_ids, 0), tf.concat(versions, 1))


def finite(episodes: Episodes) -> tuple[Episodes, set[int]]:
  """Returns the episodes with finite returns, as NumPy arrays, and the levels that have others.

  One NaN would make the mean of all returns NaN.
  """
  is_finite = np.isfinite(episodes.returns)
  others = episodes.level_ids[~is_finite]
  return Episodes(*(values[is_finite] for values in episodes)), set(np.asarray(others).tolist()) - {NO_LEVEL}


class Intake:
  """The queue of a learner process."""
  # See checkpoint.Beside. Without the saved order, an unroll that arrives twice is learned from twice.
  is_required = False

  def __init__(self, unroll_spec, capacity: int, frames_per_step: int,
               check: Callable[[Any], tf.Tensor] | None = None, shared_name: str = '',
               actor_name: Callable[[int], str] = 'actor {}'.format):
    """Creates the queue.

    Args:
      unroll_spec: Unroll of tf.TensorSpec.
      capacity: unrolls that the queue holds before `put` waits, >= 1.
      frames_per_step: environment frames per agent step.
      check: returns a mask of a batch's valid unrolls, [B] bool (unroll_check.py). Runs in a graph. None if all unrolls
        come from this process.
      shared_name: name under which other processes find the queue; '' if they must not.
      actor_name: returns an actor's name for its id.
    """
    self.unroll_spec = unroll_spec
    self._queue = unroll_queue.UnrollQueue(unroll_spec, capacity, unroll_lib.has_time(unroll_spec), shared_name)
    self._frames_per_step = frames_per_step
    self._check = check
    self._actor_name = actor_name
    # Actor hosts may have played for an earlier learner, also for one of another run.
    self._order = unroll_order.UnrollOrder(streams_may_have_begun=check is not None)
    self._dropped = self._warned = 0
    self._last_dropped = 0  # Id of the actor whose unroll was dropped last.

  def put(self, unroll: unroll_lib.Unroll):
    """Adds an unroll of one actor, and waits while the queue is full. Raises tf.errors.CancelledError once closed."""
    return self._queue.put(unroll)

  def close(self):
    """Closes the queue and ends every wait."""
    self._queue.close()

  def take_batch(self, batch_size: int) -> tuple[Any, Arrived]:
    """Waits for `batch_size` unrolls, in a graph.

    Returns:
      Unroll of [T+1, B, ...] or, for fields without time, [B, ...], in the order of arrival; and the counts of what
      arrived with them.
    Raises:
      tf.errors.OutOfRangeError: the intake is closed.
    """
    def drop_one(batch, is_valid):
      slot = tf.argmin(tf.cast(is_valid, tf.int32))
      batch = self._queue.drop(batch, slot)
      last_is_valid = self._is_valid(batch, slice(batch_size - 1, batch_size))
      is_valid = tf.concat([is_valid[:slot], is_valid[slot + 1:], last_is_valid], axis=0)
      return batch, tf.ensure_shape(is_valid, [batch_size])

    with tf.device('/CPU:0'):
      batch = self._queue.take_batch(batch_size)
      batch, _ = tf.while_loop(lambda _, is_valid: ~tf.reduce_all(is_valid), drop_one,
                               [batch, self._is_valid(batch, slice(batch_size))], parallel_iterations=1)
      return batch, self._arrived(batch)

  def save(self, folder: str):
    """Writes the order of unrolls to a folder beside a checkpoint, for a learner that is restarted.

    Without a check it writes nothing: then all actors are in this process and end with it.

    Raises:
      OSError: the file cannot be written.
    """
    if self._check:
      with open(os.path.join(folder, _ORDER), 'w', encoding='ascii') as file:
        json.dump(self._order.state(), file)

  def restore(self, folder: str):
    """Restores what `save` has written to the folder, if anything.

    Raises:
      OSError, ValueError: the file cannot be read.
    """
    with contextlib.suppress(FileNotFoundError), open(os.path.join(folder, _ORDER), 'rb') as file:
      self._order.restore(json_text.parse(file.read()))

  def metrics(self) -> dict[str, float]:
    """Returns metrics for a row of metrics.jsonl: unrolls in the queue, and totals of missing and of late unrolls."""
    return {'queue_size': self._queue.size(), **self._order.metrics()}

  def warnings(self) -> list[str]:
    """Returns messages for the user about unrolls dropped, missing or late since the last call, one line each."""
    lines = [self._order.warning()]
    if dropped := self._dropped - self._warned:
      self._warned += dropped
      lines.append(f'unrolls dropped: {dropped}, the last one from {self._actor_name(self._last_dropped)}: level, '
                   'actor, index, action or parameter version out of range, or an observation, output or state not '
                   'finite')
    return list(filter(None, lines))

  def _is_valid(self, batch, slots):
    """Says which unrolls in these slots are admitted: [n] bool. Must be called once for each unroll."""
    valid = self._check(batch) if self._check else tf.ones_like(batch.actor_id, tf.bool)
    columns = [column[slots] for column in (valid, batch.actor_id, batch.stream_id, batch.index)]
    return tf.ensure_shape(tf.numpy_function(self._admit, columns, tf.bool), columns[0].shape)

  def _admit(self, valid, actor_ids, stream_ids, indices):
    """Counts the invalid unrolls. Of the others, admits those that are in order."""
    if not valid.all():
      self._dropped += int((~valid).sum())
      self._last_dropped = int(actor_ids[~valid][-1])
    admitted = valid.copy()
    admitted[valid] = self._order.admit(stream_ids[valid], indices[valid])
    return admitted

  def _arrived(self, batch) -> Arrived:
    environment_output = batch.environment_output
    done = environment_output.done[1:]  # Row 0 was in the previous unroll.
    levels = tf.where(done, batch.level_id, NO_LEVEL)
    episodes = Episodes(*(tf.reshape(values, [-1]) for values in (
        levels, environment_output.episode_return[1:], environment_output.episode_length[1:])))
    return Arrived(tf.size(done, out_type=tf.int64) * self._frames_per_step, episodes, batch.actor_id,
                   batch.parameter_version[1:])
