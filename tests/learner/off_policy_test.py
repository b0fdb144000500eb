"""Tests of learner/off_policy.py."""

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from scalable_agents.learner import off_policy


def _inputs(log_rho_scale=2.0):
  random = np.random.RandomState(0)
  return {
      'log_rhos': (log_rho_scale * random.randn(6, 3)).astype(np.float32),
      'discounts': (0.9 * (random.rand(6, 3) > 0.2)).astype(np.float32),
      'rewards': random.randn(6, 3).astype(np.float32),
      'values': random.randn(6, 3).astype(np.float32),
      'bootstrap_value': random.randn(3).astype(np.float32),
  }


def _n_step_returns(inputs):
  target, returns = np.float64(inputs['bootstrap_value']), []
  for reward, discount in zip(inputs['rewards'][::-1], inputs['discounts'][::-1]):
    target = reward + discount * target
    returns.insert(0, target)
  return np.array(returns)


class OffPolicyTest(parameterized.TestCase):

  @parameterized.parameters('none', 'epsilon')
  def test_without_importance_weights(self, correction):
    inputs = _inputs()
    got = off_policy.targets(correction, **inputs, clip_c_threshold=0.5)  # Ignored: nothing is corrected.
    np.testing.assert_allclose(got.vs, _n_step_returns(inputs), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(got.pg_advantages, _n_step_returns(inputs) - inputs['values'], rtol=1e-5, atol=1e-5)

  @parameterized.parameters((1.0,), (None,), (3.0,))
  def test_one_step_weighs_the_advantages_only(self, threshold):
    inputs = _inputs()
    got = off_policy.targets('one_step', **inputs, clip_pg_rho_threshold=threshold, clip_c_threshold=0.5)
    rhos = np.minimum(np.exp(inputs['log_rhos']), np.inf if threshold is None else threshold)
    returns = _n_step_returns(inputs)
    np.testing.assert_allclose(got.vs, returns, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(got.pg_advantages, rhos * (returns - inputs['values']), rtol=1e-4, atol=1e-5)

  @parameterized.parameters((1.0, 1.0, 1.0, 1.0), (3.0, 2.0, 0.8, 1.5))
  def test_vtrace(self, rho_bar, pg_rho_bar, lambda_, c_bar):
    inputs = _inputs()
    got = off_policy.targets('vtrace', **inputs, clip_rho_threshold=rho_bar, clip_pg_rho_threshold=pg_rho_bar,
                             lambda_=lambda_, clip_c_threshold=c_bar)
    rhos = np.exp(inputs['log_rhos'])
    values = np.concatenate([inputs['values'], inputs['bootstrap_value'][None]])
    vs = np.float64(values)
    for t in reversed(range(6)):
      delta = np.minimum(rho_bar, rhos[t]) * (
          inputs['rewards'][t] + inputs['discounts'][t] * values[t + 1] - values[t])
      trace = inputs['discounts'][t] * lambda_ * np.minimum(c_bar, rhos[t])
      vs[t] = values[t] + delta + trace * (vs[t + 1] - values[t + 1])
    advantages = np.minimum(pg_rho_bar, rhos) * (inputs['rewards'] + inputs['discounts'] * vs[1:] - values[:-1])
    np.testing.assert_allclose(got.vs, vs[:-1], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got.pg_advantages, advantages, rtol=1e-4, atol=1e-5)

  @parameterized.product(correction=off_policy.CORRECTIONS, action_values=('one_step', 'target'))
  def test_other_estimates_of_action_values(self, correction, action_values):
    inputs = _inputs()
    got = off_policy.targets(correction, **inputs, clip_pg_rho_threshold=2., action_values=action_values)
    later = np.concatenate([inputs['values'][1:], inputs['bootstrap_value'][None]])
    advantages = inputs['rewards'] + inputs['discounts'] * later - inputs['values']
    if action_values == 'target':  # test_vtrace and the tests of the other corrections test the targets.
      advantages = got.vs - inputs['values']
    rhos = np.minimum(np.exp(inputs['log_rhos']), 2.) if correction in ('vtrace', 'one_step') else 1.
    np.testing.assert_allclose(got.pg_advantages, rhos * advantages, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(got.vs, off_policy.targets(correction, **inputs).vs)

  @parameterized.parameters(*off_policy.CORRECTIONS)
  def test_steps_that_are_not_trusted(self, correction):
    """Their targets are their values, and the steps before them bootstrap from there."""
    inputs = _inputs()
    trusted = np.random.RandomState(1).rand(6, 3) > 0.4
    got = off_policy.targets(correction, **inputs, trusted=trusted).vs
    rhos = np.minimum(np.exp(inputs['log_rhos']), 1.) if correction == 'vtrace' else np.ones([6, 3])
    values = np.float64(np.concatenate([inputs['values'], inputs['bootstrap_value'][None]]))
    want = values.copy()
    for t in reversed(range(6)):
      followed = inputs['rewards'][t] + inputs['discounts'][t] * want[t + 1]
      want[t] = np.where(trusted[t], values[t] + rhos[t] * (followed - values[t]), values[t])
    np.testing.assert_allclose(got, want[:-1], rtol=1e-4, atol=1e-5)

  def test_all_agree_on_policy(self):
    inputs = _inputs(log_rho_scale=0.0)
    for correction in off_policy.CORRECTIONS:
      got = off_policy.targets(correction, **inputs)
      np.testing.assert_allclose(got.vs, _n_step_returns(inputs), rtol=1e-5, atol=1e-5)
      np.testing.assert_allclose(got.pg_advantages, _n_step_returns(inputs) - inputs['values'], rtol=1e-5, atol=1e-5)

  @parameterized.parameters(*off_policy.CORRECTIONS)
  def test_no_gradient(self, correction):
    inputs = {name: tf.constant(x) for name, x in _inputs().items()}
    with tf.GradientTape() as tape:
      tape.watch(inputs)
      got = off_policy.targets(correction, **inputs)
      total = tf.reduce_sum(got.vs) + tf.reduce_sum(got.pg_advantages)
    self.assertEqual(list(tape.gradient(total, inputs).values()), [None] * 5)

  @parameterized.parameters('vtrace', 'one_step', 'none')
  def test_log_pi_is_left_alone(self, correction):
    log_probs = np.float32([-20.0, -1.0, 0.0])
    np.testing.assert_array_equal(off_policy.log_pi(correction, log_probs), log_probs)

  def test_epsilon_is_added_to_pi(self):
    probabilities = np.float32([1e-30, 1e-6, 0.5])
    got = off_policy.log_pi('epsilon', np.log(probabilities))
    np.testing.assert_allclose(got, np.log([1e-6, 2e-6, 0.500001]), rtol=1e-5)

  def test_epsilon_bounds_the_gradient_of_unlikely_actions(self):
    logits = tf.constant([-30.0, 0.0])
    gradients = {}
    for correction in ('none', 'epsilon'):
      with tf.GradientTape() as tape:
        tape.watch(logits)
        log_pi = off_policy.log_pi(correction, tf.nn.log_softmax(logits)[0])
      gradients[correction] = abs(float(tape.gradient(log_pi, logits)[0]))
    self.assertAlmostEqual(gradients['none'], 1.0, places=5)
    self.assertLess(gradients['epsilon'], 1e-6)

  def test_unknown_correction(self):
    with self.assertRaisesRegex(ValueError, "want one of vtrace, one_step, epsilon, none, got 'retrace'"):
      off_policy.targets('retrace', **_inputs())


if __name__ == '__main__':
  absltest.main()
