"""A relay: an actor host that serves the parameters that it fetches to other actor hosts.

The learner then sends them once for all hosts behind the relay. A relay has a port like the learner's, with a snapshot
of parameters and the id of the learner from which they come. A host behind it still sends its unrolls and reports to
the learner. It fetches parameters from the learner whenever the relay does not have those of this learner.
"""

from collections.abc import Callable, Sequence
import threading
import time
from typing import Any

import numpy as np
import tensorflow as tf

from scalable_agents.actor import parameters as parameters_lib
from scalable_agents.cluster import learner_port
from scalable_agents.ops import ops
from scalable_agents.processes import ports
from scalable_agents.processes import sessions

# The time between two attempts to reach a relay. No parameters come during an attempt. A frozen relay makes it last for
# ports.ANSWER_SECONDS, or for _TRANSFER_SECONDS if it freezes while it sends them.
_RETRY_SECONDS = 20.
# The longest time for the parameters to arrive: many hosts may ask for them at once. It is shorter than the time after
# which a learner that nobody asks counts as dead; see learner_connection.
_TRANSFER_SECONDS = 40.


class RelayPort:
  """A relay's port. It stays open until the process ends."""

  def __init__(self, port: int):
    """Opens the port on all network interfaces. Must run before TensorFlow computes anything.

    Raises:
      ports.PortError: another process has the port.
    """
    self._lock = sessions.open_port(learner_port.JOB, f'localhost:{port}', 'relay', 'relay_port')
    with tf.device('/CPU:0'):
      self._source = sessions.shared_text(learner_port.GREETING)
    self._snapshot: Any = None
    self.withdraw()

  def publish(self, learner: str, specs: Sequence[tf.TensorSpec], version: int, parameters: Sequence[np.ndarray]):
    """Serves parameters in place of those before.

    Args:
      learner: the incarnation of the learner from which they come, as in its greeting.
      specs: their specs, which never change.
      version: their version.
      parameters: an array for each spec.
    """
    if self._snapshot is None:
      self._snapshot = parameters_lib.ParameterSnapshot(specs, shared_name=learner_port.PARAMETERS)
    self._snapshot.publish(version, parameters)
    # Afterwards, so that nobody takes the parameters of an earlier learner for this one's.
    sessions.set_text(self._source, learner)

  def withdraw(self):
    """Serves nothing until the next `publish`, because the learner does not answer."""
    sessions.set_text(self._source, '')


class Relay:
  """A relay as a source of parameters. Thread-safe."""

  def __init__(self, address: str, specs: Sequence[tf.TensorSpec], say: Callable[[str], None]):
    """Makes no connection yet.

    Args:
      address: HOST:PORT of the relay.
      specs: the specs of the parameters.
      say: called with a line for the user when the relay begins or ceases to serve.
    """
    self._address = address
    self._say = say
    self._lock = threading.Lock()  # While a host changes its connection to the learner, two of its threads may fetch.
    self._session: Any = None
    self._retry_at = 0.
    self._serves: bool | None = None  # None before the first attempt.
    task = f'/job:{learner_port.JOB}/replica:0/task:0'
    self._graph, self._task = tf.Graph(), task
    with self._graph.as_default(), tf.device(f'{task}/device:CPU:0'):
      source = sessions.text_of(sessions.shared_text(learner_port.GREETING))
      with tf.control_dependencies([source]):  # Otherwise they could be those from before the source was named.
        version, parameters = ops.parameter_snapshot_latest(
            ops.parameter_snapshot(shared_name=learner_port.PARAMETERS), types=[spec.dtype for spec in specs])
      self._state, self._latest = [source, version], [source, version, list(parameters)]

  def fetch(self, learner: str, known_version: int) -> tuple[int, list[np.ndarray] | None] | None:
    """Returns the latest version and its parameters. Waits for a limited time.

    Args:
      learner: the incarnation of this host's learner.
      known_version: the version that this host has. The parameters are None if the relay has no later one.
    Returns:
      None if the relay cannot be reached or has no parameters of this learner.
    """
    with self._lock:
      return self._fetch(learner, known_version)

  def _fetch(self, learner, known_version):
    if self._session is None and time.monotonic() < self._retry_at:
      return None
    try:
      if self._session is None:
        ports.check_address(self._address)
        self._session = sessions.make_session(self._address, self._graph, self._task, ports.ANSWER_SECONDS)
      version, parameters = self._ask(learner, known_version)
    except (tf.errors.OpError, OSError, sessions.NotReadyError) as error:
      self._close()
      self._retry_at = time.monotonic() + _RETRY_SECONDS
      if self._serves is not False:
        self._say(f'no parameters from the relay at {self._address}: {sessions.reason(error)}; they come from the '
                  'learner until the relay has them')
      self._serves = False
      return None
    if not self._serves:
      self._say(f'parameters come from the relay at {self._address}')
    self._serves = True
    return version, parameters

  def _ask(self, learner, known_version):
    try:
      source, version = self._session.run(self._state)
      parameters = None
      if source.decode() == learner and version > known_version:
        source, version, parameters = self._session.run(
            self._latest, options=tf.compat.v1.RunOptions(timeout_in_ms=int(1000 * _TRANSFER_SECONDS)))
    except (tf.errors.FailedPreconditionError, tf.errors.NotFoundError) as error:  # It has published nothing yet.
      raise sessions.NotReadyError('it has no parameters yet') from error
    if source.decode() != learner:
      raise sessions.NotReadyError('it serves another learner, or has lost its learner')
    return int(version), parameters

  def _close(self):
    """Closes the connection, in another thread. `fetch` makes a new one."""
    if self._session is not None:
      sessions.close(self._session)
      self._session = None
