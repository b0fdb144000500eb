"""Tests of Q-learning on sequences, against slow loops and numbers worked out by hand."""

from absl.testing import absltest
from absl.testing import parameterized
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import tensorflow as tf

from scalable_agents.learner import q_learning


def _slow_targets(rewards, discounts, values, n):
  """The sum of the docstring, term by term. values[t] is the value of the row that step t leads to."""
  num_steps, batch_size = rewards.shape
  targets = np.zeros_like(rewards)
  for b in range(batch_size):
    for t in range(num_steps):
      product, target, m = 1., 0., min(n, num_steps - t)
      for k in range(m):
        target += product * rewards[t + k, b]
        product *= discounts[t + k, b]
      targets[t, b] = target + product * values[t + m - 1, b]
  return targets


class NStepTargetsTest(parameterized.TestCase):

  def test_by_hand(self):
    rewards = tf.constant([[1.], [2.], [3.], [4.]])
    values = tf.constant([[10.], [20.], [30.], [40.]])
    discounts = tf.fill([4, 1], 0.5)
    # Steps 0 to 2 look two steps ahead: 1 + 2/2 + 20/4 = 7, 2 + 3/2 + 30/4 = 11, 3 + 4/2 + 40/4 = 15. Step 3 looks one
    # step ahead: 4 + 40/2 = 24.
    np.testing.assert_allclose(q_learning.n_step_targets(rewards, discounts, values, 2)[:, 0], [7, 11, 15, 24])
    # The episode ends with step 1.
    discounts = tf.constant([[0.5], [0.], [0.5], [0.5]])
    np.testing.assert_allclose(q_learning.n_step_targets(rewards, discounts, values, 2)[:, 0], [2, 2, 15, 24])

  @settings(deadline=None, derandomize=True)
  @given(st.integers(1, 9), st.integers(1, 12), st.integers(0, 2**31))
  def test_agrees_with_a_slow_loop(self, num_steps, n, seed):
    random = np.random.RandomState(seed)
    rewards, values = random.normal(size=[2, num_steps, 3]).astype(np.float32)
    discounts = (0.9 * (random.uniform(size=[num_steps, 3]) < 0.8)).astype(np.float32)
    got = q_learning.n_step_targets(*map(tf.constant, (rewards, discounts, values)), n)
    np.testing.assert_allclose(got, _slow_targets(rewards, discounts, values, n), rtol=1e-4, atol=1e-5)

  @settings(deadline=None, derandomize=True)
  @given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 6), st.integers(0, 2**31))
  def test_a_truncated_episode_ends_like_a_sequence(self, before, after, n, seed):
    rewards, discounts, values = np.random.RandomState(seed).uniform(size=[3, before + 1 + after, 2]).astype(np.float32)
    real = np.arange(before + 1 + after)[:, np.newaxis] != [before] * 2
    got = q_learning.n_step_targets(*map(tf.constant, (rewards, discounts, values)), n, tf.constant(real))
    for part in (slice(0, before), slice(before + 1, None)):
      want = _slow_targets(rewards[part], discounts[part], values[part], n)
      np.testing.assert_allclose(got[part], want, rtol=1e-4, atol=1e-5)

  def test_one_step_targets(self):
    rewards, discounts, values = (tf.random.stateless_normal([5, 2], [1, seed]) for seed in range(3))
    np.testing.assert_allclose(
        q_learning.n_step_targets(rewards, discounts, values, 1), rewards + discounts * values, rtol=1e-6)

  def test_have_no_gradient(self):
    values = tf.ones([3, 1])
    with tf.GradientTape() as tape:
      tape.watch(values)
      targets = q_learning.n_step_targets(values, values, values, 2)
    self.assertIsNone(tape.gradient(targets, values))

  def test_refuses_impossible_arguments(self):
    ones = tf.ones([3, 1])
    with self.assertRaisesRegex(ValueError, 'n: want at least 1, got 0'):
      q_learning.n_step_targets(ones, ones, ones, 0)
    with self.assertRaisesRegex(ValueError, r'want the same shape, got \(3, 1\), \(3, 1\) and \(4, 1\)'):
      q_learning.n_step_targets(ones, ones, tf.ones([4, 1]), 2)


class PrioritiesTest(absltest.TestCase):

  def test_by_hand(self):
    td_errors = tf.constant([[1., -4.], [-3., 2.], [2., 9.]])
    mask = tf.constant([[True, True], [True, True], [True, False]])
    # 0.9 * 3 + 0.1 * 2 = 2.9; without the last step 0.9 * 4 + 0.1 * 3 = 3.9.
    np.testing.assert_allclose(q_learning.sequence_priorities(td_errors, mask, 0.9), [2.9, 3.9], rtol=1e-6)
    np.testing.assert_allclose(q_learning.sequence_priorities(td_errors, mask, 0.), [2., 3.], rtol=1e-6)
    np.testing.assert_allclose(q_learning.sequence_priorities(td_errors, mask, 1.), [3., 4.], rtol=1e-6)

  @settings(deadline=None, derandomize=True)
  @given(st.integers(0, 2**31), st.floats(0, 1))
  def test_agrees_with_a_slow_loop(self, seed, eta):
    random = np.random.RandomState(seed)
    td_errors, mask = random.normal(size=[6, 4]).astype(np.float32), random.uniform(size=[6, 4]) < 0.3
    sizes = [np.abs(td_errors[mask[:, b], b]) for b in range(4)]
    want = [eta * those.max() + (1 - eta) * those.mean() if those.size else 0. for those in sizes]
    np.testing.assert_allclose(q_learning.sequence_priorities(tf.constant(td_errors), mask, eta), want, rtol=1e-4)

  def test_of_a_sequence_without_any_step(self):
    for eta in (0., 0.9):
      priorities = q_learning.sequence_priorities(tf.ones([3, 1]), tf.zeros([3, 1], tf.bool), eta)
      np.testing.assert_array_equal(priorities, [0.])

  def test_have_no_gradient(self):
    td_errors = tf.ones([3, 1])
    with tf.GradientTape() as tape:
      tape.watch(td_errors)
      priorities = q_learning.sequence_priorities(td_errors, tf.ones([3, 1], tf.bool), 0.9)
    self.assertIsNone(tape.gradient(priorities, td_errors))


class ImportanceWeightsTest(absltest.TestCase):

  def test_by_hand(self):
    # (1 / (N P))^0.5 with N = 4: 1 / sqrt 2, 1, sqrt 2. Divided by sqrt 2: 0.5, 0.7071, 1.
    np.testing.assert_allclose(q_learning.importance_weights(tf.constant([0.5, 0.25, 0.125]), 0.5),
                               [0.5, 0.5**0.5, 1.], rtol=1e-6)

  @settings(deadline=None, derandomize=True)
  @given(st.lists(st.floats(2**-20, 1, width=32), min_size=1, max_size=8), st.floats(0, 1), st.integers(1, 10**6))
  def test_agrees_with_the_formula(self, probabilities, exponent, size):
    weights = (1 / (size * np.array(probabilities)))**exponent
    np.testing.assert_allclose(q_learning.importance_weights(tf.constant(probabilities), exponent),
                               weights / weights.max(), rtol=1e-4)


if __name__ == '__main__':
  absltest.main()
