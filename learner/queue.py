"""The queue between actors and learner: unrolls go in one by one and come out as time-major batches.

It is bounded: when the learner is slow, putting waits, and with it the actors (back-pressure).
"""

import tensorflow as tf


class UnrollQueue:
  """A first-in first-out queue of unrolls, which are nests of tensors of one structure."""

  def __init__(self, unroll_spec, capacity: int, time_major_batch, shared_name: str = ''):
    """Creates the queue.

    Args:
      unroll_spec: nest of tf.TensorSpec.
      capacity: unrolls it holds before `put` waits, >= 1.
      time_major_batch: nest of bool like unroll_spec: whether a component has a time dimension, [T+1, ...], to be
        batched as [T+1, B, ...]; the others become [B, ...].
      shared_name: under which other processes find it, where this one has opened a port; '' to keep it to itself.
    """
    self._spec = unroll_spec
    self._axes = [1 if time_major else 0 for time_major in tf.nest.flatten(time_major_batch)]
    specs = tf.nest.flatten(unroll_spec)
    dtypes, shapes = [spec.dtype for spec in specs], [spec.shape for spec in specs]
    with tf.device('/CPU:0'):
      if shared_name:  # To which an eager tf.queue.FIFOQueue does not listen.
        self._queue = tf.queue.QueueBase(dtypes, shapes, None, tf.raw_ops.FIFOQueueV2(
            component_types=dtypes, shapes=shapes, capacity=capacity, shared_name=shared_name))
      else:
        self._queue = tf.queue.FIFOQueue(capacity, dtypes, shapes)

  def put(self, unroll):
    """Waits for room and adds an unroll. CancelledError once the queue is closed."""
    tf.nest.assert_same_structure(unroll, self._spec)
    with tf.device('/CPU:0'):
      return self._queue.enqueue(tf.nest.flatten(unroll))

  def take_batch(self, batch_size: int):
    """Waits for `batch_size` unrolls and stacks them. OutOfRangeError once the queue is closed.

    Returns:
      The nest, with tensors [T+1, B, ...] or, without time, [B, ...].
    """
    with tf.device('/CPU:0'):
      # One by one, then one copy: dequeue_many would copy to [B, T+1, ...], and transposing that would copy again.
      unrolls = [tf.nest.flatten(self.take()) for _ in range(batch_size)]
      batch = [tf.stack(tensors, axis) for tensors, axis in zip(zip(*unrolls), self._axes)]
    return tf.nest.pack_sequence_as(self._spec, batch)

  def replace(self, batch, slot):
    """Waits for an unroll and puts it in another one's place. Args: what take_batch has returned; [] index below B."""
    with tf.device('/CPU:0'):
      replaced = []
      for old, new, axis in zip(tf.nest.flatten(batch), tf.nest.flatten(self.take()), self._axes):
        is_slot = tf.one_hot(slot, old.shape[axis], on_value=True, off_value=False)  # [B].
        is_slot = tf.reshape(is_slot, [-1 if index == axis else 1 for index in range(old.shape.rank)])
        replaced.append(tf.where(is_slot, tf.expand_dims(new, axis), old))
    return tf.nest.pack_sequence_as(self._spec, replaced)

  def take(self):
    """Waits for an unroll, which comes out as it was put. OutOfRangeError once the queue is closed."""
    with tf.device('/CPU:0'):
      return tf.nest.pack_sequence_as(self._spec, self._queue.dequeue())

  def size(self) -> int:
    """Unrolls in the queue now."""
    return int(self._queue.size())

  def close(self):
    """Ends every wait in `put`, `take` and `take_batch`."""
    with tf.device('/CPU:0'):
      self._queue.close(cancel_pending_enqueues=True)
