"""Sessions of TensorFlow's runtime with another process."""

import tensorflow as tf


class NotReadyError(Exception):
  """A process answers at the address, but it is another one than was looked for, or it is not ready yet."""


def specs(nest) -> list[list]:
  """Returns the dtype and shape of each tf.TensorSpec of a nest, as lists that JSON can hold."""
  return [[spec.dtype.name, list(spec.shape)] for spec in tf.nest.flatten(nest)]


def make_session(address: str, graph: tf.Graph, task: str, answer_seconds: float | None = None) -> tf.compat.v1.Session:
  """Makes a session that runs a graph in another process.

  Args:
    address: HOST:PORT of the process.
    graph: the graph. All its nodes are in that process.
    task: the device name of the process, '/job:JOB/replica:0/task:N'.
    answer_seconds: the deadline of calls; None for no deadline.
  """
  config = tf.compat.v1.ConfigProto(device_filters=[task])
  config.rpc_options.disable_session_connection_sharing = True  # Otherwise a new session could reuse a dead connection.
  if answer_seconds:
    config.operation_timeout_in_ms = int(1000 * answer_seconds)
  return tf.compat.v1.Session(f'grpc://{address}', graph, config)


def reason(error: Exception) -> str:
  """Returns a few words for the user about an error of a connection."""
  if isinstance(error, tf.errors.DeadlineExceededError):
    return 'it does not answer'
  text = getattr(error, 'message', None) or getattr(error, 'strerror', None) or str(error)
  if text.startswith('Graph execution error:'):  # TensorFlow's account of the graph's nodes follows.
    return 'the connection broke'
  return text.split('\n', maxsplit=1)[0].split(' [[', maxsplit=1)[0]
