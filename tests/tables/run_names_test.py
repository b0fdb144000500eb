"""Tests run directories with unusual names: each can be trained, resumed, evaluated and read without changing others.

If a library interpreted a name as a pattern, an address or a format, it would use another directory or none.
"""

import os
import pathlib
import re
import unicodedata

from absl.testing import absltest
import numpy as np
import tensorflow as tf

from scalable_agents.records import checkpoint
from scalable_agents.records import errors
from scalable_agents.records import learning_curve
from scalable_agents.records import metrics
from scalable_agents.records import run_directory
from scalable_agents.records import run_rows
from scalable_agents.tables import files
from scalable_agents.tables.results import runs
from scalable_agents.tests.training import training

_CAFE = 'caf\u00e9'
_LONG = 'n' * 254

# Pairs of names. The first one matches the second as a pattern, or becomes it by splitting, stripping or formatting.
_PAIRS = (
    ('seed[1]', 'seed1'), ('seed[!2]', 'seed3'), ('pong[lr=1e-3]', 'pongl'), ('*', 'star'), ('run_*', 'run_1'),
    ('run_?', 'run_2'), ('{a,b}', 'a'), (r'seed\[1\]', r'seed\1'), ('a,b', 'b'), (' ends ', 'ends'),
    ('two  spaces', 'two spaces'), ("it's", 'its'), ('"quoted"', 'quoted'), ('%d', '0'), ('100%', '100'),
    ('%(asctime)s', 'asctime'), (_CAFE, unicodedata.normalize('NFD', _CAFE)), ('\U0001f3d3\ufe0f', '\U0001f3d3'),
    ('-x', 'x'), ('--logdir=y', 'y'), ('.hidden', 'hidden'), ('~z', 'z'), ('#1', '1'), ('a&b;c', 'c'),
    ('$HOME', 'home'),
    ('`ls`', 'ls'), ('ckpt-1', 'ckpt-2'), ('checkpoints', 'checkpoint'), ('ram:', 'ram'), ('file:', 'file'),
    (_LONG + 'm', _LONG), ('a|b', 'a b'))

_DRAWN = ('seed[1]', '%d', 'a,b')  # Drawing takes half a second.

_REFUSED = ('two\nlines', 'tab\tbed', 'carriage\rreturn', 'next\x85line', 'line\u2028separator', 'bell\x07',
            os.fsdecode(b'not_utf8_\xff'), 'n' * 256, '/'.join(['n' * 250] * 16))

_FLAGS = {'level_name': 'pong', 'torso': 'shallow', 'use_lstm': False, 'seed': 1, 'total_environment_frames': 400,
          'off_policy_correction': 'vtrace'}


def _contents(directory):
  """Returns the bytes of every file in a directory and its subdirectories."""
  return {path: path.read_bytes() for path in pathlib.Path(directory).rglob('*') if path.is_file()}


def setUpModule():
  training.configure_tensorflow()


class RunNamesTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self._folder = self.create_tempdir().full_path
    self._count = 0

  def _logdir(self, name):
    return os.path.join(self._folder, name)

  def _train(self, name, frames):
    """Makes a run directory with rows at frames 100, 200, ... up to `frames`, or resumes it. Saves a checkpoint per
    row.

    The checkpoints of any two directories differ.
    """
    variable, self._count = tf.Variable(self._count), self._count + 1
    counter = tf.Variable(0)
    with run_directory.open_run(self._logdir(name), _FLAGS, ()) as directory:
      checkpointer = checkpoint.Checkpointer(run_directory.path(directory.path, run_directory.CHECKPOINTS),
                                             variable=variable, counter=counter)
      checkpointer.restore()
      writer = metrics.MetricsWriter(directory.path, int(counter))
      for count in range(int(counter) + 100, frames + 100, 100):
        counter.assign(count)
        writer.add_episodes(count, ['pong'], np.array([variable.numpy()]), np.array([4]))
        writer.write({'environment_frames': count, 'episode_return': float(variable)})
        checkpointer.save()
      writer.close()
      if name in _DRAWN:
        learning_curve.draw(directory.path)
    return int(variable)

  def _evaluate(self, name):
    variable = tf.Variable(-1)
    with run_directory.open_evaluation(self._logdir(name), _FLAGS, ()) as directory:
      loaded = checkpoint.load(run_directory.path(directory.path, run_directory.CHECKPOINTS))
      checkpoint.Checkpointer('unused', variable=variable).restore(loaded, partial=True)
      run_directory.write_json(run_directory.path(directory.path, run_directory.EVALUATION), {
          'levels': {'pong': {'mean': float(variable)}},
          'protocol': {'num_episodes': 1, 'environment_frames': 400, 'checkpoint': os.path.basename(loaded.path)}})

  def test_a_run_of_any_name_leaves_its_neighbours_as_they_are(self):
    names = {name: None for pair in _PAIRS for name in pair}
    value = {name: self._train(name, 100) for name in names}
    self.assertEqual(len(os.listdir(self._folder)), len(names))
    before = _contents(self._folder)
    for name, _ in _PAIRS:
      with self.subTest(ascii(name)):
        self.assertEqual(self._train(name, 300), value[name])  # It was restored from its own checkpoint.
        self._evaluate(name)
        rows = run_rows.read_metrics(self._logdir(name))
        self.assertEqual([row['environment_frames'] for row in rows], [100, 200, 300])
        self.assertCountEqual(os.listdir(self._logdir(f'{name}/checkpoints')), [
            'checkpoint', 'ckpt-2.data-00000-of-00001', 'ckpt-2.index', 'ckpt-3.data-00000-of-00001', 'ckpt-3.index'])
        run, = files.read_runs(self._logdir(name), evaluated=True)
        self.assertEqual(run.logdir, self._logdir(name))
        self.assertEqual(run.evaluation.means, {'pong': value[name]})

        after = _contents(self._folder)
        mine = pathlib.Path(self._logdir(name))
        self.assertEqual({path: content for path, content in after.items() if not path.is_relative_to(mine)},
                         {path: content for path, content in before.items() if not path.is_relative_to(mine)})
        before = after

  def test_a_name_that_cannot_be_is_refused_in_one_line_and_nothing_is_made(self):
    for name in _REFUSED:
      for refuse in (lambda logdir: run_directory.open_run(logdir, _FLAGS, ()), run_directory.check_name):
        with self.subTest(ascii(name)), self.assertRaises(run_directory.RunDirectoryError) as caught:
          refuse(self._logdir(f'new/{name}'))
        text = str(caught.exception)
        self.assertEqual(text.splitlines(), [text])
        self.assertEqual(text.encode(errors='backslashreplace').decode(), text)
        self.assertIn('choose another name', text)
    self.assertEmpty(os.listdir(self._folder))
    os.mkdir(self._logdir('two\nlines'))
    _, faults = runs.read([self._logdir('*')], evaluated=False)
    self.assertEqual([fault.splitlines() for fault in faults], [faults])

  def test_runs_are_listed_with_commas_and_patterns(self):
    for name in ('a,b', 'c', 'd', ' e'):
      self._train(name, 100)
      self._evaluate(name)
    listed = lambda text: [os.path.basename(run.logdir) for run in files.read_runs(text, evaluated=True)]
    folder = self._folder
    self.assertEqual(listed(f'{folder}/c, {folder}/d'), ['c', 'd'])
    self.assertEqual(listed(f'{folder}/?,{folder}/ e'), ['c', 'd', ' e'])
    self.assertEqual(listed(f'{folder}/a,b'), ['a,b'])
    self.assertEqual(listed(','.join([f'{folder}/c', *150 * [f'{folder}/d']])), ['c', 'd'])
    self.assertEqual(listed(''), [])
    for text in (',', ' '):
      with self.assertRaisesRegex(errors.UserError, '^--runs=.*: want run directories$'):
        listed(text)

  def test_training_resuming_evaluating_and_moving_beside_a_neighbour(self):
    folder = pathlib.Path(self._folder)
    logdir, neighbour = folder / 'seed[1]', folder / 'seed1'
    flags = ('--level_name=catch', '--torso=shallow', '--unroll_length=5', '--batch_size=2', '--num_environments=2',
             '--num_environment_workers=1', '--checkpoint_interval_seconds=0.1', '--log_interval_seconds=0.1',
             '--total_environment_frames=1000000000')
    self._train(neighbour.name, 200)
    before = _contents(neighbour)
    self.assertEqual(checkpoint.latest(str(neighbour / 'checkpoints')), str(neighbour / 'checkpoints/ckpt-2'))
    with training.Training(logdir, *flags) as process:
      for _ in range(4):  # They have the same numbers as the neighbour's. A checkpoint is deleted after two newer ones.
        process.wait_for_checkpoint()
      process.kill()
    first = training.rows(logdir)[0]
    training.run_preset('impala_atari57', f'--logdir={logdir}', *flags, '--mode=test', '--test_num_episodes=2')
    self.assertTrue((logdir / 'evaluation.json').exists())
    with training.Training(logdir, *flags) as process:
      self.assertEqual(process.wait_for_rows(1)[0], first)  # The run was resumed.
      logdir.rename(folder / 'moved')
      neighbour.rename(logdir)
      code, _ = process.end()
      self.assertEqual(code, 1)
      self.assertRegex(process.screen(), f'(^|\n)error: {re.escape(str(logdir))} was moved or removed.*\n$')
    logdir.rename(neighbour)
    self.assertEqual(_contents(neighbour), before)


if __name__ == '__main__':
  absltest.main()
