"""An actor host's side of a cluster: the learner of another process, as where unrolls go and parameters come from.

Threads push unrolls through TensorFlow sessions into the learner's queue, where they wait while it is full; another
fetches parameters. A session has no deadline for that, and says nothing where the other side has gone. So a thread asks
a second session, which has one, for a sign of life every few seconds, and makes a new connection where it has to. The
other side is cluster.py.
"""

import collections
import contextlib
import json
import socket
import threading
import time
from typing import Any, Callable, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

from scalable_agents.actor import ops
from scalable_agents.actor import parameters as parameters_lib
from scalable_agents.agents import cluster
from scalable_agents.learner import queue as unroll_queue

_PUSHERS = 2
_LARGEST_PUSH = 8           # Unrolls: one call takes a fraction of a millisecond, however little it brings.
_PUSH_BYTES = 4_500_000     # Larger calls leave the processors' caches.
_ANSWER_SECONDS = 5.        # In which the learner answers, if it is well.
_RETRY_SECONDS = 1.
_PATIENCE_SECONDS = 15.     # Without a sign of life before another connection is tried.
_PATIENCE_BEATS = 12        # Signs of life without an answer to the other session, which may have lost its way alone.
_FIRST_WORD_SECONDS = 5.    # Of silence until the user is told, …
_LATER_WORDS_SECONDS = 30.  # … and again.
_TICK_SECONDS = 0.02


class RefusedError(Exception):
  """This actor host is not one of the learner's. The message is one line: what, where, what to do."""


class Totals(NamedTuple):
  """Counts since the start."""
  unrolls: int
  bytes: int         # Of unrolls and parameters.
  reconnects: int
  lost_unrolls: int  # Of which it is not known whether they were received.


class _Learner(NamedTuple):
  """The names of `cluster` as nodes of a graph that runs in the learner's process."""
  graph: tf.Graph
  greeting: tf.Tensor
  report: tf.Tensor       # Fed with a string …
  enqueue_report: tf.Operation
  version: tf.Tensor
  parameters: list
  unrolls: list           # Fed, as many of these as are pushed in one call, with the components of each …
  enqueue_unrolls: list   # … for the first of those operations.


class RemoteLearner:
  """Where unrolls go (`put`) and parameters come from (`latest`); both in graphs, both without the network."""

  def __init__(self, address: str, task: int, settings: dict[str, Any], unroll_spec, parameter_specs,
               queue_size: int, is_due: Callable[[], bool], make_report: Callable[[Totals], cluster.Report],
               say: Callable[[str], None], on_end: Callable[[], None]):
    """Looks for nothing yet.

    Args:
      address: HOST:PORT of the learner.
      task: which of several learners it is.
      settings, unroll_spec, parameter_specs: as the learner's own, see cluster.LearnerPort.offer.
      queue_size: of the learner's queue, in unrolls.
      is_due: asked now and then whether it is time for the latest parameters.
      make_report: says how this host is.
      say: called with a line for the user.
      on_end: called from a thread here when the run has ended, or `check` has something to raise.
    """
    self._address, self._task = address, task
    self._own = json.loads(json.dumps({'settings': settings, 'unroll': cluster.specs(unroll_spec),
                                       'parameters': cluster.specs(parameter_specs)}))
    self._is_due, self._make_report, self._say, self._on_end = is_due, make_report, say, on_end
    size = sum(spec.shape.num_elements() * spec.dtype.size for spec in tf.nest.flatten(unroll_spec))
    self._largest_push = max(1, min(_LARGEST_PUSH, _PUSH_BYTES // size))
    # Pushed from there as many at a time as there are.
    self._outbox = unroll_queue.UnrollQueue(
        unroll_spec, self._largest_push, tf.nest.map_structure(lambda spec: False, unroll_spec))
    self._takers = [self._taker(count) for count in range(1, self._largest_push + 1)]
    self._outbox_lock = threading.Lock()
    self._snapshot = parameters_lib.ParameterSnapshot(parameter_specs)
    self._graph = _graph(task, tf.nest.flatten(unroll_spec), parameter_specs, queue_size)
    self._lock = threading.Lock()
    self._totals = Totals(0, 0, 0, 0)  # Guarded by _lock, as are the next two.
    self._unsent = collections.deque()  # Lists of unrolls that left the outbox for a connection given up since.
    self._connection = None
    self._ready, self._stop, self._nudge = threading.Event(), threading.Event(), threading.Event()
    self._error = None
    self._heart = threading.Thread(target=self._guard, args=[self._keep_contact], name='heart', daemon=True)

  def start(self):
    """Begins to look for the learner, and goes on as long as it takes."""
    self._heart.start()

  def wait_for_parameters(self, seconds: float) -> bool:
    """Waits at most so long; whether there are any."""
    return self._ready.wait(seconds)

  def put(self, unroll):
    """Takes an unroll, in a graph; waits for room. CancelledError once this is closed."""
    return self._outbox.put(unroll)

  def latest(self):
    """The version and the parameters that came last; see ParameterSnapshot."""
    return self._snapshot.latest()

  def totals(self) -> Totals:
    with self._lock:
      return self._totals

  def check(self):
    """Raises what ended the contact, if it was anything but the run's end."""
    if self._error:
      raise self._error

  def close(self):
    """Takes leave and ends all waits but those on the network, which daemons wait for. Idempotent."""
    self._stop.set()
    self._nudge.set()
    self._outbox.close()
    if self._heart.is_alive():
      self._heart.join(2 * _ANSWER_SECONDS)
    if self._connection:
      self._connection.close()

  def _guard(self, target, connection=None):
    try:
      target(*[connection] if connection else [])
    except Exception as error:  # pylint: disable=broad-except; raised by `check`.
      if connection and (isinstance(error, tf.errors.OpError) or not self._is_current(connection)):
        connection.failed = True  # Or the run has ended: the greeting tells.
        self._nudge.set()
        return
      self._error = error
      self._on_end()

  def _keep_contact(self):
    """Connects, asks for signs of life, and connects again."""
    heard = said = time.monotonic()
    while not self._stop.is_set():
      before = self._connection
      try:
        greeting = self._contact(time.monotonic() - heard)
        if greeting['ended']:
          self._take_leave()
          return self._on_end()
        if before is not self._connection and (before or said != heard):
          self._say(f'connected to the learner at {self._address}{" again" if before else ""}')
        elif said != heard:
          self._say(f'the learner at {self._address} answers again')
        heard = said = time.monotonic()
      except (tf.errors.OpError, OSError, _NotReadyError) as error:
        now = time.monotonic()
        if now - said >= (_FIRST_WORD_SECONDS if said == heard else _LATER_WORDS_SECONDS):
          said = now
          self._say(f'no learner at {self._address} for {now - heard:.0f} s: {_reason(error)}')
      if before is not self._connection:
        self._stop.wait(_RETRY_SECONDS)  # Not one connection after the other, should each fail at once.
      self._nudge.wait(cluster.BEAT_SECONDS if heard == said else _RETRY_SECONDS)
      self._nudge.clear()
    self._take_leave()

  def _contact(self, silence_seconds):
    """Returns the learner's greeting, through a new connection if need be. Raises what keeps it from that."""
    if (connection := self._connection) is None:
      return self._connect()
    try:
      greeting = connection.beat(self._make_report(self.totals()))
      if greeting['ended'] or not connection.failed:
        return greeting
    except tf.errors.DeadlineExceededError:
      # While it is but frozen, the connection is kept: what waits in it will go through.
      if not connection.failed and silence_seconds < _PATIENCE_SECONDS:
        raise
    except tf.errors.OpError:
      connection.failed = True
    return self._connect()

  def _connect(self):
    """Makes a new connection, if it can, and lets it take the old one's place. Returns the greeting."""
    connection = _Connection(self._address, self._graph)
    greeting = connection.greeting
    if greeting['ended']:
      return greeting
    _compare(self._address, self._own, greeting)
    with self._lock:
      old, self._connection = self._connection, connection
      if old:
        in_hand, lost = old.in_hand.values(), 0
        if old.greeting['life'] != greeting['life']:  # What went to the old one cannot have been learned from.
          self._unsent.extend(in_hand)
        else:
          old.is_lost, lost = True, sum(map(len, in_hand))
        self._totals = self._totals._replace(reconnects=self._totals.reconnects + 1,
                                             lost_unrolls=self._totals.lost_unrolls + lost)
        old.close()
    self._start(self._refresh, connection)
    return connection.beat(self._make_report(self.totals()))  # So that it knows of this host from the beginning.

  def _take_leave(self):
    if self._connection:
      with contextlib.suppress(tf.errors.OpError):  # It has gone first.
        self._connection.beat(self._make_report(self.totals())._replace(leaving=True))

  def _is_current(self, connection):
    return connection is self._connection and not self._stop.is_set()

  def _start(self, target, connection):
    threading.Thread(target=self._guard, args=[target, connection], daemon=True).start()

  def _push(self, connection):
    """Pushes unrolls as long as the connection is in use."""
    while (block := self._next_block(connection)) is not None:
      connection.push(block)  # Waits for room.
      with self._lock:
        del connection.in_hand[threading.get_ident()]
        self._totals = self._totals._replace(
            unrolls=self._totals.unrolls + len(block),
            bytes=self._totals.bytes + sum(array.nbytes for unroll in block for array in unroll),
            lost_unrolls=self._totals.lost_unrolls - connection.is_lost * len(block))

  def _next_block(self, connection):
    """Waits for unrolls, a list of arrays each, and takes them in hand. None where the connection is not in use."""
    block = self._take_in_hand(connection)
    if block is None:
      with self._outbox_lock:
        # Whoever had the lock before may have waited there for a connection given up since.
        block = self._take_in_hand(connection)
        if block is None and self._is_current(connection):
          take = self._takers[max(1, min(self._outbox.size(), self._largest_push)) - 1]
          try:
            taken = [[_array(tensor) for tensor in unroll] for unroll in take()]
          except tf.errors.OutOfRangeError:
            return None  # The outbox was closed.
          with self._lock:
            self._unsent.append(taken)
          block = self._take_in_hand(connection)
    return block

  def _take_in_hand(self, connection):
    """The first of the unsent blocks. None where there is none, or not for this connection."""
    with self._lock:
      if not self._unsent or not self._is_current(connection):
        return None
      block = connection.in_hand[threading.get_ident()] = self._unsent.popleft()
      return block

  def _taker(self, count):
    """A function that waits for so many unrolls."""
    take = tf.function(lambda: [tf.nest.flatten(self._outbox.take()) for _ in range(count)], autograph=False)
    return take.get_concrete_function()  # To find it again takes as long as a call of it.

  def _refresh(self, connection):
    """Fetches parameters: the first ones, and then, when it is time, as long as the connection is in use."""
    connection.open()
    self._fetch(connection)
    self._ready.set()
    for _ in range(_PUSHERS):
      self._start(self._push, connection)
    while self._is_current(connection):
      if self._is_due():
        self._fetch(connection)
      elif connection.unanswered_beats > 1:
        connection.ask_version()
      else:
        time.sleep(_TICK_SECONDS)

  def _fetch(self, connection):
    version, parameters = connection.fetch()
    with self._lock:
      if parameters is not None and connection is self._connection:  # Else there may be later ones.
        connection.latest_version = version
        self._snapshot.publish(version, parameters)
        self._totals = self._totals._replace(bytes=self._totals.bytes + sum(array.nbytes for array in parameters))


class _NotReadyError(Exception):
  """Something is there, which is not a learner, or not yet."""


class _Connection:
  """Two sessions with one process: one with a deadline, for signs of life, and one without."""

  def __init__(self, address, learner):
    """Raises OSError, tf.errors.OpError or _NotReadyError: there is no learner, or none that answers."""
    host, port = cluster.split_address(address)
    try:
      socket.create_connection((host.strip('[]'), port), _ANSWER_SECONDS).close()  # A session would not say what is wrong.
    except UnicodeError as error:
      raise OSError(f'{host} is no name of a host') from error
    self.failed = False        # A call on it has.
    self.in_hand, self.is_lost = {}, False  # Blocks of unrolls on their way, by thread; whether they count as lost.
    self.latest_version = -1   # Of the parameters that are here.
    self.unanswered_beats = 0  # Since the session without a deadline was heard of.
    self._address, self._learner = address, learner
    self._hearing, self._data = _session(address, learner, _ANSWER_SECONDS), None
    self._beat = self._hearing.make_callable([learner.greeting, learner.enqueue_report], [learner.report])
    try:
      self.greeting = json.loads(self._hearing.run(learner.greeting))
    except (tf.errors.FailedPreconditionError, tf.errors.NotFoundError) as error:  # Nothing of those names is there yet.
      raise _NotReadyError('it is starting') from error
    except tf.errors.InvalidArgumentError as error:  # It has no such task.
      raise _NotReadyError('it is a learner of another place in --learner_addresses') from error

  def open(self):
    """Opens the session without a deadline, which may take for ever."""
    self._data = _session(self._address, self._learner)
    self._pushes = [self._pusher(count) for count in range(1, _LARGEST_PUSH + 1)]
    self._version = self._data.make_callable(self._learner.version)
    self._latest = self._data.make_callable([self._learner.version, self._learner.parameters])

  def close(self):
    """Ends both, in a thread: that may take for ever, too, and it is what the end of a session's object does."""
    threading.Thread(target=self._close, daemon=True).start()

  def _close(self):
    for session in filter(None, (self._hearing, self._data)):
      with contextlib.suppress(tf.errors.OpError):
        session.close()

  def beat(self, report):
    """Reports; returns the greeting. Raises tf.errors.OpError."""
    greeting, _ = self._beat(json.dumps(report._asdict()))
    if (now := json.loads(greeting))['life'] != self.greeting['life']:
      raise tf.errors.AbortedError(None, None, 'another learner is there now')
    self.unanswered_beats += 1
    self.failed |= self.unanswered_beats > _PATIENCE_BEATS
    return now

  def push(self, unrolls):
    """Puts at most _LARGEST_PUSH of them, a list of arrays each, into the learner's queue; waits for room."""
    self._pushes[len(unrolls) - 1](*sum(unrolls, []))

  def _pusher(self, count):
    """A function that pushes so many unrolls."""
    options = config_pb2.CallableOptions()
    options.feed.extend(placeholder.name for placeholder in sum(self._learner.unrolls[:count], []))
    options.target.extend(enqueue.name for enqueue in self._learner.enqueue_unrolls[:count])
    # Session.run, and what Session.make_callable gives, take a millisecond of Python for what is fed.
    return self._data._make_callable_from_options(options)  # pylint: disable=protected-access

  def fetch(self):
    """The version of the latest parameters, and these, or None if they are there already."""
    if self.ask_version() == self.latest_version:
      return self.latest_version, None
    version, parameters = self._latest()
    return int(version), parameters

  def ask_version(self):
    """The version of the latest parameters."""
    version = int(self._version())
    self.unanswered_beats = 0
    return version


def _graph(task, unroll_specs, parameter_specs, queue_size):
  """Nodes for what lies at a learner's port; they take no resource of their own."""
  graph = tf.Graph()
  with graph.as_default(), tf.device(f'/job:{cluster.JOB}/replica:0/task:{task}/device:CPU:0'):
    raw = tf.raw_ops
    greeting = raw.ReadVariableOp(
        resource=raw.VarHandleOp(dtype=tf.string, shape=[], shared_name=cluster.GREETING), dtype=tf.string)
    report = tf.compat.v1.placeholder(tf.string, [])
    reports = raw.FIFOQueueV2(component_types=[tf.string], shapes=[[]], capacity=cluster.REPORTS_CAPACITY,
                              shared_name=cluster.REPORTS)
    version, parameters = ops.parameter_snapshot_latest(
        ops.parameter_snapshot(shared_name=cluster.PARAMETERS), types=[spec.dtype for spec in parameter_specs])
    # Each by itself: to take [k, ...] apart would be a copy there, and to put it together one here.
    unrolls = [[tf.compat.v1.placeholder(spec.dtype, spec.shape) for spec in unroll_specs] for _ in range(_LARGEST_PUSH)]
    queue = raw.FIFOQueueV2(component_types=[spec.dtype for spec in unroll_specs],
                            shapes=[spec.shape for spec in unroll_specs], capacity=queue_size,
                            shared_name=cluster.UNROLLS)
    return _Learner(graph, greeting, report, raw.QueueEnqueueV2(handle=reports, components=[report]), version,
                    list(parameters), unrolls, [raw.QueueEnqueueV2(handle=queue, components=unroll) for unroll in unrolls])


def _session(address, learner, answer_seconds=None):
  config = tf.compat.v1.ConfigProto(device_filters=[learner.greeting.device.rpartition('/')[0]])
  config.rpc_options.disable_session_connection_sharing = True  # Else a new session would use a dead connection.
  if answer_seconds:
    config.operation_timeout_in_ms = int(1000 * answer_seconds)
  return tf.compat.v1.Session(f'grpc://{address}', learner.graph, config)


def _array(tensor):
  """A tensor's values; not copied, as Tensor.numpy does, where NumPy can use them as they are."""
  return tensor.numpy() if tensor.dtype == tf.string else np.asarray(memoryview(tensor))


def _compare(address, own, greeting):
  """Raises RefusedError, with what differs."""
  ours, theirs = own['settings'], greeting['settings']
  differing = [f'--{name} is {json.dumps(theirs.get(name, "absent"))} there and {json.dumps(ours.get(name, "absent"))} '
               'here' for name in sorted(ours.keys() | theirs.keys()) if ours.get(name) != theirs.get(name)]
  for name, what in (('unroll', 'shapes or types of unrolls'), ('parameters', "the network's parameters")):
    if not differing and own[name] != greeting[name]:
      differing.append(f'{what} are {_difference(greeting[name], own[name])}')
  if differing:
    raise RefusedError(f'{address}: the learner has another configuration: {"; ".join(differing)}. Give all processes '
                       'of a cluster the same flags and the same version of this program')


def _difference(theirs, ours):
  """The first spec that differs, in words."""
  for one, other in zip(theirs, ours):
    if one != other:
      return f'{one[0]} {one[1]} there and {other[0]} {other[1]} here'
  return f'{len(theirs)} there and {len(ours)} here'


def _reason(error):
  if isinstance(error, tf.errors.DeadlineExceededError):
    return 'it does not answer'
  text = getattr(error, 'message', None) or getattr(error, 'strerror', None) or str(error)
  return text.split('\n', maxsplit=1)[0].split(' [[', maxsplit=1)[0]
