"""The files of figures: valid rows, and after a kill at any byte neither a gap nor a row twice."""

import errno
import io
import json
import os
import pathlib
import tempfile
import time

from absl.testing import absltest
from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st
import numpy as np
from tensorboard.backend.event_processing import event_accumulator
import tensorflow as tf

from scalable_agents.records import metrics
from scalable_agents.records import run_directory
from scalable_agents.records import run_rows


class _Clock:
  """Seconds since the start of a process that the test makes up."""

  def __init__(self, seconds=0.):
    self.seconds = seconds

  def __call__(self):
    return self.seconds


def _rows(logdir):
  with open(os.path.join(logdir, 'metrics.jsonl'), encoding='utf-8') as stream:
    return [json.loads(line, parse_constant=_refuse) for line in stream]


def _refuse(constant):
  raise AssertionError(f'{constant} is no JSON')


def _episodes(logdir):
  return pathlib.Path(logdir, 'episodes.csv').read_text(encoding='utf-8').splitlines()


def _events(logdir):
  """(step, wall time, {tag: value}) of every event with values, as TensorBoard shows a run with all its files."""
  accumulator = event_accumulator.EventAccumulator(logdir, {event_accumulator.SCALARS: 0})  # 0: all of them.
  accumulator.Reload()
  events = {}
  for tag in accumulator.Tags()[event_accumulator.SCALARS]:
    for event in accumulator.Scalars(tag):
      values = events.setdefault((event.step, event.wall_time), {})
      assert tag not in values, (event.step, tag)
      values[tag] = event.value
  return [(step, wall_time, values) for (step, wall_time), values in events.items()]


def _bytes_read():
  """By this process so far, from files or the kernel's cache of them."""
  with open('/proc/self/io', encoding='ascii') as stream:
    return int(dict(line.split(': ') for line in stream.read().splitlines())['rchar'])


class MetricsTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self._logdir = self.enterContext(tempfile.TemporaryDirectory())

  def _writer(self, frames=0, clock=None):
    writer = metrics.MetricsWriter(self._logdir, frames, clock or _Clock())
    self.addCleanup(writer.close)
    return writer

  def test_evaluations_are_rows_and_events_and_are_cut_back_with_the_rest(self):
    def row(frames, *means, suite=None):
      return {'environment_frames': frames, 'num_episodes': 2, 'suite': suite,
              'levels': {level: {'mean': mean} for level, mean in zip('ab', means)}}

    writer = self._writer()
    self.assertFalse(os.path.exists(os.path.join(self._logdir, 'evaluations.jsonl')))
    writer.write({'environment_frames': 300})
    rows = [row(100, 1.), row(200, 2., 4., suite={'suite_score': 50.}), row(300, 5.)]
    for evaluation in rows:  # The first ones are older than the last row of metrics.
      writer.add_evaluation(evaluation)
    with self.assertRaisesRegex(ValueError, 'in the order of their frames'):
      writer.add_evaluation(row(299, 1.))
    values = {step: values for step, _, values in _events(self._logdir) if 'evaluation/return' in values}
    self.assertEqual(values[200], {'evaluation/return': 3., 'evaluation/return/a': 2., 'evaluation/return/b': 4.,
                                   'evaluation/suite_score': 50.})
    self.assertCountEqual(values, [100, 200, 300])
    with open(os.path.join(self._logdir, 'evaluations.jsonl'), 'a', encoding='utf-8') as stream:
      stream.write('{"environment_frames": 400, "lev')  # A kill has cut it off.
    self._writer(frames=299)
    found = run_rows.read_evaluations(self._logdir)
    self.assertEqual([(evaluation.frames, evaluation.means, evaluation.suite_score) for evaluation in found],
                     [(100, {'a': 1.}, None), (200, {'a': 2., 'b': 4.}, 50.)])
    self.assertEqual(run_rows.last_evaluation(self._logdir), found[-1])

  @parameterized.parameters(('environment_frames', '1e999'), ('environment_frames', 'null'), ('num_episodes', '"x"'),
                            ('suite', '5'), ('suite', '{}'), ('suite', '{"suite_score": 1e999}'), ('levels', '{}'),
                            ('levels', '7'), ('levels', '{"a": {"mean": NaN}}'), ('levels', '[' * 100_000))
  def test_a_damaged_evaluation_is_one_line(self, name, value):
    values = {'environment_frames': '1', 'num_episodes': '1', 'suite': 'null', 'levels': '{"a": {"mean": 1}}'}
    line = ', '.join(f'"{key}": {text}' for key, text in (values | {name: value}).items())
    pathlib.Path(self._logdir, 'evaluations.jsonl').write_text(f'{{{line}}}\n', encoding='utf-8')
    with self.assertRaisesRegex(run_directory.RunDirectoryError, '^[^\n]*evaluations.jsonl, line 1 is damaged [^\n]*$'):
      self._writer()

  def test_a_row_is_in_both_files_at_once(self):
    clock = _Clock(12.5)
    before = time.time()
    writer = self._writer(clock=clock)
    clock.seconds = 20.
    writer.write({'environment_frames': np.int64(640), 'loss/total': tf.constant(1.5), 'grad_norm': np.float32(0.25),
                  'episodes': 3, 'loss/entropy': float('nan'), 'loss/baseline': np.float32(np.inf),
                  'episode_return': None, 'bottleneck': 'environments', 'learning_rate': np.array([[0.5]])})
    self.assertEqual(_rows(self._logdir), [
        {'environment_frames': 640, 'loss/total': 1.5, 'grad_norm': 0.25, 'episodes': 3, 'loss/entropy': None,
         'loss/baseline': None, 'episode_return': None, 'bottleneck': 'environments', 'learning_rate': 0.5,
         'wall_seconds': 20.}])
    (step, wall_time, values), = _events(self._logdir)
    self.assertEqual(step, 640)
    self.assertBetween(wall_time, before + 7.5, time.time() + 7.5)
    self.assertEqual(values, {'environment_frames': 640., 'loss/total': 1.5, 'grad_norm': 0.25, 'episodes': 3.,
                              'learning_rate': 0.5, 'wall_seconds': 20.})

  def test_episodes_are_in_the_file_at_once(self):
    writer = self._writer()
    writer.add_episodes(np.int64(80), ['pong', 'gymnasium:A,B'], np.array([-21., 1.5], np.float32),
                        np.array([4000, 3], np.int32))
    writer.add_episodes(160, [], np.array([]), np.array([]))
    self.assertEqual(_episodes(self._logdir),
                     ['frames,level,return,length', '80,pong,-21.0,4000', '80,"gymnasium:A,B",1.5,3'])
    self.assertEqual(list(run_rows.read_episodes(self._logdir)),
                     [(80, 'pong', -21., 4000), (80, 'gymnasium:A,B', 1.5, 3)])

  def test_rows_out_of_order_are_refused(self):
    writer = self._writer()
    writer.write({'environment_frames': 20})
    writer.add_episodes(30, ['a'], [1.], [1])
    with self.assertRaisesRegex(ValueError, "loss='high': want a number"):
      writer.write({'environment_frames': 20, 'loss': 'high'})
    with self.assertRaisesRegex(ValueError, 'want >= 20, got 19'):
      writer.write({'environment_frames': 19})
    with self.assertRaisesRegex(ValueError, 'want >= 30, got 29'):
      writer.add_episodes(29, ['a'], [1.], [1])
    self.assertLen(_rows(self._logdir), 1)
    self.assertLen(_episodes(self._logdir), 2)

  @parameterized.parameters((('a',), [1., 2.], [1, 2]), (('a', 'b'), [1., 2.], [1]), ('ab', [1., 2.], [1, 2]))
  def test_columns_of_different_lengths_are_refused(self, levels, returns, lengths):
    with self.assertRaisesRegex(ValueError, 'as many levels as returns and lengths'):
      self._writer().add_episodes(1, levels, returns, lengths)

  def test_a_resumed_run_goes_on_where_its_checkpoint_is(self):
    clock = _Clock()
    first = self._writer(clock=clock)
    for frames in range(100, 600, 100):
      clock.seconds = frames / 10
      first.add_episodes(frames - 50, ['a'], [frames], [1])
      first.write({'environment_frames': frames, 'loss/total': frames / 2})
    resumed = time.time()
    second = self._writer(frames=300, clock=_Clock(4.))
    self.assertEqual([row['environment_frames'] for row in _rows(self._logdir)], [100, 200, 300])
    self.assertEqual(_episodes(self._logdir)[1:], ['50,a,100.0,1', '150,a,200.0,1', '250,a,300.0,1'])
    self.assertEqual([(step, values['loss/total']) for step, _, values in _events(self._logdir)],
                     [(100, 50.), (200, 100.), (300, 150.)])
    second.write({'environment_frames': 400, 'loss/total': 7.})
    second.add_episodes(400, ['a'], [7.], [1])
    self.assertEqual([row['wall_seconds'] for row in _rows(self._logdir)], [10., 20., 30., 34.])
    self.assertEqual(_episodes(self._logdir)[-1], '400,a,7.0,1')
    events = _events(self._logdir)
    self.assertEqual([(step, values['loss/total']) for step, _, values in events],
                     [(100, 50.), (200, 100.), (300, 150.), (400, 7.)])
    *wall_times, last_wall_time = [wall_time for _, wall_time, _ in events]
    np.testing.assert_allclose(np.diff(wall_times), [10., 10.], atol=1e-3)
    self.assertBetween(last_wall_time, resumed - 1., time.time() + 1.)  # However long the run had rested.

  def test_an_evaluation_after_a_resume_is_beside_the_row_of_its_time(self):
    first = self._writer(clock=_Clock(100.))
    first.write({'environment_frames': 10})
    first.close()
    second = self._writer(frames=10, clock=_Clock(5.))
    second.write({'environment_frames': 20})
    second.add_evaluation({'environment_frames': 20, 'num_episodes': 1, 'levels': {'a': {'mean': 1.}}, 'suite': None})
    times = {name: wall_time for _, wall_time, values in _events(self._logdir) for name in values}
    self.assertAlmostEqual(times['evaluation/return'], times['environment_frames'], delta=0.01)

  def test_a_resume_reads_no_more_after_a_month_than_after_a_day(self):
    """Reads are counted: a block of some kilobytes for each step of a binary search."""
    padding = ', '.join(f'"episode_return/{level}": 12.345678901' for level in range(30))
    costs = {}
    for rows in (500, 50_000):
      with tempfile.TemporaryDirectory() as logdir:
        with open(os.path.join(logdir, 'metrics.jsonl'), 'w', encoding='utf-8') as stream:
          stream.writelines(f'{{"environment_frames": {100 * row}, "wall_seconds": {row}.0, {padding}}}\n'
                            for row in range(rows))
        with open(os.path.join(logdir, 'episodes.csv'), 'w', encoding='utf-8') as stream:
          stream.write('frames,level,return,length\n')
          stream.writelines(f'{100 * row},a,{row}.0,400\n' for row in range(rows))
        before = _bytes_read()
        writer = metrics.MetricsWriter(logdir, 100 * rows - 2000, _Clock())
        costs[rows] = _bytes_read() - before
        self.assertEqual(writer.last_row['environment_frames'], 100 * rows - 2000)
        writer.close()
        self.assertEqual(list(run_rows.read_episodes(logdir))[-1].frames, 100 * rows - 2000)
        self.assertLen(_rows(logdir), rows - 19)
    self.assertLess(costs[50_000], 3 * costs[500])  # Of which log(50,000) / log(500) = 1.7 are its due.

  def test_without_a_checkpoint_a_run_begins_anew(self):
    first = self._writer()
    first.write({'environment_frames': 100})
    first.add_episodes(100, ['a'], [1.], [1])
    self._writer(frames=0)
    self.assertEmpty(_rows(self._logdir))
    self.assertEqual(_episodes(self._logdir), ['frames,level,return,length'])
    self.assertEmpty(_events(self._logdir))

  @hypothesis.settings(deadline=None, derandomize=True, max_examples=60)
  @hypothesis.given(data=st.data())
  def test_a_kill_at_any_byte_leaves_no_gap_and_no_row_twice(self, data):
    """Plays a run with kills: after a checkpoint, rows are written, and the files end at any byte of those."""
    with tempfile.TemporaryDirectory() as logdir:
      frames = 0
      for _ in range(data.draw(st.integers(1, 4))):
        clock = _Clock()
        writer = metrics.MetricsWriter(logdir, frames, clock)
        files = [os.path.join(logdir, name) for name in ('metrics.jsonl', 'episodes.csv', max(
            name for name in os.listdir(logdir) if 'tfevents' in name))]
        sizes = [os.path.getsize(file) for file in files]
        checkpoint, last = frames, frames
        for _ in range(data.draw(st.integers(0, 6))):
          last += 10
          clock.seconds += 1.
          writer.add_episodes(last, ['a', 'b'], [last, 1.5], [1, 2])
          writer.write({'environment_frames': last})
          if data.draw(st.booleans()):
            checkpoint = last
            sizes = [os.path.getsize(file) for file in files]
        writer.close()
        for file, size in zip(files, sizes):
          os.truncate(file, data.draw(st.integers(size, os.path.getsize(file))))
        frames = checkpoint
      metrics.MetricsWriter(logdir, frames, _Clock()).close()
      wanted = list(range(10, frames + 1, 10))
      self.assertEqual([row['environment_frames'] for row in _rows(logdir)], wanted)
      self.assertEqual(_episodes(logdir)[1:], [line for x in wanted for line in (f'{x},a,{x}.0,1', f'{x},b,1.5,2')])
      self.assertEqual([step for step, _, _ in _events(logdir)], wanted)
      np.testing.assert_array_less(0., np.diff([row['wall_seconds'] for row in _rows(logdir)]))

  @parameterized.parameters('metrics.jsonl', 'episodes.csv')
  def test_a_damaged_file_is_refused_and_left_alone(self, name):
    file = pathlib.Path(self._logdir, name)
    file.write_bytes(b'frames,level,return,length\nwhat is this\n')
    with self.assertRaisesRegex(run_directory.RunDirectoryError, f'{name}, line . is damaged'):
      self._writer(frames=10)
    self.assertEqual(file.read_bytes(), b'frames,level,return,length\nwhat is this\n')

  def test_a_file_that_cannot_be_written_is_one_line(self):
    os.mkdir(os.path.join(self._logdir, 'episodes.csv'))
    with self.assertRaisesRegex(run_directory.RunDirectoryError, 'episodes.csv: Is a directory'):
      self._writer()

  def test_a_full_disk_is_one_line(self):
    writer = self._writer()
    with open('/dev/full', 'ab', buffering=0) as full, absltest.mock.patch.object(writer, '_metrics', full):
      with self.assertRaisesRegex(run_directory.RunDirectoryError, 'No space left on device: free disk space, and'):
        writer.write({'environment_frames': 1})

  def test_a_part_of_a_row_is_removed(self):
    writer, sizes = self._writer(), iter([5])

    class Full(io.FileIO):
      """Takes five more bytes."""

      def write(self, data):
        for size in sizes:
          return super().write(data[:size])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    writer.write({'environment_frames': 1})
    file = os.path.join(self._logdir, 'metrics.jsonl')
    with Full(file, 'a') as full, absltest.mock.patch.object(writer, '_metrics', full):
      with self.assertRaisesRegex(run_directory.RunDirectoryError, 'No space left on device: free disk space, and'):
        writer.write({'environment_frames': 2})
    writer.write({'environment_frames': 2})
    with open(file, encoding='utf-8') as rows:
      self.assertEqual([json.loads(row)['environment_frames'] for row in rows], [1, 2])

  def test_events_that_cannot_be_written_are_one_line(self):
    with absltest.mock.patch.object(tf.io, 'TFRecordWriter', side_effect=tf.errors.ResourceExhaustedError(
        None, None, 'no space')):
      with self.assertRaisesRegex(run_directory.RunDirectoryError, r'events\.out\.tfevents.*: no space'):
        self._writer()

  def test_seconds_of_this_process(self):
    with open('/proc/uptime', encoding='ascii') as stream:
      uptime = float(stream.read().split()[0])
    began, first = time.monotonic(), metrics.process_seconds()
    self.assertBetween(first, time.process_time() / os.cpu_count(), uptime)
    self.assertBetween(metrics.process_seconds() - first, 0., time.monotonic() - began + 1.)


if __name__ == '__main__':
  absltest.main()
