"""An agent's side of a shared replay: a replay of episodes in another process, which several agents write and read.

Schmitt et al. 2020 (LASER), section 5.1. The other side is replay_port.py. All calls have a deadline, so an agent
notices when the replay job is gone. It then waits, and connects again when the job is back. What it sent meanwhile, it
sends again; the replay ignores what it has already. Nothing of an episode can be mixed with another one: see the reset
of positions in `next`.
"""

import contextlib
import json
import threading
import time
from typing import Any, Callable, NamedTuple
import uuid

import numpy as np
import tensorflow as tf

from scalable_agents.learner import episode_replay
from scalable_agents.records import errors
from scalable_agents.training.cluster import learner_connection
from scalable_agents.training.cluster import learner_port
from scalable_agents.training.cluster import replay_port

_ANSWER_SECONDS = 20.       # The deadline of a call. A healthy replay answers within a second.
_RETRY_SECONDS = 0.5        # The time between two attempts to connect.
_TICK_SECONDS = 0.02        # The time between two looks whether the slower agents have caught up.
_FIRST_WORD_SECONDS = 5.    # After this long without a replay, the user gets a message.
_LATER_WORDS_SECONDS = 30.  # The time between further messages.


class _Nodes(NamedTuple):
  """Nodes of a graph that runs in the replay job."""
  graph: tf.Graph
  greeting: tf.Tensor         # [] string, JSON; see replay_port.ReplayPort.
  report: tf.Tensor           # [] string, a placeholder.
  enqueue_report: tf.Operation
  unrolls: list[tf.Tensor]    # Placeholders: life_id, index, and the components of the rows.
  insert: tf.Operation
  position: list[tf.Tensor]   # Placeholders: key, step, seed.
  replayed: list[tf.Tensor]   # The components of an episode_replay.Replayed.
  statistics: tf.Tensor       # [n] int64, as episode_replay.Statistics.


def _make_graph(contract) -> _Nodes:
  graph = tf.Graph()
  with graph.as_default(), tf.device(f'{replay_port.TASK}/device:CPU:0'):
    raw, placeholder = tf.raw_ops, tf.compat.v1.placeholder
    greeting = raw.ReadVariableOp(
        resource=raw.VarHandleOp(dtype=tf.string, shape=[], shared_name=replay_port.GREETING), dtype=tf.string)
    report = placeholder(tf.string, [])
    reports = raw.FIFOQueueV2(component_types=[tf.string], shapes=[[]], capacity=replay_port.REPORTS_CAPACITY,
                              shared_name=replay_port.REPORTS)
    replay = replay_port.make_replay(contract, replay_port.REPLAY)
    ids = [placeholder(tf.int64, [None]) for _ in range(2)]
    rows = [placeholder(spec.dtype, [None, None, *spec.shape]) for spec in replay_port.row_spec(contract)]
    position = [placeholder(tf.int64, [None]), placeholder(tf.int64, [None]), placeholder(tf.int64, [])]
    return _Nodes(
        graph, greeting, report, raw.QueueEnqueueV2(handle=reports, components=[report]), [*ids, *rows],
        replay.insert(*ids, rows), position, tf.nest.flatten(replay.next(*position)), replay.counts())


class SharedReplay:
  """Has the methods of episode_replay.EpisodeReplay that replayers use. They wait while there is no replay job."""

  def __init__(self, address: str, row_spec, unroll_length: int, capacity: int, *, done: Callable[[Any], Any],
               frame_stacks: Any, settings: dict[str, Any], tolerance: int):
    """Makes no connection yet.

    Args:
      address: HOST:PORT of the replay job.
      row_spec, unroll_length, capacity, done, frame_stacks: as for EpisodeReplay. All agents must have the same.
      settings: other settings that all agents must have in common. JSON can hold them.
      tolerance: agent steps by which this agent may be ahead of the slowest one.
    """
    numbers = tf.nest.pack_sequence_as(row_spec, list(range(len(tf.nest.flatten(row_spec)))))
    contract = dict(rows=learner_port.specs(row_spec), stacks=tf.nest.flatten(frame_stacks), done=done(numbers),
                    unroll_length=unroll_length, replay_capacity=capacity, settings=settings)
    self._contract = json.loads(json.dumps(contract))
    self._address, self._row_spec, self._tolerance = address, row_spec, tolerance
    self._specs, self._unroll_length = tf.nest.flatten(row_spec), unroll_length
    self._stacks = self._contract['stacks']
    self._nodes = _make_graph(self._contract)
    self._agent, self._steps = uuid.uuid4().hex, 0
    self.lead = 0             # Agent steps by which this agent is ahead of the slowest one.
    self.is_waiting = False   # Whether it waits for the slower agents, or for the replay job.
    self._session, self._life = None, None  # The connection, and the life of the replay job that it leads to.
    self._lock = threading.Lock()           # Guards the connection.
    self._closed, self._complaints = threading.Event(), []
    self._known = episode_replay.Statistics(*[0] * len(episode_replay.Statistics._fields))
    threading.Thread(target=self._beat, name='replay heart', daemon=True).start()

  def insert(self, life_id: tf.Tensor, index: tf.Tensor, rows):
    """See EpisodeReplay.insert. Then it waits while this agent is too far ahead of the slowest one."""
    return tf.numpy_function(self._insert, [life_id, index, *tf.nest.flatten(rows)], [])

  def next(self, key: tf.Tensor, step: tf.Tensor, seed: tf.Tensor) -> episode_replay.Replayed:
    """See EpisodeReplay.next. If the replay job is another one than in the call before, all replayers start anew."""
    components = [tf.TensorSpec(None, spec.dtype) for spec in self._specs]
    example = episode_replay.Replayed(components, tf.bool, *[tf.int64] * 5)
    types = [getattr(each, 'dtype', each) for each in tf.nest.flatten(example)]
    flat = tf.numpy_function(self._next, [key, step, seed], types)
    replayed = tf.nest.pack_sequence_as(example, flat)
    number = key.shape[0]
    for values, spec, stack in zip(replayed.rows, self._specs, self._stacks):
      shape = spec.shape.as_list()
      values.set_shape([self._unroll_length + 1, number, *(shape[:-1] + [stack * shape[-1]] if stack > 1 else shape)])
    replayed.trains.set_shape([self._unroll_length, number])
    for vector in replayed[2:]:
      vector.set_shape([number])
    return replayed._replace(rows=tf.nest.pack_sequence_as(self._row_spec, replayed.rows))

  def size(self) -> int:
    """See EpisodeReplay. Waits for the replay job.

    Raises:
      errors.UserError: the replay is for agents with other settings.
      tf.errors.CancelledError: this object is closed.
    """
    self._check_contract()
    try:
      counts = self._call(lambda session: session.run(self._nodes.statistics))
      self._known = episode_replay.Statistics(*map(int, counts))
    except StopIteration as error:
      raise tf.errors.CancelledError(None, None, 'the shared replay is closed') from error
    return self._known.steps

  def statistics(self) -> episode_replay.Statistics:
    """The counts of the replay when they were heard of last. Does not wait."""
    return self._known

  def complaints(self) -> list[str]:
    """Messages for the user since the last call, one line each."""
    complaints, self._complaints = self._complaints, []
    return complaints

  def close(self):
    """Ends every wait, and tells the replay job that this agent leaves."""
    self._closed.set()
    threading.Thread(target=self._leave, daemon=True).start()  # The job may be gone, and the call wait.

  def _insert(self, life_id, index, *rows):
    self._call(lambda session: session.run(
        self._nodes.insert, dict(zip(self._nodes.unrolls, [life_id, index, *rows], strict=True))))
    self._steps += (rows[0].shape[0] - 1) * len(life_id)
    self._report()
    while self.lead > self._tolerance:
      self.is_waiting = True
      if self._closed.wait(_TICK_SECONDS):
        raise StopIteration
      self._report()
    self.is_waiting = False

  def _next(self, key, step, seed):
    def run(session):
      # Another replay job has other episodes with the same keys, if the job was started again.
      known = np.where(self._position_life == self._life, key, -1)
      feed = dict(zip(self._nodes.position, [known, np.where(known < 0, 0, step), seed], strict=True))
      *replayed, counts = session.run([*self._nodes.replayed, self._nodes.statistics], feed)
      self._position_life = self._life
      self._known = episode_replay.Statistics(*map(int, counts))
      return replayed
    return self._call(run)

  _position_life = None  # The life of the replay job that gave the replayers' positions.

  def _report(self):
    """Reports to the replay job, and reads by how much this agent is ahead."""
    self._call(self._exchange)

  def _exchange(self, session):
    _, greeting = session.run([self._nodes.enqueue_report, self._nodes.greeting],
                              {self._nodes.report: self._report_text()})
    self.lead = json.loads(greeting)['lead'].get(self._agent, 0)

  def _report_text(self, leaving=False, contract=None):
    return json.dumps(dict(agent=self._agent, steps=self._steps, leaving=leaving, contract=contract))

  def _beat(self):
    """Reports every few seconds, so that the others go on to wait for this agent while it is slow."""
    while not self._closed.wait(learner_port.BEAT_SECONDS):
      if session := self._session:
        try:
          self._exchange(session)
        except tf.errors.OpError:
          self._disconnect(session)

  def _leave(self):
    with self._lock:
      session, self._session = self._session, None
    if session:
      with contextlib.suppress(tf.errors.OpError):  # The job is gone.
        session.run(self._nodes.enqueue_report, {self._nodes.report: self._report_text(leaving=True)})
        session.close()

  def _call(self, run: Callable[[tf.compat.v1.Session], Any]) -> Any:
    """Calls `run` with a session. Waits, and tries again, while there is no replay job.

    Raises:
      StopIteration: this object is closed. In a graph it becomes tf.errors.OutOfRangeError.
    """
    began, said = time.monotonic(), None
    while not self._closed.is_set():
      session = None
      try:
        session = self._connected()
        result = run(session)
        if said:
          self._complaints.append(f'the replay at {self._address} answers again')
        self.is_waiting = False
        return result
      except (tf.errors.OpError, OSError, learner_connection.NotReadyError) as error:
        self._disconnect(session)
        self.is_waiting = True
        now = time.monotonic()
        if now - (said or began) >= (_LATER_WORDS_SECONDS if said else _FIRST_WORD_SECONDS):
          said = now
          self._complaints.append(
              f'no replay at {self._address} for {now - began:.0f} s: {learner_connection.reason(error)}')
      self._closed.wait(_RETRY_SECONDS)
    raise StopIteration

  def _connected(self):
    """Returns the session; makes one if there is none. Raises an error if that fails."""
    with self._lock:
      if not self._session:
        learner_connection.check_address(self._address)
        session = learner_connection.make_session(
            self._address, self._nodes.graph, replay_port.TASK, _ANSWER_SECONDS)
        try:
          greeting = self._greeting(session)
          if greeting['contract'] is None:  # This agent may be the first one.
            session.run(self._nodes.enqueue_report, {self._nodes.report: self._report_text(contract=self._contract)})
            raise learner_connection.NotReadyError('it is starting')
          if difference := _difference(greeting['contract'], self._contract):
            raise learner_connection.NotReadyError(f'it is for agents with other settings: {difference}')
        except Exception:
          session.close()
          raise
        self._session, self._life = session, greeting['life']
      return self._session

  def _greeting(self, session):
    try:
      return json.loads(session.run(self._nodes.greeting))
    except (tf.errors.FailedPreconditionError, tf.errors.NotFoundError) as error:  # No such resource yet.
      raise learner_connection.NotReadyError('it is starting') from error
    except tf.errors.InvalidArgumentError as error:
      raise learner_connection.NotReadyError('the process there is no replay job') from error

  def _disconnect(self, session):
    """Closes a session that has failed, in another thread, because closing may wait."""
    with self._lock:
      if session and session is self._session:
        self._session = None
    if session:
      threading.Thread(target=_close, args=[session], daemon=True).start()

  def _check_contract(self):
    """Raises errors.UserError if the replay job is for agents with other settings."""
    try:
      with self._lock:
        if self._session:
          return
      learner_connection.check_address(self._address)
      session = learner_connection.make_session(self._address, self._nodes.graph, replay_port.TASK, _ANSWER_SECONDS)
      contract = self._greeting(session)['contract']
      session.close()
    except (tf.errors.OpError, OSError, learner_connection.NotReadyError):
      return  # `_call` waits for it.
    if contract and (difference := _difference(contract, self._contract)):
      raise errors.UserError(f'--shared_replay={self._address}: the replay is for agents with other settings: '
                             f'{difference}: give all agents the same, or start another replay')


def _close(session):
  with contextlib.suppress(tf.errors.OpError):  # The job is gone.
    session.close()


def _difference(theirs, ours):
  """Describes the first difference between two contracts; '' if there is none."""
  for name in ours:
    there, here = theirs.get(name), ours[name]
    if there != here:
      if isinstance(here, dict) and isinstance(there, dict):
        return next(f'{key} is {there.get(key)} there and {here[key]} here' for key in here
                    if there.get(key) != here[key])
      return f'{name} is {there} there and {here} here'
  return ''
