"""The queue between actors and learner. It takes single unrolls and returns time-major batches.

The queue is bounded. When it is full, `put` blocks, and so do the actors.
"""

import tensorflow as tf


class UnrollQueue:
  """A first-in first-out queue of unrolls. All unrolls are nests of tensors with the same structure."""

  def __init__(self, unroll_spec, capacity: int, time_major_batch, shared_name: str = ''):
    """Creates the queue.

    Args:
      unroll_spec: nest of tf.TensorSpec.
      capacity: maximum number of unrolls in the queue, >= 1. `put` blocks when it is reached.
      time_major_batch: nest of bool with the structure of unroll_spec. True: the component is [T+1, ...] and its batch
        is [T+1, B, ...]. False: its batch is [B, ...].
      shared_name: the name under which other processes find the queue, if this process has opened a port. '': the queue
        is not shared.
    """
    self._spec = unroll_spec
    self._axes = [1 if time_major else 0 for time_major in tf.nest.flatten(time_major_batch)]
    specs = tf.nest.flatten(unroll_spec)
    dtypes, shapes = [spec.dtype for spec in specs], [spec.shape for spec in specs]
    with tf.device('/CPU:0'):
      if shared_name:  # In eager mode, tf.queue.FIFOQueue ignores its shared_name.
        self._queue = tf.queue.QueueBase(dtypes, shapes, None, tf.raw_ops.FIFOQueueV2(
            component_types=dtypes, shapes=shapes, capacity=capacity, shared_name=shared_name))
      else:
        self._queue = tf.queue.FIFOQueue(capacity, dtypes, shapes)

  def put(self, unroll):
    """Adds an unroll. Blocks while the queue is full.

    Raises:
      tf.errors.CancelledError: the queue is closed.
    """
    tf.nest.assert_same_structure(unroll, self._spec)
    with tf.device('/CPU:0'):
      return self._queue.enqueue(tf.nest.flatten(unroll))

  def take_batch(self, batch_size: int):
    """Removes unrolls and stacks them. Blocks until there are enough.

    Args:
      batch_size: B, the number of unrolls.
    Returns:
      A nest of tensors [T+1, B, ...] or, for components without a time dimension, [B, ...].
    Raises:
      tf.errors.OutOfRangeError: the queue is closed.
    """
    with tf.device('/CPU:0'):
      # Unrolls are taken one by one and copied once. dequeue_many would copy them to [B, T+1, ...], and transposing
      # would copy them again.
      unrolls = [tf.nest.flatten(self.take()) for _ in range(batch_size)]
      batch = [tf.stack(tensors, axis) for tensors, axis in zip(zip(*unrolls, strict=True), self._axes, strict=True)]
    return tf.nest.pack_sequence_as(self._spec, batch)

  def drop(self, batch, slot):
    """Removes an unroll from a batch, waits for another one, and appends that one.

    Args:
      batch: what take_batch has returned.
      slot: [] integer below B, the place of the unroll in the batch.
    Returns:
      The batch, as take_batch returns it.
    Raises:
      tf.errors.OutOfRangeError: the queue is closed.
    """
    with tf.device('/CPU:0'):
      components, changed = tf.nest.flatten(batch), []
      kept = tf.range(components[0].shape[self._axes[0]] - 1)
      kept += tf.cast(kept >= tf.cast(slot, tf.int32), tf.int32)  # All slots but this one.
      for old, new, axis in zip(components, tf.nest.flatten(self.take()), self._axes, strict=True):
        new = tf.concat([tf.gather(old, kept, axis=axis), tf.expand_dims(new, axis)], axis)
        changed.append(tf.ensure_shape(new, old.shape))
    return tf.nest.pack_sequence_as(self._spec, changed)

  def take(self):
    """Removes an unroll and returns it as it was put. Blocks while the queue is empty.

    Raises:
      tf.errors.OutOfRangeError: the queue is closed.
    """
    with tf.device('/CPU:0'):
      return tf.nest.pack_sequence_as(self._spec, self._queue.dequeue())

  def size(self) -> int:
    """Returns the current number of unrolls in the queue."""
    return int(self._queue.size())

  def close(self):
    """Closes the queue and ends every wait in `put`, `take`, `take_batch` and `drop`."""
    with tf.device('/CPU:0'):
      self._queue.close(cancel_pending_enqueues=True)
