"""Drops unrolls that cannot be right. They come from processes elsewhere, which may be broken or no actors at all.

The queue has already checked their shapes and types. A level that does not exist would be counted to another one, and
an action that does not exist has no log-probability.
"""

from typing import Callable

import tensorflow as tf


class UnrollCheck:
  """Takes batches in which all unrolls can be right, and counts those that it has dropped."""

  def __init__(self, num_levels: int, num_actions: int, actor_name: Callable[[int], str]):
    """Nothing is dropped yet.

    Args:
      num_levels: of the run.
      num_actions: of the environments.
      actor_name: gives an actor's name from its id.
    """
    self._num_levels, self._num_actions, self._actor_name = num_levels, num_actions, actor_name
    with tf.device('/CPU:0'):
      self._dropped, self._last_actor = tf.Variable(0, dtype=tf.int64), tf.Variable(0)
    self._said = 0

  def take_batch(self, queue, batch_size: int):
    """As the queue's method of that name, in a graph.

    Args:
      queue: learner.queue.UnrollQueue.
      batch_size: unrolls.
    """
    def drop_one(batch, are_good):
      slot = tf.argmin(tf.cast(are_good, tf.int32))
      self._dropped.assign_add(1)
      self._last_actor.assign(batch.actor_id[slot])
      batch = queue.replace(batch, slot)
      return batch, self._are_good(batch)

    batch = queue.take_batch(batch_size)
    batch, _ = tf.while_loop(lambda _, are_good: ~tf.reduce_all(are_good), drop_one, [batch, self._are_good(batch)],
                             parallel_iterations=1)
    return batch

  def complaint(self) -> str:
    """A line for the user about those that were dropped since the last call; '' if none were."""
    dropped, since = int(self._dropped.numpy()), self._said
    self._said = dropped
    if dropped == since:
      return ''
    return (f'unrolls dropped: {dropped - since}, the last one from {self._actor_name(int(self._last_actor.numpy()))}: '
            'level, actor, actions or parameter versions are out of range, or what the agent saw or computed is not '
            'finite')

  def _are_good(self, batch):
    """[B] bool."""
    action, version = batch.agent_output.action, batch.parameter_version  # [T+1, B].
    good = (batch.actor_id >= 0) & (batch.level_id >= 0) & (batch.level_id < self._num_levels)
    good &= tf.reduce_all((action >= 0) & (action < self._num_actions) & (version >= 0), axis=0)
    # Not the reward: an environment's fault, for which the learner skips the update.
    seen_and_computed = batch.environment_output.observation, batch.agent_output
    for batch_axis, nest in ((1, seen_and_computed), (0, batch.agent_state)):
      for values in tf.nest.flatten(nest):
        if values.dtype.is_floating:
          other_axes = [axis for axis in range(values.shape.rank) if axis != batch_axis]
          good &= tf.reduce_all(tf.math.is_finite(values), axis=other_axes)
    return good
