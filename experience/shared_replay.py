"""An agent's side of a shared replay: a replay of episodes in another process, which several agents write and read.

Schmitt et al. 2020 (LASER), section 5.1. The other side is replay_port.py. All calls have a deadline, so an agent
notices when the replay job is gone. It then waits, and connects again when the job is back. The deadline of a call that
sends or returns rows is later, in proportion to their bytes. An agent sends an unroll again if it got no answer; the
replay ignores an unroll that it has already. Episodes of different replay jobs cannot be mixed up, because `next`
resets the replayers' positions.
"""

from collections.abc import Callable
import contextlib
import json
import threading
import time
from typing import Any, NamedTuple
import uuid

import numpy as np
import tensorflow as tf

from scalable_agents.experience import replay_port
from scalable_agents.ops import messages
from scalable_agents.processes import ports
from scalable_agents.processes import sessions
from scalable_agents.records import errors
from scalable_agents.replay import episode_replay
from scalable_agents.replay import replay_rows

_ANSWER_SECONDS = 10.          # The deadline of a call without rows. A healthy replay answers within a second.
# Rows add the time that they take at this speed. A batch of LASER may have hundreds of megabytes, and ten agents that
# share a network of 1 Gbit/s get 12 MB/s each.
_BYTES_PER_SECOND = 5e6
_RETRY_SECONDS = 0.5           # The time between two attempts to connect.
_TICK_SECONDS = 0.1            # The time between two checks whether the slower agents have caught up.
_FAREWELL_SECONDS = 1.         # Time to tell the replay job that this agent leaves.
_FIRST_MESSAGE_SECONDS = 5.    # After this long without a replay, the user gets a message.
_LATER_MESSAGES_SECONDS = 30.  # The time between further messages.
# What a call raises if there is no replay job. A session that another thread has closed raises RuntimeError.
_LOST = (tf.errors.OpError, OSError, RuntimeError, sessions.NotReadyError)
# Those that the ops of the replay raise: the job is there, but it has no memory, for example.
_ANSWERED = (tf.errors.InvalidArgumentError, tf.errors.ResourceExhaustedError)


class _OtherSettingsError(sessions.NotReadyError):
  """The replay is for agents with other settings."""


class _Connection(NamedTuple):
  """A connection to a replay job."""
  session: tf.compat.v1.Session
  incarnation: str  # A random id of the replay job's process.


class _Nodes(NamedTuple):
  """Nodes of a graph that runs in the replay job."""
  graph: tf.Graph
  greeting: tf.Tensor         # [] string, JSON; see replay_port.ReplayPort.
  report: tf.Tensor           # [] string, a placeholder.
  enqueue_report: tf.Operation
  unrolls: list[tf.Tensor]    # Placeholders: stream_id, index, and the components of the rows.
  insert: tf.Operation
  num_impossible: tf.Tensor   # [] int64, the invalid unrolls, which are not inserted.
  position: list[tf.Tensor]   # Placeholders: key, step, seed, minimum_size.
  replayed: list[tf.Tensor]   # The components of an episode_replay.Replayed.
  statistics: tf.Tensor       # [n] int64, as episode_replay.Statistics.


def _make_graph(contract, check) -> _Nodes:
  """Makes the graph. `check` takes the unrolls' indices and the list of their rows' components; see SharedReplay."""
  graph = tf.Graph()
  with graph.as_default(), tf.device(f'{replay_port.TASK}/device:CPU:0'):
    raw, placeholder = tf.raw_ops, tf.compat.v1.placeholder
    greeting = sessions.text_of(sessions.shared_text(replay_port.GREETING))
    report = placeholder(tf.string, [])
    reports = sessions.shared_queue(replay_port.REPORTS)
    replay = replay_port.make_replay(contract, replay_port.REPLAY)
    ids = [placeholder(tf.int64, [None]) for _ in range(2)]
    rows = [placeholder(spec.dtype, [None, None, *spec.shape]) for spec in replay_port.row_spec(contract)]
    possible = check(ids[1], rows)
    (stream_id, index), taken_rows = _only(possible, ids, rows)
    position = [placeholder(tf.int64, shape) for shape in ([None], [None], [], [])]
    return _Nodes(
        graph, greeting, report, raw.QueueEnqueueV2(handle=reports, components=[report]), [*ids, *rows],
        replay.insert(stream_id, index, taken_rows), tf.reduce_sum(tf.cast(~possible, tf.int64)), position,
        tf.nest.flatten(replay.next(*position)), replay.counts())


def _only(possible, ids, rows):
  """Returns ids, each [B], and rows, each [T+1, B, ...], of the valid unrolls. Copies only if some are invalid."""
  def take():
    places = tf.where(possible)[:, 0]
    return [tf.gather(each, places) for each in ids], [tf.gather(each, places, axis=1) for each in rows]
  return tf.cond(tf.reduce_all(possible), lambda: (ids, rows), take)


def _options(num_bytes: int) -> tf.compat.v1.RunOptions:
  """Returns the options of a call that sends or returns rows of so many bytes: its deadline."""
  return tf.compat.v1.RunOptions(timeout_in_ms=int(1000 * (_ANSWER_SECONDS + num_bytes / _BYTES_PER_SECOND)))


class SharedReplay:
  """Has the methods of episode_replay.EpisodeReplay that replayers use. They wait while there is no replay job."""

  def __init__(self, address: str, row_spec, unroll_length: int, capacity: int, *, done: Callable[[Any], Any],
               observation: Callable[[Any], Any], frame_stacks: Any, settings: dict[str, Any], tolerance: int,
               check: Callable[[tf.Tensor, Any], tf.Tensor]):
    """Makes no connection yet.

    Args:
      address: HOST:PORT of the replay job.
      row_spec, unroll_length, capacity, done, observation, frame_stacks: as for EpisodeReplay. All agents must have the
        same.
      settings: other settings that all agents must have in common. JSON can hold them.
      tolerance: agent steps by which this agent may be ahead of the slowest one.
      check: takes the indices of unrolls and their rows, in a graph of the replay job, and returns [B] bool, which
        unrolls are valid. The others are not stored.
    """
    rows = replay_rows.Rows(row_spec, frame_stacks)
    contract = dict(rows=sessions.specs(row_spec), stacks=tf.nest.flatten(frame_stacks), done=done(rows.numbers),
                    observation=tf.nest.flatten(observation(rows.numbers)), unroll_length=unroll_length,
                    replay_capacity=capacity, settings=settings)
    self._contract = json.loads(json.dumps(contract))
    self._address = address
    self._tolerance = tolerance
    self._unroll_length = unroll_length
    self._unroll_bytes = rows.read_bytes(unroll_length + 1)
    self._rows = rows
    self._nodes = _make_graph(
        self._contract, lambda index, components: check(index, tf.nest.pack_sequence_as(row_spec, components)))
    self._agent = uuid.uuid4().hex
    self._steps = 0
    self._even = None           # The steps at which it would be level with the slowest agent; None if not known.
    self._waits_for_agents = self._waits_for_job = False
    self._connection = None
    self._lock = threading.Lock()  # Guards the connection.
    self._position_incarnation = None  # Id of the replay job that gave the replayers their positions.
    self._closed = threading.Event()
    self._warnings = []
    self._num_impossible = 0
    self._known = episode_replay.Statistics(*[0] * len(episode_replay.Statistics._fields))
    threading.Thread(target=self._beat, name='replay heart', daemon=True).start()

  @property
  def lead(self) -> int:
    """The agent steps by which this agent is ahead of the slowest one; 0 if that is not known."""
    even = self._even
    return 0 if even is None else self._steps - even

  @property
  def waits_for(self) -> str:
    """What it waits for: 'replay' (the job does not answer), 'other agents' (they are slower), or '' for nothing."""
    if self._waits_for_job:
      return 'replay'
    return 'other agents' if self._waits_for_agents else ''

  def insert(self, stream_id: tf.Tensor, index: tf.Tensor, rows):
    """See EpisodeReplay.insert. Afterwards it waits while this agent is too far ahead of the slowest one."""
    return tf.numpy_function(self._insert, [stream_id, index, *tf.nest.flatten(rows)], [])

  def next(self, key: tf.Tensor, step: tf.Tensor, seed: tf.Tensor, minimum_size: int = 1) -> episode_replay.Replayed:
    """See EpisodeReplay.next. If the replay job was started again since the last call, all replayers are new."""
    types = episode_replay.Replayed(self._rows.types, self._rows.earlier_types, *[tf.int64] * 4, is_new=tf.bool)
    flat = tf.numpy_function(self._next, [key, step, seed, np.int64(minimum_size)], tf.nest.flatten(types))
    rows, earlier, *vectors = tf.nest.pack_sequence_as(types, flat)
    number = key.shape[0]
    for vector in vectors:
      vector.set_shape([number])
    return episode_replay.Replayed(self._rows.pack(rows, self._unroll_length + 1, number),
                                   self._rows.with_earlier_shapes(earlier, number), *vectors)

  def size(self) -> int:
    """See EpisodeReplay. Waits for the replay job.

    Raises:
      errors.UserError: the replay is for agents with other settings.
      tf.errors.CancelledError: this object is closed.
    """
    try:
      counts = self._call(lambda connection: connection.session.run(self._nodes.statistics), may_be_refused=True)
    except StopIteration as error:
      raise tf.errors.CancelledError(None, None, 'the shared replay is closed') from error
    self._known = episode_replay.Statistics(*map(int, counts))
    return self._known.steps

  def statistics(self) -> episode_replay.Statistics:
    """Returns the counts of the replay that were received last. Does not wait."""
    return self._known

  def warnings(self) -> list[str]:
    """Returns messages for the user since the last call, one line each."""
    warnings, self._warnings = self._warnings, []
    number, self._num_impossible = self._num_impossible, 0
    if number:
      warnings.append(f'unrolls that the shared replay did not store: {number}: level, actor, index, action or '
                      'parameter version out of range, or an observation or output not finite')
    return warnings

  def close(self):
    """Ends every wait, and tells the replay job that this agent leaves."""
    self._closed.set()
    leaving = threading.Thread(target=self._leave, daemon=True)  # If the job is gone, this call waits for long.
    leaving.start()
    leaving.join(_FAREWELL_SECONDS)

  def _insert(self, stream_id, index, *rows):
    feed = dict(zip(self._nodes.unrolls, [stream_id, index, *rows], strict=True))
    options = _options(sum(values.nbytes for values in rows))
    impossible, _ = self._call(lambda connection: connection.session.run(
        [self._nodes.num_impossible, self._nodes.insert], feed, options))
    self._num_impossible += int(impossible)
    self._steps += (rows[0].shape[0] - 1) * len(stream_id)
    self._call(self._report)
    try:
      while self.lead > self._tolerance:
        self._waits_for_agents = True
        if self._closed.wait(_TICK_SECONDS):
          raise StopIteration
        self._call(self._report)
    finally:
      self._waits_for_agents = False

  def _next(self, key, step, *seed_and_size):
    def run(connection):
      # If the replay job was started again, it may have other episodes with the same keys. All replayers are new then.
      known = np.where(self._position_incarnation == connection.incarnation, key, -1)
      feed = dict(zip(self._nodes.position, [known, step, *seed_and_size], strict=True))
      *replayed, counts = connection.session.run(
          [*self._nodes.replayed, self._nodes.statistics], feed, _options(len(key) * self._unroll_bytes))
      self._position_incarnation = connection.incarnation
      self._known = episode_replay.Statistics(*map(int, counts))
      return replayed
    return self._call(run)

  def _report(self, connection):
    """Reports to the replay job, and reads where this agent would be level with the slowest one."""
    _, greeting = connection.session.run(
        [self._nodes.enqueue_report, self._nodes.greeting], {self._nodes.report: self._report_text()})
    self._even = json.loads(greeting)['even'].get(self._agent)

  def _report_text(self, leaving=False, contract=None):
    return replay_port.report_text(agent=self._agent, steps=self._steps, leaving=leaving, contract=contract)

  def _beat(self):
    """Sends a report every few seconds. Without it, the other agents would not wait for this agent while it is slow."""
    while not self._closed.wait(ports.BEAT_SECONDS):
      if connection := self._connection:
        try:
          self._report(connection)
        except (*_LOST, LookupError, ValueError):  # The last two: another version of the replay job answers.
          self._disconnect(connection)

  def _leave(self):
    with self._lock:
      connection, self._connection = self._connection, None
    if connection:
      with contextlib.suppress(*_LOST):
        connection.session.run(self._nodes.enqueue_report, {self._nodes.report: self._report_text(leaving=True)})
      sessions.close(connection.session)

  def _call(self, run: Callable[[_Connection], Any], may_be_refused: bool = False) -> Any:
    """Calls `run` with a connection. Waits, and tries again, while there is no replay job.

    Args:
      run: the function. It may be called again if it raises an error.
      may_be_refused: whether to raise an error if the replay is for agents with other settings. Otherwise it waits for
        another replay job.
    Raises:
      errors.UserError: see `may_be_refused`.
      StopIteration: this object is closed. In a graph it becomes tf.errors.OutOfRangeError.
    """
    began, said = time.monotonic(), None
    try:
      while not self._closed.is_set():
        connection = None
        try:
          connection = self._connected()
          result = run(connection)
          if said:
            self._warnings.append(f'the replay at {self._address} answers again')
          return result
        except _LOST as error:
          if may_be_refused and isinstance(error, _OtherSettingsError):
            raise errors.UserError(f'--shared_replay={self._address}: {error}: give all agents the same, or start '
                                   'another replay') from error
          self._disconnect(connection)
          self._waits_for_job, now = True, time.monotonic()
          if now - (said or began) >= (_LATER_MESSAGES_SECONDS if said else _FIRST_MESSAGE_SECONDS):
            said = now
            fault, reason = f'no replay at {self._address}', sessions.reason(error)
            if isinstance(error, _ANSWERED):
              fault = f'the replay at {self._address} has failed'
              reason = messages.op_message(str(error)) or reason
            self._warnings.append(f'{fault} for {now - began:.0f} s: {reason}')
        self._closed.wait(_RETRY_SECONDS)
      raise StopIteration
    finally:
      self._waits_for_job = False

  def _connected(self):
    """Returns the connection; makes one if there is none. Raises an error if that fails."""
    with self._lock:
      if not self._connection:
        ports.check_address(self._address)
        session = sessions.make_session(
            self._address, self._nodes.graph, replay_port.TASK, _ANSWER_SECONDS)
        try:
          greeting = sessions.read_greeting(session, self._nodes.greeting, 'the process there is no replay job')
          theirs, ours = greeting['contract'], self._contract
          if theirs and theirs != ours:
            differing = sessions.differences(theirs.get('settings', {}), ours['settings']) or sessions.differences(
                theirs, ours)
            raise _OtherSettingsError(f'the replay is for agents with other settings: {"; ".join(differing)}')
          session.run(self._nodes.enqueue_report, {self._nodes.report: self._report_text(contract=self._contract)})
          if greeting['contract'] is None:  # This agent may be the first one.
            raise sessions.NotReadyError('it is starting')
        except Exception:
          sessions.close(session)
          raise
        self._connection = _Connection(session, greeting['incarnation'])
      return self._connection

  def _disconnect(self, connection):
    """Gives up a connection that has failed, if there is one."""
    with self._lock:
      if connection and connection is self._connection:
        self._connection = None
    if connection:
      sessions.close(connection.session)
