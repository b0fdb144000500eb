"""Dynamic batching of any function of tensors: concurrent calls are merged into one call.

Espeholt et al. 2018 (IMPALA), section 5.1. The options and error messages are those of the released code.

  @dynamic_batching.batch_fn
  def double(x):     # Called with x of shape [n, ...] for n concurrent callers.
    return 2 * x

  double(tf.constant([21]))  # From many threads, eagerly or in a tf.function, with a leading dimension of 1.
"""

from collections.abc import Callable
import contextlib
import functools
import threading
from typing import Any

import tensorflow as tf

from scalable_agents.ops import messages
from scalable_agents.ops import ops


def batch_fn(function):
  """Batches `function` with the default options of batch_fn_with_options."""
  return batch_fn_with_options()(function)


def batch_fn_with_options(minimum_batch_size: int = 1, maximum_batch_size: int = 1024, timeout_ms: int | None = 100):
  """Makes a decorator that batches a function of tensors.

  The function is traced at its first call. One background loop runs it, one batch at a time. Callers pass tensors, or
  nests of tensors, with a leading dimension of 1, and get their row of the result. Gradients do not flow through the
  batcher.

  The decorated function has a method `close()`, which also runs when the function is deleted. After `close()` or an
  error in the function, waiting calls raise CancelledError with "Compute was cancelled: " and the cause. Later calls
  raise it with "Batcher is closed: …".

  The decorated function raises InvalidArgumentError if an argument's leading dimension is not 1, or if its shape
  differs from other callers' shapes. It raises ValueError or TypeError if a type or the structure differs.

  Args:
    minimum_batch_size: number of calls to wait for before the function runs.
    maximum_batch_size: largest number of calls in a batch.
    timeout_ms: milliseconds after which a batch may be smaller than the minimum, but not empty. None: no timeout.

  Returns:
    The decorator.

  Raises:
    ValueError: unless 1 <= minimum_batch_size <= maximum_batch_size.
  """
  if not 1 <= minimum_batch_size <= maximum_batch_size:
    raise ValueError(f'want 1 <= minimum_batch_size <= maximum_batch_size, got {minimum_batch_size} and '
                     f'{maximum_batch_size}')
  timeout_ms = -1 if timeout_ms is None else timeout_ms

  def decorator(function: Callable[..., Any]) -> _Batched:
    batched = _Batched(function, minimum_batch_size, maximum_batch_size, timeout_ms)
    functools.update_wrapper(batched, function)
    return batched

  return decorator


class _Batched:
  """A function, its batcher and the loop that runs it."""

  def __init__(self, function, minimum_batch_size, maximum_batch_size, timeout_ms):
    self._function = function
    # If all batches have the same size, the function gets a static batch dimension.
    self._static_size = minimum_batch_size if minimum_batch_size == maximum_batch_size and timeout_ms < 0 else None
    with tf.init_scope(), tf.device('/CPU:0'):
      self._handle = ops.dynamic_batcher(
          minimum_batch_size=minimum_batch_size, maximum_batch_size=maximum_batch_size, timeout_ms=timeout_ms,
          shared_name=ops.unique_name('batcher'))
    ops.delete_with(self, self._handle, lambda handle: _close(handle, 'the function was deleted'))
    self._lock = threading.Lock()
    self._specs = None  # The specs of a batch's arguments, set by the first call.
    self._traced: Any = None  # The ConcreteFunction for a batch.

  def __call__(self, *args):
    args = tf.nest.map_structure(tf.convert_to_tensor, args)
    self._start(args)
    outputs = tf.nest.flatten(self._traced.structured_outputs)
    try:
      with tf.device('/CPU:0'):
        rows = ops.dynamic_batcher_compute(self._handle, tf.nest.flatten(args),
                                           output_types=[output.dtype for output in outputs])
    except tf.errors.OpError as error:  # Raised by an eager call. In a graph the op has not run yet.
      raise type(error)(None, None, messages.plain_message(error.message)) from None
    for row, output in zip(rows, outputs, strict=True):
      row.set_shape([1, *output.shape[1:]] if output.shape.rank else None)
    return tf.nest.pack_sequence_as(self._traced.structured_outputs, rows)

  def close(self):
    """Cancels waiting calls and rejects later ones."""
    with tf.init_scope():
      _close(self._handle, 'close() was called')

  def _start(self, args):
    """Checks the arguments. The first call also traces the function for batches of them, and starts the loop."""
    with self._lock:
      if self._traced is None:  # Checks first: what fails here leaves nothing behind.
        tf.nest.map_structure(_check_is_row, args)
        self._specs = tf.nest.map_structure(lambda x: tf.TensorSpec([self._static_size, *x.shape[1:]], x.dtype), args)
        with tf.init_scope():
          traced = tf.function(self._function).get_concrete_function(*self._specs)
        if not all(map(tf.is_tensor, tf.nest.flatten(traced.structured_outputs))):
          raise TypeError(f'want a function that returns tensors, got {traced.structured_outputs}')
        self._traced = traced
        # The thread does not refer to this object. Else it would live for ever.
        threading.Thread(target=_serve, args=(self._handle, self._specs, self._traced), name='dynamic batching',
                         daemon=True).start()
    tf.nest.map_structure(_check, args, self._specs)


def _close(handle, cause):
  with tf.device('/CPU:0'):
    ops.dynamic_batcher_close(handle, cause)


def _serve(handle, specs, traced):
  """Computes batches until the batcher is closed."""
  flat_specs = tf.nest.flatten(specs)

  def compute_batch(count):
    with tf.device('/CPU:0'):
      batch_id, inputs = ops.dynamic_batcher_get_inputs(handle, input_types=[spec.dtype for spec in flat_specs])
    for tensor, spec in zip(inputs, flat_specs, strict=True):
      tensor.set_shape(spec.shape)
    # Variables must be read after the batch has arrived. The inputs themselves delay only ops that depend on them,
    # and TensorFlow would drop a direct control dependency on their op as redundant.
    with tf.control_dependencies([tf.identity(batch_id)]):
      outputs = traced(*tf.nest.pack_sequence_as(specs, inputs))
    with tf.device('/CPU:0'):
      ops.dynamic_batcher_set_outputs(handle, batch_id, tf.nest.flatten(outputs))
    return [count + 1]

  try:
    tf.function(lambda: tf.while_loop(
        lambda count: True, compute_batch, [tf.constant(0, tf.int64)], parallel_iterations=1))()
  except Exception as error:  # The callers get the error.
    with contextlib.suppress(tf.errors.NotFoundError):  # The function was deleted.
      _close(handle, messages.plain_message(getattr(error, 'message', None) or str(error)))


def _check_is_row(x):
  """Rejects an argument whose leading dimension is known not to be 1, as the op does."""
  if x.shape.rank == 0 or x.shape.rank and x.shape[0] not in (None, 1):
    size = 'a scalar' if x.shape.rank == 0 else x.shape[0]
    raise tf.errors.InvalidArgumentError(None, None, f'Batcher requires batch size 1 but was {size}')


def _check(x, spec):
  """Rejects an argument for which the function was not traced, because it would make the whole batch fail."""
  if x.dtype != spec.dtype:
    raise ValueError(f'want {spec.dtype.name} as in the first call, got {x.dtype.name}')
  if not spec.shape[1:].is_compatible_with(x.shape[1:]):
    raise tf.errors.InvalidArgumentError(
        None, None, 'Shapes of inputs must be equal across the callers: after the leading dimension, want '
        f'{spec.shape[1:]} as in the first call, got {x.shape[1:]}')
