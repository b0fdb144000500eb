"""A replay of whole episodes: stores the actors' episodes, and lets replayers go through them from start to end.

Schmitt et al. 2020 (LASER), section 5.1 and appendix B. A replayer is an actor without an environment. It draws an
episode, uniformly over all episodes, and returns its unrolls one after the other, as if it played it. The work is done
in C++ (cc/episode_replay.h). docs/replay.md says what the replay guarantees.

Actors' rows come as unrolls, whose rows actor/unroll.py describes; the rows themselves may be any nest of tensors. An
episode begins with a row in which `done` is true, and ends with the next such row, because that row has the episode's
last reward. So an episode of n steps has n + 1 rows. Inside an unroll, and in its row T, a replayed row in which `done`
is true has the last reward of the episode that ends there, and the first observation of the one with which the replayer
goes on. Row 0 is the row that was stored: it has the last reward of the episode that the actor played before. Each row
is stored once. Of a stack of frames, only the newest frame is stored; see sequence_replay.py.

When an episode ends inside an unroll, the replayer goes on with the next one that it draws, as an actor goes on with
its next one. So each unroll has T steps.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from scalable_agents.ops import ops
from scalable_agents.replay import replay_rows
from scalable_agents.replay import writer as writer_lib

# Agent steps. The rows of an episode are kept while it goes on, so an episode without end would fill the memory. 27,000
# steps are 30 minutes of an Atari game with four frames per step, the longest episode of the paper.
LONGEST_EPISODE = 27_000


class Replayed(NamedTuple):
  """Unrolls of T steps, one of each of N replayers."""
  rows: Any              # nest of [T+1, N, ...]. Step t leads from row t to row t+1.
  earlier: Any           # list of [N, k-1, ...], one for each stack of k frames: the frames before row 0.
  key: tf.Tensor         # [N] int64, the episode of row T's observation, for the next call. -1 if nothing is replayed.
  next_step: tf.Tensor   # [N] int64, the step of that episode after row T, for the next call.
  stream_id: tf.Tensor   # [N] int64, the stream that row 0 is from; see actor/unroll.py.
  stream_row: tf.Tensor  # [N] int64, the number of row 0 in that stream, if all its unrolls have the same length.
  is_new: tf.Tensor      # [N] bool, whether the replayer was new, so that row 0 may be inside an episode.


class Statistics(NamedTuple):
  """Counts of a replay."""
  steps: int              # Agent steps of the episodes in the replay.
  episodes: int           # Episodes in the replay.
  inserted_episodes: int  # Episodes ever inserted.
  replayed_unrolls: int   # Unrolls ever returned by `next`.
  gaps: int               # Times that unrolls of a stream were missing.
  repeated_unrolls: int   # Unrolls that were not newer than those before, and were ignored.
  streams: int            # Streams that are remembered: their next unroll continues them.
  rows: int               # Rows in memory, also of episodes that are not complete yet.
  bytes: int              # Memory of the rows.
  long_episodes: int      # Episodes that were dropped because they were longer than the longest one that is kept.


class EpisodeReplay(replay_rows.Replay):
  """Keeps the newest complete episodes. Any number of threads may call all methods at once. No method waits.

  Every episode has a key: 0, 1, 2 and so on, in the order in which they become complete. While all episodes together
  have more steps than the capacity, the oldest one is dropped. The newest one is kept, however long it is.
  """
  kind = 'episode_replay'
  statistics_type = Statistics

  def __init__(self, row_spec, unroll_length: int, capacity: int, *, done: Callable[[Any], Any],
               observation: Callable[[Any], Any], frame_stacks=None, longest_episode: int = LONGEST_EPISODE,
               shared_name: str = ''):
    """Makes an empty replay. The memory of rows is allocated as it fills.

    Args:
      row_spec: nest of tf.TensorSpec of one row. Of a stack of frames, of the newest frame.
      unroll_length: T, agent steps of a replayed unroll. The unrolls that are inserted may have another length.
      capacity: largest number of agent steps.
      done: picks the component of rows, [] bool, that says whether the row has the first observation of an episode.
      observation: picks the components of rows that belong to the observation, a nest. Where an episode ends inside an
        unroll, they are those of the next episode's first row; all others are those of the ended episode's last row.
      frame_stacks: nest of int with the structure of row_spec: k > 1 if the newest k frames are to be stacked along the
        last axis. Frames before an episode's start are zeros. None: there are no stacks.
      longest_episode: agent steps. An episode that turns out to be longer is dropped, and is not replayed. The reset
        after a truncation, which is stored like a step, does not count.
      shared_name: the name under which other processes find the replay, if this process has opened a port. '': the
        replay is not shared.
    Raises:
      tf.errors.InvalidArgumentError: an argument is out of its range.
    """
    self.row_spec = row_spec
    self.unroll_length = unroll_length
    self._done = done
    self._rows = replay_rows.Rows(row_spec, frame_stacks)
    with tf.device('/CPU:0'):
      self._handle = ops.episode_replay(
          **self._rows.attributes(done), contents=replay_rows.contents({'rows': row_spec}),
          observed_components=tf.nest.flatten(observation(self._rows.numbers)),
          unroll_length=unroll_length, capacity=capacity, longest_episode=longest_episode,
          shared_name=shared_name or ops.unique_name(self.kind))
    if tf.executing_eagerly():  # In a graph, the handle is that of whichever process runs the graph.
      ops.delete_with(self, self._handle)

  def insert(self, stream_id: tf.Tensor, index: tf.Tensor, rows):
    """Appends unrolls to their streams, and adds the episodes that they complete.

    The unrolls of a stream come in the order of their indices. If an index is missing, the rows after it are ignored
    until the next episode starts.

    Args:
      stream_id, index: [B] int64; see actor/unroll.py.
      rows: nest of [T+1, B, ...] with the structure of row_spec. Row 0 repeats the last row of the unroll before.
    Returns:
      The op, in a graph.
    Raises:
      tf.errors.ResourceExhaustedError: there is not enough memory.
      tf.errors.InvalidArgumentError: a shape or type is wrong.
    """
    with tf.device('/CPU:0'):
      return ops.episode_replay_insert(self._handle, stream_id, index, self._rows.flatten(rows))

  def writer(self) -> writer_lib.Writer:
    """Makes a writer for one actor: it takes rows one by one, and inserts unrolls of unroll_length steps."""
    return writer_lib.Writer(lambda unroll: self.insert(unroll.stream_id, unroll.index, unroll.rows), self.row_spec, (),
                             self._done, self.unroll_length, cross_episodes=False)

  def next(self, key: tf.Tensor, step: tf.Tensor, seed, minimum_size=1) -> Replayed:
    """Returns the next unroll of each of N replayers.

    A replayer goes on with its episode. Where this ends, or if it has left the replay, the replayer goes on with the
    start of an episode that is drawn, uniformly and independently of the other replayers. A new replayer begins with a
    step that is drawn uniformly, too, so that replayers are at different steps even where all episodes have the same
    length. Until the replay has had `minimum_size` agent steps, or has dropped an episode because it was full, nothing
    is replayed: all rows are zeros, and the keys are -1.

    Args:
      key, step: [N] int64, the positions of the replayers: `key` and `next_step` of the call before. -1 and 0 for a new
        replayer.
      seed: [] int64. The same contents, positions and seed give the same unrolls.
      minimum_size: [] int64, agent steps.
    Raises:
      tf.errors.InvalidArgumentError: a shape or type is wrong, or a step is negative.
    """
    with tf.device('/CPU:0'):
      key = tf.convert_to_tensor(key, tf.int64)
      *vectors, rows, earlier = ops.episode_replay_next(
          self._handle, key, step, seed, minimum_size, row_types=self._rows.types,
          earlier_types=self._rows.earlier_types)
    num_replayers = key.shape.num_elements()
    for vector in vectors:
      vector.set_shape([num_replayers])
    return Replayed(self._rows.pack(rows, self.unroll_length + 1, num_replayers),
                    self._rows.with_earlier_shapes(earlier, num_replayers), *vectors, is_new=key < 0)


def memory_bytes(row_spec, capacity: int) -> int:
  """Returns the memory, in bytes, that a full replay needs, if episodes have many steps.

  Episodes that are not complete yet take memory as well, each as many rows as its steps, at most LONGEST_EPISODE. To
  count them, add their steps to `capacity`.

  Args:
    row_spec, capacity: as for EpisodeReplay.
  """
  return capacity * ops.num_bytes(row_spec)


def batch_bytes(row_spec, frame_stacks, unroll_length: int, num_unrolls: int) -> int:
  """Returns the memory, in bytes, of `num_unrolls` replayed unrolls. Arguments as for EpisodeReplay."""
  return num_unrolls * replay_rows.Rows(row_spec, frame_stacks).read_bytes(unroll_length + 1)
