"""Checkpoints come back bit for bit, survive a kill at any time, and damaged ones are refused and left alone."""

import glob
import os
import pathlib
import random
import shutil
import signal
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import sonnet as snt
import tensorflow as tf

from scalable_agents.learner import optimizers
from scalable_agents.records import checkpoint
from scalable_agents.records import checkpoint_files
from scalable_agents.records import episode_statistics
from scalable_agents.records import metrics
from scalable_agents.records import run_directory
from scalable_agents.records import run_rows
from scalable_agents.tests.actor import waiting
from scalable_agents.tests.launch import forked_program

# Trains by counting: 100 frames per update, all variables equal to the count, a row per update, a checkpoint every
# other update, by this thread and by the Checkpointer's in turns. Prints the frames after every update, until it is
# killed.
_TRAINER = '''
import sys
import numpy as np
import tensorflow as tf
from scalable_agents.records import checkpoint, metrics, run_directory
logdir = sys.argv[1]
with run_directory.open_run(logdir, {}, ()):
  frames = tf.Variable(0, dtype=tf.int64)
  weights = [tf.Variable(tf.zeros([50_000])) for _ in range(8)]
  checkpointer = checkpoint.Checkpointer(run_directory.path(logdir, 'checkpoints'), frames=frames, weights=weights)
  checkpointer.restore()
  writer = metrics.MetricsWriter(logdir, int(frames))
  print(int(frames), flush=True)
  while True:
    frames.assign_add(100)
    for variable in weights:
      variable.assign_add(tf.ones([50_000]))
    count = int(frames)
    writer.add_episodes(count, ['a'], np.array([count / 100]), np.array([4]))
    writer.write({'environment_frames': count})
    if count % 200 == 0:
      (checkpointer.save if count % 400 else checkpointer.begin_save)()
    print(count, flush=True)
'''


class _Objects:
  """A small agent with everything that a checkpoint holds."""

  def __init__(self, units=4, levels=('a', 'b'), seed=0):
    random_numbers = np.random.default_rng(seed)
    self.network = snt.nets.MLP([units, 3])
    self.network(tf.zeros([1, 5]))
    self.optimizer = optimizers.RMSProp(self.network.trainable_variables, 0.99, 0.0, 0.01)
    self.frames = tf.Variable(random_numbers.integers(2**40), dtype=tf.int64)
    self.statistics = episode_statistics.EpisodeStatistics(levels)
    self.statistics.add([0, 1], random_numbers.normal(size=2).astype(np.float32), [10, 20])
    for variable in self.network.variables + self.optimizer.variables:
      variable.assign(random_numbers.normal(size=variable.shape))

  def checkpointer(self, directory, **kwargs):
    return checkpoint.Checkpointer(directory, network=self.network, optimizer=self.optimizer, frames=self.frames,
                                   statistics=self.statistics, **kwargs)

  def values(self):
    variables = [*self.network.variables, *self.optimizer.variables, self.frames]
    return [variable.numpy().tobytes() for variable in variables] + [self.statistics.serialize()]


def _contents(directory):
  """Every file in a directory with its bytes."""
  found = {}
  for name in glob.glob(os.path.join(directory, '*')):
    with open(name, 'rb') as stream:
      found[name] = stream.read()
  return found


class CheckpointTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self._directory = os.path.join(self.enterContext(tempfile.TemporaryDirectory()), 'checkpoints')

  def _saved(self, times=3):
    """A directory with checkpoints of _Objects of seeds 0, 1, …; returns the objects of the last."""
    objects = _Objects()
    checkpointer = objects.checkpointer(self._directory)
    for seed in range(times):
      for mine, other in zip(objects.network.variables, _Objects(seed=seed).network.variables):
        mine.assign(other)
      checkpointer.save()
    return objects

  def _assert_refused(self, wanted, objects=None):
    before = _contents(self._directory)
    with self.assertRaisesRegex(checkpoint.CheckpointError, wanted) as caught:
      (objects or _Objects(seed=9)).checkpointer(self._directory).restore()
    self.assertEqual(_contents(self._directory), before)
    self.assertNotIn('\n', str(caught.exception))
    self.assertIsInstance(caught.exception, run_directory.RunDirectoryError)
    return str(caught.exception)

  def _path(self, suffix):
    return os.path.join(self._directory, suffix)

  def test_nothing_to_restore(self):
    objects = _Objects()
    before = objects.values()
    self.assertIsNone(objects.checkpointer(self._directory).restore())
    self.assertEqual(objects.values(), before)
    self.assertFalse(os.path.exists(self._directory))

  def test_everything_comes_back_bit_for_bit(self):
    saved = _Objects(seed=1)
    saved.frames.assign(2**53 + 1)
    odd = np.array([np.nan, -np.inf, -0., 1e-45], np.float32)
    saved.network.variables[0].assign(odd)
    saved.optimizer.variables[0].assign(odd)
    saved.checkpointer(self._directory).save()
    restored = _Objects(seed=2)
    self.assertTrue(restored.checkpointer(self._directory).restore())
    self.assertEqual(restored.values(), saved.values())
    self.assertEqual(restored.frames.numpy(), 2**53 + 1)

  def test_a_function_traced_before_sees_the_restored_values(self):
    saved, restored = _Objects(seed=1), _Objects(seed=2)
    saved.checkpointer(self._directory).save()
    call = tf.function(restored.network)
    before = call(tf.ones([1, 5])).numpy()
    restored.checkpointer(self._directory).restore()
    np.testing.assert_array_equal(call(tf.ones([1, 5])), tf.function(saved.network)(tf.ones([1, 5])))
    self.assertFalse(np.array_equal(call(tf.ones([1, 5])), before))

  def test_the_latest_comes_back_and_two_are_kept_across_restarts(self):
    for start in range(3):
      objects = _Objects(seed=start)
      checkpointer = objects.checkpointer(self._directory)
      restored_from = checkpointer.restore()
      self.assertEqual(restored_from and checkpoint.number_of(restored_from), 2 * start or None)
      objects.frames.assign(start)
      for _ in range(2):
        objects.frames.assign_add(10)
        path = checkpointer.save()
        self.assertTrue(os.path.exists(path + '.index'))
    self.assertEqual(sorted(os.listdir(self._directory)), [
        'checkpoint', 'ckpt-5.data-00000-of-00001', 'ckpt-5.index', 'ckpt-6.data-00000-of-00001', 'ckpt-6.index'])
    restored = _Objects()
    restored.checkpointer(self._directory).restore()
    self.assertEqual(restored.frames.numpy(), 22)

  def test_one_that_was_loaded_before_its_files_were_deleted(self):
    self._saved(times=1)
    loaded = checkpoint.load(self._directory)
    self.assertEqual(loaded.path, self._path('ckpt-1'))
    self._saved(times=3)
    self.assertNotIn('ckpt-1.index', os.listdir(self._directory))
    restored = _Objects(seed=9)
    self.assertEqual(restored.checkpointer(self._directory).restore(loaded), loaded.path)
    np.testing.assert_array_equal(restored.network.variables[0], _Objects(seed=0).network.variables[0])

  @parameterized.parameters('data-00000-of-00001', 'index')
  def test_one_that_is_deleted_while_it_is_read_gives_way_to_the_latest(self, suffix):
    """As beside a process that trains."""
    self._saved(times=1)

    def open_and_save(file, *args, **kwargs):
      if file == self._path(f'ckpt-1.{suffix}') and os.path.exists(file):
        self._saved(times=3)
      return open(file, *args, **kwargs)

    with absltest.mock.patch.object(checkpoint, 'open', open_and_save, create=True):
      loaded = checkpoint.load(self._directory)
    self.assertEqual(loaded.path, self._path('ckpt-3'))
    restored = _Objects(seed=9)
    restored.checkpointer(self._directory).restore(loaded)
    np.testing.assert_array_equal(restored.network.variables[0], _Objects(seed=2).network.variables[0])

  def test_checkpoints_are_tensorflows_and_those_of_its_manager_are_resumed(self):
    saved = _Objects(seed=1)
    trackables = dict(network=saved.network, optimizer=saved.optimizer, frames=saved.frames,
                      statistics=saved.statistics)
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(**trackables), self._directory, max_to_keep=2)
    for _ in range(3):
      manager.save()
    restored = _Objects(seed=5)
    checkpointer = restored.checkpointer(self._directory)
    self.assertEqual(checkpointer.restore(), self._path('ckpt-3'))
    self.assertEqual(restored.values(), saved.values())
    self.assertEqual(checkpointer.save(), self._path('ckpt-4'))
    self.assertEqual(checkpoint_files.complete(self._directory), [3, 4])
    self.assertEqual(tf.train.latest_checkpoint(self._directory), self._path('ckpt-4'))
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(**trackables), self._directory, max_to_keep=2)
    tf.train.Checkpoint(**trackables).restore(manager.latest_checkpoint).assert_consumed()

  def test_those_saved_last_are_kept_whatever_their_numbers(self):
    """A population's snapshots are numbered by frames, of which a resumed run has fewer."""
    checkpointer = _Objects().checkpointer(self._directory)
    for number in (600, 900, 500, 600, 700):
      checkpointer.save(number)
      self.assertEqual(checkpoint.latest(self._directory), self._path(f'ckpt-{number}'))
    self.assertEqual(checkpoint_files.complete(self._directory), [600, 700])

  def test_regression_what_a_kill_amid_a_deletion_has_left_is_deleted_by_the_next_save(self):
    """Also a checkpoint that was never recorded, and TensorFlow's temporary files. A user's files stay."""
    checkpointer = _Objects().checkpointer(self._directory)
    checkpointer.save()
    old = _contents(self._directory)
    for _ in range(2):
      checkpointer.save()
    remains = [name for name in old if 'ckpt-1' in name] + [self._path(name) for name in (
        'ckpt-9.index', 'ckpt-9.data-00000-of-00001', 'ckpt-3.index.tempstate1234', 'checkpoint.new')]
    for name in remains + [self._path('ckpt-1.zip')]:
      with open(name, 'wb') as stream:
        stream.write(old.get(name, b''))
    os.makedirs(self._path('ckpt-3_temp/part'))
    os.makedirs(self._path('ckpt-1.experience/part'))
    elsewhere = self.create_tempdir().full_path
    os.symlink(elsewhere, self._path('ckpt-1.intake'))
    checkpointer = _Objects().checkpointer(self._directory)
    self.assertEqual(checkpointer.restore(), self._path('ckpt-3'))
    checkpointer.save()
    self.assertTrue(os.path.isdir(elsewhere))
    self.assertCountEqual(os.listdir(self._directory), [
        'checkpoint', 'ckpt-1.zip', *(f'ckpt-{number}.{suffix}' for number in (3, 4)
                                            for suffix in ('index', 'data-00000-of-00001'))])

  def test_a_directory_can_be_moved(self):
    saved = self._saved()
    moved = self._directory + '_moved'
    os.rename(self._directory, moved)
    restored = _Objects(seed=5)
    restored.checkpointer(moved).restore()
    self.assertEqual(restored.values(), saved.values())

  def test_the_network_alone(self):
    saved = self._saved()
    restored = _Objects(seed=5)
    checkpointer = checkpoint.Checkpointer(self._directory, network=restored.network)
    with self.assertRaisesRegex(checkpoint.CheckpointError, 'does not fit'):
      checkpointer.restore()
    self.assertTrue(checkpointer.restore(partial=True))
    for mine, other in zip(restored.network.variables, saved.network.variables):
      np.testing.assert_array_equal(mine, other)

  @parameterized.product(suffix=('ckpt-3.index', 'ckpt-3.data-00000-of-00001'), damage=('cut', 'empty', 'flip', 'gone'))
  def test_a_damaged_checkpoint_is_refused_with_a_way_out_that_works(self, suffix, damage):
    self._saved()
    size = os.path.getsize(self._path(suffix))
    if damage == 'gone':
      os.remove(self._path(suffix))
    elif damage == 'flip':
      with open(self._path(suffix), 'r+b') as stream:
        stream.seek(20)
        byte, = stream.read(1)
        stream.seek(20)
        stream.write(bytes([byte ^ 255]))
    else:
      os.truncate(self._path(suffix), 0 if damage == 'empty' else size // 2)
    text = self._assert_refused('ckpt-3 is damaged')
    self.assertIn(f'delete {self._path("ckpt-3")}.* and {self._path("checkpoint")} to go on from ckpt-2', text)
    for file in [*glob.glob(self._path('ckpt-3.*')), self._path('checkpoint')]:
      os.remove(file)
    restored = _Objects(seed=9)
    self.assertTrue(restored.checkpointer(self._directory).restore())
    np.testing.assert_array_equal(restored.network.variables[0], _Objects(seed=1).network.variables[0])

  def test_the_only_checkpoint_is_damaged(self):
    self._saved(times=1)
    os.truncate(self._path('ckpt-1.index'), 10)
    self._assert_refused('ckpt-1 is damaged .*: choose another --logdir$')

  @parameterized.parameters(b'', b'\xff\x00\x01', b'model_checkpoint_path: "ckpt', b'this is no state')
  def test_a_damaged_state_file_is_refused_with_a_way_out_that_works(self, content):
    saved = self._saved()
    with open(self._path('checkpoint'), 'wb') as stream:
      stream.write(content)
    self._assert_refused('checkpoints/checkpoint is damaged: delete this file')
    os.remove(self._path('checkpoint'))
    restored = _Objects(seed=9)
    self.assertTrue(restored.checkpointer(self._directory).restore())
    self.assertEqual(restored.values(), saved.values())

  def test_another_network_is_refused(self):
    self._saved()
    self._assert_refused(r'ckpt-3 does not fit .*with shape \(.*4.*\) .* shape \(.*7.*\)', _Objects(units=7))

  def test_other_levels_are_refused(self):
    self._saved()
    self._assert_refused("ckpt-3 does not fit .*want levels", _Objects(levels=('a', 'c')))

  def test_an_object_without_a_value_is_refused(self):
    self._saved()
    objects = _Objects()
    objects.network.more = tf.Variable(1.)
    self._assert_refused('ckpt-3 does not fit', objects)

  def test_a_directory_that_cannot_be_read_is_refused(self):
    os.makedirs(self._directory)
    with absltest.mock.patch.object(os, 'listdir', side_effect=PermissionError(13, 'Permission denied')):
      with self.assertRaisesRegex(run_directory.RunDirectoryError, 'checkpoints: Permission denied'):
        _Objects().checkpointer(self._directory).restore()

  def test_a_checkpoint_that_cannot_be_written_is_one_line(self):
    with open(self._directory, 'w', encoding='utf-8') as stream:
      stream.write('a file where the directory should be')
    with self.assertRaisesRegex(checkpoint.CheckpointError, '^[^\n]*a checkpoint could not be written[^\n]*$'):
      _Objects().checkpointer(self._directory).save()


def _is_stopped(pid):
  """Whether no thread of a process runs."""
  try:
    threads = [path.read_text() for path in pathlib.Path('/proc', str(pid), 'task').glob('*/stat')]
  except (FileNotFoundError, ProcessLookupError):
    return False  # A thread has ended meanwhile.
  return {thread.rpartition(')')[2].split()[0] for thread in threads} == {'T'}


class KillTest(absltest.TestCase):

  def _start(self):
    trainer, output = forked_program.start(self, '-c', _TRAINER, self._logdir)
    return trainer, output, int(output.readline())

  def _assert_resumable(self, logdir):
    """Checks that all files of a run agree on its frames, and returns these."""
    frames, weights = tf.Variable(0, dtype=tf.int64), [tf.Variable(tf.zeros([50_000])) for _ in range(8)]
    checkpoint.Checkpointer(os.path.join(logdir, 'checkpoints'), frames=frames, weights=weights).restore()
    updates = int(frames) // 100
    for variable in weights:
      np.testing.assert_array_equal(variable, np.full([50_000], updates, np.float32))
    metrics.MetricsWriter(logdir, int(frames)).close()
    wanted = list(range(100, 100 * updates + 100, 100))
    self.assertEqual([row['environment_frames'] for row in run_rows.read_metrics(logdir)], wanted)
    self.assertEqual([row.frames for row in run_rows.read_episodes(logdir)], wanted)
    self.assertEqual([row.episode_return for row in run_rows.read_episodes(logdir)],
                     [frames / 100 for frames in wanted])
    return int(frames)

  def test_a_run_that_is_killed_at_any_time_can_be_resumed(self):
    """A stopped process has left on the disk what a killed one would: many kills for the price of a start."""
    self._logdir = os.path.join(self.enterContext(tempfile.TemporaryDirectory()), 'run')
    trainer, output, _ = self._start()
    moments = random.Random(0)
    restored = []
    for stop in range(25):
      for _ in range(moments.randrange(1, 4)):
        output.readline()
      trainer.send_signal(signal.SIGSTOP)
      waiting.wait_until(lambda: _is_stopped(trainer.pid))
      copy = f'{self._logdir}_{stop}'
      shutil.copytree(self._logdir, copy)
      trainer.send_signal(signal.SIGCONT)
      restored.append(self._assert_resumable(copy))
    trainer.kill()
    trainer.wait()
    self.assertGreater(len(set(restored)), 10)
    self.assertEqual(restored, sorted(restored))

    resumed, output, frames = self._start()
    self.assertGreaterEqual(frames, restored[-1])
    self.assertEqual([int(output.readline()) for _ in range(5)], list(range(frames + 100, frames + 600, 100)))
    resumed.kill()
    resumed.wait()
    self.assertGreater(self._assert_resumable(self._logdir), frames)
    self.assertLessEqual(len(glob.glob(os.path.join(self._logdir, 'checkpoints', 'ckpt-*.index'))), 4)


class MessagesTest(absltest.TestCase):

  def test_regression_what_tensorflow_adds_is_not_shown(self):
    for error, line in (
        (tf.errors.UnknownError(None, None, '{{function_node __wrapped__SaveV2_device_/CPU:0}} no\n space\n\t '
                                '[[{{node SaveV2}}]] [Op:SaveV2]'),
         'no space'), (IndexError(), 'IndexError')):
      self.assertEqual(checkpoint.explain(error), line)


if __name__ == '__main__':
  absltest.main()
