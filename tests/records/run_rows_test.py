"""The rows of metrics.jsonl and episodes.csv: complete ones are read, damaged ones are refused."""

import os
import tempfile

from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents.records import run_directory
from scalable_agents.records import run_rows


class ReadTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self._logdir = self.enterContext(tempfile.TemporaryDirectory())

  def _write(self, name, content):
    with open(os.path.join(self._logdir, name), 'wb') as stream:
      stream.write(content)

  def test_nothing_yet(self):
    self.assertEqual(run_rows.read_metrics(self._logdir), [])
    self.assertEqual(list(run_rows.read_episodes(self._logdir)), [])

  def test_rows_without_the_one_being_written(self):
    self._write('metrics.jsonl', b'{"environment_frames": 1, "wall_seconds": 2.5}\n{"environment_frames": 2, "wall_sec')
    self._write('episodes.csv', b'frames,level,return,length\n10,"a,b",-1.5,4\n20,c,3.0,400\n30,c,1.0,4')
    self.assertEqual(run_rows.read_metrics(self._logdir), [{'environment_frames': 1, 'wall_seconds': 2.5}])
    self.assertEqual(list(run_rows.read_episodes(self._logdir)), [(10, 'a,b', -1.5, 4), (20, 'c', 3.0, 400)])

  @parameterized.parameters((2, [9]), (3, [5, 9]), (5, [2, 5, 8, 9]), (100, list(range(10))), (None, list(range(10))))
  def test_some_of_many_rows(self, at_most, wanted):
    rows = [b'%d,catch,1.0,4\n' % frames for frames in range(10)]
    self._write('episodes.csv', b'frames,level,return,length\n' + b''.join(rows))
    self.assertEqual([row.frames for row in run_rows.read_episodes(self._logdir, at_most)], wanted)
    rows = [b'{"environment_frames": %d, "wall_seconds": 1}\n' % frames for frames in range(10)]
    self._write('metrics.jsonl', b''.join(rows))
    frames = [row['environment_frames'] for row in run_rows.read_metrics(self._logdir, at_most)]
    self.assertEqual(frames[0], 0)
    self.assertLessEqual(len(frames), at_most or 10)

  def test_the_last_row(self):
    self.assertIsNone(run_rows.last_metrics(self._logdir))
    self._write('metrics.jsonl', b'what is this\n{"environment_frames": 2, "wall_seconds": 2.5}\n{"environ')
    self.assertEqual(run_rows.last_metrics(self._logdir), {'environment_frames': 2, 'wall_seconds': 2.5})
    self._write('metrics.jsonl', b'{"environment_frames": 2, "wall_seconds": 2.5}\nwhat is this\n{"environ')
    with self.assertRaisesRegex(run_directory.RunDirectoryError, 'metrics.jsonl, line 2 is damaged'):
      run_rows.last_metrics(self._logdir)

  @parameterized.parameters(b'{"environment_frames": 1}', b'{"environment_fra', b'7', b'\xff',
                            b'{"environment_frames": null, "wall_seconds": 1}',
                            b'{"environment_frames": 1e999, "wall_seconds": 1}',
                            b'{"environment_frames": 1, "wall_seconds": -1}',
                            b'{"environment_frames": 1' + 20 * b'0' + b', "wall_seconds": 1}',
                            b'{"environment_frames": 1, "wall_seconds": 1, "episode_return": "high"}',
                            b'{"environment_frames": 1, "wall_seconds": 1, "episode_return": [1]}',
                            b'{"environment_frames": 1, "wall_seconds": 1, "bottleneck": 1}',
                            b'{"environment_frames": 1, "wall_seconds": 1, "loss": ' + 10_000 * b'[')
  def test_a_damaged_row_of_metrics(self, line):
    self._write('metrics.jsonl', b'{"environment_frames": 1, "wall_seconds": 2.5}\n' + line + b'\n')
    with self.assertRaisesRegex(run_directory.RunDirectoryError, 'metrics.jsonl, line 2 is damaged'):
      run_rows.read_metrics(self._logdir)

  def test_an_episode_without_a_finite_return_is_left_out(self):
    rows = b'1,a,nan,3\n2,a,1.5,3\n3,a,-inf,3\n4,a,1e999,3\n'
    self._write('episodes.csv', b'frames,level,return,length\n' + rows)
    self.assertEqual(list(run_rows.read_episodes(self._logdir)), [(2, 'a', 1.5, 3)])

  @parameterized.parameters(b'', b'1,a,2', b'1,a,x,3', b'1.5,a,2,3', b'\xff,a,2,3', b'1,a,2,3,4', b'-1,a,2,3',
                            b'1,a,2,-3', b'1' + 400 * b'0' + b',a,2,3', b'1' + 5000 * b'0' + b',a,2,3', b'1,"a,2,3',
                            b'1,' + 200_000 * b'a' + b',2,3')
  def test_a_damaged_episode(self, line):
    self._write('episodes.csv', b'frames,level,return,length\n' + line + b'\n')
    with self.assertRaisesRegex(run_directory.RunDirectoryError, 'episodes.csv, line 2 is damaged'):
      list(run_rows.read_episodes(self._logdir))


if __name__ == '__main__':
  absltest.main()
