"""A replay that stores the actors' experience and samples fixed-length sequences from it, for recurrent agents.

Kapturowski et al. 2019 (R2D2), section 2.3. The work is done in C++ (cc/sequence_replay.h). docs/replay.md says what
the replay guarantees and how to use it without the rest of this project.

Actors' rows come as unrolls, whose rows actor/unroll.py describes; the rows themselves may be any nest of tensors. Each
row is stored once, whatever the overlap of sequences. Of a stack of frames, only the newest frame is stored. A sample
has the frames before its first row beside the newest ones; learner/frame_stacks.py makes stacks of them.
"""

from collections.abc import Callable
import math
from typing import Any, NamedTuple

import tensorflow as tf

from scalable_agents.ops import messages
from scalable_agents.ops import ops
from scalable_agents.replay import replay_rows
from scalable_agents.replay import writer as writer_lib

TimedOutError = replay_rows.TimedOutError

_TICK_SECONDS = 0.001  # The time between two checks whether the replay can serve a call that waits.


class Geometry(NamedTuple):
  """The lengths of sequences, in agent steps. A sequence has burn_in + length + 1 rows."""
  burn_in: int                  # Steps before the trained ones, from which the recurrent state is computed.
  length: int                   # Trained steps.
  period: int                   # Steps from the first trained step of a sequence to that of the next one; <= length.
  cross_episodes: bool = False  # Whether sequences go on across the ends of episodes.


class RateLimit(NamedTuple):
  """Keeps samples and inserted sequences in proportion: the side that is ahead waits. Counts begin at minimum_size.

  An insert that begins while inserting is ahead by at most the tolerance is carried out in full. So inserting may be
  ahead by the tolerance and by the sequences of one insert of each thread. It also goes on, however far ahead it is,
  while the largest batch that `sample` was called for so far cannot be drawn: while fewer than minimum_size sequences
  were inserted, while none has a priority, or while max_times_sampled leaves too few draws. So the two sides never wait
  for each other.
  """
  samples_per_insert: float = 0.  # Sequences to sample for each inserted one. 0: neither waits for the other.
  # Samples by which either side may be ahead. With samples_per_insert, at least that and at least batch_size / 2.
  tolerance: float = 0.
  minimum_size: int = 1           # Sequences that must have been inserted before the first sample; <= capacity.


_NO_LIMIT = RateLimit()


class Inserted(NamedTuple):
  """n new sequences. Their steps are those that are trained."""
  key: tf.Tensor     # [n] int64.
  trains: tf.Tensor  # [length, n] bool, whether the step exists; else it is padding after an episode's end.
  signals: Any       # nest of [length + 1, n, ...]: row t is what step t led to. The last row comes after the sequence.
                     # It has the agent's outputs for the sequence's last row, since these come one row later.


class Sample(NamedTuple):
  """B sequences of L = burn_in + length + 1 rows."""
  rows: Any               # nest of [L, B, ...]. Trained step t leads from row burn_in + t to the next one.
  earlier: Any            # list of [B, k-1, ...], one for each stack of k frames: the frames before row 0.
  states: Any             # nest of [K, B, ...], the recurrent states before the rows with the replay's K state offsets.
  trains: tf.Tensor       # [length, B] bool, whether the trained step exists; else it is padding.
  key: tf.Tensor          # [B] int64, for `update`.
  probability: tf.Tensor  # [B] float32, with which a draw gives this sequence.
  age: tf.Tensor          # [B] int64, batches sampled since the sequence was inserted.
  stream_id: tf.Tensor    # [B] int64, the stream from which it is; see actor/unroll.py.
  stream_row: tf.Tensor   # [B] int64, the number of its row 0 in that stream, if all its unrolls have the same length.
  padding: tf.Tensor      # [B] int64, rows at its start that do not exist, because the episode had not begun. If there
                          # are any, row `padding` has the episode's first observation, and there is no state.


class Statistics(NamedTuple):
  """Counts of a replay."""
  size: int              # Sequences in the replay.
  inserted: int          # Sequences ever inserted.
  sampled: int           # Sequences ever sampled.
  stale_updates: int     # Priorities of sequences that had left the replay.
  gaps: int              # Times that unrolls of a stream were missing.
  repeated_unrolls: int  # Unrolls that were not newer than those before, and were ignored.
  streams: int           # Streams that are remembered: their next unroll continues them.
  rows: int              # Rows in memory.
  bytes: int             # Memory of the rows.


class SequenceReplay(replay_rows.Replay):
  """Keeps the newest sequences. Any number of threads may call all methods at once.

  Every sequence has a key: 0, 1, 2 and so on, in the order of insertion. When the replay is full, the oldest sequence
  makes room for the next one. No method waits unless it gets a timeout; see `insert` and `sample`.

  Attributes:
    row_spec, state_spec, geometry, shared_name: as for __init__.
    attributes: name -> value, all settings except shared_name, as the op that makes the replay takes them.
  """
  kind = 'sequence_replay'
  statistics_type = Statistics

  def __init__(self, row_spec, state_spec, geometry: Geometry, capacity: int, *, done: Callable[[Any], Any],
               frame_stacks=None, state_offsets=(0,), signals: Callable[[Any], Any] = lambda rows: (),
               priority_exponent: float = 0., max_times_sampled: int = 0, rate_limit: RateLimit = _NO_LIMIT,
               shared_name: str = ''):
    """Makes an empty replay. The memory of rows is allocated as it fills.

    Args:
      row_spec: nest of tf.TensorSpec of one row. Of a stack of frames, of the newest frame.
      state_spec: nest of tf.TensorSpec of one recurrent state; () without one.
      geometry: the lengths of sequences.
      capacity: a sequence leaves the replay, at the latest, when this many newer ones have been inserted.
      done: picks the component of rows, [] bool, that says whether the row has the first observation of an episode.
      frame_stacks: nest of int with the structure of row_spec: k > 1 if the newest k frames are to be stacked along the
        last axis. Frames before an episode's start are zeros. None: there are no stacks.
      state_offsets: the offsets of rows in a sequence before which recurrent states are kept.
      signals: picks the components of rows that `insert` returns for new sequences, for their first priorities.
      priority_exponent: alpha. A sequence is drawn in proportion to its priority to this power. With 0, all sequences
        are equally likely, and need no priorities.
      max_times_sampled: a sequence leaves the replay when it has been drawn this often, or earlier if it is among the
        oldest; see `capacity`. 0: there is no limit. At most 2^63 / capacity.
      rate_limit: keeps samples and inserted sequences in proportion.
      shared_name: the name under which other processes find the replay, if this process serves it; see sharing.py.
        '': the replay is not shared.
    Raises:
      tf.errors.InvalidArgumentError: an argument is out of its range.
      tf.errors.ResourceExhaustedError: there is not enough memory for the tables of this capacity.
    """
    self.row_spec = row_spec
    self.state_spec = state_spec
    self.geometry = geometry
    self.shared_name = shared_name
    self._done = done
    self._rows = replay_rows.Rows(row_spec, frame_stacks)
    self._states = tf.nest.flatten(state_spec)
    self._num_states = len(state_offsets) if self._states else 0
    self._signal_spec = signals(self._rows.numbers)
    self._signals = tf.nest.flatten(self._signal_spec)
    self.attributes = dict(
        **self._rows.attributes(done), contents=replay_rows.contents({'rows': row_spec, 'states': state_spec}),
        state_types=[spec.dtype for spec in self._states],
        state_shapes=[spec.shape for spec in self._states], state_offsets=list(state_offsets)[:self._num_states],
        **geometry._asdict(), capacity=capacity, priority_exponent=priority_exponent,
        max_times_sampled=max_times_sampled, **rate_limit._asdict())
    with tf.device('/CPU:0'):
      self._handle = ops.sequence_replay(**self.attributes, shared_name=shared_name or ops.unique_name(self.kind))
    if tf.executing_eagerly():  # In a graph, the handle is that of whichever process runs the graph.
      ops.delete_with(self, self._handle)

  def insert(self, stream_id: tf.Tensor, index: tf.Tensor, first_step: tf.Tensor, starts_episode: tf.Tensor, rows,
             states, timeout_seconds: float = 0.) -> Inserted:
    """Appends unrolls to their streams.

    The unrolls of a stream come in the order of their indices. If an index is missing, no sequence contains rows from
    before and after the gap. If there are priorities, a sequence is sampled only after `update` has set its first one.
    An unroll that comes again is ignored. If it is its stream's last one, its sequences are returned again, unless they
    have left: so an insert whose answer was lost can be repeated.

    Args:
      stream_id, index: [B] int64; see actor/unroll.py.
      first_step: [B] int64, number of row 0, counted from the start of its episode, or of its stream with
        cross_episodes. It says where sequences begin after missing unrolls: where they would have begun without the
        loss. If you insert all states, it may be zeros.
      starts_episode: [T+1, B] bool, whether a new sequence begins with this row. The last sequence before it has this
        row as its last one, since the row has the last reward. Usually, this is the component `done` of `rows`.
      rows: nest of [T+1, B, ...] with the structure of row_spec. Row 0 repeats the last row of the unroll before. This
        is not checked: if it does not, sequences lack a row, and `gaps` does not count it. A writer prevents this.
      states: nest of [T+1, B, ...]: row t has the recurrent state before row t-1, because the agent computes it with
        the action that leads to row t. Row 0 is not used. Where `needs_state` is false for row t-1, row t may be zeros:
        it is not used, except that a sequence may get it for the first row of an episode, where states are reset.
      timeout_seconds: how long to wait while the rate limit holds back inserting; math.inf: without end. Nothing ends
        such a wait early. In a graph, where nothing waits, it must be 0.
    Returns:
      The sequences that are complete now.
    Raises:
      tf.errors.ResourceExhaustedError: there is not enough memory.
      tf.errors.InvalidArgumentError: a shape or type is wrong.
      TimedOutError: inserting was ahead of sampling for all this time. This call has inserted nothing. In a graph, it
        is a tf.errors.UnavailableError.
      ValueError: timeout_seconds is not 0 in a graph.
    """
    tf.nest.assert_same_structure(states, self.state_spec)

    def insert():
      with tf.device('/CPU:0'):
        return ops.sequence_replay_insert(
            self._handle, stream_id, index, first_step, starts_episode, self._rows.flatten(rows),
            tf.nest.flatten(states), signal_components=self._signals,
            signal_types=[self._rows.types[index] for index in self._signals])

    key, trains, signals = _when_available(insert, lambda: bool(self.availability(1)[0]), timeout_seconds)
    key.set_shape([None])
    trains.set_shape([self.geometry.length, None])
    for component, signal in zip(self._signals, signals, strict=True):
      signal.set_shape([self.geometry.length + 1, None, *tf.nest.flatten(self.row_spec)[component].shape])
    return Inserted(key, trains, tf.nest.pack_sequence_as(self._signal_spec, signals))

  def writer(self, unroll_length: int = 20, timeout_seconds: float = math.inf) -> writer_lib.Writer:
    """Makes a writer for one actor: it takes rows one by one, and inserts unrolls.

    Args:
      unroll_length: T, steps of the unrolls. Sequences enter the replay with the unroll that completes them.
      timeout_seconds: see `insert`.
    """
    return self.writer_of(self.insert, unroll_length, timeout_seconds)

  def writer_of(self, insert: Callable[..., Inserted], unroll_length: int, timeout_seconds: float) -> writer_lib.Writer:
    """Makes a writer that calls another `insert`, which has the same arguments as this replay's."""
    return writer_lib.Writer(lambda unroll: insert(*unroll, timeout_seconds=timeout_seconds), self.row_spec,
                             self.state_spec, self._done, unroll_length, self.geometry.cross_episodes)

  def sample(self, batch_size: int, seed, timeout_seconds: float = 0.) -> Sample:
    """Draws sequences, with replacement.

    Args:
      batch_size: number of sequences.
      seed: [] int64. The same contents and seed give the same sample.
      timeout_seconds: how long to wait while sequences cannot be sampled; math.inf: without end. Nothing ends such a
        wait early. In a graph, where nothing waits, it must be 0.
    Raises:
      TimedOutError: for all this time, the replay had no sequence, or none with a priority, or too few that may be
        sampled again, or the rate limit held back sampling. This call has sampled nothing. In a graph, it is a
        tf.errors.UnavailableError.
      ValueError: timeout_seconds is not 0 in a graph.
      tf.errors.InvalidArgumentError: batch_size is less than 1, or more than twice the tolerance of the rate limit or
        than capacity * max_times_sampled.
    """
    def sample():
      with tf.device('/CPU:0'):
        return ops.sequence_replay_sample(
            self._handle, batch_size, seed, row_types=self._rows.types, earlier_types=self._rows.earlier_types,
            state_types=[spec.dtype for spec in self._states])

    key, probability, age, stream_id, stream_row, padding, trains, rows, earlier, states = _when_available(
        sample, lambda: bool(self.availability(batch_size)[1]), timeout_seconds)
    for vector in (key, probability, age, stream_id, stream_row, padding):
      vector.set_shape([batch_size])
    trains.set_shape([self.geometry.length, batch_size])
    num_rows = self.geometry.burn_in + self.geometry.length + 1
    for spec, values in zip(self._states, states, strict=True):
      values.set_shape([self._num_states, batch_size, *spec.shape])
    return Sample(self._rows.pack(rows, num_rows, batch_size), self._rows.with_earlier_shapes(earlier, batch_size),
                  tf.nest.pack_sequence_as(self.state_spec, states), trains, key, probability, age, stream_id,
                  stream_row, padding)

  def availability(self, batch_size) -> tf.Tensor:
    """Returns [2] int64: 1 if `insert`, and `sample` of batch_size sequences, would not have to wait now, else 0."""
    with tf.device('/CPU:0'):
      return ops.sequence_replay_available(self._handle, batch_size)

  def update(self, key: tf.Tensor, priority: tf.Tensor):
    """Sets priorities. Keys of sequences that have left the replay are ignored.

    Args:
      key: [n] int64.
      priority: [n] float32, not negative.
    Returns:
      The op, in a graph.
    Raises:
      tf.errors.InvalidArgumentError: a priority is negative or not finite.
    """
    with tf.device('/CPU:0'):
      return ops.sequence_replay_update(self._handle, key, priority)


def _when_available(call, is_available, timeout_seconds):
  """See replay_rows.when_available. In a graph, returns the nodes of `call`."""
  def timed_call():
    try:
      return call()
    except tf.errors.UnavailableError as error:
      raise TimedOutError(messages.plain_message(error.message)) from error

  if tf.executing_eagerly():
    return replay_rows.when_available(timed_call, is_available, timeout_seconds, _TICK_SECONDS)
  if timeout_seconds:
    raise ValueError(f'timeout_seconds: want 0 in a graph, where nothing waits, got {timeout_seconds}')
  return call()


def needs_state(step: tf.Tensor, geometry: Geometry, state_offsets=(0,)) -> tf.Tensor:
  """Returns before which rows a replay needs the recurrent state. An actor need not send the other states.

  Args:
    step: [...] int, number of the row, counted from the start of its episode, or of its stream with cross_episodes.
    geometry, state_offsets: as for SequenceReplay.
  Returns:
    [...] bool. Without cross_episodes, the first row of an episode needs none, because the state is reset there.
  """
  numbers = _numbers_with_state(geometry, state_offsets)
  needed = tf.reduce_any([step % geometry.period == number for number in numbers], axis=0)
  return needed if geometry.cross_episodes else needed & (step > 0)


def most_states(num_rows: int, geometry: Geometry, state_offsets=(0,)) -> int:
  """Returns the largest number of states that `num_rows` consecutive rows can need; see `needs_state`."""
  total = 0
  for number in _numbers_with_state(geometry, state_offsets):
    # The smallest distance from one such row to the next one, which may be in the next episode.
    apart = geometry.period if geometry.cross_episodes or number == 0 else number + 1
    total += -(-num_rows // apart)
  return min(total, num_rows)


def _numbers_with_state(geometry, state_offsets):
  """Returns the numbers that rows with a state have in their episode, modulo the period."""
  first = 0 if geometry.cross_episodes else -geometry.burn_in
  return sorted({(first + offset) % geometry.period for offset in state_offsets})


def memory_bytes(row_spec, state_spec, geometry: Geometry, capacity: int, num_states: int = 1) -> int:
  """Returns the memory, in bytes, of a full replay whose episodes are much longer than sequences.

  The rows of the sequences that are not complete yet are not counted.

  Args:
    row_spec, state_spec, geometry, capacity: as for SequenceReplay.
    num_states: number of state offsets.
  """
  return capacity * (geometry.period * ops.num_bytes(row_spec) + num_states * ops.num_bytes(state_spec))


def batch_bytes(row_spec, frame_stacks, geometry: Geometry, batch_size: int) -> int:
  """Returns the bytes of a sample of `batch_size` sequences, without their states. Arguments as for SequenceReplay."""
  return batch_size * replay_rows.Rows(row_spec, frame_stacks).read_bytes(geometry.burn_in + geometry.length + 1)
