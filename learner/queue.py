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

  def drop(self, batch, slot):
    """Takes an unroll out of a batch and waits for another one, which comes behind the others.

    Args:
      batch: what take_batch has returned.
      slot: [] integer below B, the place of the unroll in the batch.
    Returns:
      The batch, as take_batch returns it.
    """
    with tf.device('/CPU:0'):
      changed = []
      for old, new, axis in zip(tf.nest.flatten(batch), tf.nest.flatten(self.take()), self._axes):
        places = tf.range(old.shape[axis])
        kept = tf.gather(old, tf.boolean_mask(places, places != tf.cast(slot, tf.int32)), axis=axis)
        changed.append(tf.ensure_shape(tf.concat([kept, tf.expand_dims(new, axis)], axis), old.shape))
    return tf.nest.pack_sequence_as(self._spec, changed)

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
