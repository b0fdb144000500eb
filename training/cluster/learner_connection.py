"""A connection to a learner in another process: what lies at its port, as nodes of a graph, and sessions that run them.

One session has a deadline, for signs of life. The other has none, since what it puts into the learner's queue waits for
room; nor does it say anything where the other side has gone. What is done about that is in remote_learner.py.
"""

import contextlib
import json
import socket
import threading
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

from scalable_agents.ops import ops
from scalable_agents.training.cluster import cluster_config
from scalable_agents.training.cluster import learner_port

LARGEST_PUSH = 8      # Unrolls: one call takes a fraction of a millisecond, however little it brings.
ANSWER_SECONDS = 5.   # In which the learner answers, if it is well.
_PATIENCE_BEATS = 12  # Signs of life without an answer to the session without a deadline, which may have died alone.


class Learner(NamedTuple):
  """What lies at a learner's port, see learner_port.py, as nodes of a graph that runs in the learner's process."""
  graph: tf.Graph
  greeting: tf.Tensor
  report: tf.Tensor      # Fed with a string …
  enqueue_report: tf.Operation
  version: tf.Tensor     # Of the …
  parameters: list[tf.Tensor]
  unrolls: list[list[tf.Tensor]]  # Fed, the first k of them with the components of an unroll each, …
  enqueue_unrolls: list[tf.Operation]  # … for the first k of these, each of which waits for the one before it.


class NotReadyError(Exception):
  """Something is there, which is not a learner, or not yet."""


def make_graph(task: int, unroll_specs: list[tf.TensorSpec], parameter_specs: list[tf.TensorSpec],
               queue_size: int) -> Learner:
  """The graph, for several connections one after the other.

  Args:
    task: which of several learners it is.
    unroll_specs: of an unroll's components.
    parameter_specs: of what is published.
    queue_size: of the learner's queue, in unrolls.
  """
  graph = tf.Graph()
  with graph.as_default(), tf.device(f'/job:{learner_port.JOB}/replica:0/task:{task}/device:CPU:0'):
    raw = tf.raw_ops
    greeting = raw.ReadVariableOp(
        resource=raw.VarHandleOp(dtype=tf.string, shape=[], shared_name=learner_port.GREETING), dtype=tf.string)
    report = tf.compat.v1.placeholder(tf.string, [])
    reports = raw.FIFOQueueV2(component_types=[tf.string], shapes=[[]], capacity=learner_port.REPORTS_CAPACITY,
                              shared_name=learner_port.REPORTS)
    version, parameters = ops.parameter_snapshot_latest(
        ops.parameter_snapshot(shared_name=learner_port.PARAMETERS), types=[spec.dtype for spec in parameter_specs])
    # Each by itself: to take [k, ...] apart would be a copy there, and to put it together one here.
    unrolls = [[tf.compat.v1.placeholder(spec.dtype, spec.shape) for spec in unroll_specs] for _ in range(LARGEST_PUSH)]
    queue = raw.FIFOQueueV2(component_types=[spec.dtype for spec in unroll_specs],
                            shapes=[spec.shape for spec in unroll_specs], capacity=queue_size,
                            shared_name=learner_port.UNROLLS)
    enqueue_unrolls = []
    for unroll in unrolls:
      with tf.control_dependencies(enqueue_unrolls[-1:]):
        enqueue_unrolls.append(raw.QueueEnqueueV2(handle=queue, components=unroll))
    return Learner(
        graph, greeting, report, raw.QueueEnqueueV2(handle=reports, components=[report]), version, list(parameters),
        unrolls, enqueue_unrolls)


def reason(error: Exception) -> str:
  """What a user is told of an error that came from a connection: a few words."""
  if isinstance(error, tf.errors.DeadlineExceededError):
    return 'it does not answer'
  text = getattr(error, 'message', None) or getattr(error, 'strerror', None) or str(error)
  return text.split('\n', maxsplit=1)[0].split(' [[', maxsplit=1)[0]


class Connection:
  """Two sessions with one process: one with a deadline, for signs of life, and one without."""

  def __init__(self, address: str, learner: Learner):
    """Connects the session with a deadline.

    Raises:
      OSError, tf.errors.OpError or NotReadyError: there is no learner at the address, HOST:PORT, or none that answers.
    """
    host, port = cluster_config.split_address(address)
    try:
      socket.create_connection((host.strip('[]'), port), ANSWER_SECONDS).close()  # A session would not say what is wrong.
    except UnicodeError as error:
      raise OSError(f'{host} is no name of a host') from error
    self.failure = ''          # What a call on it has failed with.
    self.in_hand, self.is_lost = {}, False  # Blocks of unrolls on their way, by lane; whether they count as lost.
    self.latest_version = -1   # Of the parameters that are here.
    self.unanswered_beats = 0  # Since the session without a deadline was heard of.
    self._address, self._learner = address, learner
    self._hearing, self._data = _session(address, learner, ANSWER_SECONDS), None
    self._beat = self._hearing.make_callable([learner.greeting, learner.enqueue_report], [learner.report])
    try:
      self.greeting = json.loads(self._hearing.run(learner.greeting))
    except (tf.errors.FailedPreconditionError, tf.errors.NotFoundError) as error:  # Nothing of those names is there yet.
      raise NotReadyError('it is starting') from error
    except tf.errors.InvalidArgumentError as error:  # It has no such task.
      raise NotReadyError('it is a learner of another place in --learner_addresses') from error

  def open(self):
    """Opens the session without a deadline, which may take for ever."""
    self._data = _session(self._address, self._learner)
    self._pushes = {}  # By how many unrolls they push; each takes memory there.
    self._version = self._data.make_callable(self._learner.version)
    self._latest = self._data.make_callable([self._learner.version, self._learner.parameters])

  def close(self):
    """Ends both, in a thread: that may take for ever, too, and it is what the end of a session's object does."""
    threading.Thread(target=self._close, daemon=True).start()

  def _close(self):
    for session in filter(None, (self._hearing, self._data)):
      with contextlib.suppress(tf.errors.OpError):
        session.close()

  def beat(self, report: learner_port.Report) -> dict:
    """Reports. Returns the greeting; see learner_port.LearnerPort.offer. Raises tf.errors.OpError."""
    greeting, _ = self._beat(json.dumps(report._asdict()))
    if (now := json.loads(greeting))['life'] != self.greeting['life']:
      raise tf.errors.AbortedError(None, None, 'it is another learner now')
    self.unanswered_beats += 1
    if self.unanswered_beats > _PATIENCE_BEATS and not self.failure:
      self.failure = 'it does not answer'
    return now

  def push(self, unrolls: list[list[np.ndarray]]):
    """Puts unrolls into the learner's queue in their order; waits for room.

    Args:
      unrolls: at most LARGEST_PUSH lists of an unroll's components. Where the connection breaks, the first few of them
        may have been put.
    """
    if (count := len(unrolls)) not in self._pushes:
      self._pushes[count] = self._pusher(count)
    self._pushes[count](*sum(unrolls, []))

  def _pusher(self, count):
    """A function that pushes so many unrolls."""
    options = config_pb2.CallableOptions()
    options.feed.extend(placeholder.name for placeholder in sum(self._learner.unrolls[:count], []))
    options.target.extend(enqueue.name for enqueue in self._learner.enqueue_unrolls[:count])
    # Session.run, and what Session.make_callable gives, take a millisecond of Python for what is fed.
    return self._data._make_callable_from_options(options)  # pylint: disable=protected-access

  def fetch(self) -> tuple[int, list[np.ndarray] | None]:
    """The version of the latest parameters, and these, or None if it is `latest_version`."""
    if self.ask_version() == self.latest_version:
      return self.latest_version, None
    version, parameters = self._latest()
    return int(version), parameters

  def ask_version(self) -> int:
    """The version of the latest parameters."""
    version = int(self._version())
    self.unanswered_beats = 0
    return version


def _session(address, learner, answer_seconds=None):
  config = tf.compat.v1.ConfigProto(device_filters=[learner.greeting.device.rpartition('/')[0]])
  config.rpc_options.disable_session_connection_sharing = True  # Else a new session would use a dead connection.
  if answer_seconds:
    config.operation_timeout_in_ms = int(1000 * answer_seconds)
  return tf.compat.v1.Session(f'grpc://{address}', learner.graph, config)
