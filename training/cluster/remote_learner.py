"""An actor host's side of a cluster: the learner of another process, as where unrolls go and parameters come from.

Threads push unrolls through TensorFlow sessions into the learner's queue, where they wait while it is full; another
fetches parameters. Each actor's unrolls are pushed by one thread, so that they arrive in their order. A session has no
deadline for that, and says nothing where the other side has gone. So a thread asks a second session, which has one, for
a sign of life every few seconds, and makes a new connection where it has to. The other side is learner_port.py.
"""

import contextlib
import json
import threading
import time
from typing import Any, Callable, NamedTuple
import uuid

import tensorflow as tf

from scalable_agents.actor import parameters as parameters_lib
from scalable_agents.training.cluster import learner_connection
from scalable_agents.training.cluster import learner_port
from scalable_agents.training.cluster import outbox

_PUSHERS = 2
_PUSH_BYTES = 4_500_000     # Larger calls leave the processors' caches.
_RETRY_SECONDS = 1.
_PATIENCE_SECONDS = 15.     # Without a sign of life before another connection is tried.
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


class RemoteLearner:
  """Where unrolls go (`put`) and parameters come from (`latest`); both in graphs, both without the network."""

  def __init__(self, address: str, task: int, settings: dict[str, Any], unroll_spec, parameter_specs,
               queue_size: int, is_due: Callable[[], bool], make_report: Callable[[Totals], learner_port.Report],
               say: Callable[[str], None], on_end: Callable[[], None]):
    """Looks for nothing yet.

    Args:
      address: HOST:PORT of the learner.
      task: which of several learners it is.
      settings, unroll_spec, parameter_specs: as the learner's own, see learner_port.LearnerPort.offer. An unroll has an
        `actor_id`.
      queue_size: of the learner's queue, in unrolls.
      is_due: asked now and then whether it is time for the latest parameters.
      make_report: says how this host is.
      say: called with a line for the user.
      on_end: called from a thread here when the run has ended, or `check` has something to raise.
    """
    self._address = address
    self._own = json.loads(json.dumps(learner_port.contract(settings, unroll_spec, parameter_specs)))
    self._is_due, self._make_report, self._say, self._on_end = is_due, make_report, say, on_end
    self._life = uuid.uuid4().hex
    size = sum(spec.shape.num_elements() * spec.dtype.size for spec in tf.nest.flatten(unroll_spec))
    largest_push = max(1, min(learner_connection.LARGEST_PUSH, _PUSH_BYTES // size))
    self._lanes = [outbox.Lane(unroll_spec, largest_push) for _ in range(_PUSHERS)]
    self._snapshot = parameters_lib.ParameterSnapshot(parameter_specs)
    self._graph = learner_connection.make_graph(task, tf.nest.flatten(unroll_spec), parameter_specs, queue_size)
    self._lock = threading.Lock()
    self._totals = Totals(0, 0, 0, 0)  # Guarded by _lock, as are the connection and what is unsent in the lanes.
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
    return outbox.put(self._lanes, unroll)

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
    for lane in self._lanes:
      lane.close()
    if self._heart.is_alive():
      self._heart.join(2 * learner_connection.ANSWER_SECONDS)
    if self._connection:
      self._connection.close()

  def _guard(self, target, connection=None, *args):
    try:
      target(*[connection, *args] if connection else [])
    except Exception as error:  # pylint: disable=broad-except; raised by `check`.
      if connection and (isinstance(error, tf.errors.OpError) or not self._is_current(connection)):
        connection.failure = learner_connection.reason(error)  # Or the run has ended: the greeting tells.
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
          self._say(f'connected to the learner at {self._address}' + (f' again ({before.failure})' if before else ''))
        elif said != heard:
          self._say(f'the learner at {self._address} answers again')
        heard = said = time.monotonic()
      except (tf.errors.OpError, OSError, learner_connection.NotReadyError) as error:
        now = time.monotonic()
        if now - said >= (_FIRST_WORD_SECONDS if said == heard else _LATER_WORDS_SECONDS):
          said = now
          self._say(f'no learner at {self._address} for {now - heard:.0f} s: {learner_connection.reason(error)}')
      if before is not self._connection:
        self._stop.wait(_RETRY_SECONDS)  # Not one connection after the other, should each fail at once.
      self._nudge.wait(learner_port.BEAT_SECONDS if heard == said else _RETRY_SECONDS)
      self._nudge.clear()
    self._take_leave()

  def _contact(self, silence_seconds):
    """Returns the learner's greeting, through a new connection if need be. Raises what keeps it from that."""
    if (connection := self._connection) is None:
      return self._connect()
    try:
      greeting = connection.beat(self._report())
      if self._life in greeting['unwelcome']:
        raise RefusedError(f'{self._address}: another actor has the number of this one: give each a --task of its own, '
                           'or start this one again if it has drawn its number')
      if greeting['ended'] or not connection.failure:
        return greeting
    except tf.errors.OpError as error:
      # While it is but frozen, the connection is kept: what waits in it will go through.
      if isinstance(error, tf.errors.DeadlineExceededError) and not connection.failure and (
          silence_seconds < _PATIENCE_SECONDS):
        raise
      connection.failure = connection.failure or learner_connection.reason(error)
    return self._connect()

  def _connect(self):
    """Makes a new connection, if it can, and lets it take the old one's place. Returns the greeting."""
    connection = learner_connection.Connection(self._address, self._graph)
    greeting = connection.greeting
    if greeting['ended']:
      return greeting
    _compare(self._address, self._own, greeting)
    with self._lock:
      old, self._connection = self._connection, connection
      if old:
        lost = 0
        if old.greeting['life'] != greeting['life']:  # What went to the old one cannot have been learned from.
          for lane, block in old.in_hand.items():
            lane.unsent.appendleft(block)  # It comes before all that was taken since.
          old.in_hand.clear()
        else:
          old.is_lost, lost = True, sum(map(len, old.in_hand.values()))
        self._totals = self._totals._replace(reconnects=self._totals.reconnects + 1,
                                             lost_unrolls=self._totals.lost_unrolls + lost)
        old.close()
    self._start(self._refresh, connection)
    return connection.beat(self._report())  # So that it knows of this host from the beginning.

  def _take_leave(self):
    if self._connection:
      with contextlib.suppress(tf.errors.OpError):  # It has gone first.
        self._connection.beat(self._report()._replace(leaving=True))

  def _report(self):
    return self._make_report(self.totals())._replace(life=self._life)

  def _is_current(self, connection):
    return connection is self._connection and not self._stop.is_set()

  def _start(self, target, connection, *args):
    threading.Thread(target=self._guard, args=[target, connection, *args], daemon=True).start()

  def _push(self, connection, lane):
    """Pushes unrolls of a lane as long as the connection is in use."""
    while (block := self._next_block(connection, lane)) is not None:
      connection.push(block)  # Waits for room.
      with self._lock:
        if connection.in_hand.pop(lane, None) is None:
          return  # It is for the next connection to send.
        self._totals = self._totals._replace(
            unrolls=self._totals.unrolls + len(block),
            bytes=self._totals.bytes + sum(array.nbytes for unroll in block for array in unroll),
            lost_unrolls=self._totals.lost_unrolls - connection.is_lost * len(block))

  def _next_block(self, connection, lane):
    """Waits for unrolls, a list of arrays each, and takes them in hand. None where the connection is not in use."""
    block = self._take_in_hand(connection, lane)
    if block is None:
      with lane.taking:
        # Whoever took unrolls before may have waited there for a connection given up since.
        block = self._take_in_hand(connection, lane)
        if block is None and self._is_current(connection):
          if (taken := lane.take()) is None:
            return None  # It was closed.
          with self._lock:
            lane.unsent.append(taken)
          block = self._take_in_hand(connection, lane)
    return block

  def _take_in_hand(self, connection, lane):
    """The first of a lane's unsent blocks. None where there is none, or not for this connection."""
    with self._lock:
      if not lane.unsent or not self._is_current(connection):
        return None
      block = connection.in_hand[lane] = lane.unsent.popleft()
      return block

  def _refresh(self, connection):
    """Fetches parameters: the first ones, and then, when it is time, as long as the connection is in use."""
    connection.open()
    self._fetch(connection)
    for lane in self._lanes:
      self._start(self._push, connection, lane)
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
        self._ready.set()
        self._totals = self._totals._replace(bytes=self._totals.bytes + sum(array.nbytes for array in parameters))


def _compare(address, own, greeting):
  """Raises RefusedError, with what differs."""
  ours, theirs = own['settings'], greeting['settings']
  differing = [f'{name} is {json.dumps(theirs.get(name, "absent"))} there and {json.dumps(ours.get(name, "absent"))} '
               'here' for name in sorted(ours.keys() | theirs.keys()) if ours.get(name) != theirs.get(name)]
  for name, what in (('unroll', 'shapes or types of unrolls'), ('parameters', "the network's parameters")):
    if not differing and own[name] != greeting[name]:
      differing.append(f'{what} are {_difference(greeting[name], own[name])}')
  if not differing and own['report'] != greeting.get('report'):
    differing.append('what actors report is another there')
  if differing:
    raise RefusedError(f'{address}: the learner has another configuration: {"; ".join(differing)}. Give all processes '
                       'of a cluster the same flags and the same version of this program')


def _difference(theirs, ours):
  """The first spec that differs, in words."""
  for one, other in zip(theirs, ours):
    if one != other:
      return f'{one[0]} {one[1]} there and {other[0]} {other[1]} here'
  return f'{len(theirs)} there and {len(ours)} here'
