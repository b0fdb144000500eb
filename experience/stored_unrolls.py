"""Unrolls as replays store them: what is left out of them, and how they are made of stored rows again.

A replay stores an Unroll in which every component has a row per step: the ids of the level and of the actor are
repeated, and the recurrent state and the ids of the stream are left out. Of a stack of frames it stores the newest
frame.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from scalable_agents.actor import acting
from scalable_agents.actor import unroll as unroll_lib


def of_unroll(unroll: unroll_lib.Unroll) -> unroll_lib.Unroll:
  """Returns what is stored of unrolls: an Unroll in which every component is [T+1, ...] or [T+1, B, ...].

  Rewards that are not finite become 0, because they would be sampled again and again.

  Args:
    unroll: Unroll of tensors, or of tf.TensorSpec of a single unroll.
  """
  version, environment = unroll.parameter_version, unroll.environment_output
  if isinstance(version, tf.TensorSpec):
    def of_rows(values):
      return tf.TensorSpec(version.shape, values.dtype)
  else:
    def of_rows(values):
      return tf.broadcast_to(values, tf.shape(version))

    environment = environment._replace(reward=acting.finite_rewards(environment.reward))
  return unroll._replace(level_id=of_rows(unroll.level_id), actor_id=of_rows(unroll.actor_id), stream_id=(), index=(),
                         agent_state=(), earlier_frames={}, environment_output=environment)


def earlier_frames(frame_stacks: Mapping[str, int], earlier: Sequence[tf.Tensor]) -> dict[str, tf.Tensor]:
  """Returns Unroll.earlier_frames, name -> frames. `earlier` is what a replay has read, in the order of the names."""
  names = sorted(name for name, k in frame_stacks.items() if k > 1)
  return dict(zip(names, earlier, strict=True))


def spec_and_stacks(rows: unroll_lib.Unroll, frame_stacks: Mapping[str, int]) -> tuple[Any, Any]:
  """Returns the tf.TensorSpec of one row and the number of frames in each component's stack, 1 without one.

  Args:
    rows: what `of_unroll` returns for specs.
    frame_stacks: name -> k for each observation that is a stack of k frames along the last axis.
  """
  row = tf.nest.map_structure(lambda spec: tf.TensorSpec(spec.shape[1:], spec.dtype), rows)
  no_stacks = tf.nest.map_structure(lambda spec: 1, row)
  return row, no_stacks._replace(environment_output=no_stacks.environment_output._replace(
      observation={name: frame_stacks.get(name, 1) for name in row.environment_output.observation}))


def as_unroll(rows: unroll_lib.Unroll, exists: tf.Tensor, always: int, stream_id: tf.Tensor, index: tf.Tensor,
              agent_state, earlier_frames: Mapping[str, tf.Tensor]) -> unroll_lib.Unroll:
  """Returns stored rows as unrolls, with the shapes that a learner expects.

  Args:
    rows: stored rows, an Unroll of [T+1, B, ...].
    exists: [T+1, B] bool; the other rows are padding.
    always: number of a row that exists in all unrolls.
    stream_id, index: [B] int64.
    agent_state: nest of [B, ...], the recurrent state before row 0.
    earlier_frames: see Unroll.
  """
  # Padding gets the version of another row. With version 0, policy_lag would count it as very old.
  version = tf.where(exists, rows.parameter_version, rows.parameter_version[always])
  return rows._replace(level_id=rows.level_id[always], actor_id=rows.actor_id[always], stream_id=stream_id, index=index,
                       agent_state=agent_state, earlier_frames=earlier_frames, parameter_version=version)
