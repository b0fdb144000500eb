"""Shares replays of sequences between processes and machines: one process has them, and the others use them.

The process that has a replay serves it at a port. TensorFlow's own server runs inside its runtime, so no Python of this
process takes part in a call. The others make a RemoteReplay.

The port opens on all network interfaces and has no authentication. Anyone who reaches it can run any graph in this
process.
"""

from collections.abc import Callable
import contextlib
import json
import math
import threading
from typing import Any

import numpy as np
import tensorflow as tf

from scalable_agents.ops import messages
from scalable_agents.processes import ports
from scalable_agents.processes import sessions
from scalable_agents.replay import replay_rows
from scalable_agents.replay import sequence_replay
from scalable_agents.replay import writer as writer_lib

_JOB = 'sequence_replay'
_TASK = f'/job:{_JOB}/replica:0/task:0'
_GREETING = 'greeting'  # The name of a variable, [] string, JSON: the settings of each replay by its name.
_TICK_SECONDS = 0.02    # The time between two checks over the network; see replay_rows.when_available.
_CLOSE_SECONDS = 1.     # The longest wait for the end of a connection.
_kept = []              # What this process serves, kept until the process ends.


def serve(address: str, make: Callable[[], Any]) -> Any:
  """Opens a port at which other processes find replays of this one, until the process ends, and makes the replays.

  Must run before TensorFlow computes anything. The port opens on all interfaces.

  Args:
    address: HOST:PORT, of which only the port is opened.
    make: makes a SequenceReplay with a shared_name, or a list of some.
  Returns:
    What `make` returns.
  Raises:
    ports.PortError: the port is in use.
    ValueError: the address is not HOST:PORT, or a replay has no shared_name.
    Exception: `make` raised it. The port is open before `make` runs, and stays open: end the process.
  """
  lock = sessions.open_port(_JOB, address, 'replay')
  made = make()
  greeting = {_name(replay): _settings(replay) for replay in tf.nest.flatten(made)}
  with tf.device('/CPU:0'):
    variable = sessions.shared_text(_GREETING)
    sessions.set_text(variable, json.dumps(greeting))
  _kept.append((lock, made, variable))
  return made


def _name(replay):
  if not replay.shared_name:
    raise ValueError('shared_name: want a name by which other processes find the replay, got none')
  return replay.shared_name


def _settings(replay: sequence_replay.SequenceReplay) -> dict[str, Any]:
  """Returns the settings of a replay that all processes must have in common, in types that JSON has."""
  def plain(value):
    if isinstance(value, tf.DType):
      return value.name
    return value.item() if isinstance(value, np.generic) else list(value)

  return json.loads(json.dumps(replay.attributes, default=plain))


class RemoteReplay:
  """A SequenceReplay in another process. Any number of threads may call all methods at once.

  The methods are those of SequenceReplay, and return NumPy arrays. They do not work inside a tf.function. All of them
  raise tf.errors.OpError if the other process does not answer. An insert that raises it may have been carried out. It
  can be repeated with the same unroll, as a writer does. A sample whose answer was lost counts as drawn. If the other
  process is started again, make a new RemoteReplay.
  """

  def __init__(self, address: str, make: Callable[[], sequence_replay.SequenceReplay], answer_seconds: float = 10.):
    """Connects to the process.

    Args:
      address: HOST:PORT of the process.
      make: makes the replay, with the same arguments as in the other process, also its shared_name. It runs in a graph.
      answer_seconds: the deadline of a call. A process that does not answer in this time counts as gone.
    Raises:
      OSError: no process listens at the address.
      sessions.NotReadyError: the process there serves no replays, or not yet.
      ValueError: it has no replay of this name, or one with other settings; or the address is not HOST:PORT.
      tf.errors.OpError: it does not answer.
    """
    ports.check_address(address)
    self._graph = tf.Graph()
    self._lock = threading.Lock()  # It guards the graph, and the nodes of samples.
    self._samples: dict[int, sequence_replay.Sample] = {}  # By batch size.
    with self._nodes():
      greeting = sessions.text_of(sessions.shared_text(_GREETING))
      self._replay = make()
      placeholder = tf.compat.v1.placeholder
      self._seed, self._batch_size = placeholder(tf.int64, []), placeholder(tf.int64, [])
      stream_id, index, first_step = (placeholder(tf.int64, [None]) for _ in range(3))
      rows, states = (tf.nest.map_structure(lambda spec: placeholder(spec.dtype, [None, None, *spec.shape]), specs)
                      for specs in (self._replay.row_spec, self._replay.state_spec))
      self._unroll = writer_lib.Insertion(
          stream_id, index, first_step, placeholder(tf.bool, [None, None]), rows, states)
      self._inserted = self._replay.insert(*self._unroll)
      self._key, self._priority = placeholder(tf.int64, [None]), placeholder(tf.float32, [None])
      self._update = self._replay.update(self._key, self._priority)
      self._counts, self._availability = self._replay.counts(), self._replay.availability(self._batch_size)
    name = _name(self._replay)
    self._session = sessions.make_session(address, self._graph, _TASK, answer_seconds)
    self._is_closed = False
    try:
      self._check(address, name, greeting)
    except Exception:
      self.close()
      raise

  def _check(self, address, name, greeting):
    """Checks that the process has this replay. If it had none, any other call would make one there."""
    try:
      served = sessions.read_greeting(self._session, greeting, 'the process there serves no replays of sequences')
    except sessions.NotReadyError as error:
      raise sessions.NotReadyError(f'{address}: {error}') from error
    if name not in served:
      raise ValueError(f'{address}: there is no replay of the name {name!r}, but {", ".join(map(repr, served))}')
    if differing := sessions.differences(served[name], _settings(self._replay)):
      raise ValueError(f'{address}: the replay {name!r} has other settings: {"; ".join(differing)}')

  @contextlib.contextmanager
  def _nodes(self):
    """A context in which nodes of the other process are made."""
    with self._lock, self._graph.as_default(), tf.device(f'{_TASK}/device:CPU:0'):
      yield

  def insert(self, stream_id, index, first_step, starts_episode, rows, states,
             timeout_seconds: float = 0.) -> sequence_replay.Inserted:
    """See SequenceReplay."""
    feed = dict(zip(self._unroll[:4], (stream_id, index, first_step, starts_episode), strict=True))
    for placeholders, values in ((self._unroll.rows, rows), (self._unroll.states, states)):
      tf.nest.assert_same_structure(placeholders, values)
      feed.update(zip(tf.nest.flatten(placeholders), tf.nest.flatten(values), strict=True))
    return replay_rows.when_available(
        lambda: self._run(self._inserted, feed), lambda: self._is_available(1)[0], timeout_seconds,
        _TICK_SECONDS)

  def writer(self, unroll_length: int = 20, timeout_seconds: float = math.inf) -> writer_lib.Writer:
    """See SequenceReplay."""
    return self._replay.writer_of(self.insert, unroll_length, timeout_seconds)

  def sample(self, batch_size: int, seed, timeout_seconds: float = 0.) -> sequence_replay.Sample:
    """See SequenceReplay."""
    if batch_size not in self._samples:
      with self._nodes():
        self._samples[batch_size] = self._replay.sample(batch_size, self._seed)
    return replay_rows.when_available(
        lambda: self._run(self._samples[batch_size], {self._seed: seed}),
        lambda: self._is_available(batch_size)[1], timeout_seconds, _TICK_SECONDS)

  def update(self, key, priority):
    """See SequenceReplay."""
    self._run(self._update, {self._key: key, self._priority: priority})

  def statistics(self) -> sequence_replay.Statistics:
    """See SequenceReplay."""
    return sequence_replay.Statistics(*map(int, self._run(self._counts)))

  def close(self):
    """Closes the connection. Other calls, also those that wait in other threads, then raise RuntimeError."""
    self._is_closed = True
    sessions.close(self._session).join(_CLOSE_SECONDS)  # If it is still at work when Python ends, the process aborts.

  def _is_available(self, batch_size) -> np.ndarray:
    return self._run(self._availability, {self._batch_size: batch_size}) > 0

  def _run(self, nodes, feed=None):
    try:
      return self._session.run(nodes, feed)
    except tf.errors.CancelledError as error:
      if self._is_closed:
        raise RuntimeError('the replay was closed') from error
      raise
    except tf.errors.InternalError as error:
      # A session raises UnavailableError if the process does not answer. An op's own UnavailableError gets this type.
      if 'originally returned UnavailableError' not in error.message:
        raise
      raise replay_rows.TimedOutError(messages.op_message(error.message) or error.message) from error
