"""Checkpoints that another thread writes while training goes on, and what is saved beside them."""

import errno
import os
import shutil
import tempfile
import threading
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import tensorflow as tf

from scalable_agents.records import checkpoint
from scalable_agents.tests.records import disk_events


class _Items:
  """Something that is saved beside checkpoints: lines of text, in a file, or no file if there are none."""

  def __init__(self, *lines):
    self.lines, self.is_required = list(lines), True
    self.events = []                 # 'begin' and 'end' of saves.
    self.may_end = threading.Event()
    self.may_end.set()
    self.error = None                # Raised by the next save.

  def save(self, folder):
    self.events.append('begin')
    self.may_end.wait()
    if self.lines:
      with open(os.path.join(folder, 'lines'), 'w', encoding='utf-8') as stream:
        stream.write('\n'.join(self.lines))
    error, self.error = self.error, None
    if error:
      raise error
    self.events.append('end')

  def restore(self, folder):
    with open(os.path.join(folder, 'lines'), encoding='utf-8') as stream:
      self.lines = stream.read().split('\n')
    if 'of another shape' in self.lines:
      raise ValueError('_Items: want another shape')


class _Case(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self._directory = os.path.join(self.enterContext(tempfile.TemporaryDirectory()), 'checkpoints')
    self._weights = tf.Variable(tf.zeros([1000]))
    self._items = _Items()

  def _checkpointer(self, weights=None, items=None):
    made = checkpoint.Checkpointer(self._directory, beside={'experience': self._items if items is None else items},
                                   weights=self._weights if weights is None else weights)
    self.addCleanup(lambda: made.is_writing and made.close())
    self.addCleanup(self._items.may_end.set)
    return made

  def _restored(self):
    """What a new process would start with: the number of the checkpoint, the value of all weights, and the lines."""
    weights, items = tf.Variable(tf.fill([1000], -1.)), _Items()
    path = self._checkpointer(weights, items).restore()
    value, = set(weights.numpy().tolist())
    return checkpoint.number_of(path), value, items.lines

  def _files(self):
    """Name -> content of the files in the directory; None for a folder."""
    contents = {}
    for name in os.listdir(self._directory):
      path = os.path.join(self._directory, name)
      if os.path.isdir(path):
        contents[name] = None
      else:
        with open(path, 'rb') as stream:
          contents[name] = stream.read()
    return contents


class BeginSaveTest(_Case):

  def test_the_files_are_those_of_save(self):
    values = (1., 2., 3.)
    checkpointer = self._checkpointer()
    for value in values:
      self._weights.assign(tf.fill([1000], value))
      checkpointer.begin_save()
    checkpointer.close()
    files = self._files()
    self._directory += '_of_save'
    checkpointer = self._checkpointer()
    for value in values:
      self._weights.assign(tf.fill([1000], value))
      checkpointer.save()
    self.assertEqual(self._files(), files)
    self.assertCountEqual(files, ['checkpoint', *(f'ckpt-{number}.{suffix}' for number in (2, 3)
                                                  for suffix in ('index', 'data-00000-of-00001'))])

  def test_values_are_those_of_the_call(self):
    self._weights.assign(tf.ones([1000]))
    self._items.may_end.clear()
    checkpointer = self._checkpointer()
    checkpointer.begin_save()
    self.assertTrue(checkpointer.is_writing)
    self._weights.assign_add(tf.ones([1000]))  # Before the thread has written anything.
    checkpointer.check()
    self.assertIsNone(checkpoint.latest(self._directory))
    self._items.may_end.set()
    checkpointer.close()
    self.assertFalse(checkpointer.is_writing)
    self.assertEqual(self._restored(), (1, 1., []))

  def test_both_kinds_in_turns_across_restarts(self):
    for restart in range(2):
      checkpointer = self._checkpointer()
      restored = checkpointer.restore()
      self.assertEqual(restored and checkpoint.number_of(restored), 4 * restart or None)
      for save in (checkpointer.begin_save, checkpointer.save) * 2:
        self._weights.assign_add(tf.ones([1000]))
        save()
      checkpointer.close()
    self.assertEqual(self._restored(), (8, 8., []))

  @parameterized.parameters('begin_save', 'save')
  def test_the_next_one_waits_for_the_one_being_written(self, method):
    self._items.may_end.clear()
    checkpointer = self._checkpointer()
    checkpointer.begin_save()
    writing = checkpointer._writing

    def result():
      self.assertFalse(writing.done())
      self._items.may_end.set()
      return writing.result()

    checkpointer._writing = absltest.mock.Mock(result=result)
    getattr(checkpointer, method)()
    checkpointer.close()
    self.assertEqual(self._items.events, ['begin', 'end'] * 2)
    self.assertEqual(checkpoint.number_of(checkpoint.latest(self._directory)), 2)


class ErrorTest(_Case):

  def _failed(self):
    """A Checkpointer whose thread has failed to write the second checkpoint."""
    checkpointer = self._checkpointer()
    checkpointer.save()
    self._items.error = OSError(28, 'No space left on device')
    self._weights.assign(tf.ones([1000]))
    checkpointer.begin_save()
    with self.assertRaises(checkpoint.CheckpointError):
      checkpointer._writing.result()
    self.assertEqual(self._restored(), (1, 0., []))
    return checkpointer

  @parameterized.parameters('check', 'begin_save', 'save', 'close')
  def test_the_next_call_raises_the_error_once(self, method):
    checkpointer = self._failed()
    said = '^[^\n]*/checkpoints: a checkpoint could not be written .No space left on device.: free disk space[^\n]*$'
    with self.assertRaisesRegex(checkpoint.CheckpointError, said):
      getattr(checkpointer, method)()
    checkpointer.check()
    if method != 'close':
      checkpointer.begin_save()
      checkpointer.close()

  def test_a_save_after_an_error_is_in_force(self):
    checkpointer = self._failed()
    with self.assertRaisesRegex(checkpoint.CheckpointError, 'No space left on device'):
      checkpointer.save()
    self.assertEqual(self._restored(), (3, 1., []))

  def test_a_directory_that_cannot_be_made(self):
    with open(self._directory, 'w', encoding='utf-8') as stream:
      stream.write('a file where the directory should be')
    checkpointer = self._checkpointer()
    checkpointer.begin_save()
    with self.assertRaisesRegex(checkpoint.CheckpointError, '^[^\n]*a checkpoint could not be written .File exists'):
      checkpointer.close()

  def test_a_mistake_in_the_thread_is_raised_as_it_is(self):
    self._items.error = ZeroDivisionError('a mistake')
    checkpointer = self._checkpointer()
    checkpointer.begin_save()
    with self.assertRaisesRegex(ZeroDivisionError, 'a mistake'):
      checkpointer.close()


class BesideTest(_Case):

  def test_each_checkpoint_has_its_own(self):
    checkpointer = self._checkpointer()
    for number in (1, 2, 3):
      self._items.lines = [f'line {number}'] if number > 1 else []
      checkpointer.begin_save()
    checkpointer.close()
    self.assertEqual(self._restored(), (3, 0., ['line 3']))
    self.assertEqual([name for name, content in sorted(self._files().items()) if content is None],
                     ['ckpt-2.experience', 'ckpt-3.experience'])

  def test_old_ones_are_deleted_with_their_checkpoints(self):
    checkpointer = self._checkpointer()
    self._items.lines = ['a']
    for _ in range(4):
      checkpointer.save()
    self.assertEqual([name for name, content in sorted(self._files().items()) if content is None],
                     ['ckpt-3.experience', 'ckpt-4.experience'])

  def test_all_is_on_the_disk_before_the_checkpoint_is_in_force(self):
    self._items.lines = ['a']
    with disk_events.recorded() as events:
      self._checkpointer().save()
    *synced, last = events
    self.assertEqual(last, ('replace', 'checkpoint.new'))
    self.assertCountEqual(synced, [('sync', name) for name in (
        'ckpt-1.index', 'ckpt-1.data-00000-of-00001', 'lines', 'identity', 'ckpt-1.experience', 'checkpoint.new',
        'checkpoints')])

  def test_a_checkpoint_without_a_folder_leaves_it_as_it_is(self):
    self._checkpointer().save()
    self.assertNotIn('ckpt-1.experience', self._files())
    self._items.lines = ['as it was']
    self.assertTrue(self._checkpointer().restore())
    self.assertEqual(self._items.lines, ['as it was'])

  def test_the_folder_is_not_read_where_nothing_is_beside(self):
    """As when a run is evaluated."""
    self._items.lines = ['a']
    self._checkpointer().save()
    loaded = checkpoint.load(self._directory)
    self.assertCountEqual(loaded.files, ['index', 'data-00000-of-00001'])
    self.assertTrue(checkpoint.Checkpointer(self._directory, weights=self._weights).restore(loaded))

  def test_a_name_that_tensorflow_takes_for_a_pattern(self):
    self._directory += '[1]'
    self._items.lines = ['a']
    for _ in range(3):
      checkpointer = self._checkpointer()
      checkpointer.restore()
      checkpointer.begin_save()
      checkpointer.close()
    self.assertEqual(self._restored(), (3, 0., ['a']))

  def test_what_a_kill_has_left_is_removed_first(self):
    os.makedirs(os.path.join(self._directory, 'ckpt-1.experience'))
    with open(os.path.join(self._directory, 'ckpt-1.experience', 'half'), 'w', encoding='utf-8'):
      pass
    self._items.lines = ['a']
    self._checkpointer().save()
    self.assertCountEqual(os.listdir(os.path.join(self._directory, 'ckpt-1.experience')), ['identity', 'lines'])

  def test_what_a_failed_write_has_left_is_removed_at_once(self):
    """It may have filled the disk, and the run ends."""
    self._items.lines = ['a']
    checkpointer = self._checkpointer()
    checkpointer.save()
    before = self._files()
    self._items.error = OSError(errno.ENOSPC, 'the disk is full')
    checkpointer.begin_save()
    with self.assertRaisesRegex(checkpoint.CheckpointError, 'the disk is full'):
      checkpointer.close()
    self.assertEqual(self._files(), before)

  def _lose(self, other):
    """Removes the folder of the second of two checkpoints, or replaces it by the first one's. Returns the second."""
    checkpointer = self._checkpointer()
    for line in 'ab':
      self._items.lines = [line]
      checkpointer.save()
    first, second = (os.path.join(self._directory, f'ckpt-{number}') for number in (1, 2))
    shutil.rmtree(f'{second}.experience')
    if other:
      shutil.copytree(f'{first}.experience', f'{second}.experience')
    return second

  @parameterized.parameters((False, 'is missing'), (True, r'belongs to another checkpoint \(ckpt-1\)'))
  def test_regression_a_folder_that_is_lost_is_refused_unless_it_is_not_required(self, other, fault):
    second = self._lose(other)
    with self.assertRaisesRegex(checkpoint.CheckpointError, (
        f'^{second}.experience {fault}: put back the one that was saved with ckpt-2, add --nosave_replay to go on with '
        f'an empty replay, or delete {second}.* and [^\n]*/checkpoint to go on from ckpt-1, or [^\n]*$')):
      self._restored()
    self._items.is_required, self._items.lines = False, []
    self.assertTrue(self._checkpointer().restore())
    self.assertEmpty(self._items.lines)

  @parameterized.parameters(
      (OSError(errno.EIO, os.strerror(errno.EIO)), r'cannot be read \(.*Input/output error.*\): correct this, and '
       'start again'),
      (MemoryError('there is not enough memory'), r'does not fit into memory \(there is not enough memory\): add '
       '--nosave_replay to go on with an empty replay, or free some, or use a larger machine'))
  def test_regression_files_that_may_be_good_are_not_called_damaged(self, error, message):
    """The advice was to delete them."""
    self._items.lines = ['a']
    self._checkpointer().save()
    with mock.patch.object(_Items, 'restore', side_effect=error):
      with self.assertRaisesRegex(checkpoint.CheckpointError, f'^checkpoint [^\n]*/ckpt-1 {message}$'):
        self._restored()

  def test_a_folder_beside_a_checkpoint_that_had_none_is_refused(self):
    self._checkpointer().save()
    os.mkdir(os.path.join(self._directory, 'ckpt-1.experience'))
    with self.assertRaisesRegex(checkpoint.CheckpointError, 'experience belongs to another checkpoint: put back'):
      self._restored()

  def test_folders_without_identity_of_older_checkpoints_are_restored(self):
    tf.train.CheckpointManager(tf.train.Checkpoint(weights=self._weights), self._directory, max_to_keep=1).save()
    folder = os.path.join(self._directory, 'ckpt-1.experience')
    os.mkdir(folder)
    _Items('a').save(folder)
    self.assertEqual(self._restored(), (1, 0., ['a']))

  def test_several_are_saved_beside_one_checkpoint(self):
    queue = _Items('b')
    make = lambda: checkpoint.Checkpointer(self._directory, beside={'experience': self._items, 'intake': queue})
    self._items.lines = ['a']
    make().save()
    self._items.lines, queue.lines = [], []
    make().restore()
    self.assertEqual((self._items.lines, queue.lines), (['a'], ['b']))

  @parameterized.parameters(('of another shape', 'ckpt-1 does not fit .*want another shape'),
                            (None, 'ckpt-1 is damaged .No such file or directory.'))
  def test_a_folder_that_cannot_be_restored(self, line, wanted):
    self._items.lines = [line or 'a']
    self._checkpointer().save()
    if line is None:
      os.remove(os.path.join(self._directory, 'ckpt-1.experience', 'lines'))
    with self.assertRaisesRegex(checkpoint.CheckpointError, f'^[^\n]*{wanted}[^\n]*$'):
      self._restored()


if __name__ == '__main__':
  absltest.main()
