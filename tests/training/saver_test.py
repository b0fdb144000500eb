"""Tests when the state of a run is saved, and that it is restored."""

import os

from absl.testing import absltest
import tensorflow as tf

from scalable_agents.records import run_directory
from scalable_agents.training import saver as saver_lib


class _Beside:
  """Has no state."""
  is_required = False

  def save(self, folder):
    pass

  def restore(self, folder):
    raise AssertionError('nothing was saved')


class SaverTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.logdir = self.create_tempdir().full_path
    self.directory = self.enterContext(run_directory.open_run(self.logdir, {}, ()))
    self.value = tf.Variable(1.)
    self.rows = []

  def _saver(self, interval_seconds=0.):
    saver = saver_lib.Saver(self.directory, interval_seconds, {'beside': _Beside()}, value=self.value)
    saver.begin_interval()
    return saver

  def _saved(self):
    """Returns the value of the latest checkpoint."""
    value = tf.Variable(0.)
    saver_lib.Saver(self.directory, 0., {'beside': _Beside()}, value=value).close()
    return float(value)

  def _write_row(self):
    self.rows.append(float(self.value))

  def test_a_new_run_is_saved_at_once_and_a_saved_one_is_restored(self):
    self.assertFalse(saver_lib.has_checkpoint(self.directory))
    saver = self._saver()
    self.assertTrue(saver_lib.has_checkpoint(self.directory))
    self.value.assign(2.)
    saver.save(self._write_row)
    saver.close()
    self.value.assign(3.)
    self._saver().close()
    self.assertEqual((float(self.value), self.rows), (2., [2.]))

  def test_an_interval_passes_between_two_checkpoints(self):
    saver = self._saver(interval_seconds=1e9)
    self.value.assign(2.)
    saver.begin_if_due(self._write_row)
    self.assertFalse(saver.is_writing)
    saver.close()
    self.assertEqual((self._saved(), self.rows), (1., []))

  def test_what_changes_after_the_save_has_begun_is_not_in_it(self):
    saver = self._saver()
    self.value.assign(2.)
    saver.begin_if_due(self._write_row)
    self.value.assign(3.)
    saver.close()
    self.assertEqual((self._saved(), self.rows), (2., [2.]))

  def test_a_directory_that_was_moved_is_named_before_a_checkpoint_that_failed(self):
    saver = self._saver()
    saver.begin_if_due(self._write_row)
    os.rename(self.logdir, self.logdir + '_moved')
    with self.assertRaisesRegex(run_directory.RunDirectoryError, f'^{self.logdir} was moved or removed'):
      saver.check()
    with self.assertRaisesRegex(run_directory.RunDirectoryError, f'^{self.logdir} was moved or removed'):
      saver.save(self._write_row)
    saver.close()

  def test_metrics_without_a_checkpoint_are_not_continued(self):
    with open(os.path.join(self.logdir, 'metrics.jsonl'), 'w', encoding='utf-8') as file:
      file.write('{"environment_frames": 80, "wall_seconds": 1.0}\n')
    with self.assertRaisesRegex(run_directory.RunDirectoryError, 'no checkpoint to resume it from: put checkpoints'):
      self._saver()


if __name__ == '__main__':
  absltest.main()
