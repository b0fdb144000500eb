"""A connection from an actor host to a learner: a graph with the learner's resources, and sessions that run it.

One session has a deadline, and exchanges heartbeats with the learner. The other session has no deadline, because
pushing an unroll waits for room in the learner's queue. It does not notice that the learner is gone; remote_learner.py
does.
"""

import json
import threading
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

from scalable_agents.cluster import learner_port
from scalable_agents.ops import ops
from scalable_agents.processes import ports
from scalable_agents.processes import sessions

LARGEST_PUSH = 8      # Unrolls per call, since each call costs a fraction of a millisecond.
# The session without a deadline counts as dead after this many heartbeats in which it has received no answer.
_PATIENCE_BEATS = 12


class LearnerNodes(NamedTuple):
  """Nodes of a graph that runs in the learner's process. They use the resources at its port; see learner_port.py."""
  graph: tf.Graph
  greeting: tf.Tensor             # [] string, JSON; see learner_port.LearnerPort.offer.
  report: tf.Tensor               # [] string, the placeholder of `enqueue_report`.
  enqueue_report: tf.Operation
  version: tf.Tensor              # [] int64, the version of `parameters`.
  parameters: list[tf.Tensor]     # The latest published parameters.
  unrolls: list[list[tf.Tensor]]  # LARGEST_PUSH unrolls; each is a list of placeholders of its components.
  enqueue_unrolls: list[tf.Operation]  # Operation k puts `unrolls[k]` into the queue, after operation k - 1.


def make_graph(task: int, unroll_specs: list[tf.TensorSpec], parameter_specs: list[tf.TensorSpec],
               queue_size: int) -> LearnerNodes:
  """Makes the graph. Successive connections may share it.

  Args:
    task: the number of the learner among several.
    unroll_specs: the specs of an unroll's components.
    parameter_specs: the specs of the published parameters.
    queue_size: the capacity of the learner's queue, in unrolls.
  """
  graph = tf.Graph()
  with graph.as_default(), tf.device(f'/job:{learner_port.JOB}/replica:0/task:{task}/device:CPU:0'):
    raw = tf.raw_ops
    greeting = sessions.text_of(sessions.shared_text(learner_port.GREETING))
    report = tf.compat.v1.placeholder(tf.string, [])
    reports = sessions.shared_queue(learner_port.REPORTS)
    version, parameters = ops.parameter_snapshot_latest(
        ops.parameter_snapshot(shared_name=learner_port.PARAMETERS), types=[spec.dtype for spec in parameter_specs])
    # Each unroll is fed alone. A stack of k unrolls would cost a copy here and another one in the learner.
    unrolls = [[tf.compat.v1.placeholder(spec.dtype, spec.shape) for spec in unroll_specs] for _ in range(LARGEST_PUSH)]
    queue = raw.FIFOQueueV2(component_types=[spec.dtype for spec in unroll_specs],
                            shapes=[spec.shape for spec in unroll_specs], capacity=queue_size,
                            shared_name=learner_port.UNROLLS)
    enqueue_unrolls = []
    for unroll in unrolls:
      with tf.control_dependencies(enqueue_unrolls[-1:]):
        enqueue_unrolls.append(raw.QueueEnqueueV2(handle=queue, components=unroll))
    return LearnerNodes(
        graph, greeting, report, raw.QueueEnqueueV2(handle=reports, components=[report]), version, list(parameters),
        unrolls, enqueue_unrolls)


class Connection:
  """Two sessions with one learner: one with a deadline, for heartbeats, and one without a deadline."""

  def __init__(self, address: str, learner: LearnerNodes):
    """Connects the session with a deadline.

    Raises:
      OSError, tf.errors.OpError or NotReadyError: no learner answers at the address, HOST:PORT.
    """
    ports.check_address(address)
    self.failure = ''          # Why a call failed, '' if none has failed.
    self.in_flight = {}        # Lane -> its block of unrolls in flight.
    self.is_lost = False       # Whether the blocks in flight count as lost.
    self.latest_version = -1   # The version of the parameters last received; -1 before the first.
    self.unanswered_beats = 0  # Heartbeats since the session without a deadline last answered.
    self._address = address
    self._learner = learner
    self._heartbeat_session = self._session(ports.ANSWER_SECONDS)
    self._data_session: Any = None  # Without a deadline.
    self._beat = self._heartbeat_session.make_callable([learner.greeting, learner.enqueue_report], [learner.report])
    try:
      self.greeting = sessions.read_greeting(
          self._heartbeat_session, learner.greeting,
          'the process there is no learner, or one with another place in --learner_addresses')
    except Exception:
      self.close()  # In a thread. Without this, the deletion of the session would block this one.
      raise

  def open(self):
    """Opens the session without a deadline. This may block for ever."""
    self._data_session = self._session()
    self._pushes = {}  # Number of unrolls -> callable. Each callable takes memory in the learner.
    self._version = self._data_session.make_callable(self._learner.version)
    self._latest = self._data_session.make_callable([self._learner.version, self._learner.parameters])

  def close(self) -> threading.Thread:
    """Closes both sessions in a thread, which it returns, since closing may block for ever."""
    return sessions.close(*filter(None, (self._heartbeat_session, self._data_session)))

  def _session(self, answer_seconds=None):
    return sessions.make_session(self._address, self._learner.graph, self._learner.greeting.device.rpartition('/')[0],
                                 answer_seconds)

  def beat(self, report: learner_port.Report) -> dict:
    """Sends a report. Returns the greeting; see learner_port.LearnerPort.offer. Raises tf.errors.OpError."""
    greeting, _ = self._beat(json.dumps(report._asdict()))
    if (now := json.loads(greeting))['incarnation'] != self.greeting['incarnation']:
      raise tf.errors.AbortedError(None, None, 'another learner answers now')
    self.unanswered_beats += 1
    if self.unanswered_beats > _PATIENCE_BEATS and not self.failure:
      self.failure = 'it does not answer'
    return now

  def push(self, unrolls: list[list[np.ndarray]]):
    """Puts unrolls into the learner's queue in their order. Waits for room.

    If the connection breaks, the first few unrolls may be in the queue.

    Args:
      unrolls: at most LARGEST_PUSH unrolls. Each is a list of its components.
    """
    if (count := len(unrolls)) not in self._pushes:
      self._pushes[count] = self._pusher(count)
    self._pushes[count](*sum(unrolls, []))

  def _pusher(self, count):
    """Returns a function that pushes `count` unrolls."""
    options = config_pb2.CallableOptions()
    options.feed.extend(placeholder.name for placeholder in sum(self._learner.unrolls[:count], []))
    options.target.extend(enqueue.name for enqueue in self._learner.enqueue_unrolls[:count])
    # Session.run and Session.make_callable would spend a millisecond in Python on the fed values.
    return self._data_session._make_callable_from_options(options)

  def fetch(self) -> tuple[int, list[np.ndarray] | None]:
    """Returns the latest version and its parameters. The parameters are None if the version is `latest_version`."""
    if self.ask_version() == self.latest_version:
      return self.latest_version, None
    version, parameters = self._latest()
    return int(version), parameters

  def ask_version(self) -> int:
    """Returns the version of the latest parameters."""
    version = int(self._version())
    self.unanswered_beats = 0
    return version


