"""Dynamic batching of any function of tensors: concurrent callers are merged into one call.

Espeholt et al. 2018 (IMPALA), section 3.1; the options and error messages are the released agent's.

  @dynamic_batching.batch_fn
  def double(x):     # Called with x of shape [n, ...], for whichever n callers wait.
    return 2 * x

  double(tf.constant([21]))  # From many threads, eagerly or in a tf.function; a leading dimension of 1.
"""

import functools
import re
import threading

import tensorflow as tf

from scalable_agents.ops import ops


def batch_fn(function):
  """Batches `function` with the default options of batch_fn_with_options."""
  return batch_fn_with_options()(function)


def batch_fn_with_options(minimum_batch_size: int = 1, maximum_batch_size: int = 1024, timeout_ms=100):
  """Makes a decorator that batches a function of tensors.

  The function is traced at its first call and runs in one background loop, on a batch at a time. Its callers pass
  tensors, or nests of them, with a leading dimension of 1, and get their row of the result. There are no gradients
  through the batcher. An error in the function, or `close()` of the decorated function, ends every waiting call with
  CancelledError, "Compute was cancelled: " and the cause, and every later one with "Batcher is closed: …".

  Args:
    minimum_batch_size: callers to wait for, unless the timeout passes.
    maximum_batch_size: callers to merge at most.
    timeout_ms: after so long the callers that are there, if any, are enough; None: wait for the minimum.

  Returns:
    The decorator. What it returns has a method `close()`, and raises InvalidArgumentError for a leading dimension other
    than 1 or another shape than other callers', ValueError or TypeError for other types or another structure.

  Raises:
    ValueError: unless 1 <= minimum_batch_size <= maximum_batch_size.
  """
  if not 1 <= minimum_batch_size <= maximum_batch_size:
    raise ValueError(f'want 1 <= minimum_batch_size <= maximum_batch_size, got {minimum_batch_size} and '
                     f'{maximum_batch_size}')
  timeout_ms = -1 if timeout_ms is None else timeout_ms

  def decorator(function):
    batched = _Batched(function, minimum_batch_size, maximum_batch_size, timeout_ms)

    @functools.wraps(function)
    def call(*args):
      return batched(*args)

    call.close = batched.close
    return call

  return decorator


class _Batched:
  """A function, its batcher and the loop that runs it."""

  def __init__(self, function, minimum_batch_size, maximum_batch_size, timeout_ms):
    self._function = function
    # With a known size the function sees a static batch dimension.
    self._static_size = minimum_batch_size if minimum_batch_size == maximum_batch_size and timeout_ms < 0 else None
    with tf.init_scope(), tf.device('/CPU:0'):
      self._handle = ops.dynamic_batcher(
          minimum_batch_size=minimum_batch_size, maximum_batch_size=maximum_batch_size, timeout_ms=timeout_ms,
          shared_name=ops.unique_name('batcher'))
    ops.delete_with(self, self._handle)
    self._lock = threading.Lock()
    self._specs = None  # Of the arguments on a batch, from the first call.
    self._traced = None  # The function on a batch, as a ConcreteFunction.

  def __call__(self, *args):
    args = tf.nest.map_structure(tf.convert_to_tensor, args)
    self._start(args)
    outputs = tf.nest.flatten(self._traced.structured_outputs)
    try:
      with tf.device('/CPU:0'):
        rows = ops.dynamic_batcher_compute(self._handle, tf.nest.flatten(args),
                                           output_types=[output.dtype for output in outputs])
    except tf.errors.OpError as error:  # Of an eager call; in a graph the op has not run yet.
      raise type(error)(None, None, _plain(error.message)) from None
    for row, output in zip(rows, outputs):
      row.set_shape([1, *output.shape[1:]] if output.shape.rank else None)
    return tf.nest.pack_sequence_as(self._traced.structured_outputs, rows)

  def close(self):
    """Ends every waiting call and refuses later ones."""
    self._close('close() was called')

  def _close(self, cause):
    with tf.init_scope(), tf.device('/CPU:0'):
      ops.dynamic_batcher_close(self._handle, cause)

  def _start(self, args):
    """At the first call, traces the function for batches of such arguments and starts its loop."""
    with self._lock:
      if self._traced is None:
        self._specs = tf.nest.map_structure(lambda x: tf.TensorSpec([self._static_size, *x.shape[1:]], x.dtype), args)
        with tf.init_scope():
          self._traced = tf.function(self._function).get_concrete_function(*self._specs)
        threading.Thread(target=self._run, name='dynamic batching', daemon=True).start()
    tf.nest.map_structure(_check, args, self._specs)

  def _run(self):
    flat_specs = tf.nest.flatten(self._specs)

    def compute_batch(count):
      with tf.device('/CPU:0'):
        batch_id, inputs = ops.dynamic_batcher_get_inputs(self._handle, input_types=[s.dtype for s in flat_specs])
      for tensor, spec in zip(inputs, flat_specs):
        tensor.set_shape(spec.shape)
      # Variables are to be read when the batch is there. The inputs alone delay only what is computed from them, and
      # a direct dependency on their op is dropped as implied.
      with tf.control_dependencies([tf.identity(batch_id)]):
        outputs = self._traced(*tf.nest.pack_sequence_as(self._specs, inputs))
      with tf.device('/CPU:0'):
        ops.dynamic_batcher_set_outputs(self._handle, batch_id, tf.nest.flatten(outputs))
      return [count + 1]

    try:
      tf.function(lambda: tf.while_loop(
          lambda count: True, compute_batch, [tf.constant(0, tf.int64)], parallel_iterations=1))()
    except Exception as error:  # pylint: disable=broad-except; the callers get it.
      self._close(_plain(getattr(error, 'message', None) or str(error)))


def _check(x, spec):
  """Refuses an argument that the function was not traced for: the others in its batch would suffer too."""
  if x.dtype != spec.dtype:
    raise ValueError(f'want {spec.dtype.name} as in the first call, got {x.dtype.name}')
  if not spec.shape[1:].is_compatible_with(x.shape[1:]):
    raise tf.errors.InvalidArgumentError(
        None, None, 'Shapes of inputs must be equal across the callers: behind the leading dimension, want '
        f'{spec.shape[1:]} as in the first call, got {x.shape[1:]}')


def _plain(message):
  """An error's message without what TensorFlow adds about the place."""
  message = re.sub(r'^\{\{function_node [^}]*\}\} ', '', message)
  return re.sub(r'(\s*\[\[.*\]\])?\s*\[Op:[^]]*\]( name: .*)?$', '', message)
