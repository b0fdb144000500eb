"""Tests of the replay's Python interface. tests/replay/cc tests the C++ core, also under sanitizers."""

import math
import os
import tempfile
from typing import NamedTuple
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import tensorflow as tf

from scalable_agents.learner import frame_stacks
from scalable_agents.replay import replay_rows
from scalable_agents.replay import sequence_replay as replay_lib
from scalable_agents.tests.actor import waiting

_GEOMETRY = replay_lib.Geometry(burn_in=4, length=6, period=3)


class Row(NamedTuple):
  """A row that says where it is from."""
  frame: object   # [2, 3] int16, stacked from 3 frames.
  done: object    # [] bool.
  number: object  # [] int64, number of the row in its stream.
  reward: object  # [] float32, half the number.


_SPEC = Row(tf.TensorSpec([2, 3], tf.int16), tf.TensorSpec([], tf.bool), tf.TensorSpec([], tf.int64),
            tf.TensorSpec([], tf.float32))
_STATE = {'state': tf.TensorSpec([2])}
_STACKS = Row(3, 1, 1, 1)


def _make(geometry=_GEOMETRY, capacity=1000, **kwargs):
  return replay_lib.SequenceReplay(
      _SPEC, _STATE, geometry, capacity,
      **{'done': lambda rows: rows.done, 'frame_stacks': _STACKS, 'priority_exponent': 1.} | kwargs)


def _frame(number):
  return (10 * number[..., np.newaxis, np.newaxis] + np.arange(6).reshape(2, 3)).astype(np.int16)


def _steps(starts, geometry):
  """Returns the number of each row in its episode, or in its stream."""
  numbers = np.arange(len(starts))
  return numbers if geometry.cross_episodes else numbers - np.maximum.accumulate(np.where(starts, numbers, 0))


def _insert(replay, streams, index, length, starts, boundaries=None, state_offsets=None):
  """Inserts an unroll of each stream. starts: stream -> bool of each row of the stream."""
  numbers = np.stack([np.arange(index * length, (index + 1) * length + 1)] * len(streams), axis=1)
  of_rows = lambda flags: np.stack([flags[stream][numbers[:, 0]] for stream in streams], axis=1)
  states = {'state': np.stack([numbers - 1, numbers + 0.5], axis=-1).astype(np.float32)}
  rows = Row(_frame(numbers), of_rows(starts), numbers, (numbers / 2).astype(np.float32))
  steps = of_rows({stream: _steps(its, replay.geometry) for stream, its in (boundaries or starts).items()})
  if state_offsets is not None:  # The states that are not needed are not sent.
    needed = replay_lib.needs_state(steps[:-1], replay.geometry, state_offsets)
    states['state'][1:][~needed] = np.nan
  return replay.insert(np.array(streams, np.int64), np.full(len(streams), index, np.int64), steps[0],
                       of_rows(boundaries or starts), rows, states)


def _starts(*rows):
  starts = np.zeros(10_000, bool)
  starts[list(rows)] = True
  return {0: starts}


def _set_all(replay, inserted):
  replay.update(inserted.key, tf.ones_like(inserted.key, tf.float32))


class ReplayTest(parameterized.TestCase):

  @settings(max_examples=40, deadline=None, derandomize=True)
  @given(st.integers(0, 5), st.integers(1, 7), st.integers(1, 7), st.booleans(), st.integers(1, 9),
         st.lists(st.integers(1, 25), min_size=1, max_size=6), st.integers(0, 1000))
  def test_samples_are_what_a_slow_replay_gives(self, burn_in, length, period, cross_episodes, unroll_length, lengths,
                                                seed):
    geometry = replay_lib.Geometry(burn_in, length, min(period, length), cross_episodes)
    replay = _make(geometry)
    starts = {stream: np.zeros(500, bool) for stream in (0, 1)}
    starts[0][np.cumsum([0, *lengths] * 3)] = True
    starts[1][0] = True
    for index in range(80 // unroll_length):
      _set_all(replay, _insert(replay, [0, 1], index, unroll_length, starts))
    last_row = 80 // unroll_length * unroll_length
    sample = tf.nest.map_structure(lambda values: values.numpy(), replay.sample(16, seed))
    stacks = frame_stacks.stack(sample.rows.frame, sample.earlier[0], sample.rows.done).numpy()
    for b in range(16):
      its_starts = starts[sample.stream_id[b]]
      trained = sample.stream_row[b] + burn_in  # The row of the first trained step.
      begin = 0
      if not cross_episodes:
        begin = np.flatnonzero(its_starts[:trained + 1])[-1]
      ends = np.flatnonzero(its_starts[trained + 1:last_row + 1]) + trained + 1
      end = ends[0] if len(ends) and not cross_episodes else last_row  # The last row that exists.
      self.assertEqual((trained - begin - burn_in * cross_episodes) % geometry.period, 0)
      for offset in range(burn_in + length + 1):
        number = sample.stream_row[b] + offset
        if not begin <= number <= end:
          self.assertEqual(sample.rows.number[offset, b], 0)
          continue
        self.assertEqual(sample.rows.number[offset, b], number)
        self.assertEqual(sample.rows.done[offset, b], its_starts[number])
        self.assertEqual(sample.rows.reward[offset, b], number / 2)
        frames, alive = [], True
        for age in range(3):
          frames.insert(0, _frame(np.array(number - age)) if alive else np.zeros([2, 3], np.int16))
          alive = alive and not its_starts[number - age]
        np.testing.assert_array_equal(stacks[offset, b], np.concatenate(frames, axis=-1))
      self.assertEqual(sample.padding[b], max(begin - sample.stream_row[b], 0))
      np.testing.assert_array_equal(sample.trains[:, b], trained + 1 + np.arange(length) <= end)
      row = sample.stream_row[b]
      np.testing.assert_array_equal(sample.states['state'][0, b], [row, row + 1.5] if row >= begin else [0, 0])

  @settings(max_examples=60, deadline=None, derandomize=True)
  @given(st.integers(0, 5), st.integers(1, 7), st.integers(1, 7), st.booleans(), st.integers(1, 9),
         st.lists(st.integers(1, 25), min_size=1, max_size=6), st.sets(st.integers(0, 30)), st.data())
  def test_the_states_that_are_needed_suffice(self, burn_in, length, period, cross_episodes, unroll_length, lengths,
                                              lost, data):
    geometry = replay_lib.Geometry(burn_in, length, min(period, length), cross_episodes)
    offsets = data.draw(st.lists(st.integers(0, burn_in + length), min_size=1, max_size=3))
    replay = _make(geometry, state_offsets=offsets, priority_exponent=0.)
    starts = {0: np.zeros(500, bool)}
    starts[0][np.cumsum([0, *lengths] * 3)] = True
    steps = _steps(starts[0], geometry)
    for index in range(90 // unroll_length):
      if index not in lost:
        _insert(replay, [0], index, unroll_length, starts, state_offsets=offsets)
    if replay.statistics().size:
      sample = replay.sample(32, 1)
      states = sample.states['state'].numpy()
      for b in range(32):
        begin, end = (int(values[b]) for values in (sample.padding, tf.reduce_sum(tf.cast(sample.trains, tf.int32), 0)))
        for number, offset in enumerate(offsets):
          row = int(sample.stream_row[b]) + offset
          # The row after the last trained step may be another episode's, and an episode's first row needs no state.
          if begin <= offset < burn_in + end and (cross_episodes or steps[row] > 0):
            np.testing.assert_array_equal(states[number, b], [row, row + 1.5])
    needed = replay_lib.needs_state(steps[:90], geometry, offsets).numpy()
    most = max(np.convolve(needed, np.ones(unroll_length), 'valid'))
    self.assertLessEqual(most, replay_lib.most_states(unroll_length, geometry, offsets))

  def test_the_paper_needs_one_state_per_unroll(self):
    paper = replay_lib.Geometry(40, 80, 40)
    self.assertEqual(replay_lib.most_states(40, paper), 1)
    self.assertEqual(replay_lib.most_states(40, paper, (0, 40, 119)), 2)  # The first two offsets have the same rows.
    self.assertEqual(replay_lib.most_states(40, paper._replace(burn_in=20)), 2)  # Two episodes may have one each.
    self.assertEqual(replay_lib.most_states(40, paper._replace(burn_in=20, cross_episodes=True)), 1)
    self.assertEqual(replay_lib.most_states(3, replay_lib.Geometry(0, 1, 1), (0, 1)), 3)

  def test_signals_are_the_trained_rows_and_the_one_after(self):
    replay = _make(signals=lambda rows: {'reward': rows.reward, 'done': rows.done})
    inserted = _insert(replay, [0], 0, 20, _starts(0, 14))
    # The episode has 14 steps: sequences of rows 0 to 6, 3 to 9, 6 to 12 and 9 to 14.
    np.testing.assert_array_equal(inserted.key, [0, 1, 2, 3])
    rewards = inserted.signals['reward'].numpy()
    np.testing.assert_array_equal(rewards[:, 0], np.arange(1, 8) / 2)
    np.testing.assert_array_equal(rewards[:, 3], [5, 5.5, 6, 6.5, 7, 0, 0])
    np.testing.assert_array_equal(inserted.signals['done'][:, 3], np.arange(7) == 4)
    np.testing.assert_array_equal(inserted.trains[:, 3], np.arange(6) < 5)

  def test_several_states_of_a_sequence(self):
    replay = _make(state_offsets=(0, 4, 9))  # The first row, and the rows of the first and the last trained step.
    _set_all(replay, _insert(replay, [0], 0, 40, _starts(0)))
    sample = replay.sample(50, 1)
    for b in range(50):
      row = int(sample.stream_row[b])
      rows_of_states = sample.states['state'][:, b, 0].numpy().tolist()
      self.assertEqual(rows_of_states, [max(row, 0), row + 4, row + 9], row)

  def test_sequences_end_where_the_caller_says(self):
    # Lost lives at rows 5 and 11 end sequences, but not the stacks of frames.
    replay = _make()
    boundaries = _starts(0, 5, 11)
    _set_all(replay, _insert(replay, [0], 0, 30, _starts(0), boundaries))
    sample = replay.sample(50, 1)
    for b in range(50):
      trained = int(sample.stream_row[b]) + 4
      if trained == 5:
        np.testing.assert_array_equal(sample.rows.number[:, b], [0, 0, 0, 0, 5, 6, 7, 8, 9, 10, 11])
        stacks = frame_stacks.stack(sample.rows.frame, sample.earlier[0], sample.rows.done)
        np.testing.assert_array_equal(stacks[4, b, 0], [30, 31, 32, 40, 41, 42, 50, 51, 52])
        return
    self.fail('there is no sequence that begins with row 5')

  def test_without_stacks_and_states(self):
    replay = replay_lib.SequenceReplay(_SPEC, (), _GEOMETRY, 10, done=lambda rows: rows.done)
    numbers = np.arange(31)[:, np.newaxis]
    rows = Row(_frame(numbers), numbers == 0, numbers, numbers.astype(np.float32))
    replay.insert([5], [0], [0], rows.done, rows, ())
    sample = replay.sample(3, 1)
    self.assertEqual((sample.states, sample.earlier), ((), []))
    self.assertEqual(sample.rows.frame.shape, [11, 3, 2, 3])

  def test_a_full_replay_of_stacked_frames_costs_one_frame_per_step(self):
    spec = {'pixels': tf.TensorSpec([84, 84, 1], tf.uint8), 'done': tf.TensorSpec([], tf.bool)}
    replay = replay_lib.SequenceReplay(spec, (), replay_lib.Geometry(40, 80, 40), 100, done=lambda rows: rows['done'],
                                       frame_stacks={'pixels': 4, 'done': 1})
    for index in range(120):
      rows = {'pixels': tf.zeros([41, 1, 84, 84, 1], tf.uint8), 'done': tf.fill([41, 1], index == 0)}
      replay.insert([0], [index], [0], rows['done'], rows, ())
    statistics = replay.statistics()
    self.assertEqual(statistics.size, 100)
    self.assertLessEqual(statistics.bytes, 1.01 * 7056 * statistics.rows)
    self.assertLessEqual(statistics.bytes, 1.05 * 7056 * (100 * 40 + 80))  # All steps of the 100 sequences.
    # What the check of the machine's memory expects. Rows of incomplete sequences are not counted.
    expected = replay_lib.memory_bytes(spec, (), replay_lib.Geometry(40, 80, 40), 100)
    self.assertBetween(statistics.bytes / expected, 1., 1.05)
    sample = replay.sample(3, seed=1)
    read = [*sample.rows.values(), *sample.earlier]
    self.assertEqual(sum(values.numpy().nbytes for values in read), replay_lib.batch_bytes(
        spec, {'pixels': 4, 'done': 1}, replay_lib.Geometry(40, 80, 40), batch_size=3))

  def test_works_in_a_graph(self):
    replay = _make(signals=lambda rows: rows.reward)

    @tf.function(autograph=False)
    def step(stream_id, index, rows, states, seed):
      inserted = replay.insert(stream_id, index, tf.zeros_like(index), rows.done, rows, states)
      self.assertEqual(inserted.signals.shape.as_list(), [7, None])
      with tf.control_dependencies([replay.update(inserted.key, tf.reduce_max(inserted.signals, axis=0))]):
        sample = replay.sample(8, seed)
      self.assertEqual(sample.rows.frame.shape.as_list(), [11, 8, 2, 3])
      self.assertEqual([frames.shape.as_list() for frames in sample.earlier], [[8, 2, 2, 3]])
      self.assertEqual(sample.states['state'].shape.as_list(), [1, 8, 2])
      return sample.key, replay.size()

    numbers = np.arange(31)[:, np.newaxis]
    rows = Row(_frame(numbers), numbers % 10 == 0, numbers, numbers.astype(np.float32))
    keys, size = step(np.array([5]), np.array([0]), rows, {'state': np.zeros([31, 1, 2], np.float32)}, np.int64(1))
    with self.assertRaisesRegex(ValueError, 'timeout_seconds: want 0 in a graph, where nothing waits, got 5'):
      tf.function(lambda: replay.sample(8, 1, timeout_seconds=5.))()
    self.assertEqual(size, 9)  # Three episodes of ten steps: sequences from 0, 3 and 6.
    self.assertContainsSubset(keys.numpy(), range(9))

  def test_an_empty_replay_gives_an_error_at_once(self):
    replay = _make()
    with self.assertRaisesRegex(replay_lib.TimedOutError, 'the replay has no sequence to sample yet'):
      replay.sample(4, 1)
    inserted = _insert(replay, [0], 0, 20, _starts(0))
    with self.assertRaisesRegex(replay_lib.TimedOutError, 'the replay has no sequence to sample yet'):
      replay.sample(4, 1)
    _set_all(replay, inserted)
    replay.sample(4, 1)
    self.assertEqual(replay.statistics().sampled, 4)

  def test_sequences_leave_after_a_number_of_samples(self):
    replay = _make(priority_exponent=0., max_times_sampled=2)
    _insert(replay, [0], 0, 20, _starts(0))  # Five sequences.
    keys = np.concatenate([replay.sample(5, seed).key for seed in range(2)])
    np.testing.assert_array_equal(np.bincount(keys), [2, 2, 2, 2, 2])
    self.assertEqual(replay.size(), 0)
    with self.assertRaisesRegex(replay_lib.TimedOutError, 'the replay has no sequence to sample yet'):
      replay.sample(1, 2, timeout_seconds=0.01)

  def test_waits_for_the_other_side_up_to_a_time(self):
    replay = _make(priority_exponent=0., rate_limit=replay_lib.RateLimit(1., 4., minimum_size=4))
    numbers = np.arange(50)[:, np.newaxis]

    def insert(index, **kwargs):
      rows = Row(_frame(numbers), numbers == 0, numbers, numbers.astype(np.float32))
      return replay.insert([index], [0], [0], rows.done, rows, {'state': np.zeros([50, 1, 2], np.float32)}, **kwargs)

    sample = waiting.start(lambda: replay.sample(8, 1, timeout_seconds=math.inf))
    insert(0)
    self.assertEqual(sample().key.shape, [8])
    insert(1)
    with self.assertRaisesRegex(replay_lib.TimedOutError,
                                '^inserting is ahead of sampling: 30 sequences were inserted, and 8 sampled$'):
      insert(2, timeout_seconds=0.01)
    inserted = waiting.start(lambda: insert(2, timeout_seconds=math.inf))
    replay.sample(8, 1)
    replay.sample(8, 1)
    self.assertLen(inserted().key, 15)
    replay.sample(8, 1)
    replay.sample(8, 1)
    with self.assertRaisesRegex(replay_lib.TimedOutError,
                                'sampling is ahead of inserting: 45 sequences were inserted, and 40 sampled'):
      replay.sample(8, 1, timeout_seconds=0.01)
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, 'batch_size: want at most 8, got 9: '):
      replay.sample(9, 1, timeout_seconds=math.inf)

  def test_an_insertion_is_carried_out_in_full(self):
    replay = _make(priority_exponent=0., rate_limit=replay_lib.RateLimit(1., 4., minimum_size=4))
    with self.assertRaises(replay_lib.TimedOutError):
      replay.sample(1, 1)  # From now on, the limit holds as soon as there is a sequence to sample.
    starts = {stream: _starts(0)[0] for stream in (0, 1)}
    # After the first unroll, inserting is ahead by more than the tolerance.
    self.assertLen(_insert(replay, [0, 1], 0, 20, starts).key, 2 * 5)

  def test_waits_on_if_another_thread_was_faster(self):
    call = mock.Mock(side_effect=[replay_rows.TimedOutError(), 7])
    self.assertEqual(replay_rows.when_available(call, lambda: True, timeout_seconds=60., tick_seconds=0.), 7)

  def test_saves_and_restores(self):
    replay, restored, other = _make(), _make(), _make(capacity=999)
    _set_all(replay, _insert(replay, [0], 0, 40, _starts(0, 14)))
    with tempfile.TemporaryDirectory() as folder:
      path = os.path.join(folder, 'replay')
      replay.save(path)
      restored.restore(path)
      for want, got in zip(tf.nest.flatten(replay.sample(8, 3)), tf.nest.flatten(restored.sample(8, 3)), strict=True):
        np.testing.assert_array_equal(want, got)
      with self.assertRaisesRegex(ValueError, f'^{path}: .* other settings: want .*, got .*[^:]$'):
        other.restore(path)
      with open(path, 'r+b') as file:
        file.seek(5000)
        file.write(b'damage')
      with self.assertRaisesRegex(OSError, f'^{path}: the file of the replay is damaged$'):
        _make().restore(path)
      with self.assertRaisesRegex(OSError, 'No such file'):
        _make().restore(os.path.join(folder, 'absent'))
      replay.save(path)
      os.symlink('/dev/full', path + '.new')
      with self.assertRaisesRegex(OSError, f'^{path}.new: No space left on device$'):
        replay.save(path)
      self.assertEqual(os.listdir(folder), ['replay'])  # The file from before.

  def test_regression_a_save_without_memory_is_an_error_of_the_system(self):
    """It was a ValueError, which those who save do not expect."""
    error = tf.errors.ResourceExhaustedError(None, None, 'there is not enough memory')
    with mock.patch.object(replay_rows.ops, 'sequence_replay_save', side_effect=error):
      with self.assertRaisesRegex(OSError, '^there is not enough memory$'):
        _make().save('unused')
    with mock.patch.object(replay_rows.ops, 'sequence_replay_restore', side_effect=error):
      with self.assertRaisesRegex(MemoryError, '^there is not enough memory$'):
        _make().restore('unused')

  @parameterized.parameters(
      (_SPEC._replace(frame=tf.TensorSpec([2, 3], tf.uint16)), _STATE),
      (_SPEC._replace(reward=tf.TensorSpec([1], tf.float32)), _STATE),
      ({'1': _SPEC.frame, '2': _SPEC.done, '3': _SPEC.number, '4': _SPEC.reward}, _STATE),
      (_SPEC, {'other': _STATE['state']}))
  def test_a_file_with_other_names_types_or_shapes_is_refused(self, row, state):
    path = self.create_tempdir().full_path + '/replay'
    _make().save(path)
    other = replay_lib.SequenceReplay(
        row, state, _GEOMETRY, 1000, done=lambda numbers: 1, frame_stacks=list(_STACKS), priority_exponent=1.)
    with self.assertRaisesRegex(ValueError, 'other settings'):
      other.restore(path)

  def test_contents_are_in_the_order_of_the_components(self):
    self.assertEqual(replay_rows.contents({'states': (_STATE['state'],), 'rows': _SPEC}), (
        '/rows/frame:int16[2, 3] /rows/done:bool[] /rows/number:int64[] /rows/reward:float32[] /states/0:float32[2]'))

  @parameterized.parameters(
      (dict(geometry=replay_lib.Geometry(-1, 6, 3)), 'burn_in, length and period: .* got -1, 6 and 3'),
      (dict(geometry=replay_lib.Geometry(2**31 - 7, 6, 3)), 'burn_in and length: want at most 2147483646 steps'),
      (dict(geometry=replay_lib.Geometry(4, 6, 7)), 'period: want at most the length of 6, got 7'),
      (dict(capacity=0), 'capacity: want at least 1, got 0'),
      (dict(priority_exponent=-1.), 'priority_exponent: want at least 0, got -1'),
      (dict(max_times_sampled=-1), 'max_times_sampled: want at least 0, got -1'),
      (dict(rate_limit=replay_lib.RateLimit(-1.)), 'samples_per_insert: want a finite number of at least 0, got -1'),
      (dict(rate_limit=replay_lib.RateLimit(math.inf, math.inf)),
       'samples_per_insert: want a finite number of at least 0, got inf'),
      (dict(rate_limit=replay_lib.RateLimit(2., 1.)), 'tolerance: want at least samples_per_insert, which is 2, got 1'),
      (dict(max_times_sampled=2**62), r'max_times_sampled: want at most 2\^63 / capacity'),
      (dict(rate_limit=replay_lib.RateLimit(minimum_size=1001)), 'minimum_size: want 1 to the capacity of 1000'),
      (dict(rate_limit=replay_lib.RateLimit(3., 3.), max_times_sampled=2),
       'samples_per_insert: want at most max_times_sampled, which is 2, got 3'),
      (dict(state_offsets=(11,)), 'state_offsets: want 0 to 10, got 11'),
      (dict(done=lambda rows: rows.number), 'done_component: want the index of a component of bool'),
      (dict(frame_stacks=Row(3, 1, 1, 2)), 'stacks, component 3'),
  )
  def test_refuses_impossible_arguments(self, arguments, message):
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, message):
      _make(**arguments)

  def test_refuses_wrong_shapes_and_priorities(self):
    replay = _make()
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, r'stream_id: want \[2\], got \[1\]'):
      rows = Row(*(tf.zeros([5, 2, *spec.shape], spec.dtype) for spec in _SPEC))
      replay.insert([1], [0, 0], [0, 0], rows.done, rows, {'state': tf.zeros([5, 2, 2])})
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, r'rows, component 2: want int64 \[5,1\], got int32'):
      rows = Row(*(tf.zeros([5, 1, *spec.shape], spec.dtype) for spec in _SPEC))
      rows = rows._replace(number=tf.zeros([5, 1], tf.int32))
      replay.insert([1], [0], [0], rows.done, rows, {'state': tf.zeros([5, 1, 2])})
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, r'starts_episode: want \[T\+1, B\], got \[1,1\]'):
      rows = Row(*(tf.zeros([1, 1, *spec.shape], spec.dtype) for spec in _SPEC))
      replay.insert([1], [0], [0], rows.done, rows, {'state': tf.zeros([1, 1, 2])})
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, 'batch_size: want at least 1, got 0'):
      replay.sample(0, 0)
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, 'priority: want a finite number >= 0, got nan'):
      replay.update([0], [float('nan')])

  def test_a_sample_without_memory_is_an_error(self):
    replay = _make()
    _set_all(replay, _insert(replay, [0], 0, 40, _starts(0, 14)))
    with self.assertRaises(tf.errors.ResourceExhaustedError):
      replay.sample(10**14, 0)
    self.assertEqual(replay.sample(2, 0).key.shape, [2])

  def test_components_are_picked_by_their_place(self):
    same = tf.TensorSpec([])
    row = {'a': same, 'b': same, 'done': tf.TensorSpec([], tf.bool)}
    replay = replay_lib.SequenceReplay(row, (), _GEOMETRY, 10, done=lambda rows: rows['done'],
                                       signals=lambda rows: rows['b'])
    numbers = tf.range(21.)[:, tf.newaxis]
    inserted = replay.insert([0], [0], [0], numbers == 0, {'a': numbers, 'b': -numbers, 'done': numbers == 0}, ())
    np.testing.assert_array_equal(inserted.signals[:, 0], -np.arange(1., 8.))


if __name__ == '__main__':
  absltest.main()
