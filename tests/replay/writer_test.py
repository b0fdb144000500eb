"""Tests of the writer: what a replay has is compared with a plain list of the rows that were appended."""

import contextlib
import functools
import itertools

from absl.testing import absltest
from absl.testing import parameterized
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import tensorflow as tf

from scalable_agents.replay import episode_replay
from scalable_agents.replay import sequence_replay

_ROW = {'done': tf.TensorSpec([], tf.bool), 'number': tf.TensorSpec([2], tf.int32)}
_STATE = (tf.TensorSpec([2]), tf.TensorSpec([], tf.int64))


def _done(row):
  return row['done']


def _row(done=True, number=(0, 0)):
  return {'done': done, 'number': np.array(number)}


def _episodes(lengths):
  """Returns the rows of episodes of these numbers of steps, one after the other, and the first row of the next one."""
  starts = np.cumsum([0, *lengths])
  return [{'done': number in starts, 'number': np.array([number, -number])} for number in range(starts[-1] + 1)]


def _state(number):
  """The recurrent state before a row."""
  return np.array([number, 0.5]), 10 * number


def _first_rows(rows, geometry):
  """Returns the first trained row of each sequence of a list of rows, in order; by the text of docs/replay.md."""
  ends = [number for number, row in enumerate(rows) if row['done']][1:]
  found, start = [], 0
  for end in [*ends, None]:
    trained = start
    while True:
      last = len(rows) - 1
      # While an episode goes on, a sequence is complete one row after its last one. At its end, a sequence must train a
      # step that the one before does not.
      is_last = end is not None and (trained >= end or (trained > start and trained - geometry.period
                                                        + geometry.length >= end))
      if is_last or (end is None and trained + geometry.length + 1 > last):
        break
      found.append((trained, start, last if end is None else end))
      trained += geometry.period
    start = end
  return found


class WriterTest(parameterized.TestCase):

  @settings(max_examples=60, deadline=None, derandomize=True)
  @given(st.integers(0, 5), st.integers(1, 6), st.integers(1, 6), st.integers(1, 9),
         st.lists(st.integers(1, 20), min_size=1, max_size=6), st.sets(st.integers(0, 100)))
  def test_each_sequence_has_its_rows_and_states(self, burn_in, length, period, unroll_length, lengths, flushes):
    geometry = sequence_replay.Geometry(burn_in, length, min(period, length))
    replay = sequence_replay.SequenceReplay(_ROW, _STATE, geometry, 200, done=_done, max_times_sampled=1)
    writer, rows, keys = replay.writer(unroll_length), _episodes(lengths), []
    for number, row in enumerate(rows):
      results = writer.append(row, _state(number))
      if number in flushes:
        results.extend(writer.flush())
      keys.extend(key for result in results for key in result.key.numpy())
    keys.extend(key for result in writer.flush() for key in result.key.numpy())
    want = _first_rows(rows, geometry)
    self.assertEqual(keys, list(range(len(want))))
    statistics = replay.statistics()
    self.assertEqual((statistics.size, statistics.gaps, statistics.repeated_unrolls), (len(want), 0, 0))
    if not want:
      return
    sample = tf.nest.map_structure(lambda tensor: tensor.numpy(), replay.sample(len(want), 1))  # Each one once.
    self.assertCountEqual(sample.key, keys)
    for b, key in enumerate(sample.key):
      trained, begin, end = want[key]
      first = trained - burn_in
      self.assertEqual(sample.stream_row[b], first)
      for offset in range(burn_in + length + 1):
        number = first + offset
        got = {name: values[offset, b] for name, values in sample.rows.items()}
        if begin <= number <= end:
          np.testing.assert_array_equal(got['number'], rows[number]['number'])
          self.assertEqual(got['done'], rows[number]['done'])
        else:
          np.testing.assert_array_equal(got['number'], [0, 0])
      self.assertEqual(sample.trains[:, b].sum(), min(length, end - trained))
      if first >= begin:
        for field, value in zip(sample.states, _state(first)):
          np.testing.assert_array_equal(field[0, b], value)

  @settings(max_examples=30, deadline=None, derandomize=True)
  @given(st.integers(1, 9), st.lists(st.integers(1, 20), min_size=1, max_size=6))
  def test_each_episode_has_its_rows(self, unroll_length, lengths):
    replay = episode_replay.EpisodeReplay(_ROW, unroll_length, 1000, done=_done, observation=lambda row: ())
    writer, rows = replay.writer(), _episodes(lengths)
    for row in rows:
      writer.append(row)
    writer.flush()
    statistics = replay.statistics()
    self.assertEqual((statistics.episodes, statistics.steps, statistics.gaps), (len(lengths), sum(lengths), 0))
    # A replayer goes through episodes. The row after an episode's last one is the first row of another episode.
    numbers, key, step = [], [-1], [0]
    for seed in range(20):
      replayed = replay.next(key, step, seed)
      numbers.extend(replayed.rows['number'][1 if numbers else 0:, 0, 0].numpy())
      key, step = replayed.key, replayed.next_step
    starts = set(np.cumsum([0, *lengths]))
    for before, number in zip(numbers, numbers[1:]):
      self.assertTrue(number == before + 1 or before in starts and number - 1 in starts, (before, number))

  def test_goes_on_across_episodes(self):
    geometry = sequence_replay.Geometry(1, 3, 2, cross_episodes=True)
    replay = sequence_replay.SequenceReplay(_ROW, _STATE, geometry, 200, done=_done, max_times_sampled=1)
    writer = replay.writer(unroll_length=4)
    for number, row in enumerate(_episodes([3, 4, 5])):
      writer.append(row, _state(number))
    size = int(replay.size())
    sample = replay.sample(size, 1)
    self.assertCountEqual(sample.stream_row.numpy(), range(0, 2 * size, 2))
    np.testing.assert_array_equal(sample.rows['number'][:, :, 0], sample.stream_row + np.arange(5)[:, np.newaxis])
    np.testing.assert_array_equal(sample.states[1][0], 10 * sample.stream_row)

  def test_rows_that_had_to_wait_are_not_lost(self):
    replay = sequence_replay.SequenceReplay(
        _ROW, (), sequence_replay.Geometry(0, 2, 2), 100, done=_done, max_times_sampled=1,
        rate_limit=sequence_replay.RateLimit(samples_per_insert=1., tolerance=2.))
    writer, rows = replay.writer(unroll_length=3, timeout_seconds=0.), _episodes([40])
    read, waits = [], 0

    def read_all():
      with contextlib.suppress(sequence_replay.TimedOutError):
        while True:
          read.append(int(replay.sample(1, 1).stream_row[0]))

    for row in rows:
      try:
        writer.append(row)
      except sequence_replay.TimedOutError:
        waits += 1
        read_all()
    read_all()
    writer.flush()
    read_all()
    self.assertGreater(waits, 2)
    self.assertLen(set(read), len(read))
    self.assertContainsSubset(read, range(0, 40, 2))
    self.assertEqual((replay.statistics().inserted, replay.statistics().gaps), (20, 0))

  def test_regression_an_insert_whose_answer_is_lost_is_repeated(self):
    replay = sequence_replay.SequenceReplay(
        _ROW, _STATE, sequence_replay.Geometry(0, 2, 2), 100, done=_done, priority_exponent=1., max_times_sampled=1)
    is_lost = itertools.cycle([False, True, True])

    def insert(*unroll, timeout_seconds):
      inserted = replay.insert(*unroll, timeout_seconds)
      if next(is_lost):
        raise tf.errors.UnavailableError(None, None, 'the answer is lost')
      return inserted

    writer, keys = replay.writer_of(insert, 5, 0.), []
    calls = [functools.partial(writer.append, row, _state(number)) for number, row in enumerate(_episodes([40]))]
    for call in [*calls, writer.flush, writer.flush]:
      with contextlib.suppress(tf.errors.UnavailableError):
        keys.extend(key for inserted in call() for key in inserted.key.numpy())
    self.assertEqual(keys, list(range(20)))
    statistics = replay.statistics()
    self.assertEqual((statistics.inserted, statistics.gaps, statistics.repeated_unrolls), (20, 0, 14))
    replay.update(keys, np.ones(20))
    sample = replay.sample(20, 1)
    self.assertCountEqual(sample.stream_row.numpy(), range(0, 40, 2))
    np.testing.assert_array_equal(sample.rows['number'][:, :, 0], sample.stream_row + np.arange(3)[:, np.newaxis])

  @parameterized.parameters(1, 2, 3, 4)
  def test_regression_a_refused_row_is_a_gap(self, length):
    replay = sequence_replay.SequenceReplay(
        _ROW, _STATE, sequence_replay.Geometry(0, 2, 1), 100, done=_done, max_times_sampled=1)
    writer, rows, refused = replay.writer(length), _episodes([7, 9, 5]), []
    for number, row in enumerate(rows):
      broken = row | {'number': np.zeros(3, int)} if number in (9, 11) else row
      try:
        writer.append(broken, _state(number))
      except ValueError:
        refused.append(number)
    writer.flush()
    self.assertEqual(refused, list(range(9, 16)))  # The rest of the second episode, which ends with row 16.
    self.assertEqual(replay.statistics().gaps, 1)
    sample = replay.sample(int(replay.size()), 1)
    self.assertContainsSubset([*range(6), *range(16, 19)], sample.rows['number'][0, :, 0].numpy())
    for b, number in enumerate(sample.rows['number'][0, :, 0].numpy()):
      steps = 1 + int(np.sum(sample.trains[:, b]))
      np.testing.assert_array_equal(sample.rows['number'][:steps, b, 0], np.arange(number, number + steps))
      self.assertNoCommonElements(range(number, number + steps), refused)

  def test_copies_arrays_that_are_used_again(self):
    replay = sequence_replay.SequenceReplay(_ROW, (), sequence_replay.Geometry(0, 2, 2), 10, done=_done)
    writer, row = replay.writer(), {'done': True, 'number': np.zeros(2, np.int32)}
    for _ in range(4):
      writer.append(row)
      row['number'] += 1
      row['done'] = False
    writer.flush()
    np.testing.assert_array_equal(replay.sample(1, 1).rows['number'][:, 0, 0], [0, 1, 2])

  @parameterized.parameters(
      (_row(done=False), (), 'the first row of a writer, or after a .*, must start an episode'),
      (_row(number=np.zeros(3, int)), (), r'row, component 1: want int32 \[2\], got int64 \[3\]'),
      (_row(number=(0, 2**31)), (), r'row, component 1: want numbers within int32, got \[\s*0 2147483648\]'),
      (_row(number=np.zeros(2)), (), r'row, component 1: want int32 \[2\], got float64 \[2\]'),
      ({'done': True}, (), 'row: want a nest of arrays with the structure of row_spec'),
      (_row(), (1,), 'state: want a nest of arrays with the structure of state_spec'),
  )
  def test_refuses_rows_that_do_not_fit(self, row, state, message):
    replay = sequence_replay.SequenceReplay(_ROW, (), sequence_replay.Geometry(0, 2, 2), 10, done=_done)
    with self.assertRaisesRegex(ValueError, message):
      replay.writer().append(row, state)

  def test_refuses_unrolls_without_steps(self):
    replay = sequence_replay.SequenceReplay(_ROW, (), sequence_replay.Geometry(0, 2, 2), 10, done=_done)
    with self.assertRaisesRegex(ValueError, 'unroll_length: want at least 1, got 0'):
      replay.writer(0)


if __name__ == '__main__':
  absltest.main()
