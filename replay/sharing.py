"""Shares a replay of sequences between processes and machines: one has it, and the others insert and sample.

The process that has the replay opens a port, and makes the replay with a `shared_name`. TensorFlow's own server runs
inside its runtime, so no Python of this process takes part in a call. The others make a SharedReplay.

The port has no authentication on any network interface. Anyone who reaches it can run any graph in this process.
"""

from collections.abc import Callable
import contextlib
import math
import re
import threading

import numpy as np
import tensorflow as tf

from scalable_agents.processes import ports
from scalable_agents.processes import sessions
from scalable_agents.replay import replay_rows
from scalable_agents.replay import sequence_replay
from scalable_agents.replay import writer as writer_lib

_JOB = 'replay'
_TASK = f'/job:{_JOB}/replica:0/task:0'
_locks = []  # Of the port of this process. They end with the process.


def open_port(address: str):
  """Opens a port at which other processes find the replays of this one, until the process ends.

  Must run before TensorFlow computes anything, and so before a replay is made. The port opens on all interfaces.

  Args:
    address: HOST:PORT, of which only the port is opened.
  Raises:
    ports.PortError: the port is in use.
    ValueError: the address is not HOST:PORT.
  """
  _locks.append(sessions.open_port(_JOB, address, 'replay'))


class SharedReplay:
  """A SequenceReplay in another process. Any number of threads may call all methods at once.

  The methods are those of SequenceReplay, and return NumPy arrays. They do not work inside a tf.function. All of them
  raise tf.errors.OpError if the other process does not answer. A new SharedReplay connects to its successor. An unroll
  that is inserted again is ignored.
  """

  def __init__(self, address: str, make: Callable[[], sequence_replay.SequenceReplay], answer_seconds: float = 10.):
    """Connects to the process.

    Args:
      address: HOST:PORT of the process.
      make: makes the replay, with the same arguments as in the other process, also its shared_name. It runs in a graph.
      answer_seconds: when a process counts as gone that does not answer.
    Raises:
      OSError: no process listens at the address.
      ValueError: the replay of the other process has other settings, or the address is not HOST:PORT.
    """
    ports.check_address(address)
    self._graph = tf.Graph()
    self._lock = threading.Lock()  # It guards the graph, and the nodes of samples.
    self._samples: dict[int, sequence_replay.Sample] = {}  # By batch size.
    with self._nodes():
      self._replay = make()
      placeholder = tf.compat.v1.placeholder
      self._seed, self._batch_size = placeholder(tf.int64, []), placeholder(tf.int64, [])
      stream_id, index, first_step = (placeholder(tf.int64, [None]) for _ in range(3))
      rows, states = (tf.nest.map_structure(lambda spec: placeholder(spec.dtype, [None, None, *spec.shape]), specs)
                      for specs in (self._replay.row_spec, self._replay.state_spec))
      self._unroll = writer_lib.Unroll(
          stream_id, index, first_step, placeholder(tf.bool, [None, None]), rows, states)
      self._inserted = self._replay.insert(*self._unroll)
      self._key, self._priority = placeholder(tf.int64, [None]), placeholder(tf.float32, [None])
      self._update = self._replay.update(self._key, self._priority)
      self._counts, self._availability = self._replay.counts(), self._replay.availability(self._batch_size)
    self._session = sessions.make_session(address, self._graph, _TASK, answer_seconds)
    try:
      self.statistics()
    except tf.errors.InvalidArgumentError as error:
      found = re.search('^a replay of this name .*$', error.message, re.MULTILINE)
      raise ValueError(f'{address}: {found[0] if found else "the process there shares no replays"}') from error

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
        lambda: self._run(self._inserted, feed), lambda: self._is_available(1)[0], timeout_seconds)

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
        lambda: self._is_available(batch_size)[1], timeout_seconds)

  def update(self, key, priority):
    """See SequenceReplay."""
    self._run(self._update, {self._key: key, self._priority: priority})

  def statistics(self) -> sequence_replay.Statistics:
    """See SequenceReplay."""
    return sequence_replay.Statistics(*map(int, self._run(self._counts)))

  def close(self):
    """Closes the connection."""
    sessions.close(self._session)

  def _is_available(self, batch_size) -> np.ndarray:
    return self._run(self._availability, {self._batch_size: batch_size}) > 0

  def _run(self, nodes, feed=None):
    try:
      return self._session.run(nodes, feed)
    except tf.errors.InternalError as error:
      # TensorFlow keeps UnavailableError for a process that does not answer, and gives an op's error another type.
      if 'originally returned UnavailableError' not in error.message:
        raise
      raise tf.errors.UnavailableError(None, None, error.message) from error
