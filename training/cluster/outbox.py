"""Unrolls of an actor host on their way to the learner: in lanes, in each of which they stay in their order.

An actor's unrolls all go into the same lane, so they leave the host one after the other, whatever the other lanes do.
"""

import collections
import threading

import numpy as np
import tensorflow as tf

from scalable_agents.learner import queue as unroll_queue


class Lane:
  """The unrolls of some of the actors: those just put, and blocks of earlier ones that nobody has sent."""

  def __init__(self, unroll_spec, largest_block: int):
    """Makes an empty lane.

    Args:
      unroll_spec: nest of tf.TensorSpec.
      largest_block: unrolls that are taken at a time at most, and that wait here before `put` waits.
    """
    self.unsent = collections.deque()  # Blocks that were taken, the oldest first. Guarded by the user's lock.
    self.taking = threading.Lock()     # Held while blocks are taken, so that they get into `unsent` in their order.
    self._largest_block = largest_block
    self._queue = unroll_queue.UnrollQueue(
        unroll_spec, largest_block, tf.nest.map_structure(lambda spec: False, unroll_spec))
    self._takers = [self._taker(count) for count in range(1, largest_block + 1)]

  def put(self, unroll):
    """Takes an unroll, in a graph; waits for room. CancelledError once this is closed."""
    return self._queue.put(unroll)

  def take(self) -> list[list[np.ndarray]] | None:
    """Waits for unrolls and takes as many as there are: a list of arrays each. None once this is closed."""
    take = self._takers[max(1, min(self._queue.size(), self._largest_block)) - 1]
    try:
      return [[_array(tensor) for tensor in unroll] for unroll in take()]
    except tf.errors.OutOfRangeError:
      return None

  def size(self) -> int:
    """Unrolls that were put and not taken."""
    return self._queue.size()

  def close(self):
    """Ends every wait in `put` and `take`."""
    self._queue.close()

  def _taker(self, count):
    """A function that waits for so many unrolls."""
    take = tf.function(lambda: [tf.nest.flatten(self._queue.take()) for _ in range(count)], autograph=False)
    return take.get_concrete_function()  # To find it again takes as long as a call of it.


def put(lanes: list[Lane], unroll):
  """Puts an unroll into its actor's lane, in a graph; waits for room. Returns a tensor."""

  def putter(lane):
    def put_there():
      lane.put(unroll)
      return tf.constant(True)  # All branches have to return the same.
    return put_there
  with tf.device('/CPU:0'):
    return tf.switch_case(tf.math.floormod(unroll.actor_id, len(lanes)), [putter(lane) for lane in lanes])


def _array(tensor):
  """A tensor's values; not copied, as Tensor.numpy does, where NumPy can use them as they are."""
  return tensor.numpy() if tensor.dtype == tf.string else np.asarray(memoryview(tensor))
