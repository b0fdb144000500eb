"""Collects the next batches while the learner learns from the current ones."""

from concurrent import futures

import tensorflow as tf

from scalable_agents.actor import actor_pool
from scalable_agents.experience import experience as experience_lib
from scalable_agents.experience import intake
from scalable_agents.learner import learner_step


class Collector:
  """A thread that takes one batch for each learner of this process and copies it to the learner's device.

  It is a context manager. Before leaving the context, close the experience, which ends the wait of the thread.
  """

  def __init__(self, experience: experience_lib.Experience, devices: list[str], pool: actor_pool.ActorPool,
               num_environments: int, synchronous: bool):
    """Begins to collect.

    Args:
      experience: gives the batches.
      devices: the learners' devices; one batch is taken for each.
      pool: the actors of this process; in a synchronous run it is told when actors may continue.
      num_environments: number of environments of the pool.
      synchronous: whether actors play only while batches are collected, and only as much as these need.
    """
    self._experience = experience
    self._devices = devices
    self._pool = pool
    self._num_environments = num_environments
    self._synchronous = synchronous
    # At the start a pool lets each actor play one unroll.
    self._unrolls_granted = num_environments
    self._unrolls_taken = 0
    self._take = tf.function(experience.take_batch, autograph=False)
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

  def take(self) -> list[tuple[learner_step.Batch, intake.Arrived]]:
    """Returns the batches, once `wait` has returned True, and begins to collect the next ones.

    In a synchronous run `resume` begins to collect them.

    Returns:
      For each device, a batch and the counts of what arrived with it.
    Raises:
      tf.errors.OutOfRangeError, tf.errors.CancelledError: the experience is closed.
    """
    batches = self._upcoming.result()
    if not self._synchronous:
      self._begin()
    return batches

  def resume(self):
    """Begins to collect the next batches after an update of a synchronous run. Does nothing in other runs."""
    if self._synchronous:
      self._begin()

  def _begin(self):
    self._upcoming = self._executor.submit(self._collect)

  def _collect(self):
    batches = []
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
      with tf.device(device):  # The counts stay where the trainer reads them.
        batches.append((tf.nest.map_structure(tf.identity, batch), arrived))
    return batches

  def _let_actors_play(self):
    """In a synchronous run, grants the actors the unrolls of the next take."""
    while self._synchronous and self._unrolls_taken + self._experience.unrolls_per_batch > self._unrolls_granted:
      self._pool.release()
      self._unrolls_granted += self._num_environments

  def _count_taken(self):
    self._unrolls_taken += self._experience.unrolls_per_batch
