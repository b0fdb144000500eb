"""Checks the values of unrolls from other processes, which may be faulty or may not be actor hosts.

The queue has already checked shapes and types. An id of a level that does not exist would be counted for another level,
and an action that does not exist has no log-probability.
"""

import tensorflow as tf

_MAX_INDEX = 1 << 48  # Far beyond what an actor reaches, and steps of unrolls can still be counted.


def is_valid(batch, num_levels: int, num_actions: int) -> tf.Tensor:
  """Checks a batch of unrolls, in a graph.

  Args:
    batch: Unroll of [T+1, B, ...] or, for fields without time, [B, ...]. The ids of level and actor may have time, as
      in the rows of a replay.
    num_levels: number of levels of the run.
    num_actions: number of actions of the environments.
  Returns:
    [B] bool, whether level, actor, index, actions and parameter versions are in range, and the agent's observations,
    outputs and states are finite. Rewards are not checked: a reward that is not finite is the fault of an environment,
    and the learner skips the update.
  """
  action, version = batch.agent_output.action, batch.parameter_version  # [T+1, B].
  are_known = (batch.actor_id >= 0) & (batch.level_id >= 0) & (batch.level_id < num_levels)  # [B] or [T+1, B].
  good = (batch.index >= 0) & (batch.index < _MAX_INDEX)
  good &= tf.reduce_all(are_known, axis=range(are_known.shape.rank - 1))
  good &= tf.reduce_all((action >= 0) & (action < num_actions) & (version >= 0), axis=0)
  seen_and_computed = batch.environment_output.observation, batch.agent_output
  for batch_axis, nest in ((1, seen_and_computed), (0, (batch.agent_state, batch.earlier_frames))):
    for values in tf.nest.flatten(nest):
      if values.dtype.is_floating:
        other_axes = [axis for axis in range(values.shape.rank) if axis != batch_axis]
        good &= tf.reduce_all(tf.math.is_finite(values), axis=other_axes)
  return good
