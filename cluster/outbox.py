"""Lanes: queues of the unrolls that an actor host sends to its learner. Each lane keeps the order of its unrolls.

All unrolls of an actor go into the same lane. So they leave the host in their order, independently of other lanes.
"""

import collections
import threading

import numpy as np
import tensorflow as tf

from scalable_agents.learner import queue as unroll_queue


class Lane:
  """The unrolls of some of the actors: a queue of new ones, and blocks that were taken but not sent."""

  def __init__(self, unroll_spec, largest_block: int):
    """Makes an empty lane.

    Args:
      unroll_spec: nest of tf.TensorSpec.
      largest_block: most unrolls that `take` returns, and most that the queue holds before `put` blocks.
    """
    self.unsent = collections.deque()  # Blocks that were taken, oldest first. The caller's lock guards it.
    self.taking = threading.Lock()     # Hold it to take a block and append it to `unsent`, to keep the order.
    self._largest_block = largest_block
    self._queue = unroll_queue.UnrollQueue(
        unroll_spec, largest_block, tf.nest.map_structure(lambda spec: False, unroll_spec))
    self._takers = [self._taker(count) for count in range(1, largest_block + 1)]

  def put(self, unroll):
    """Takes an unroll, also in a graph. Waits for room. Raises CancelledError once this is closed."""
    return self._queue.put(unroll)

  def take(self) -> list[list[np.ndarray]] | None:
    """Waits for an unroll and takes all in the queue, at most `largest_block`. Each is a list of arrays.

    Returns:
      The unrolls; None once this is closed.
    """
    take = self._takers[max(1, min(self._queue.size(), self._largest_block)) - 1]
    try:
      with tf.device('/CPU:0'):  # Where there is a GPU, the function's results would be copied to it.
        taken = take()
      return [[_array(tensor) for tensor in unroll] for unroll in taken]
    except tf.errors.OutOfRangeError:
      return None

  def size(self) -> int:
    """Returns the number of unrolls that were put and not yet taken."""
    return self._queue.size()

  def close(self):
    """Ends every wait in `put` and `take`."""
    self._queue.close()

  def _taker(self, count):
    """Returns a function that waits for `count` unrolls and takes them."""
    take = tf.function(lambda: [tf.nest.flatten(self._queue.take()) for _ in range(count)], autograph=False)
    return take.get_concrete_function()  # Looking it up at each call would double the cost.


def put(lanes: list[Lane], unroll):
  """Puts an unroll into its actor's lane, also in a graph. Waits for room. Returns [] bool, always True."""

  def putter(lane):
    def put_there():
      lane.put(unroll)
      return tf.constant(True)  # All branches must return the same type.
    return put_there
  with tf.device('/CPU:0'):
    return tf.switch_case(tf.math.floormod(unroll.actor_id, len(lanes)), [putter(lane) for lane in lanes])


def _array(tensor):
  """Returns a tensor's values. Unlike Tensor.numpy it does not copy them, unless they are strings or bfloat16."""
  return tensor.numpy() if tensor.dtype in (tf.string, tf.bfloat16) else np.asarray(memoryview(tensor))
