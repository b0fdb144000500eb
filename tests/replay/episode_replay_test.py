"""Tests of the replay of episodes. tests/replay/cc tests its C++ core, also under sanitizers."""

import os
import tempfile
from typing import NamedTuple

from absl.testing import absltest
from absl.testing import parameterized
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import tensorflow as tf

from scalable_agents.learner import frame_stacks
from scalable_agents.replay import episode_replay

_STACK = 3
_STREAM_ROWS = 1000  # Rows of each stream in these tests. Row r of stream s has number s * _STREAM_ROWS + r + 1.


class Row(NamedTuple):
  """A row that says where it is from."""
  frame: object   # [2, 3] int16, stacked from 3 frames.
  done: object    # [] bool.
  number: object  # [] int64.
  reward: object  # [] float32, half the number.
  place: object   # [] int64, the number again. Belongs to the observation, as the frame does.


_SPEC = Row(tf.TensorSpec([2, 3], tf.int16), tf.TensorSpec([], tf.bool), tf.TensorSpec([], tf.int64),
            tf.TensorSpec([], tf.float32), tf.TensorSpec([], tf.int64))
_STACKS = Row(_STACK, 1, 1, 1, 1)


def _make(unroll_length=4, capacity=1000, **kwargs):
  return episode_replay.EpisodeReplay(
      _SPEC, unroll_length, capacity,
      **{'done': lambda rows: rows.done, 'observation': lambda rows: [rows.frame, rows.place],
         'frame_stacks': _STACKS} | kwargs)


class Stream:
  """All rows of a stream, as its environment gave them."""

  def __init__(self, stream_id, episode_lengths):
    """The episodes have these lengths, one after the other, again and again."""
    self.id = stream_id
    rows = np.arange(_STREAM_ROWS)
    repeats = _STREAM_ROWS // sum(episode_lengths) + 1
    starts = np.cumsum([0, *episode_lengths * repeats])
    self.done = np.isin(rows, starts)
    self.number = stream_id * _STREAM_ROWS + rows + 1
    self.frame = (7 * self.number[:, np.newaxis, np.newaxis] + np.arange(6).reshape(2, 3)).astype(np.int16)
    self.stacked = np.zeros([_STREAM_ROWS, 2, 3 * _STACK], np.int16)  # What the environment's own stack would be.
    for row in rows:
      kept = np.zeros([2, 3 * (_STACK - 1)], np.int16) if self.done[row] else self.stacked[row - 1, :, 3:]
      self.stacked[row] = np.concatenate([kept, self.frame[row]], axis=-1)

  def unroll(self, index, length):
    """Returns rows index * length to (index + 1) * length."""
    rows = slice(index * length, (index + 1) * length + 1)
    return Row(self.frame[rows], self.done[rows], self.number[rows], (self.number[rows] / 2).astype(np.float32),
               self.number[rows])


def _insert(replay, streams, indices, length):
  """Inserts an unroll of each stream."""
  rows = tf.nest.map_structure(lambda *unrolls: np.stack(unrolls, axis=1),
                               *[stream.unroll(index, length) for stream, index in zip(streams, indices)])
  return replay.insert(np.array([stream.id for stream in streams], np.int64), np.array(indices, np.int64), rows)


class Reference:
  """A slow replay: lists of the rows' numbers in their streams."""

  def __init__(self, capacity):
    self.capacity = capacity
    self.streams = {}   # Stream -> (next index, rows of the running episode).
    self.episodes = {}  # Key -> (stream, rows).
    self.num_episodes = self.gaps = self.repeated = 0

  def insert(self, stream, index, length):
    """Inserts an unroll."""
    next_index, running = self.streams.get(stream, (None, []))
    if next_index is not None and index < next_index:
      self.repeated += 1
      return
    is_first = index != next_index
    if is_first:
      self.gaps += next_index is not None
      running = []
    for row in range(index * length + (not is_first), (index + 1) * length + 1):
      if running:
        running.append(row)
      if stream.done[row]:
        if running:
          self._add(stream, running)
        running = [row]
    self.streams[stream] = (index + 1, running)

  def _add(self, stream, rows):
    self.episodes[self.num_episodes] = (stream, rows)
    self.num_episodes += 1
    while self.steps() > self.capacity and len(self.episodes) > 1:
      del self.episodes[min(self.episodes)]

  def steps(self):
    """The number of steps in the replay."""
    return sum(len(rows) - 1 for _, rows in self.episodes.values())


class EpisodeReplayTest(parameterized.TestCase):

  def _check_unroll(self, replayed, i, episodes, key=-1, step=0):
    """Goes through unroll number i, row by row, also where it goes on with another episode.

    Args:
      replayed: Replayed of arrays.
      i: the number of the unroll.
      episodes: dict of key -> (stream, numbers of its rows), those in the replay.
      key, step: the replayer's position.
    Returns:
      The number of episodes that end in the unroll.
    """
    rows, num_ended = tf.nest.map_structure(lambda values: np.asarray(values)[:, i], replayed.rows), 0
    stacks = frame_stacks.stack(replayed.rows.frame, replayed.earlier[0], replayed.rows.done).numpy()[:, i]
    by_first = {stream.number[its[0]]: key for key, (stream, its) in episodes.items()}
    if key == -1:  # Begins anywhere.
      key, step = next((key, its.index(row)) for key, (stream, its) in episodes.items() for row in its[:-1]
                       if stream.number[row] == rows.place[0])
    elif key not in episodes or step >= len(episodes[key][1]) - 1:
      key, step = by_first[rows.place[0]], 0
    stream, its = episodes[key]
    self.assertEqual((replayed.stream_id[i], replayed.stream_row[i]), (stream.id, its[step]))
    for t, place in enumerate(rows.place):
      here = its[step]
      self.assertEqual((rows.number[t], rows.reward[t], rows.done[t]),
                       (stream.number[here], stream.number[here] / 2, stream.done[here]))
      if t and step == len(its) - 1:
        key, step, num_ended = by_first[place], 0, num_ended + 1
        stream, its = episodes[key]
      self.assertEqual(place, stream.number[its[step]])
      np.testing.assert_array_equal(stacks[t], stream.stacked[its[step]])
      step += 1
    self.assertEqual((replayed.key[i], replayed.next_step[i]), (key, step - 1))
    return num_ended

  @settings(max_examples=60, deadline=None, derandomize=True)
  @given(st.integers(1, 8), st.integers(1, 9), st.integers(1, 60), st.data())
  def test_is_what_a_slow_replay_gives(self, unroll_length, inserted_length, capacity, data):
    replay, reference = _make(unroll_length, capacity), Reference(capacity)
    lengths = st.lists(st.integers(1, 25), min_size=1, max_size=6)
    streams = [Stream(stream_id, data.draw(lengths)) for stream_id in (1, 2)]
    indices = [data.draw(st.integers(0, 3)) for _ in streams]
    key, step = np.full(3, -1), np.zeros(3, np.int64)
    for seed in range(20):
      _insert(replay, streams, indices, inserted_length)
      for stream, index in zip(streams, indices):
        reference.insert(stream, index, inserted_length)
      # Mostly the next unroll, sometimes the one after it or an old one.
      moves = st.sampled_from([1] * 8 + [2, 0, -1])
      indices = [max(index + data.draw(moves), 0) for index in indices]
      statistics = replay.statistics()
      self.assertEqual(statistics.episodes, len(reference.episodes))
      self.assertEqual(statistics.inserted_episodes, reference.num_episodes)
      self.assertEqual(statistics.steps, reference.steps())
      self.assertEqual((statistics.gaps, statistics.repeated_unrolls), (reference.gaps, reference.repeated))
      minimum_size = data.draw(st.sampled_from([1, 1, 20]))
      replayed = replay.next(key, step, seed, minimum_size)
      was_full = reference.num_episodes > len(reference.episodes)
      if reference.steps() < minimum_size and not was_full or not reference.episodes:
        np.testing.assert_array_equal(replayed.key, -1)
        continue
      replayed = tf.nest.map_structure(lambda values: values.numpy(), replayed)
      for i in range(3):
        self._check_unroll(replayed, i, reference.episodes, int(key[i]), int(step[i]))
      key, step = replayed.key, replayed.next_step

  def test_a_replayer_goes_on_with_the_next_episode(self):
    replay, stream, num_ended = _make(unroll_length=4), Stream(1, [11, 1, 2, 8]), 0
    _insert(replay, [stream], [0], 22)
    episodes = {0: (stream, range(12)), 1: (stream, [11, 12]), 2: (stream, [12, 13, 14]), 3: (stream, range(14, 23))}
    position = -1, 0
    for seed in range(60):
      replayed = replay.next(position[:1], position[1:], seed)
      num_ended += self._check_unroll(replayed, 0, episodes, *position)
      position = int(replayed.key[0]), int(replayed.next_step[0])
    self.assertBetween(num_ended, 25, 70)  # Episodes have 5.5 steps on average.
    self.assertEqual(replay.statistics().replayed_unrolls, 60)

  def test_the_row_between_two_episodes_has_something_of_either(self):
    """The last reward of the one, and the first observation of the other; the stack has no frame of the one."""
    replay, streams = _make(unroll_length=5), [Stream(1, [3]), Stream(2, [100])]
    for stream in streams:
      _insert(replay, [stream], [0], 3 if stream.id == 1 else 100)
    seed = next(seed for seed in range(100) if replay.next([0], [1], seed).key == [1])  # It goes on with stream 2.
    drawn = replay.next([0], [1], seed)
    replayed = tf.nest.map_structure(lambda values: values.numpy()[:, 0], drawn.rows)
    stack = frame_stacks.stack(drawn.rows.frame, drawn.earlier[0], drawn.rows.done)[2, 0]
    number = lambda stream, row: stream * _STREAM_ROWS + row + 1
    self.assertEqual(replayed.number.tolist(), [number(stream, row) for stream in (1, 2) for row in (1, 2, 3)])
    self.assertEqual(replayed.place.tolist(), [number(1, 1), number(1, 2), *(number(2, row) for row in range(4))])
    self.assertEqual(replayed.done.tolist(), [False, False, True, False, False, False])
    np.testing.assert_array_equal(stack, streams[1].stacked[0])
    self.assertFalse(np.any(stack[:, :3 * (_STACK - 1)]))

  def test_episodes_are_equally_likely_whatever_their_length(self):
    replay, stream = _make(), Stream(0, [1, 40, 2, 17])
    _insert(replay, [stream], [0], 60 * 5)
    num_episodes, num_draws = 4 * 5, 20_000
    self.assertEqual(replay.statistics().episodes, num_episodes)
    not_there = np.full(num_draws, 1_000)
    first = replay.next(not_there, np.zeros(num_draws, np.int64), 5).rows.number[0]
    counts = np.unique(first, return_counts=True)[1]
    self.assertLen(counts, num_episodes)
    expected = num_draws / num_episodes
    self.assertLess(np.sum((counts - expected)**2) / expected, 43.8)  # Exceeded with probability 0.001 at 19 degrees.

  def test_the_same_arguments_give_the_same_unrolls(self):
    replay = _make()
    _insert(replay, [Stream(0, [3, 7, 2])], [0], 300)
    key, step = np.array([-1, 2, 5, -1]), np.array([0, 1, 2, 0])
    first, second = replay.next(key, step, 9), replay.next(key, step, 9)
    tf.nest.map_structure(np.testing.assert_array_equal, first, second)
    self.assertEqual(first.stream_row.numpy()[1], 10 + 1)  # Episode 2 begins with row 10.
    drawn = {tuple(replay.next([-1] * 4, [0] * 4, seed).stream_row.numpy()) for seed in range(50)}
    self.assertLen(drawn, 50)

  def test_the_oldest_episode_makes_room_while_it_is_replayed(self):
    replay, stream = _make(unroll_length=2, capacity=20), Stream(0, [8])
    _insert(replay, [stream], [0], 8)
    replayed = replay.next([0], [0], 0)
    _insert(replay, [stream], [1], 8)  # 16 steps. The first episode goes on.
    replayed = replay.next(replayed.key, replayed.next_step, 0)
    self.assertEqual((int(replayed.key[0]), int(replayed.next_step[0])), (0, 4))
    _insert(replay, [stream], [2], 8)  # 24 steps, of which the capacity keeps 16.
    self.assertEqual(replay.statistics()[:3], (16, 2, 3))
    self.assertEqual(replay.size(), 16)
    replayed = replay.next(replayed.key, replayed.next_step, 0)
    self.assertIn(int(replayed.key[0]), (1, 2))
    self.assertEqual(int(replayed.next_step[0]), 2)

  def test_works_in_a_graph(self):
    replay, stream = _make(), Stream(3, [10])

    @tf.function(autograph=False)
    def step(rows, key, step, seed):
      with tf.control_dependencies([replay.insert(tf.constant([3], tf.int64), tf.constant([0], tf.int64), rows)]):
        replayed = replay.next(key, step, seed)
        self.assertEqual(replayed.rows.frame.shape.as_list(), [5, 2, 2, 3])
        self.assertEqual([frames.shape.as_list() for frames in replayed.earlier], [[2, _STACK - 1, 2, 3]])
        for vector in replayed[2:]:
          self.assertEqual(vector.shape.as_list(), [2])
        return replayed.stream_row, replay.size()

    rows = tf.nest.map_structure(lambda values: values[:, np.newaxis], stream.unroll(0, 40))
    stream_row, size = step(rows, tf.constant([2, 99], tf.int64), tf.constant([5, 0], tf.int64), np.int64(1))
    self.assertEqual((stream_row.numpy() % 10).tolist(), [5, 0])
    self.assertEqual(size, 40)

  def test_replays_with_the_same_name_are_one(self):
    replay = _make(shared_name='episodes_of_this_test')
    _insert(replay, [Stream(0, [10])], [0], 40)
    other = _make(shared_name='episodes_of_this_test')
    self.assertEqual(other.statistics().steps, 40)
    self.assertEqual(_make().statistics().steps, 0)

  @parameterized.parameters(
      {'unroll_length': 5}, {'capacity': 999}, {'longest_episode': 7}, {'observation': lambda rows: [rows.frame]})
  def test_refuses_other_settings_than_those_of_the_replay_of_this_name(self, **settings):
    replay = _make(shared_name='settings_of_this_test')
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, 'a replay of this name has other settings: want '):
      _make(shared_name='settings_of_this_test', **settings)
    self.assertEqual(replay.statistics().steps, 0)

  def test_refuses_rows_that_the_replay_does_not_have(self):
    replay = _make()
    _insert(replay, [Stream(0, [10])], [0], 40)
    numbers = {'done': tf.TensorSpec([], tf.bool), 'number': tf.TensorSpec([], tf.int64)}
    fewer = episode_replay.EpisodeReplay(numbers, 4, 1000, done=lambda rows: rows['done'], observation=lambda rows: ())
    fewer._handle = replay._handle
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, 'row_types: want 5, got 2'):
      fewer.next([-1], [0], 0)
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, 'rows: want 5, got 2'):
      fewer.insert([0], [0], {'done': tf.zeros([5, 1], tf.bool), 'number': tf.zeros([5, 1], tf.int64)})
    others = episode_replay.EpisodeReplay(
        _SPEC._replace(reward=tf.TensorSpec([], tf.int32)), 4, 1000, done=lambda rows: rows.done,
        observation=lambda rows: rows.frame)
    others._handle = replay._handle
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, 'output 3: want float as in the replay, got int32'):
      others.next([-1], [0], 0)

  def test_other_processes_find_it_by_its_name(self):
    server, stream = tf.distribute.Server.create_local_server(), Stream(0, [10])
    rows = tf.nest.map_structure(lambda values: values[:, np.newaxis], stream.unroll(0, 40))
    with tf.Graph().as_default(), tf.compat.v1.Session(server.target) as session:
      session.run(_make(shared_name='episodes').insert([0], [0], rows))
    with tf.Graph().as_default(), tf.compat.v1.Session(server.target) as session:
      replay = _make(shared_name='episodes')
      replayed, size = session.run([replay.next([2], [5], 0), replay.size()])
    self.assertEqual(size, 40)
    self._check_unroll(replayed, 0, {2: (stream, range(20, 31))}, 2, 5)

  def test_saves_and_restores(self):
    replay, restored = _make(capacity=100), _make(capacity=100)
    streams = [Stream(1, [3, 19, 1]), Stream(2, [13])]
    for index in range(20):
      _insert(replay, streams, [index, index], 5)
    position = replay.next([-1] * 4, [0] * 4, 1)
    with tempfile.TemporaryDirectory() as folder:
      path = os.path.join(folder, 'episodes')
      replay.save(path)
      restored.restore(path)
      for name in ('steps', 'episodes', 'inserted_episodes', 'replayed_unrolls'):
        self.assertEqual(getattr(restored.statistics(), name), getattr(replay.statistics(), name))
      for seed in range(5):
        want, got = (one.next(position.key, position.next_step, seed) for one in (replay, restored))
        tf.nest.map_structure(np.testing.assert_array_equal, want, got)
        position = want
      other_length = _make(unroll_length=7, capacity=100)
      other_length.restore(path)
      self.assertEqual(other_length.next(position.key, position.next_step, 0).rows.number.shape, [8, 4])
      with self.assertRaisesRegex(ValueError, f'^{path}: .* other settings: want .*, got .*[^:]$'):
        _make(capacity=99).restore(path)
      other = episode_replay.EpisodeReplay(
          _SPEC._replace(number=tf.TensorSpec([], tf.uint64)), 4, 100, done=lambda rows: rows.done,
          observation=lambda rows: [rows.frame, rows.place], frame_stacks=_STACKS)
      with self.assertRaisesRegex(ValueError, 'other settings'):
        other.restore(path)
      with self.assertRaisesRegex(ValueError, f'^{path}: the replay that restores it must be empty$'):
        restored.restore(path)
      with open(path, 'r+b') as file:
        file.seek(1000)
        file.write(b'damage')
      with self.assertRaisesRegex(OSError, f'^{path}: the file of the replay is damaged$'):
        _make(capacity=100).restore(path)
      with self.assertRaisesRegex(OSError, 'No such file'):
        _make(capacity=100).restore(os.path.join(folder, 'absent'))
      replay.save(path)
      os.symlink('/dev/full', path + '.new')
      with self.assertRaisesRegex(OSError, f'^{path}.new: No space left on device$'):
        replay.save(path)
      self.assertEqual(os.listdir(folder), ['episodes'])  # The file from before.

  def test_a_full_replay_of_stacked_frames_costs_one_frame_per_step(self):
    spec = {'pixels': tf.TensorSpec([84, 84, 1], tf.uint8), 'done': tf.TensorSpec([], tf.bool)}
    replay = episode_replay.EpisodeReplay(
        spec, 20, 2000, done=lambda rows: rows['done'], observation=lambda rows: rows['pixels'],
        frame_stacks={'pixels': 4, 'done': 1})
    for index in range(60):
      done = np.arange(index * 50, index * 50 + 51) % 500 == 0
      replay.insert([0], [index], {'pixels': tf.zeros([51, 1, 84, 84, 1], tf.uint8), 'done': done[:, np.newaxis]})
    statistics = replay.statistics()
    self.assertEqual(statistics.steps, 2000)
    self.assertBetween(statistics.bytes / episode_replay.memory_bytes(spec, 2000), 1., 1.02)
    replayed = replay.next([-1] * 3, [0] * 3, 1)
    self.assertEqual(sum(values.numpy().nbytes for values in (*replayed.rows.values(), *replayed.earlier)),
                     episode_replay.batch_bytes(spec, {'pixels': 4, 'done': 1}, 20, 3))

  def test_without_stacks(self):
    replay = _make(frame_stacks=None)
    _insert(replay, [Stream(0, [10])], [0], 10)
    replayed = replay.next([-1], [0], 0)
    self.assertEqual((replayed.rows.frame.shape, replayed.earlier), ([5, 1, 2, 3], []))

  @parameterized.parameters(
      (dict(unroll_length=0), 'unroll_length, capacity and longest_episode: want at least 1, got 0, 1000 and 27000'),
      (dict(unroll_length=2**31 - 1), 'unroll_length: want at most 2147483646, got 2147483647'),
      (dict(capacity=0), 'unroll_length, capacity and longest_episode: want at least 1, got 4, 0 and 27000'),
      (dict(longest_episode=0), 'unroll_length, capacity and longest_episode: want at least 1, got 4, 1000 and 0'),
      (dict(done=lambda rows: rows.number), 'done_component: want the index of a component of bool'),
      (dict(observation=lambda rows: [0, 5]), 'observed_components: want indices of components, got 5'),
      (dict(observation=lambda rows: -1), 'observed_components: want indices of components, got -1'),
      (dict(frame_stacks=Row(3, 1, 1, 2, 1)), 'component 3: want 1 or more, and at least one axis to stack, got 2'),
      (dict(frame_stacks=Row(0, 1, 1, 1, 1)), 'stacks, component 0: .* got 0'))
  def test_refuses_impossible_arguments(self, arguments, message):
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, message):
      _make(**arguments)

  @parameterized.parameters(
      ([1], [0, 0], {}, r'stream_id: want \[2\], got \[1\]'),
      ([1, 2], [[0, 0]], {}, r'index: want \[2\], got \[1,2\]'),
      ([1, 2], [0, 0], dict(number=([5, 2], tf.int32)), r'component 2: want int64 \[5,2\], got int32 \[5,2\]'),
      ([1, 2], [0, 0], dict(reward=([4, 2], tf.float32)), r'component 3: want float \[5,2\], got float \[4,2\]'),
      ([1, 2], [0, 0], dict(frame=([1, 2, 2, 3], tf.int16)), r'component 0: want \[T\+1, B, ...\], got \[1,2,2,3\]'),
      ([1, 2], [0, 0], dict(frame=([5], tf.int16)), r'component 0: want \[T\+1, B, ...\], got \[5\]'))
  def test_refuses_wrong_unrolls(self, stream_id, index, changes, message):
    shapes = {name: ([5, 2, *spec.shape], spec.dtype) for name, spec in _SPEC._asdict().items()} | changes
    rows = Row(**{name: tf.zeros(*shape) for name, shape in shapes.items()})
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, message):
      _make().insert(stream_id, index, rows)

  def test_refuses_rows_of_another_structure(self):
    with self.assertRaises((TypeError, ValueError)):
      _make().insert([1], [0], {'frame': tf.zeros([5, 1, 2, 3], tf.int16)})

  @parameterized.parameters(
      ([[0, 1]], [0, 1], 0, r'key: want \[N\], got \[1,2\]'),
      ([0, 1], [0], 0, r'step: want \[2\], got \[1\]'),
      ([0, 1], [0, -1], 0, 'step: want at least 0, got -1'),
      ([0, 1], [0, 1], [1, 2], r'seed: want a scalar, got \[2\]'))
  def test_refuses_wrong_positions(self, key, step, seed, message):
    replay = _make()
    _insert(replay, [Stream(0, [10])], [0], 40)
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, message):
      replay.next(key, step, seed)

  def test_below_its_minimum_size_it_gives_nothing(self):
    replay = _make()
    for minimum_size in (1, 40):
      replayed = replay.next([-1, 0, 7], [0, 3, 0], 0, minimum_size)
      np.testing.assert_array_equal(replayed.key, [-1, -1, -1])
      np.testing.assert_array_equal(replayed.next_step, [0, 0, 0])
      self.assertFalse(any(np.any(values) for values in tf.nest.flatten(replayed.rows)))
      _insert(replay, [Stream(minimum_size, [10])], [0], 30)
    self.assertEqual(replay.statistics().replayed_unrolls, 0)
    np.testing.assert_array_less(-1, replay.next(replayed.key, replayed.next_step, 0, 60).key)

  def test_unrolls_without_memory_are_an_error(self):
    replay = _make(unroll_length=10**9)
    _insert(replay, [Stream(0, [10])], [0], 40)
    with self.assertRaises(tf.errors.ResourceExhaustedError):
      replay.next(np.full(10**5, -1), np.zeros(10**5, np.int64), 0)
    self.assertEqual(replay.statistics().episodes, 4)


if __name__ == '__main__':
  absltest.main()
