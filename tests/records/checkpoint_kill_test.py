"""A process that is killed, or has no space left, while a thread writes a checkpoint: the one before is in force."""

import os
import signal
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from scalable_agents.records import checkpoint
from scalable_agents.tests.launch import forked_program

# Saves a checkpoint, and has the thread write another one, which ends in the way that the second argument says. It is
# killed by its parent, or by the kernel amid the data because of their size.
_WRITER = '''
import os, resource, signal, sys, threading
import tensorflow as tf
from scalable_agents.records import checkpoint
directory, end = sys.argv[1:]

def wait_for_the_kill(*unused):
  print('writing', flush=True)
  threading.Event().wait()

class Items:
  is_required = True
  def __init__(self):
    self.text, self.is_last = 'first', False
  def save(self, folder):
    with open(os.path.join(folder, 'items'), 'w') as stream:
      stream.write(self.text)
    if self.is_last:
      wait_for_the_kill()

items, weights = Items(), tf.Variable(tf.ones([1_000_000]))
checkpointer = checkpoint.Checkpointer(directory, beside={'experience': items}, weights=weights)
checkpointer.save()
items.text = 'second'
weights.assign_add(tf.ones([1_000_000]))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
if end == 'beside':
  items.is_last = True
elif end == 'recording':
  os.replace = wait_for_the_kill
else:
  resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))
  if end == 'data':
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it.
    print('writing', flush=True)
checkpointer.begin_save()
try:
  checkpointer.close()
except checkpoint.CheckpointError as error:
  print(error)
'''


class KillTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self._directory = os.path.join(self.enterContext(tempfile.TemporaryDirectory()), 'checkpoints')

  def _start(self, end):
    return forked_program.start(self, '-c', _WRITER, self._directory, end)

  def _assert_the_first_is_in_force(self):
    """Also that a process can go on from there, and that it leaves nothing of the second attempt behind."""
    weights = tf.Variable(tf.zeros([1_000_000]))
    checkpointer = checkpoint.Checkpointer(self._directory, weights=weights)
    self.assertEqual(checkpoint.number_of(checkpointer.restore()), 1)
    np.testing.assert_array_equal(weights, np.ones(1_000_000))
    with open(os.path.join(self._directory, 'ckpt-1.experience', 'items'), encoding='utf-8') as stream:
      self.assertEqual(stream.read(), 'first')
    checkpointer.begin_save()
    checkpointer.close()
    self.assertEqual(checkpoint.number_of(checkpoint.latest(self._directory)), 2)
    self.assertCountEqual(os.listdir(self._directory), [
        'checkpoint', 'ckpt-1.experience', *(f'ckpt-{number}.{suffix}' for number in (1, 2)
                                             for suffix in ('index', 'data-00000-of-00001'))])

  @parameterized.parameters(('beside', signal.SIGKILL), ('data', signal.SIGXFSZ), ('recording', signal.SIGKILL))
  def test_a_kill_amid_the_write_leaves_the_one_before_in_force(self, end, by):
    writer, output = self._start(end)
    self.assertEqual(output.readline(), 'writing\n')
    if by == signal.SIGKILL:
      writer.kill()
    self.assertEqual(writer.wait(), -by)
    self._assert_the_first_is_in_force()

  def test_a_file_that_cannot_grow(self):
    """As on a full disk."""
    _, output = self._start('full')
    self.assertRegex(
        output.read(), f'^{self._directory}: a checkpoint could not be written [^\n]*File too large[^\n]*\n$')
    self.assertEmpty([name for name in os.listdir(self._directory) if 'ckpt-2' in name])
    self._assert_the_first_is_in_force()


if __name__ == '__main__':
  absltest.main()
