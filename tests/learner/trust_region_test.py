"""Tests of LASER's trust region: by hand, against the direct form in float64, and the paper's propositions."""

import copy
import itertools

from absl.testing import absltest
from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
import numpy as np

from scalable_agents.learner import trust_region
from scalable_agents.learner import vtrace


def _log(*probabilities):
  return np.log(np.array(probabilities, np.float32))


def _softmax(logits):
  shifted = np.exp(np.float64(logits) - np.max(logits))
  return shifted / shifted.sum()


def _direct(mu, pi, rho_bar):
  """KL(pi || pi~) as equation 3 and the definition say, in float64."""
  implied = np.minimum(rho_bar * mu, pi)
  implied /= implied.sum()
  return np.sum(pi * np.log(pi / implied))


_LOGITS = hnp.arrays(np.float32, st.integers(2, 6), elements=st.floats(-12, 12, width=32))


class RelevanceTest(parameterized.TestCase):

  @parameterized.parameters(
      ('implied', (0.9, 0.1), (0.5, 0.5), 0.293893), ('kl_mu', (0.9, 0.1), (0.5, 0.5), 0.510826),
      # pi~ is uniform here (proposition 1's example).
      ('implied', (0.2, 0.8), (0.8, 0.2), 0.192745), ('implied', (0.3, 0.7), (0.3, 0.7), 0.),
      ('kl_mu', (0.3, 0.7), (0.3, 0.7), 0.))
  def test_known_numbers(self, kind, mu, pi, want):
    self.assertAlmostEqual(float(trust_region.relevance(kind, _log(*mu), _log(*pi))), want, places=5)

  @hypothesis.settings(deadline=None, derandomize=True)
  @hypothesis.given(st.data(), st.sampled_from([0.5, 1., 2., 4.]))
  def test_the_stable_form_is_the_direct_one(self, data, rho_bar):
    mu_logits = data.draw(_LOGITS)
    pi_logits = data.draw(hnp.arrays(np.float32, mu_logits.shape, elements=st.floats(-12, 12, width=32)))
    mu, pi = _softmax(mu_logits), _softmax(pi_logits)
    got = trust_region.relevance('implied', mu_logits, pi_logits, rho_bar).numpy()
    np.testing.assert_allclose(got, _direct(mu, pi, rho_bar), rtol=1e-4, atol=2e-5)
    got = trust_region.relevance('kl_mu', mu_logits, pi_logits).numpy()
    np.testing.assert_allclose(got, np.sum(pi * np.log(pi / mu)), rtol=1e-4, atol=2e-5)

  def test_extreme_policies_are_finite(self):
    certain = np.float32([[[200., -200., 0.]]])
    opposite = certain[..., ::-1]
    # The implied policy of two opposite ones is even: each of both actions has the tiny probability of one of them.
    for kind, want in (('implied', np.log(2)), ('kl_mu', 200.)):
      far, same = (trust_region.relevance(kind, mu, certain).numpy() for mu in (opposite, certain))
      np.testing.assert_allclose(far, [[want]], rtol=1e-4)
      np.testing.assert_allclose(same, [[0.]], atol=1e-5)

  def test_is_zero_where_no_weight_is_clipped(self):
    # pi <= 2 mu everywhere.
    self.assertLess(float(trust_region.relevance('implied', _log(0.5, 0.5), _log(0.9, 0.1), 2.)), 1e-6)
    self.assertGreater(float(trust_region.relevance('implied', _log(0.5, 0.5), _log(0.9, 0.1), 1.)), 0.01)

  def test_unknown_kind(self):
    with self.assertRaisesRegex(ValueError, "^relevance: want one of implied, kl_mu, got 'kl'$"):
      trust_region.relevance('kl', _log(0.5, 0.5), _log(0.5, 0.5))


def _equation_8(log_rhos, discounts, rewards, values, bootstrap_value, rho_bar, trusted):
  """Value targets as printed: a sum of products, in float64. (In the paper, the index of rho is misprinted.)"""
  rhos = np.exp(np.float64(log_rhos))
  state_values = np.float64([*values, bootstrap_value])
  targets = []
  for t in range(len(rewards)):
    target = state_values[t].copy()
    for k in range(t, len(rewards)):
      product = np.ones_like(target)
      for i in range(t, k):
        product *= trusted[i] * np.minimum(rhos[i], 1.) * discounts[i]
      delta = rewards[k] + discounts[k] * state_values[k + 1] - state_values[k]
      target += product * trusted[k] * np.minimum(rhos[k], rho_bar) * delta
    targets.append(target)
  return np.array(targets)


class TrustedVtraceTest(parameterized.TestCase):

  @hypothesis.settings(deadline=None, derandomize=True)
  @hypothesis.given(st.integers(1, 7), st.integers(0, 10**6), st.sampled_from([1., 2., 4.]), st.sampled_from([2., 30.]))
  def test_is_equation_8(self, steps, seed, rho_bar, spread):
    random = np.random.RandomState(seed)
    log_rhos, rewards, values = (np.float32(scale * random.randn(steps, 3)) for scale in (spread, 5., 5.))
    discounts = np.float32(0.9 * (random.uniform(size=(steps, 3)) > 0.2))
    bootstrap_value, trusted = np.float32(random.randn(3)), random.uniform(size=(steps, 3)) > 0.3
    got = vtrace.from_importance_weights(log_rhos, discounts, rewards, values, bootstrap_value, rho_bar,
                                         trusted=trusted)
    want = _equation_8(log_rhos, discounts, rewards, values, bootstrap_value, rho_bar, trusted)
    np.testing.assert_allclose(got.vs, want, rtol=1e-4, atol=1e-3)
    np.testing.assert_array_equal(got.vs.numpy()[~trusted], values[~trusted])
    after = np.concatenate([want[1:], bootstrap_value[np.newaxis]])
    np.testing.assert_allclose(got.pg_advantages, np.minimum(np.exp(log_rhos), 1.) * (
        rewards + discounts * after - values), rtol=1e-4, atol=1e-3)
    whole = vtrace.from_importance_weights(log_rhos, discounts, rewards, values, bootstrap_value, rho_bar)
    all_trusted = vtrace.from_importance_weights(log_rhos, discounts, rewards, values, bootstrap_value, rho_bar,
                                                 trusted=np.ones_like(trusted))
    for one, other in zip(whole, all_trusted):
      np.testing.assert_array_equal(one, other)  # Bit for bit.


  def test_an_infinite_weight_of_a_step_that_is_not_trusted_has_no_effect(self):
    rows = lambda *numbers: np.float32(numbers)[:, np.newaxis]
    got = vtrace.from_importance_weights(
        rows(0, 1000), rows(0.9, 0.9), rows(1, 1), rows(2, 3), np.float32([4]), None, clip_c_threshold=None,
        trusted=rows(True, False).astype(bool))
    np.testing.assert_allclose(got.vs[:, 0], [1 + 0.9 * 3, 3], rtol=1e-6)


class _Mdp:
  """A random task with two states and two actions, an implied policy, and the expectation of V-trace's targets."""

  discount = 0.9

  def __init__(self, random, rho_bar, c_bar=1.):
    self.transitions = random.dirichlet([1., 1.], size=(2, 2))  # [state, action, next state].
    self.rewards = random.randn(2, 2)
    self.mu, self.pi = random.dirichlet([1., 1.], size=2), random.dirichlet([1., 1.], size=2)  # [state, action].
    self.rho_bar, self.c_bar = rho_bar, c_bar

  def with_other_behaviour(self, random):
    """Returns the same task and target policy with another behaviour policy."""
    other = copy.copy(self)
    other.mu = random.dirichlet([1., 1.], size=2)
    return other

  @property
  def implied(self):
    implied = np.minimum(self.rho_bar * self.mu, self.pi)
    return implied / implied.sum(axis=1, keepdims=True)

  def values(self, policy):
    """Solves V = r + gamma P V."""
    matrix = np.einsum('sa,san->sn', policy, self.transitions)
    return np.linalg.solve(np.eye(2) - self.discount * matrix, np.sum(policy * self.rewards, axis=1))

  def expected_targets(self, values, trusted, steps=3):
    """Returns E_mu of the value target of each state [2], over all ways of `steps` steps. trusted: [2] bool."""
    states, actions = (np.array(list(itertools.product([0, 1], repeat=n))) for n in (steps + 1, steps))
    pairs = [(way, choice) for way in states for choice in actions]
    ways, choices = (np.array(one).T for one in zip(*pairs))  # [steps + 1, B], [steps, B].
    before = ways[:-1]
    chance = np.prod(self.mu[before, choices] * self.transitions[before, choices, ways[1:]], axis=0)
    log_rhos = np.log(self.pi / self.mu)[before, choices]
    targets = vtrace.from_importance_weights(
        log_rhos, np.full(before.shape, self.discount), self.rewards[before, choices], values[before], values[ways[-1]],
        self.rho_bar, trusted=trusted[before], clip_c_threshold=self.c_bar).vs[0]
    return np.array([np.sum((chance * targets)[ways[0] == state]) for state in (0, 1)])


class PropositionsTest(parameterized.TestCase):

  @hypothesis.settings(deadline=None, max_examples=30, derandomize=True)
  @hypothesis.given(st.integers(0, 10**6), st.sampled_from([1., 2.]))
  def test_1_the_fixed_point_of_vtrace_is_the_value_of_the_implied_policy(self, seed, rho_bar):
    mdp = _Mdp(np.random.RandomState(seed), rho_bar)
    values = mdp.values(mdp.implied)
    np.testing.assert_allclose(mdp.expected_targets(values, np.array([True, True])), values, rtol=1e-3, atol=1e-3)

  def test_1_the_implied_policy_of_two_opposite_ones_is_even(self):
    for phi in (0.9, 0.6):
      want = phi * np.log(phi / 0.5) + (1 - phi) * np.log((1 - phi) / 0.5)  # KL(pi || uniform).
      self.assertAlmostEqual(
          float(trust_region.relevance('implied', _log(phi, 1 - phi), _log(1 - phi, phi))), want, places=5)

  def test_2_and_3_vtrace_prefers_the_wrong_action_unless_enough_data_is_online(self):
    values, mu, pi = np.array([2., 5.]), np.array([0.9, 0.1]), np.array([0.5, 0.5])
    batch = lambda numbers: np.float32(numbers)[np.newaxis]  # An episode of one step per action.
    advantages = vtrace.from_importance_weights(
        batch(np.log(pi / mu)), batch([0, 0]), batch(values), batch([0, 0]), np.zeros(2, np.float32)).pg_advantages[0]
    implied = mu * advantages / pi  # What the policy gradient multiplies pi grad log pi by.
    np.testing.assert_allclose(implied, [2., 1.], rtol=1e-5)
    for alpha, right in ((0.24, 0), (0.26, 1)):  # alpha / (1 - alpha) > (2 - 1) / (5 - 2).
      self.assertEqual(np.argmax(alpha * values + (1 - alpha) * implied), right)

  @hypothesis.settings(deadline=None, max_examples=30, derandomize=True)
  @hypothesis.given(st.integers(0, 10**6), st.sampled_from([1., 2., np.inf]), st.floats(0.01, 1.))
  def test_4_and_5_trusted_targets_contract_towards_the_values_of_the_trusted_implied_policies(
      self, seed, rho_bar, threshold):
    """Proposition 4 is the case of unclipped weights: all implied policies are the target policy."""
    random = np.random.RandomState(seed)
    mdp, values = _Mdp(random, rho_bar), 10 * random.randn(2)
    behaviours = [mdp, mdp.with_other_behaviour(random)]
    kind = 'kl_mu' if rho_bar == np.inf else 'implied'
    log = lambda policy: np.log(np.float32(policy))
    trusted = np.array([trust_region.relevance(kind, log(one.mu), log(one.pi), rho_bar) < threshold
                        for one in behaviours])  # [behaviour, state].
    targets = np.array([one.expected_targets(values, states) for one, states in zip(behaviours, trusted)])
    fixed_points = np.array([one.values(one.implied) for one in behaviours])
    # A step moves by at least the share of the implied policy, sum_a min(rho-bar mu, pi), times 1 - discount.
    shrinkage = np.array([1 - (1 - one.discount) * np.minimum(rho_bar * one.mu, one.pi).sum(axis=1).min()
                          for one in behaviours])
    bounds = shrinkage * np.max(np.abs(values - fixed_points), axis=1)
    for state in (0, 1):
      if chosen := trusted[:, state].nonzero()[0].tolist():
        distance = np.abs(targets[chosen, state].mean() - fixed_points[chosen, state].mean())
        self.assertLessEqual(distance, bounds[chosen].max() + 1e-3)

  @hypothesis.settings(deadline=None, max_examples=30, derandomize=True)
  @hypothesis.given(st.integers(0, 10**6), st.floats(0.01, 1.))
  def test_4_importance_sampling_contracts_towards_the_values_of_the_target_policy(self, seed, threshold):
    random = np.random.RandomState(seed)
    mdp, values = _Mdp(random, rho_bar=None, c_bar=None), 10 * random.randn(2)  # Equation 7.
    want = mdp.values(mdp.pi)
    for one in (mdp, mdp.with_other_behaviour(random)):
      trusted = trust_region.relevance('kl_mu', np.log(np.float32(one.mu)), np.log(np.float32(one.pi))) < threshold
      distances = np.abs(one.expected_targets(values, trusted.numpy()) - want)[trusted]
      if distances.size:
        self.assertLessEqual(distances.max(), mdp.discount * np.abs(values - want).max() + 1e-3)

  def test_4_targets_of_importance_sampling_do_not_depend_on_the_behaviour_policy(self):
    values, everywhere, targets = np.array([10., -5.]), np.array([True, True]), {}
    for threshold in (None, 1.):
      random = np.random.RandomState(0)
      mdp = _Mdp(random, threshold, threshold)
      targets[threshold] = [one.expected_targets(values, everywhere) for one in (mdp, mdp.with_other_behaviour(random))]
    np.testing.assert_allclose(*targets[None], rtol=1e-3)
    self.assertGreater(np.abs(np.subtract(*targets[1.])).max(), 0.1)  # V-trace's do.


if __name__ == '__main__':
  absltest.main()
