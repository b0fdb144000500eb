"""Learners that learn in step: on the devices of one machine, in processes of several, or one alone.

Espeholt et al. 2018 (IMPALA), section 3 and figure 1: every learner takes a batch of its own, and the gradients of all
are added up, so that N learners with batches of B are as one with a batch of N B. What they add up is said by the
agent's learner; here is how they come to do it at the same time.
"""

import collections
from typing import NamedTuple

import tensorflow as tf

_NO_LEVEL = -1

# What a collective operation raises when another process has gone; FailedPrecondition from those that come after.
PEER_ERRORS = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.InternalError,
               tf.errors.DeadlineExceededError, tf.errors.FailedPreconditionError)


class Episodes(NamedTuple):
  """Episodes that have ended; [n] each."""
  level_ids: tf.Tensor  # int32.
  returns: tf.Tensor    # float32.
  lengths: tf.Tensor    # int32, environment frames.


class Update(NamedTuple):
  """What all learners know of an update that they made together."""
  metrics: dict       # Name -> number; of learner.step.
  episodes: Episodes  # Of all learners' batches.
  leaving: bool       # Whether one of them has asked to end.


class LearnersTogether:
  """The learners of this process, and how they are joined to those of others."""

  def __init__(self, strategy: tf.distribute.Strategy | None, device: str):
    """Args: of several learners, their strategy; and the device of one alone."""
    self.are_several = strategy is not None and strategy.num_replicas_in_sync > 1
    self._strategy, self._device = strategy, device
    self.devices = list(strategy.extended.worker_devices) if self.are_several else [device]
    self.have_peers = self.are_several and strategy.num_replicas_in_sync > len(self.devices)

  def scope(self):
    """The context to make agent and learner in."""
    return self._strategy.scope() if self.are_several else tf.device(self._device)

  def share(self, variables):
    """Gives all processes the values that the first one has."""
    if self.have_peers:
      by_type = collections.defaultdict(list)
      for variable in variables:
        by_type[variable.dtype].append(variable)
      for those in by_type.values():
        self._share(those)

  def step(self, learner, unrolls, episodes, leaving: bool) -> Update:
    """Makes an update.

    Args:
      learner: as agents/impala.py's.
      unrolls: for each of `devices` a batch.
      episodes: Episodes that ended in each of them.
      leaving: whether this process wants all to end after this update.
    """
    if not self.are_several:
      metrics, = [learner.step(unroll) for unroll in unrolls]
      everyones, = episodes
      is_leaving = leaving
    else:
      metrics, everyones, is_leaving = self._step(
          learner, self._spread(unrolls), self._spread(episodes), tf.constant(float(leaving)))
    return Update({name: value.numpy() for name, value in metrics.items()},
                  Episodes(*(value.numpy() for value in everyones)), bool(is_leaving))

  def _spread(self, values):
    """A value for each of `devices`, as the strategy wants them."""
    remaining = iter(values)
    return self._strategy.experimental_distribute_values_from_function(lambda unused_context: next(remaining))

  @tf.function(autograph=False)
  def _step(self, learner, unrolls, episodes, leaving):
    def step(unroll, ended):
      metrics = learner.step(unroll)
      context = tf.distribute.get_replica_context()
      # Gathering nothing at all is not provided for.
      padded = [tf.concat([tf.constant([_NO_LEVEL], values.dtype), values], 0) for values in ended]
      everyones = context.all_gather(padded, axis=0)
      return metrics, everyones, context.all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(leaving))

    metrics, everyones, leaving = tf.nest.map_structure(
        lambda value: self._strategy.experimental_local_results(value)[0], self._strategy.run(step, (unrolls, episodes)))
    is_episode = everyones[0] != _NO_LEVEL
    return metrics, [tf.boolean_mask(values, is_episode) for values in everyones], leaving > 0

  @tf.function(autograph=False)
  def _share(self, variables):
    def assign():
      context = tf.distribute.get_replica_context()
      is_first = tf.equal(context.replica_id_in_sync_group, 0)
      values = [tf.where(is_first, variable.read_value(), tf.zeros_like(variable)) for variable in variables]
      for variable, value in zip(variables, context.all_reduce(tf.distribute.ReduceOp.SUM, values)):
        tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)
    self._strategy.run(assign)

