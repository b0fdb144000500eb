"""Sessions of TensorFlow's runtime with another process."""

import contextlib
import json
import os
import re
import socket
import threading
from typing import Any

import tensorflow as tf

from scalable_agents.processes import ports
from scalable_agents.records import json_text


class NotReadyError(Exception):
  """The process that answers at the address is not the wanted one, or it is not ready yet."""


def use_no_proxy():
  """Lets processes reach each other directly, also where http_proxy is set, which gRPC would use."""
  os.environ.setdefault('grpc_proxy', '')  # gRPC prefers this variable, and an empty one means no proxy.


def specs(nest) -> list[list]:
  """Returns the dtype and shape of each tf.TensorSpec of a nest, as lists that JSON can hold."""
  return [[spec.dtype.name, list(spec.shape)] for spec in tf.nest.flatten(nest)]


def open_port(job: str, address: str, owner: str, flag: str = '') -> socket.socket:
  """Opens a port at which other processes reach this one, the only task of its job, until the process ends.

  It opens on all network interfaces. Must run before TensorFlow computes anything.

  Args:
    job: name of the job.
    address: HOST:PORT, of which only the port is opened.
    owner, flag: see ports.take_port.
  Returns:
    The lock of ports.take_port, to be kept.
  Raises:
    ports.PortError: another process has the port.
  """
  use_no_proxy()
  lock = ports.take_port(address, owner, flag)
  try:
    tf.config.experimental_connect_to_cluster(tf.train.ClusterSpec({job: [address]}), job_name=job, task_index=0)
  except tf.errors.OpError as error:
    raise ports.PortError(f'{address}: the port could not be opened: {error.message}') from error
  return lock


def make_session(address: str, graph: tf.Graph, task: str, answer_seconds: float | None = None) -> tf.compat.v1.Session:
  """Makes a session that runs a graph in another process.

  Args:
    address: HOST:PORT of the process.
    graph: the graph. All its nodes are in that process.
    task: the device name of the process, '/job:JOB/replica:0/task:N'.
    answer_seconds: the deadline of calls; None for no deadline.
  """
  use_no_proxy()
  config = tf.compat.v1.ConfigProto(device_filters=[task])
  config.rpc_options.disable_session_connection_sharing = True  # Otherwise a new session could reuse a dead connection.
  if answer_seconds:
    config.operation_timeout_in_ms = int(1000 * answer_seconds)
  return tf.compat.v1.Session(f'grpc://{address}', graph, config)


def shared_text(name: str) -> tf.Tensor:
  """Returns the handle of a variable, [] string, that all processes find by its name. In a graph, it is the node."""
  return tf.raw_ops.VarHandleOp(dtype=tf.string, shape=[], shared_name=name)


def text_of(handle: tf.Tensor) -> tf.Tensor:
  """Returns the value of a variable of `shared_text`, [] string."""
  return tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.string)


def set_text(handle: tf.Tensor, text: str):
  """Gives a variable of `shared_text` a new value."""
  tf.raw_ops.AssignVariableOp(resource=handle, value=tf.constant(text))


def shared_queue(name: str) -> tf.Tensor:
  """Returns the handle of a queue of texts, [] string, that all processes find by its name. In a graph: the node."""
  return tf.raw_ops.FIFOQueueV2(component_types=[tf.string], shapes=[[]], capacity=1 << 16, shared_name=name)


def read_greeting(session: tf.compat.v1.Session, greeting: tf.Tensor, other_task: str) -> dict[str, Any]:
  """Returns a server's greeting, [] string, JSON.

  Args:
    session: of make_session.
    greeting: the node.
    other_task: the message if the process has another task.
  Raises:
    NotReadyError: the process has no greeting yet, or another task, or it is of another kind.
    tf.errors.OpError: it does not answer.
  """
  try:
    return json_text.as_object(json.loads(session.run(greeting)))
  except ValueError as error:  # For example, a relay's text is not JSON.
    raise NotReadyError('another kind of process answers there') from error
  except (tf.errors.FailedPreconditionError, tf.errors.NotFoundError) as error:  # No such resources yet.
    raise NotReadyError('it is starting') from error
  except tf.errors.InvalidArgumentError as error:
    raise NotReadyError(other_task) from error


def close(*sessions: tf.compat.v1.Session) -> threading.Thread:
  """Closes sessions in another thread, and returns it. It may block for ever. So may the deletion of a session."""
  def run():
    for session in sessions:
      with contextlib.suppress(tf.errors.OpError):
        session.close()

  thread = threading.Thread(target=run, daemon=True)
  thread.start()
  return thread


def differences(theirs: dict[str, Any], ours: dict[str, Any]) -> list[str]:
  """Describes each value in which two dicts differ. JSON can hold them."""
  return [f'{name} is {json.dumps(theirs.get(name, "absent"))} there and {json.dumps(ours.get(name, "absent"))} here'
          for name in sorted(ours.keys() | theirs.keys()) if ours.get(name) != theirs.get(name)]


def reason(error: Exception) -> str:
  """Returns a few words for the user about an error of a connection."""
  if isinstance(error, tf.errors.DeadlineExceededError):
    return 'it does not answer'
  text = getattr(error, 'message', None) or getattr(error, 'strerror', None) or str(error)
  if text.startswith('Graph execution error:'):  # TensorFlow's account of the graph's nodes follows.
    return 'the connection broke'
  text = re.sub(r'^From /job:\S+:\n', '', text)  # The fault is in the second line.
  return text.split('\n', maxsplit=1)[0].split(' [[', maxsplit=1)[0]
