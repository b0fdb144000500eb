"""Tests of learner/losses.py."""

from absl.testing import absltest
from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
import numpy as np
import tensorflow as tf

from scalable_agents.learner import losses


def _log_softmax(logits):
  return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


class LossesTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    random = np.random.RandomState(0)
    self.advantages, self.values, self.targets, self.log_probs = random.randn(4, 5, 3).astype(np.float32)
    self.logits = random.randn(5, 3, 4).astype(np.float32)

  def test_policy_gradient_loss(self):
    want = sum(-self.log_probs[t, b] * self.advantages[t, b] for t in range(5) for b in range(3))
    self.assertAlmostEqual(float(losses.policy_gradient_loss(self.log_probs, self.advantages)), want, places=4)

  def test_baseline_loss(self):
    want = sum(0.5 * (self.targets[t, b] - self.values[t, b])**2 for t in range(5) for b in range(3))
    self.assertAlmostEqual(float(losses.baseline_loss(self.targets, self.values)), want, places=4)

  def test_entropy_loss(self):
    log_pi = _log_softmax(np.float64(self.logits))
    self.assertAlmostEqual(float(losses.entropy_loss(self.logits)), np.sum(np.exp(log_pi) * log_pi), places=4)

  def test_weights_of_steps(self):
    weights = np.random.RandomState(1).uniform(size=[5, 3]).astype(np.float32)
    weights[1, 2] = 0.
    log_pi = _log_softmax(np.float64(self.logits))
    want = {
        'policy_gradient': sum(-weights[t, b] * self.log_probs[t, b] * self.advantages[t, b]
                               for t in range(5) for b in range(3)),
        'baseline': sum(0.5 * weights[t, b] * (self.targets[t, b] - self.values[t, b])**2
                        for t in range(5) for b in range(3)),
        'entropy': sum(weights[t, b] * np.sum(np.exp(log_pi[t, b]) * log_pi[t, b])
                       for t in range(5) for b in range(3))}
    got = {'policy_gradient': losses.policy_gradient_loss(self.log_probs, self.advantages, weights),
           'baseline': losses.baseline_loss(self.targets, self.values, weights),
           'entropy': losses.entropy_loss(self.logits, weights)}
    for name, value in want.items():
      self.assertAlmostEqual(float(got[name]), value, places=4, msg=name)

  def test_entropy_loss_of_uniform_and_of_certain_policies(self):
    self.assertAlmostEqual(float(losses.entropy_loss(np.zeros([5, 3, 4], np.float32))), -15 * np.log(4), places=4)
    self.assertAlmostEqual(float(losses.entropy_loss(np.float32([[[1000.0, 0.0]]]))), 0.0)

  def test_gradients(self):
    log_probs, advantages, values, targets, logits = (
        tf.constant(x) for x in (self.log_probs, self.advantages, self.values, self.targets, self.logits))
    with tf.GradientTape(persistent=True) as tape:
      tape.watch([log_probs, advantages, values, targets, logits])
      policy_gradient = losses.policy_gradient_loss(log_probs, advantages)
      baseline = losses.baseline_loss(targets, values)
      entropy = losses.entropy_loss(logits)
    np.testing.assert_allclose(tape.gradient(policy_gradient, log_probs), -self.advantages)
    self.assertIsNone(tape.gradient(policy_gradient, advantages))
    np.testing.assert_allclose(tape.gradient(baseline, values), self.values - self.targets, rtol=1e-5)
    self.assertIsNone(tape.gradient(baseline, targets))
    log_pi = _log_softmax(np.float64(self.logits))
    pi = np.exp(log_pi)
    want = pi * (log_pi - np.sum(pi * log_pi, -1, keepdims=True))
    np.testing.assert_allclose(tape.gradient(entropy, logits), want, rtol=1e-4, atol=1e-6)


class RewardTransformsTest(parameterized.TestCase):

  @parameterized.parameters(
      ('abs_one', [-1.0, -0.5, 0.0, 0.5, 1.0]),
      ('soft_asymmetric', [-1.446, -0.1495, 0.0, 0.4983, 0.9869]),
      ('optimistic_asymmetric', [-0.3, -0.1386, 0.0, 2.3106, 3.8080]),
      ('none', [-10.0, -0.5, 0.0, 0.5, 1.0]))
  def test_known_numbers(self, name, want):
    got = losses.transform_rewards(tf.constant([-10.0, -0.5, 0.0, 0.5, 1.0]), name)
    np.testing.assert_allclose(got, want, atol=1e-4)

  @parameterized.parameters(*losses.REWARD_TRANSFORMS)
  def test_a_reward_that_is_no_finite_number_is_not_hidden(self, name):
    got = losses.transform_rewards(tf.constant([np.inf, -np.inf, np.nan, 0.5]), name)
    self.assertEqual(np.isfinite(got).tolist(), [False, False, False, True])

  @hypothesis.settings(deadline=None, derandomize=True)
  @hypothesis.given(hnp.arrays(np.float32, (4,), elements=st.floats(-1e4, 1e4, width=32)),
                    st.sampled_from(sorted(losses.REWARD_TRANSFORMS)))
  def test_keeps_sign_and_order_and_range(self, rewards, name):
    rewards = np.sort(rewards)
    got = losses.transform_rewards(tf.constant(rewards), name).numpy()
    low, high = {'abs_one': (-1, 1), 'soft_asymmetric': (-1.5, 5), 'optimistic_asymmetric': (-0.3, 5),
                 'none': (-1e4, 1e4)}[name]
    self.assertTrue(np.all(np.diff(got) >= 0))
    self.assertTrue(np.all(got * rewards >= 0))
    self.assertTrue(np.all((got >= low - 1e-6) & (got <= high + 1e-6)))

  def test_unknown_name(self):
    with self.assertRaisesRegex(ValueError, "reward_transform: want one of abs_one, .*got 'clip'"):
      losses.transform_rewards(tf.zeros([2]), 'clip')


if __name__ == '__main__':
  absltest.main()
