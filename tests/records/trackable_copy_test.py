"""Copies of trackable objects: the files of a checkpoint of theirs are those of the originals, which may change."""

import gc
import os
import tempfile
import weakref

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import sonnet as snt
import tensorflow as tf

from scalable_agents.learner import optimizers
from scalable_agents.records import episode_statistics
from scalable_agents.records import trackable_copy
from scalable_agents.tests.launch import forked_program


def _files(checkpoint):
  """What a checkpoint writes, file by file."""
  with tempfile.TemporaryDirectory() as folder:
    checkpoint.write(os.path.join(folder, 'ckpt'))
    contents = {}
    for name in os.listdir(folder):
      with open(os.path.join(folder, name), 'rb') as stream:
        contents[name] = stream.read()
    return contents


def _agent():
  """A tree with all kinds of objects, one that is held twice, and a cycle."""
  network = snt.nets.MLP([4, 3])
  network(tf.zeros([1, 5]))
  statistics = episode_statistics.EpisodeStatistics(('a', 'b'))
  statistics.add([1], [2.5], [10])
  odd = tf.Module(name='odd')
  odd.variables_by_name = {'x': [tf.Variable(7, dtype=tf.int64)], 'y': (tf.Variable(['text']),)}
  odd.network, odd.itself = network, odd
  odd.floats = tf.Variable(np.array([np.nan, -np.inf, -0., 1e-45], np.float32), name='with/scopes')
  odd.random = tf.random.Generator.from_seed(3)
  return tf.train.Checkpoint(network=network, optimizer=optimizers.RMSProp(network.variables, 0.99, 0.0, 0.01),
                             statistics=statistics, odd=odd)


def train_mirrored():
  """A program with two logical CPU devices, which must be made before TensorFlow computes anything."""
  cpu, = tf.config.list_physical_devices('CPU')
  tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
  strategy = tf.distribute.MirroredStrategy(['CPU:0', 'CPU:1'])
  with strategy.scope():
    weights = tf.Variable(tf.range(100_000.), name='weights')
    steps = tf.Variable(0, dtype=tf.int64, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
  original = tf.train.Checkpoint(weights=weights, steps=steps)

  @tf.function
  def update():
    def step():
      weights.assign_add(weights / 2)
      steps.assign_add(1)
    strategy.run(step)

  update()
  before = _files(original)
  copied = tf.train.Checkpoint(**trackable_copy.copy_children(original))
  update()
  assert isinstance(copied.weights, tf.Variable) and not isinstance(copied.weights, tf.distribute.DistributedValues)
  assert _files(copied) == before != _files(original)
  with tempfile.TemporaryDirectory() as folder:
    original.read(copied.write(os.path.join(folder, 'ckpt'))).assert_consumed()
  for replica in strategy.experimental_local_results(weights):
    np.testing.assert_array_equal(replica, copied.weights)
  assert _files(original) == before


class TrackableCopyTest(parameterized.TestCase):

  def test_the_files_are_the_same_byte_for_byte(self):
    original = _agent()
    copied = tf.train.Checkpoint(**trackable_copy.copy_children(original))
    self.assertEqual(_files(copied), _files(original))

  def test_what_is_held_twice_is_copied_once(self):
    copies = trackable_copy.copy_children(_agent())
    self.assertIs(copies['odd'].network, copies['network'])
    self.assertIs(copies['odd'].itself, copies['odd'])

  @parameterized.parameters('assign', 'function', 'xla', 'optimizer')
  def test_values_stay_when_the_originals_change(self, how):
    original = _agent()
    variables = original.network.variables
    optimizer = original.optimizer

    def update():
      for variable in variables:
        variable.assign_add(tf.ones_like(variable))

    if how == 'optimizer':
      update = lambda: optimizer.apply([tf.ones_like(variable) for variable in variables], tf.constant(0.1))
    if how != 'assign':
      update = tf.function(update, jit_compile=how == 'xla')
    update()
    before = _files(original)
    for _ in range(2):
      copied = tf.train.Checkpoint(**trackable_copy.copy_children(original))
      update()
      original.statistics.add([0], [1.], [4])
      self.assertEqual(_files(copied), before)
      before = _files(original)

  def test_the_copies_are_in_memory_of_their_own(self):
    """A value that is written in place would otherwise change the copy, too."""
    original = tf.train.Checkpoint(weights=tf.Variable(tf.zeros([10])))
    copies = trackable_copy.copy_children(original)
    original.weights[3].assign(1.)
    original.weights.scatter_nd_add([[4]], [1.])
    np.testing.assert_array_equal(copies['weights'], np.zeros(10))

  def test_mirrored_variables(self):
    process, _ = forked_program.start(
        self, '-c', 'from scalable_agents.tests.records import trackable_copy_test as test; test.train_mirrored()')
    self.assertEqual(process.wait(), 0)

  def test_an_object_whose_values_would_be_lost_is_refused(self):
    original = tf.train.Checkpoint(table=tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, 0))
    with self.assertRaisesRegex(TypeError, 'want variables, PythonStates .*, got a MutableHashTable'):
      trackable_copy.copy_children(original)

  def test_copies_are_freed_when_they_are_dropped(self):
    """At once: the garbage collector may run minutes later."""
    self.addCleanup(gc.enable)
    original = _agent()
    del original.odd.itself  # A cycle, which agents do not have.
    gc.disable()
    copied = tf.train.Checkpoint(**trackable_copy.copy_children(original))
    _files(copied)
    variable = weakref.ref(copied.odd.floats)
    del copied
    self.assertIsNone(variable())


if __name__ == '__main__':
  absltest.main()
