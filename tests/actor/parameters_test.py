"""Tests of the parameter snapshot: what readers get belongs together and does not change under their hands."""

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from scalable_agents.actor import parameters
from scalable_agents.learner import optimizers
from scalable_agents.tests.actor import waiting

_SHAPES = ([256, 64], [64], [], [3, 5, 7])  # Large and small ones: reading them takes different times.


def _variables(value=0.):
  return [tf.Variable(tf.fill(shape, value)) for shape in _SHAPES]


def _snapshot(variables):
  return parameters.ParameterSnapshot([tf.TensorSpec(v.shape, v.dtype) for v in variables])


@tf.function
def _read(variables):
  return [tf.identity(variable) for variable in variables]


def _by_assignment(variables):
  def update(version):
    for variable in variables:
      variable.assign(tf.fill(variable.shape, tf.cast(version, tf.float32)))
  return update


def _by_gradient_descent(variables):
  def update(version):
    del version  # Grows by one, as the variables do.
    for variable in variables:
      tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=1., delta=-tf.ones_like(variable))
  return update


def _by_rmsprop(variables):
  optimizer = optimizers.RMSProp(variables, decay=0.9, momentum=0.5, epsilon=0.1)
  return lambda version: optimizer.apply([tf.ones_like(variable) for variable in variables], 0.1)


def _by_adam(variables):
  optimizer = optimizers.Adam(variables, beta1=0.9, beta2=0.99, epsilon=0.1)
  return lambda version: optimizer.apply([tf.ones_like(variable) for variable in variables], 0.1)


def _by_scattering(variables):
  def update(version):
    for variable in variables:
      if variable.shape.rank:
        variable.scatter_update(tf.IndexedSlices(
            tf.fill(variable.shape, tf.cast(version, tf.float32)), tf.range(variable.shape[0])))
      else:
        variable.assign(tf.cast(version, tf.float32))
  return update


class ParameterSnapshotTest(parameterized.TestCase):

  def test_gives_what_was_published_last(self):
    snapshot = parameters.ParameterSnapshot([tf.TensorSpec([2], tf.float32), tf.TensorSpec([], tf.string)])
    for version in (3, 4, 2):
      snapshot.publish(version, [tf.fill([2], float(version)), tf.constant(f'text {version}')])
      got_version, (numbers, text) = snapshot.latest()
      self.assertEqual((got_version.dtype, int(got_version)), (tf.int64, version))
      np.testing.assert_array_equal(numbers, [version, version])
      self.assertEqual(text.numpy(), f'text {version}'.encode())

  def test_variables_may_be_published_and_shapes_are_known_in_graphs(self):
    variables = _variables(2.)
    snapshot = _snapshot(variables)
    snapshot.publish(tf.Variable(7, dtype=tf.int64), variables)

    @tf.function
    def read():
      version, latest = snapshot.latest()
      self.assertEqual(version.shape, [])
      self.assertEqual([parameter.shape.as_list() for parameter in latest], list(_SHAPES))
      return version, latest

    version, latest = read()
    self.assertEqual(int(version), 7)
    for parameter in latest:
      np.testing.assert_array_equal(parameter, np.full(parameter.shape, 2.))

  def test_holders_keep_what_they_have_taken_until_they_let_go(self):
    snapshot = parameters.ParameterSnapshot([tf.TensorSpec([2], tf.float32)])
    give = lambda op, *holders: (int(op(holders)[0]), op(holders)[1][0].numpy().tolist())
    for op in (snapshot.hold, snapshot.let_go):
      with self.assertRaisesRegex(tf.errors.FailedPreconditionError, 'no parameters have been published yet'):
        op([1])
    for version in (1, 2, 3):
      snapshot.publish(version, [tf.fill([2], float(version))])
      self.assertEqual(give(snapshot.hold, 5), (1, [1., 1.]))
      self.assertEqual(give(snapshot.hold, 5 + version, 5 + version), (version, [version, version]))
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, 'the holders hold different versions'):
      snapshot.hold([5, 7])
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, 'holders: want at least one'):
      snapshot.hold(tf.zeros([0], tf.int32))
    self.assertEqual(int(snapshot.let_go([5, 6])[0]), 1)
    self.assertEqual(give(snapshot.hold, 5, 6, 8), (3, [3., 3.]))
    self.assertEqual(give(snapshot.hold, 7), (2, [2., 2.]))

  def test_only_weights_are_sent_in_bfloat16(self):
    sound = np.float32([[1 / 3, -7e30, np.inf], [1e-30, 1.00390625, -0.]])
    values = [tf.constant(sound), tf.constant([1 / 3]), tf.constant(1 / 3), tf.constant([[16_777_217]]),
              tf.constant([[1 / 3]], tf.float64)]
    specs = [tf.TensorSpec(value.shape, value.dtype) for value in values]
    self.assertEqual(parameters.sent_specs(specs, 'float32'), specs)
    sent = parameters.sent_specs(specs, 'bfloat16')
    self.assertEqual([spec.dtype for spec in sent], [tf.bfloat16, *(value.dtype for value in values[1:])])
    back = parameters.cast(parameters.cast(values, tuple(spec.dtype for spec in sent)),
                           tuple(spec.dtype for spec in specs))
    # Rounded to 8 bits, half to even.
    bits = sound.view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000).astype(np.uint32).view(np.float32)
    np.testing.assert_array_equal(back[0], rounded)
    for value, its in zip(values[1:], back[1:], strict=True):
      self.assertEqual(value.dtype, its.dtype)
      np.testing.assert_array_equal(value, its)

  def test_nothing_published_yet(self):
    snapshot = _snapshot(_variables())
    with self.assertRaisesRegex(tf.errors.FailedPreconditionError, 'no parameters have been published yet'):
      snapshot.latest()

  def test_another_number_or_type_than_published(self):
    snapshot = parameters.ParameterSnapshot([tf.TensorSpec([], tf.float32)])
    snapshot.publish(1, [tf.constant(1.), tf.constant(2.)])
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, 'parameters: want 2, got 1'):
      snapshot.latest()
    snapshot.publish(1, [tf.constant(1)])
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, 'parameter 0 has another type'):
      snapshot.latest()

  def test_snapshots_are_independent(self):
    one, two = _snapshot(_variables()), _snapshot(_variables())
    one.publish(1, _variables(1.))
    two.publish(2, _variables(2.))
    self.assertEqual(int(one.latest()[0]), 1)
    np.testing.assert_array_equal(one.latest()[1][1], np.ones([64]))

  @parameterized.parameters(
      (_by_assignment, False), (_by_gradient_descent, False), (_by_rmsprop, False), (_by_adam, False),
      (_by_scattering, False), (_by_assignment, True), (_by_rmsprop, True), (_by_adam, True))
  def test_what_is_published_does_not_change_with_the_variables(self, make_update, jit_compile):
    variables = _variables()
    update = tf.function(make_update(variables), jit_compile=jit_compile)
    snapshot = _snapshot(variables)
    kept = []
    for version in range(1, 4):
      update(tf.constant(version))
      values = [variable.numpy().copy() for variable in variables]
      snapshot.publish(version, _read(variables))
      kept.append((values, snapshot.latest()[1]))
    self.assertNotEqual(kept[0][0][2], kept[1][0][2])
    for values, published in kept:
      for value, parameter in zip(values, published):
        np.testing.assert_array_equal(parameter, value)

  @parameterized.parameters(_by_assignment, _by_gradient_descent, _by_rmsprop)
  def test_readers_never_see_half_an_update(self, make_update):
    # Every update treats all elements of all variables alike: they differ in what is put together from two versions.
    variables = _variables()
    update = tf.function(make_update(variables))
    snapshot = _snapshot(variables)
    snapshot.publish(0, _read(variables))
    readers = [waiting.start(_read_versions, snapshot, 50) for _ in range(2)]
    value_of = [0.]  # By version.
    while not all(reader.ended.is_set() for reader in readers):
      update(tf.constant(len(value_of)))
      value_of.append(float(variables[2]))
      snapshot.publish(len(value_of) - 1, _read(variables))
    for versions, lowest, highest in (reader() for reader in readers):
      expected = np.array(value_of)[versions]
      np.testing.assert_allclose(lowest, expected, rtol=1e-5)  # The kernels round last elements differently.
      np.testing.assert_allclose(highest, expected, rtol=1e-5)
      self.assertTrue(np.all(np.diff(versions) >= 0))


def _read_versions(snapshot, number):
  """Reads in graph loops, as inference does, until it has seen a number of versions, and a thousand times at least.

  Returns:
    Of every read the version and the extreme elements.
  """

  @tf.function
  def read(reads=50):
    versions = tf.TensorArray(tf.int64, reads)
    lowest = tf.TensorArray(tf.float32, reads)
    highest = tf.TensorArray(tf.float32, reads)
    for i in tf.range(reads):
      version, latest = snapshot.latest()
      versions = versions.write(i, version)
      lowest = lowest.write(i, tf.reduce_min([tf.reduce_min(parameter) for parameter in latest]))
      highest = highest.write(i, tf.reduce_max([tf.reduce_max(parameter) for parameter in latest]))
    return versions.stack(), lowest.stack(), highest.stack()

  # Not in one loop: these loops never wait, and two of them leave a small machine's TensorFlow no thread for others.
  results, seen = [], set()
  while len(seen) < number or len(results) < 20:
    results.append(read())
    seen.update(results[-1][0].numpy().tolist())
  return [np.concatenate(values) for values in zip(*results)]


if __name__ == '__main__':
  absltest.main()
