"""Keeps each actor's stack of frames on the device of inference, so that each frame is copied there only once."""

from collections.abc import Mapping

import tensorflow as tf


class ActorFrames:
  """The stacks of the newest frames of all actors of a host. All inference loops of the host share them."""

  def __init__(self, stacks: Mapping[str, tf.TensorSpec], num_actors: int, device: str):
    """Makes stacks of zeros.

    Args:
      stacks: name -> spec [..., k C] of each observation that is a stack of k frames.
      num_actors: the number of actors.
      device: the device that keeps the stacks.
    """
    with tf.device(device):
      self._stacks = {  # [number of actors + 1, ..., k C]. Stack 0 is for rows of padding.
          name: tf.Variable(tf.zeros([num_actors + 1, *spec.shape], spec.dtype), trainable=False)
          for name, spec in stacks.items()}

  def push(self, observation: Mapping[str, tf.Tensor], number: tf.Tensor, done: tf.Tensor) -> dict[str, tf.Tensor]:
    """Adds the newest frames to the actors' stacks.

    Args:
      observation: name -> [n, ...], with the newest frame of each stack, [n, ..., C].
      number: [n] int64, an actor's number in its host plus 1; 0 for padding. All are different, except if a worker was
        replaced while its last steps waited: the frames of that actor's stack may then be of the environment before.
      done: [n] bool; the frame starts an episode, so the earlier frames of its stack become zeros.
    Returns:
      The observation with whole stacks, [n, ..., k C].
    """
    whole = dict(observation)
    for name, stacks in self._stacks.items():
      newest = observation[name]
      earlier = stacks.sparse_read(number)[..., newest.shape[-1]:]
      starts = tf.reshape(done, [-1] + [1] * (newest.shape.rank - 1))
      earlier = tf.where(starts, tf.zeros([], newest.dtype), earlier)
      whole[name] = tf.concat([earlier, newest], axis=-1)
      stacks.scatter_update(tf.IndexedSlices(whole[name], number))
    return whole
