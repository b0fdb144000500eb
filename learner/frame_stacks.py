"""Builds stacks of frames on the device that learns, so that each frame travels there once.

An unroll has the newest frame of each row, and the frames before row 0 that row 0's stack needs.
"""

import tensorflow as tf

from scalable_agents.ops import ops


def stack(newest: tf.Tensor, earlier: tf.Tensor, done: tf.Tensor) -> tf.Tensor:
  """Returns the stacks of k frames of all rows: [T+1, B, ..., k C], the newest frame last. For CPUs.

  Args:
    newest: [T+1, B, ..., C].
    earlier: [B, k-1, ..., C], the frames before row 0, the oldest one first; zeros before an episode's start.
    done: [T+1, B] bool; the row starts an episode, so the frames before it are zeros in its stack and in later ones.
  """
  return ops.stack_frames(newest, earlier, done)  # An own op: TensorFlow's concatenation of single bytes is slow.


def stack_compiled(newest: tf.Tensor, earlier: tf.Tensor, done: tf.Tensor) -> tf.Tensor:
  """The same as `stack`, made of TensorFlow's own ops, which XLA can compile and which run on a GPU."""
  num_rows, num_earlier = tf.shape(newest)[0], earlier.shape[1]
  frames = tf.concat([tf.transpose(earlier, [1, 0, *range(2, earlier.shape.rank)]), newest], 0)
  # The rows before row 0 are in episode 0. The type is int64, because TensorFlow compares int32 on the host of a GPU.
  episode = tf.cumsum(tf.cast(done, tf.int64), 0)
  episodes = tf.concat([tf.zeros([num_earlier, tf.shape(done)[1]], tf.int64), episode], 0)
  shape = tf.concat([tf.shape(done), tf.ones([newest.shape.rank - 2], tf.int32)], 0)

  def frame(first):
    same = tf.reshape(episodes[first:first + num_rows] == episode, shape)
    rows = frames[first:first + num_rows]
    return tf.where(same, rows, tf.zeros([], rows.dtype))

  return tf.concat([frame(first) for first in range(num_earlier + 1)], -1)


def with_stacks(unroll, device: str = '/CPU:0', compiled: bool = False):
  """Returns a batch of unrolls with whole stacks of frames.

  Args:
    unroll: the batch, an Unroll of [T+1, B, ...].
    device: where the stacks are built.
    compiled: whether XLA compiles the caller.
  """
  build = stack if 'CPU' in device.upper() and not compiled else stack_compiled
  environment = unroll.environment_output
  stacks = {name: build(environment.observation[name], earlier, environment.done)
            for name, earlier in unroll.earlier_frames.items()}
  return unroll._replace(environment_output=environment._replace(observation={**environment.observation, **stacks}))
