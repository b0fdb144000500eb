"""Writes what one actor experiences into a replay, row by row.

A replay takes unrolls that overlap by a row and are numbered, with recurrent states that are one row late
(actor/unroll.py). An unroll that does not repeat the last row of the one before leaves a gap that the replay cannot
detect, and states that are not shifted belong to other rows. A writer takes rows as an actor's loop has them, each with
its own state, and makes the unrolls.
"""

import collections
from collections.abc import Callable
import secrets
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf


class Insertion(NamedTuple):
  """The arguments of SequenceReplay.insert for one unroll of T steps."""
  stream_id: np.ndarray       # [1] int64.
  index: np.ndarray           # [1] int64.
  first_step: np.ndarray      # [1] int64.
  starts_episode: np.ndarray  # [T+1, 1] bool.
  rows: Any                   # nest of [T+1, 1, ...].
  states: Any                 # nest of [T+1, 1, ...]: row t has the state before row t-1.


class _Row(NamedTuple):
  """A row that was appended."""
  row: list[np.ndarray]    # By component.
  state: list[np.ndarray]  # By field: the recurrent state before the row.
  starts_episode: bool
  step: int                # Its number, counted from the start of its episode, or of the stream with cross_episodes.


class Writer:
  """Writes one stream, from the start of an actor's first episode. Only one thread may use it at a time.

  Its memory has no limit: rows whose insertion fails are kept until one succeeds.
  """

  def __init__(self, insert: Callable[[Insertion], Any], row_spec, state_spec, done: Callable[[Any], Any],
               unroll_length: int, cross_episodes: bool):
    """Makes a writer. Call a replay's method `writer` instead of this.

    Args:
      insert: inserts an unroll into the replay.
      row_spec, state_spec, done: as for SequenceReplay.
      unroll_length: T, steps of the unrolls that are inserted.
      cross_episodes: as in Geometry.
    Raises:
      ValueError: unroll_length is less than 1.
    """
    if unroll_length < 1:
      raise ValueError(f'unroll_length: want at least 1, got {unroll_length}')
    self._insert = insert
    self._row_spec, self._state_spec = row_spec, state_spec
    self._done = done
    self._unroll_length = unroll_length
    self._cross_episodes = cross_episodes
    self._stream_id = secrets.randbits(63)
    self._index = 0
    self._rows: list[_Row] = []  # The last row of the last unroll, and those after it.
    # An unroll whose insertion failed may have been inserted, so it is inserted again as it is.
    self._unrolls: collections.deque[Insertion] = collections.deque()
    self._inserted: list[Any] = []  # What `insert` returned in calls that then raised an error.

  def append(self, row, state=()) -> list[Any]:
    """Appends a row, and inserts an unroll whenever it is complete.

    Args:
      row: nest of arrays with the structure of row_spec: an action, the reward and the observation that it led to.
        `done` is true in the first row, and wherever the observation is the first one of an episode. Then the action
        and the reward are the last ones of the episode before.
      state: nest of arrays with the structure of state_spec: the recurrent state before the agent processes this row.
    Returns:
      What the replay's `insert` returned for each unroll that was inserted: usually none, or one.
    Raises:
      ValueError: the structure, a shape or a type is wrong. The row is lost, and the rest of its episode is refused as
        well, so that no sequence contains rows from before and after it. Or the writer's first row, or the first one
        after a loss, does not start an episode.
      Exception: see `insert`. The row is kept. The next call of `append` or `flush` inserts it, and returns also what
        this call would have returned.
    """
    try:
      arrays, state_arrays = _checked('row', row, self._row_spec), _checked('state', state, self._state_spec)
    except ValueError:
      self._end_segment()
      raise
    starts_episode = bool(self._done(row))
    if not self._rows:
      if not starts_episode:
        raise ValueError('the first row of a writer, or after a row that was refused, must start an episode: done is '
                         'false')
      step = 0
    else:
      step = 0 if starts_episode and not self._cross_episodes else self._rows[-1].step + 1
    self._rows.append(_Row(arrays, state_arrays, starts_episode, step))
    if len(self._rows) > self._unroll_length:
      self._end_unroll()
    return self._insert_unrolls()

  def flush(self) -> list[Any]:
    """Inserts all rows that are not inserted yet, if there are any. Returns and raises as `append`."""
    if len(self._rows) > 1:
      self._end_unroll()
    return self._insert_unrolls()

  def _end_unroll(self):
    rows = [row.row for row in self._rows]
    states = [self._rows[0].state, *(row.state for row in self._rows[:-1])]  # The first one is not used.
    self._unrolls.append(Insertion(
        np.array([self._stream_id]), np.array([self._index]), np.array([self._rows[0].step]),
        np.array([[row.starts_episode] for row in self._rows]), _batch(rows, self._row_spec),
        _batch(states, self._state_spec)))
    self._index += 1
    del self._rows[:-1]

  def _end_segment(self):
    """Ends the last unroll, if there is one, and leaves out an index, so that the replay sees the gap."""
    if not self._rows:
      return
    if len(self._rows) > 1:
      self._end_unroll()
    self._rows.clear()
    self._index += 1

  def _insert_unrolls(self):
    while self._unrolls:
      self._inserted.append(self._insert(self._unrolls[0]))
      self._unrolls.popleft()
    inserted, self._inserted = self._inserted, []
    return inserted


def _checked(name, nest, spec) -> list[np.ndarray]:
  """Returns the arrays of a nest. Raises ValueError if they do not fit their specs."""
  try:
    tf.nest.assert_same_structure(nest, spec)
  except (TypeError, ValueError) as error:
    raise ValueError(f'{name}: want a nest of arrays with the structure of {name}_spec') from error
  arrays = []
  for number, (value, its_spec) in enumerate(zip(tf.nest.flatten(nest), tf.nest.flatten(spec), strict=True)):
    array, dtype = np.asarray(value), its_spec.dtype.as_numpy_dtype
    if array.shape != tuple(its_spec.shape) or not np.can_cast(array.dtype, dtype, 'same_kind'):
      raise ValueError(f'{name}, component {number}: want {its_spec.dtype.name} {list(its_spec.shape)}, got '
                       f'{array.dtype} {list(array.shape)}')
    converted = array.astype(dtype)  # A copy: an environment may use its arrays again.
    if np.issubdtype(dtype, np.integer) and not np.array_equal(converted, array):
      raise ValueError(f'{name}, component {number}: want numbers within {its_spec.dtype.name}, got {array}')
    arrays.append(converted)
  return arrays


def _batch(rows: list[list[np.ndarray]], spec):
  """Returns a nest of [rows, 1, ...]."""
  components = [np.stack(column)[:, np.newaxis] for column in zip(*rows, strict=True)]
  return tf.nest.pack_sequence_as(spec, components)
