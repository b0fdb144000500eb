"""Tests of learner/optimizers.py by comparison with hand-computed steps and TensorFlow 1's RMSProp."""

import os

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from scalable_agents.learner import optimizers


def _variables():
  return [tf.Variable([[1.0, -2.0], [0.5, 3.0]]), tf.Variable([0.0, 1.0, 2.0])]


def _gradients(step):
  random = np.random.RandomState(step)
  return [tf.constant(random.randn(*shape).astype(np.float32)) for shape in ((2, 2), (3,))]


def _make(name, variables):
  if name == 'adam':
    return optimizers.Adam(variables, beta1=0.9, beta2=0.99, epsilon=1e-3)
  return optimizers.RMSProp(variables, decay=0.9, momentum=0.5, epsilon=0.1)


class RMSPropTest(parameterized.TestCase):

  def test_steps_computed_by_hand(self):
    w = tf.Variable(0.0)
    optimizer = optimizers.RMSProp([w], decay=0.99, momentum=0.0, epsilon=0.1)
    # ms = 0.99 * 1 + 0.01 * 4 = 1.03;  w = -0.1 * 2 / sqrt(1.03 + 0.1).
    optimizer.apply([tf.constant(2.0)], tf.constant(0.1))
    self.assertAlmostEqual(float(w), -0.188144, places=6)
    self.assertAlmostEqual(float(optimizer.mean_squares[0]), 1.03, places=6)
    # ms = 0.99 * 1.03 + 0.04 = 1.0597;  w -= 0.2 / sqrt(1.1597).
    optimizer.apply([tf.constant(2.0)], tf.constant(0.1))
    self.assertAlmostEqual(float(w), -0.373864, places=6)

  def test_momentum_computed_by_hand(self):
    w = tf.Variable(0.0)
    optimizer = optimizers.RMSProp([w], decay=0.99, momentum=0.5, epsilon=0.1)
    optimizer.apply([tf.constant(2.0)], tf.constant(0.1))
    optimizer.apply([tf.constant(2.0)], tf.constant(0.1))
    first, second = 0.2 / np.sqrt(1.13), 0.2 / np.sqrt(1.1597)
    self.assertAlmostEqual(float(w), -(first + 0.5 * first + second), places=6)
    self.assertAlmostEqual(float(optimizer.momenta[0]), 0.5 * first + second, places=6)

  def test_epsilon_may_change(self):
    ours, epsilon = _variables(), tf.Variable(0.01)
    optimizer = optimizers.RMSProp(ours, decay=0.9, momentum=0.0, epsilon=epsilon)
    apply = tf.function(optimizer.apply)
    apply(_gradients(0), tf.constant(0.05))
    before, ms = [v.numpy() for v in ours], [0.9 * m.numpy() for m in optimizer.mean_squares]
    epsilon.assign(10.0)
    apply(_gradients(1), tf.constant(0.05))
    for old, m, gradient, new in zip(before, ms, _gradients(1), ours):
      np.testing.assert_allclose(new, old - 0.05 * gradient / np.sqrt(m + 0.1 * gradient**2 + 10), rtol=1e-5)

  @parameterized.parameters(0.0, 0.9)
  def test_agrees_with_tensorflow_1(self, momentum):
    ours, theirs = _variables(), _variables()
    optimizer = optimizers.RMSProp(ours, decay=0.9, momentum=momentum, epsilon=0.01)
    oracle = tf.compat.v1.train.RMSPropOptimizer(0.05, decay=0.9, momentum=momentum, epsilon=0.01)
    for step in range(5):
      optimizer.apply(_gradients(step), tf.constant(0.05))
      oracle.apply_gradients(zip(_gradients(step), theirs))
    for a, b in zip(ours, theirs):
      np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


class AdamTest(absltest.TestCase):

  def test_steps_computed_by_hand(self):
    w = tf.Variable(1.0)
    optimizer = optimizers.Adam([w], beta1=0.9, beta2=0.99, epsilon=1e-3)
    # m = 0.1 * 0.02;  v = 0.01 * 0.02^2;  lr sqrt(1 - 0.99) / (1 - 0.9) = 0.1;  w = 1 - 0.1 * 0.002 / (0.002 + 0.001).
    optimizer.apply([tf.constant(0.02)], tf.constant(0.1))
    self.assertAlmostEqual(float(w), 0.933333, places=6)
    # m = 0.9 * 0.002 - 0.1 * 0.01 = 0.0008;  v = 0.99 * 4e-6 + 0.01 * 0.01^2 = 4.96e-6.
    # lr sqrt(1 - 0.99^2) / (1 - 0.9^2) = 0.0742460;  w -= 0.0742460 * 0.0008 / (0.00222711 + 0.001).
    optimizer.apply([tf.constant(-0.01)], tf.constant(0.1))
    self.assertAlmostEqual(float(w), 0.914928, places=6)

  def test_variables_share_the_count_of_steps(self):
    """Kingma & Ba 2015, section 2, the efficient form."""
    variables = _variables()
    optimizer = optimizers.Adam(variables, beta1=0.8, beta2=0.99, epsilon=1e-3)
    want = [np.float64(v) for v in variables]
    first, second = ([np.zeros_like(values) for values in want] for _ in range(2))
    for step in range(1, 6):
      optimizer.apply(_gradients(step), tf.constant(0.05))
      for i, gradient in enumerate(map(np.float64, _gradients(step))):
        first[i] = 0.8 * first[i] + 0.2 * gradient
        second[i] = 0.99 * second[i] + 0.01 * gradient**2
        want[i] -= 0.05 * np.sqrt(1 - 0.99**step) / (1 - 0.8**step) * first[i] / (np.sqrt(second[i]) + 1e-3)
    for value, variable in zip(want, variables, strict=True):
      np.testing.assert_allclose(variable, value, rtol=1e-5, atol=1e-6)


class EitherTest(parameterized.TestCase):

  @parameterized.parameters('rmsprop', 'adam')
  def test_learning_rate_is_read_at_each_step(self, name):
    variables = _variables()
    optimizer = _make(name, variables)
    before = [v.numpy() for v in variables]
    optimizer.apply(_gradients(0), tf.constant(0.0))
    for a, b in zip(before, variables):
      np.testing.assert_array_equal(a, b)
    optimizer.apply(_gradients(1), tf.constant(0.1))
    for a, b in zip(before, variables):
      self.assertGreater(np.abs(a - b).min(), 0.0)

  @parameterized.parameters('rmsprop', 'adam')
  def test_agrees_with_itself_under_xla(self, name):
    results = []
    for jit_compile in (False, True):
      variables = _variables()
      apply = tf.function(_make(name, variables).apply, jit_compile=jit_compile)
      for step in range(3):
        apply(_gradients(step), tf.constant(0.05))
      results.append(variables)
    for a, b in zip(*results):
      np.testing.assert_allclose(a, b, rtol=1e-6)

  @parameterized.parameters('rmsprop', 'adam')
  def test_goes_on_from_a_checkpoint(self, name):
    path = os.path.join(self.create_tempdir().full_path, 'checkpoint')
    variables = _variables()
    optimizer = _make(name, variables)
    for step in range(3):
      optimizer.apply(_gradients(step), tf.constant(0.05))
    saved = tf.train.Checkpoint(variables=variables, optimizer=optimizer).write(path)
    restored = [tf.Variable(tf.zeros_like(v)) for v in variables]
    resumed = _make(name, restored)
    tf.train.Checkpoint(variables=restored, optimizer=resumed).read(saved).assert_consumed()
    for update in (optimizer, resumed):
      update.apply(_gradients(3), tf.constant(0.05))
    for a, b in zip(variables, restored):
      np.testing.assert_array_equal(a, b)

  @parameterized.parameters('rmsprop', 'adam')
  def test_a_gradient_is_missing(self, name):
    with self.assertRaises(ValueError):
      _make(name, _variables()).apply(_gradients(0)[:1], tf.constant(0.1))


class LinearDecayTest(parameterized.TestCase):

  @parameterized.parameters((0, 6e-4), (50_000_000, 4.5e-4), (199_999_999, 3e-12), (200_000_000, 0.0),
                            (200_010_000, 0.0))
  def test_linear_to_zero(self, frames, want):
    got = optimizers.linear_decay(6e-4, tf.constant(frames, tf.int64), 200_000_000)
    self.assertEqual(got.dtype, tf.float32)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=0)

  def test_tells_updates_apart_far_into_a_run(self):
    frames = tf.constant([9_000_000_000, 9_000_002_560], tf.int64)
    rates = optimizers.linear_decay(6e-4, frames, 10_000_000_000)
    self.assertLess(float(rates[1]), float(rates[0]))


class ClipByGlobalNormTest(parameterized.TestCase):

  @parameterized.parameters((40.0, 1.0), (5.0, 1.0), (2.5, 0.5), (tf.constant(2.5), 0.5))
  def test_scales(self, clip_norm, scale):
    gradients = [tf.constant([3.0, 0.0]), tf.constant([[4.0]])]  # Global norm 5.
    got = optimizers.clip_by_global_norm(gradients, tf.linalg.global_norm(gradients), clip_norm)
    np.testing.assert_allclose(got[0], [3.0 * scale, 0.0], rtol=1e-6)
    np.testing.assert_allclose(got[1], [[4.0 * scale]], rtol=1e-6)

  def test_agrees_with_tensorflow(self):
    for step in range(5):
      gradients = _gradients(step)
      want, norm = tf.clip_by_global_norm(gradients, 1.3)
      for a, b in zip(optimizers.clip_by_global_norm(gradients, norm, 1.3), want):
        np.testing.assert_allclose(a, b, rtol=1e-6)

  @parameterized.parameters(1.0, np.inf)
  def test_infinity_clips_nothing(self, norm):
    got = optimizers.clip_by_global_norm([tf.constant([3.0, 0.0])], tf.constant(norm, tf.float32), tf.constant(np.inf))
    np.testing.assert_array_equal(got[0], [3.0, 0.0])

  def test_zero_gradients(self):
    got = optimizers.clip_by_global_norm([tf.zeros([2])], tf.constant(0.0), 40.0)
    np.testing.assert_array_equal(got[0], [0.0, 0.0])


if __name__ == '__main__':
  absltest.main()
