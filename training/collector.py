"""Collects the next batches while the learner learns from the ones before."""

from concurrent import futures

import tensorflow as tf

from scalable_agents.training import experience as experience_lib
from scalable_agents.training import intake


class Collector:
  """A thread that takes one batch for each learner of this process and copies it to the learner's device.

  A context manager. Before its end, close the experience, which ends the wait of the thread.
  """

  def __init__(self, experience: experience_lib.Experience, devices: list[str], pool, num_environments: int,
               synchronous: bool):
    """Begins to collect.

    Args:
      experience: where batches come from.
      devices: of the learners.
      pool: actor_pool.ActorPool; of a synchronous run it is told when actors may go on.
      num_environments: of the pool.
      synchronous: actors play only while batches are collected, and only for these.
    """
    self._experience, self._devices, self._pool = experience, devices, pool
    self._num_environments, self._synchronous = num_environments, synchronous
    # A pool begins with an unroll of each actor.
    self._unrolls_granted, self._unrolls_taken = num_environments, 0
    self._take = tf.function(experience.take_batch, autograph=False)
    self._executor = futures.ThreadPoolExecutor(1)
    self._upcoming = self._executor.submit(self._collect)

  def __enter__(self) -> 'Collector':
    return self

  def __exit__(self, *unused_exception):
    self._executor.shutdown()

  def wait(self, seconds: float | None) -> bool:
    """Waits for the next batches, at most so long; whether they are there."""
    arrived, _ = futures.wait([self._upcoming], seconds)
    return bool(arrived)

  def take(self) -> list[tuple[experience_lib.Batch, intake.Arrived]]:
    """The batches, one for each device, once `wait` says that they are there. Begins to collect the next ones, unless
    the run is synchronous: there `resume` does.

    Raises:
      tf.errors.OutOfRangeError, tf.errors.CancelledError: the experience is closed.
    """
    batches = self._upcoming.result()
    if not self._synchronous:
      self._upcoming = self._executor.submit(self._collect)
    return batches

  def resume(self):
    """In a synchronous run, after an update: begins to collect the next batches."""
    if self._synchronous:
      self._upcoming = self._executor.submit(self._collect)

  def _collect(self):
    if self._synchronous:
      self._let_actors_play()
    batches = []
    for device in self._devices:
      with tf.device(device):  # Where a function's results are copied to, whatever computes them.
        batches.append(self._take())
    return batches

  def _let_actors_play(self):
    wanted = self._experience.unrolls_per_batch * len(self._devices)
    while self._unrolls_taken + wanted > self._unrolls_granted:
      self._pool.release()
      self._unrolls_granted += self._num_environments
    self._unrolls_taken += wanted
