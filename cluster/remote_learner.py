"""An actor host's side of a cluster: it sends unrolls to a learner in another process and fetches parameters from it.

Some threads push unrolls through TensorFlow sessions into the learner's queue, and block while it is full. One thread
fetches parameters. They may come from a relay (relay.py). A single thread pushes all unrolls of an actor, so that they
arrive in their order. These threads use a session without a deadline, which does not notice that the learner is gone.
Therefore another thread exchanges a heartbeat with the learner every few seconds, through a session with a deadline. It
makes a new connection where needed. The learner's side is learner_port.py.
"""

from collections.abc import Callable
import contextlib
import json
import threading
import time
from typing import Any, NamedTuple
import uuid

import tensorflow as tf

from scalable_agents.actor import parameters as parameters_lib
from scalable_agents.cluster import learner_connection
from scalable_agents.cluster import learner_port
from scalable_agents.cluster import outbox
from scalable_agents.cluster import relay as relay_lib
from scalable_agents.ops import ops
from scalable_agents.processes import ports
from scalable_agents.processes import sessions
from scalable_agents.records import errors

_PUSHERS = 2
_PUSH_BYTES = 4_500_000        # Bytes per call. More would not fit into the processor's caches.
_RETRY_SECONDS = 1.            # The time between two attempts to reach the learner.
_PATIENCE_SECONDS = 15.        # After this long without a heartbeat, the host tries a new connection.
_FIRST_MESSAGE_SECONDS = 5.    # After this long without a learner, the user gets a message.
_LATER_MESSAGES_SECONDS = 30.  # The time between further messages.
_TICK_SECONDS = 0.02
_RELAYED_SECONDS = 10.        # A relay's parameters are at most this old, even if its own environments stand still.


class RefusedError(errors.UserError):
  """The learner does not accept this actor host. The message is one line: the learner's address, why, the remedy."""


class Totals(NamedTuple):
  """Counts since the start."""
  unrolls: int       # Unrolls sent.
  bytes: int         # Bytes of unrolls sent and parameters received.
  reconnects: int
  lost_unrolls: int  # Unrolls in flight when a connection broke. The learner may have received them.


class RemoteLearner:
  """Takes unrolls (`put`) and keeps the latest parameters. Graphs may use both, and neither waits for the network.

  Attributes:
    parameters: the parameters.ParameterSnapshot of those that arrived last.
  """

  def __init__(self, address: str, task: int, settings: dict[str, Any], unroll_spec, parameter_specs,
               queue_size: int, is_due: Callable[[], bool], make_report: Callable[[Totals], learner_port.Report],
               say: Callable[[str], None], on_end: Callable[[], None], device: str = '/CPU:0',
               parameter_precision: str = 'float32', relay_port: relay_lib.RelayPort | None = None,
               parameters_from: str = '', largest_push: int | None = None):
    """Makes no connection yet; see `start`.

    Args:
      address: HOST:PORT of the learner.
      task: the number of the learner among several.
      settings, unroll_spec, parameter_specs: they must equal the learner's; see learner_port.LearnerPort. An unroll
        has an `actor_id`.
      queue_size: the capacity of the learner's queue, in unrolls.
      is_due: returns whether to fetch the latest parameters now. It is called often.
      make_report: returns this host's report.
      say: called with a line for the user.
      on_end: called from another thread when the run has ended, or when `check` has an error to raise.
      device: where this host acts, and keeps the parameters.
      parameter_precision: the data type of weights on their way; see parameters.sent_specs.
      relay_port: serves the parameters to other actor hosts. None: this host is no relay.
      parameters_from: HOST:PORT of the relay from which parameters come. '': they come from the learner.
      largest_push: the most unrolls that are sent together, and that a lane keeps before `put` waits. None: as many as
        the processor's caches hold.
    """
    self._address = address
    self._own = json.loads(json.dumps(learner_port.contract(settings, unroll_spec, parameter_specs)))
    self._is_due = is_due
    self._make_report = make_report
    self._say = say
    self._on_end = on_end
    self._incarnation = uuid.uuid4().hex
    size = ops.num_bytes(unroll_spec)
    largest_push = max(1, min(largest_push or learner_connection.LARGEST_PUSH, _PUSH_BYTES // size))
    self._lanes = [outbox.Lane(unroll_spec, largest_push) for _ in range(_PUSHERS)]
    self.parameters = parameters_lib.ParameterSnapshot(parameter_specs, device)
    self._types = tuple(spec.dtype for spec in parameter_specs)
    self._sent_specs = parameters_lib.sent_specs(parameter_specs, parameter_precision)
    self._graph = learner_connection.make_graph(task, tf.nest.flatten(unroll_spec), self._sent_specs, queue_size)
    self._relay_port = relay_port
    self._relay = relay_lib.Relay(parameters_from, self._sent_specs, say) if parameters_from else None
    self._lock = threading.Lock()
    self._totals = Totals(0, 0, 0, 0)  # _lock guards the totals, the connection and `unsent` of the lanes.
    self._connection = None
    self._ready = threading.Event()
    self._stop = threading.Event()
    self._nudge = threading.Event()
    self._error = None
    self._heart = threading.Thread(target=self._guard, args=[self._keep_contact], name='heart', daemon=True)

  def start(self):
    """Starts a thread that connects to the learner. It tries until it succeeds or this object is closed."""
    self._heart.start()

  def wait_for_parameters(self, seconds: float) -> bool:
    """Waits at most this long for the first parameters. Returns whether they have arrived."""
    return self._ready.wait(seconds)

  def put(self, unroll):
    """Takes an unroll, also in a graph. Waits for room. Raises CancelledError once this is closed."""
    return outbox.put(self._lanes, unroll)

  def totals(self) -> Totals:
    """Returns what was sent so far."""
    with self._lock:
      return self._totals

  def check(self):
    """Raises the error that ended the contact with the learner, if there was one. The end of the run is no error."""
    if self._error:
      raise self._error

  def close(self):
    """Tells the learner that this host leaves, and ends every wait. Only daemon threads may still wait for the network.

    Idempotent.
    """
    self._stop.set()
    self._nudge.set()
    for lane in self._lanes:
      lane.close()
    if self._heart.is_alive():
      self._heart.join(2 * ports.ANSWER_SECONDS)
    if self._connection:
      self._connection.close()

  def _guard(self, target, connection=None, *args):
    """Runs a thread's target. An error marks the connection as failed, or else ends the contact."""
    try:
      target(*[connection, *args] if connection else [])
    except Exception as error:  # `check` raises it.
      if connection and (isinstance(error, tf.errors.OpError) or not self._is_current(connection)):
        # The run may have ended: the greeting tells. A closed connection fails for another reason than the first one.
        connection.failure = connection.failure or sessions.reason(error)
        self._nudge.set()
        return
      self._error = error
      self._on_end()

  def _keep_contact(self):
    """Connects, exchanges heartbeats, and reconnects, until the run ends or this object is closed."""
    heard = said = time.monotonic()
    saves = False  # Whether the learner saves at the end of the run.
    is_withdrawn = False
    while not self._stop.is_set():
      before = self._connection
      try:
        greeting = self._contact(time.monotonic() - heard)
        if greeting['ended']:
          self._report_leaving()
          return self._on_end()
        saves = greeting['saving']
        if is_withdrawn and self._connection:
          self._connection.latest_version = -1  # The relay gets its parameters again, even if they are the same.
          is_withdrawn = False
        if before is not self._connection and (before or said != heard):
          self._say(f'connected to the learner at {self._address}' + (f' again ({before.failure})' if before else ''))
        elif said != heard:
          self._say(f'the learner at {self._address} answers again')
        heard = said = time.monotonic()
      except (tf.errors.OpError, OSError, sessions.NotReadyError) as error:
        saves = False
        if self._relay_port:
          self._relay_port.withdraw()
          is_withdrawn = True
        now = time.monotonic()
        if now - said >= (_FIRST_MESSAGE_SECONDS if said == heard else _LATER_MESSAGES_SECONDS):
          said = now
          self._say(f'no learner at {self._address} for {now - heard:.0f} s: {sessions.reason(error)}')
      if before is not self._connection:
        self._stop.wait(_RETRY_SECONDS)  # Limits the rate of connections that fail at once.
      self._nudge.wait(ports.BEAT_SECONDS if heard == said and not saves else _RETRY_SECONDS)
      self._nudge.clear()
    self._report_leaving()

  def _contact(self, silence_seconds):
    """Returns the learner's greeting, through a new connection if needed. Raises if there is no answer."""
    if (connection := self._connection) is None:
      return self._connect()
    try:
      greeting = connection.beat(self._report())
      if self._incarnation in greeting['unwelcome']:
        raise RefusedError(f'{self._address}: another actor host has the same number: give each actor host a --task of '
                           'its own, or start this one again if its number was random')
      if greeting['ended'] or greeting['saving'] or not connection.failure:
        return greeting
    except tf.errors.OpError as error:
      # A frozen learner may recover. Then the unrolls that wait in the connection arrive, so keep it for a while.
      if isinstance(error, tf.errors.DeadlineExceededError) and not connection.failure and (
          silence_seconds < _PATIENCE_SECONDS):
        raise
      connection.failure = connection.failure or sessions.reason(error)
    return self._connect()

  def _connect(self):
    """Replaces the connection by a new one. Returns the greeting. Raises if no connection is possible."""
    connection = learner_connection.Connection(self._address, self._graph)
    greeting = connection.greeting
    if greeting['ended'] or greeting['saving']:
      connection.close()
      return greeting
    _compare(self._address, self._own, greeting)
    with self._lock:
      old, self._connection = self._connection, connection
      if old:
        lost = 0
        if old.greeting['incarnation'] != greeting['incarnation']:
          # A new learner gets these unrolls again. It drops those that were in the queue before its checkpoint.
          for lane, block in old.in_flight.items():
            lane.unsent.appendleft(block)  # Older than all blocks taken since.
          old.in_flight.clear()
        else:
          old.is_lost, lost = True, sum(map(len, old.in_flight.values()))
        self._totals = self._totals._replace(reconnects=self._totals.reconnects + 1,
                                             lost_unrolls=self._totals.lost_unrolls + lost)
        old.close()
    self._start(self._refresh, connection)
    return connection.beat(self._report())  # So that the learner knows of this host at once.

  def _report_leaving(self):
    if self._connection:
      with contextlib.suppress(tf.errors.OpError):  # The learner is gone already.
        self._connection.beat(self._report()._replace(leaving=True))

  def _report(self):
    return self._make_report(self.totals())._replace(incarnation=self._incarnation)

  def _is_current(self, connection):
    return connection is self._connection and not self._stop.is_set()

  def _start(self, target, connection, *args):
    threading.Thread(target=self._guard, args=[target, connection, *args], daemon=True).start()

  def _push(self, connection, lane):
    """Pushes the unrolls of a lane while the connection is in use."""
    while (block := self._next_block(connection, lane)) is not None:
      connection.push(block)  # Waits for room.
      with self._lock:
        if connection.in_flight.pop(lane, None) is None:
          return  # The next connection sends it again.
        self._totals = self._totals._replace(
            unrolls=self._totals.unrolls + len(block),
            bytes=self._totals.bytes + sum(array.nbytes for unroll in block for array in unroll),
            lost_unrolls=self._totals.lost_unrolls - connection.is_lost * len(block))

  def _next_block(self, connection, lane):
    """Waits for a block of unrolls and marks it as in flight. Returns None if the connection is no longer in use."""
    block = self._mark_in_flight(connection, lane)
    if block is None:
      with lane.taking:
        # The thread that held `taking` may have left its block in `unsent`, since its connection was replaced.
        block = self._mark_in_flight(connection, lane)
        if block is None and self._is_current(connection):
          if (taken := lane.take()) is None:
            return None  # The lane is closed.
          with self._lock:
            lane.unsent.append(taken)
          block = self._mark_in_flight(connection, lane)
    return block

  def _mark_in_flight(self, connection, lane):
    """Marks a lane's first unsent block as in flight. Returns None if there is none or the connection is not in use."""
    with self._lock:
      if not lane.unsent or not self._is_current(connection):
        return None
      block = connection.in_flight[lane] = lane.unsent.popleft()
      return block

  def _refresh(self, connection):
    """Fetches the first parameters, and then, while the connection is in use, new ones whenever they are due."""
    connection.open()
    self._fetch(connection)
    fetched = time.monotonic()
    for lane in self._lanes:
      self._start(self._push, connection, lane)
    while self._is_current(connection):
      if connection.unanswered_beats > 1:  # An answer of a relay does not show that the learner is alive.
        connection.ask_version()
      if self._is_due() or (self._relay_port and time.monotonic() - fetched > _RELAYED_SECONDS):
        self._fetch(connection)
        fetched = time.monotonic()
      else:
        time.sleep(_TICK_SECONDS)

  def _fetch(self, connection):
    latest = self._relay and self._relay.fetch(connection.greeting['incarnation'], connection.latest_version)
    version, parameters = latest or connection.fetch()
    with self._lock:
      if parameters is not None and connection is self._connection:  # A newer connection may have newer ones.
        connection.latest_version = version
        with errors.of_user(tf.errors.OpError, prefix='parameters that have arrived cannot be kept: '):
          self.parameters.publish(version, parameters_lib.cast(parameters, self._types))
        if self._relay_port:
          self._relay_port.publish(connection.greeting['incarnation'], self._sent_specs, version, parameters)
        self._ready.set()
        self._totals = self._totals._replace(bytes=self._totals.bytes + sum(array.nbytes for array in parameters))


def _compare(address, own, greeting):
  """Raises RefusedError, with the differences, if this host's contract differs from the learner's."""
  differing = sessions.differences(greeting['settings'], own['settings'])
  for name, what in (('unroll', 'shapes or types of unrolls'), ('parameters', "the network's parameters")):
    if not differing and own[name] != greeting[name]:
      differing.append(f'{what} are {_difference(greeting[name], own[name])}')
  if not differing and own['report'] != greeting.get('report'):
    differing.append('the fields of reports differ')
  if differing:
    raise RefusedError(f'{address}: the learner has another configuration: {"; ".join(differing)}. Give all processes '
                       'of a cluster the same flags and the same version of this program')


def _difference(theirs, ours):
  """Describes the first spec that differs."""
  for one, other in zip(theirs, ours, strict=False):
    if one != other:
      return f'{one[0]} {one[1]} there and {other[0]} {other[1]} here'
  return f'{len(theirs)} there and {len(ours)} here'
