"""Collects the next batches while the learner learns from the current ones."""

from collections.abc import Callable
from concurrent import futures
from typing import NamedTuple

import tensorflow as tf

from scalable_agents.actor import actor_pool
from scalable_agents.experience import experience as experience_lib
from scalable_agents.experience import intake
from scalable_agents.learner import learner_step


class Collected(NamedTuple):
  """A batch, and what came with it."""
  batch: learner_step.Batch    # On the learner's device, except tensors of int32; see _copy.
  on_host: learner_step.Batch  # The same without its large components, on the host.
  arrived: intake.Arrived      # The counts of what has arrived, on the host.


class Collector:
  """A thread that takes one batch for each learner of this process and copies it to the learner's device.

  It is a context manager. Before leaving the context, close the experience, which ends the wait of the thread.
  """

  def __init__(self, experience: experience_lib.Experience, prepare: Callable[[learner_step.Batch], learner_step.Batch],
               devices: list[str], pool: actor_pool.ActorPool, num_environments: int, takes_turns: bool):
    """Begins to collect.

    Args:
      experience: gives the batches.
      prepare: Learner.prepare, called in a graph with each of them.
      devices: the learners' devices; one batch is taken for each.
      pool: the actors of this process. If it has a barrier, it is told when actors may continue.
      num_environments: number of environments of the pool.
      takes_turns: whether the pool has a barrier. Then actors play only while batches are collected, and only as much
        as these need.
    """
    self._experience = experience
    self._devices = devices
    self._pool = pool
    self._num_environments = num_environments
    self._takes_turns = takes_turns
    # At the start a pool lets each actor play one unroll.
    self._unrolls_granted = num_environments
    self._unrolls_taken = 0

    def take():
      batch, arrived = experience.take_batch()
      return prepare(batch), arrived

    self._take = tf.function(take, autograph=False)
    self._executor = futures.ThreadPoolExecutor(1)
    self._begin()

  def __enter__(self) -> 'Collector':
    return self

  def __exit__(self, *unused_exception):
    self._executor.shutdown()

  def wait(self, seconds: float | None) -> bool:
    """Waits for the next batches, at most `seconds`. Returns whether they are there."""
    arrived, _ = futures.wait([self._upcoming], seconds)
    return bool(arrived)

  def take(self) -> list[Collected]:
    """Returns the batches, once `wait` has returned True, and begins to collect the next ones.

    If actors and learner take turns, `resume` begins to collect them.

    Returns:
      One for each device.
    Raises:
      tf.errors.OutOfRangeError, tf.errors.CancelledError: the experience is closed.
    """
    collected = self._upcoming.result()
    if not self._takes_turns:
      self._begin()
    return collected

  def resume(self):
    """Begins to collect the next batches if actors and learner take turns. Otherwise does nothing."""
    if self._takes_turns:
      self._begin()

  def _begin(self):
    self._upcoming = self._executor.submit(self._collect)

  def _collect(self):
    collected = []
    for device in self._devices:
      with tf.device('/CPU:0'):
        arrived = []
        self._let_actors_play()
        while filled := self._experience.fill():
          arrived.append(filled)
          self._count_taken()
          self._let_actors_play()
        batch, last = self._take()
        self._count_taken()
        arrived = intake.merge([*arrived, last]) if arrived else last
      with tf.device(device):
        collected.append(Collected(tf.nest.map_structure(_copy, batch), _without_large_components(batch), arrived))
    return collected

  def _let_actors_play(self):
    """If actors and learner take turns, grants the actors the unrolls of the next take."""
    while self._takes_turns and self._unrolls_taken + self._experience.unrolls_per_batch > self._unrolls_granted:
      self._pool.release()
      self._unrolls_granted += self._num_environments

  def _count_taken(self):
    self._unrolls_taken += self._experience.unrolls_per_batch


def _copy(tensor):
  """Copies a tensor to the device of this context. int32 stays on the host, where TensorFlow's functions take it."""
  return tensor if tensor.dtype == tf.int32 else tf.identity(tensor)


def _without_large_components(batch):
  """Returns a batch without its large components, so that it takes little memory until the update has been read."""
  unroll = batch.unroll
  return batch._replace(unroll=unroll._replace(
      earlier_frames={}, environment_output=unroll.environment_output._replace(observation={}),
      agent_output=(), agent_state=()))
