"""Tests of learner/vtrace.py by comparison with the paper's sum in NumPy."""

import inspect

from absl.testing import absltest
from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
import numpy as np
import tensorflow as tf

from scalable_agents.learner import vtrace


def paper_vtrace(log_rhos, discounts, rewards, values, bootstrap_value, rho_bar, pg_rho_bar, lambda_=1.0, c_bar=1.0):
  """Computes equation 1 and section 4.2 as printed, in float64: a sum of products, without recursion."""
  log_rhos, discounts, rewards, values, bootstrap_value = (
      np.asarray(x, np.float64) for x in (log_rhos, discounts, rewards, values, bootstrap_value))
  steps = len(rewards)
  rhos = np.exp(log_rhos)
  clipped = rhos if rho_bar is None else np.minimum(rho_bar, rhos)
  pg_clipped = rhos if pg_rho_bar is None else np.minimum(pg_rho_bar, rhos)
  cs = lambda_ * (rhos if c_bar is None else np.minimum(c_bar, rhos))
  state_values = np.concatenate([values, bootstrap_value[None]])
  vs = np.zeros_like(state_values)
  for s in range(steps + 1):
    vs[s] = state_values[s]
    for t in range(s, steps):
      trace = np.ones_like(state_values[0])
      for i in range(s, t):
        trace = trace * discounts[i] * cs[i]
      vs[s] = vs[s] + trace * clipped[t] * (rewards[t] + discounts[t] * state_values[t + 1] - state_values[t])
  advantages = [pg_clipped[s] * (rewards[s] + discounts[s] * vs[s + 1] - values[s]) for s in range(steps)]
  return vs[:-1], np.array(advantages)


def _inputs(seed=0, steps=7, batch=3, more=()):
  random = np.random.RandomState(seed)
  shape = (steps, batch, *more)
  return {
      'log_rhos': random.uniform(-2.5, 2.5, shape).astype(np.float32),  # On both sides of every threshold.
      'discounts': (0.9 * (random.rand(*shape) > 0.2)).astype(np.float32),
      'rewards': random.randn(*shape).astype(np.float32),
      'values': random.randn(*shape).astype(np.float32),
      'bootstrap_value': random.randn(*shape[1:]).astype(np.float32),
  }


@st.composite
def _any_inputs(draw):
  shape = draw(st.tuples(st.integers(1, 7), st.integers(1, 3)))
  array = lambda low, high, shape=shape: draw(hnp.arrays(np.float32, shape, elements=st.floats(low, high, width=32)))
  return {
      'log_rhos': array(-100, 40),  # float32 cannot represent exp(-100); exp(40) is 1e17.
      'discounts': draw(hnp.arrays(np.float32, shape, elements=st.sampled_from(np.float32([0.0, 0.5, 0.99, 1.0])))),
      'rewards': array(-100, 100),
      'values': array(-100, 100),
      'bootstrap_value': array(-100, 100, shape[1:]),
  }


class VTraceTest(parameterized.TestCase):

  @parameterized.product(
      clip_rho_threshold=(None, 1.0, 3.7), clip_pg_rho_threshold=(None, 1.0, 2.2), clip_c_threshold=(None, 1.0, 1.9),
      batch=(1, 5), lambda_=(1.0, 0.7))
  def test_matches_the_sum_in_the_paper(self, clip_rho_threshold, clip_pg_rho_threshold, clip_c_threshold, batch,
                                        lambda_):
    inputs = _inputs(batch=batch)
    got = vtrace.from_importance_weights(
        **inputs, clip_rho_threshold=clip_rho_threshold, clip_pg_rho_threshold=clip_pg_rho_threshold, lambda_=lambda_,
        clip_c_threshold=clip_c_threshold)
    want = paper_vtrace(**inputs, rho_bar=clip_rho_threshold, pg_rho_bar=clip_pg_rho_threshold, lambda_=lambda_,
                        c_bar=clip_c_threshold)
    np.testing.assert_allclose(got.vs, want[0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(got.pg_advantages, want[1], rtol=1e-4, atol=1e-4)

  @hypothesis.settings(deadline=None, derandomize=True, max_examples=60)
  @hypothesis.given(_any_inputs(), st.sampled_from([0.5, 1.0, 10.0]), st.sampled_from([0.0, 0.9, 1.0]))
  def test_matches_the_sum_in_the_paper_for_any_input(self, inputs, threshold, lambda_):
    got = vtrace.from_importance_weights(
        **inputs, clip_rho_threshold=threshold, clip_pg_rho_threshold=threshold, lambda_=lambda_)
    want = paper_vtrace(**inputs, rho_bar=threshold, pg_rho_bar=threshold, lambda_=lambda_)
    # A sum has seven terms of at most 10 * 300. float32 has a resolution of 1e-3 for that.
    np.testing.assert_allclose(got.vs, want[0], rtol=1e-5, atol=1e-2)
    np.testing.assert_allclose(got.pg_advantages, want[1], rtol=1e-5, atol=1e-1)

  @hypothesis.settings(deadline=None, derandomize=True, max_examples=30)
  @hypothesis.given(_any_inputs())
  def test_extreme_ratios_without_clipping(self, inputs):
    got = vtrace.from_importance_weights(**inputs, clip_rho_threshold=None, clip_pg_rho_threshold=None)
    want = paper_vtrace(**inputs, rho_bar=None, pg_rho_bar=None)
    for ours, papers in zip(got, want):
      np.testing.assert_allclose(ours, papers, rtol=1e-4, atol=1e-5 * max(1.0, np.abs(np.stack(want)).max()))

  @parameterized.parameters('bootstrapped', 'one_step', 'target')
  def test_estimates_of_action_values(self, action_values):
    inputs = _inputs()
    got = vtrace.from_importance_weights(
        **inputs, clip_rho_threshold=0.8, clip_pg_rho_threshold=1.4, lambda_=0.9, action_values=action_values)
    vs, _ = paper_vtrace(**inputs, rho_bar=0.8, pg_rho_bar=1.4, lambda_=0.9)
    rewards, discounts, values, end = (inputs[name] for name in ('rewards', 'discounts', 'values', 'bootstrap_value'))
    want = np.zeros_like(vs)
    for t in range(len(want)):
      later_target, later_value = (array[t + 1] if t + 1 < len(want) else end for array in (vs, values))
      action_value = {'bootstrapped': rewards[t] + discounts[t] * later_target,  # Section 4.2.
                      'one_step': rewards[t] + discounts[t] * later_value,       # Appendix E.3.
                      'target': vs[t]}[action_values]                            # LASER, Algorithm 1.
      want[t] = np.minimum(1.4, np.exp(inputs['log_rhos'][t])) * (action_value - values[t])
    np.testing.assert_allclose(got.vs, vs, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(got.pg_advantages, want, rtol=1e-4, atol=1e-4)

  def test_unknown_estimate(self):
    with self.assertRaisesRegex(ValueError, "^action_values: want one of bootstrapped, .*, target, got 'n_step'$"):
      vtrace.from_importance_weights(**_inputs(), action_values='n_step')

  def test_known_numbers(self):
    column = lambda *x: np.float32(x)[:, np.newaxis]
    got = vtrace.from_importance_weights(
        np.log(column(0.5, 2.0, 1.5)), discounts=column(0.9, 0.9, 0.0), rewards=column(1, 2, 3),
        values=column(0.5, 1.0, 1.5), bootstrap_value=np.float32([2.0]))
    np.testing.assert_allclose(got.vs, column(2.865, 4.7, 3.0), rtol=1e-6)
    np.testing.assert_allclose(got.pg_advantages, column(2.365, 3.7, 1.5), rtol=1e-6)

  @hypothesis.settings(deadline=None, derandomize=True, max_examples=30)
  @hypothesis.given(_any_inputs())
  def test_on_policy_targets_are_the_n_step_bellman_targets(self, inputs):
    inputs['log_rhos'] = np.zeros_like(inputs['log_rhos'])
    got = vtrace.from_importance_weights(**inputs)
    want = []
    target = np.float64(inputs['bootstrap_value'])
    for reward, discount in zip(inputs['rewards'][::-1], inputs['discounts'][::-1]):
      target = reward + discount * target
      want.insert(0, target)
    np.testing.assert_allclose(got.vs, want, rtol=1e-5, atol=1e-3)
    np.testing.assert_allclose(got.pg_advantages, want - inputs['values'], rtol=1e-5, atol=1e-3)

  def test_lambda_zero_gives_one_step_targets(self):
    inputs = _inputs()
    got = vtrace.from_importance_weights(**inputs, lambda_=0.0)
    next_values = np.concatenate([inputs['values'][1:], inputs['bootstrap_value'][None]])
    rhos = np.minimum(1.0, np.exp(inputs['log_rhos']))
    want = inputs['values'] + rhos * (inputs['rewards'] + inputs['discounts'] * next_values - inputs['values'])
    np.testing.assert_allclose(got.vs, want, rtol=1e-5, atol=1e-5)

  def test_discount_zero_stops_everything_behind_it(self):
    inputs = _inputs()
    inputs['discounts'][3] = 0.0
    before = vtrace.from_importance_weights(**inputs)
    inputs['rewards'][4:] += 100.0
    inputs['bootstrap_value'] += 100.0
    after = vtrace.from_importance_weights(**inputs)
    np.testing.assert_array_equal(before.vs[:4], after.vs[:4])
    np.testing.assert_array_equal(before.pg_advantages[:4], after.pg_advantages[:4])
    self.assertGreater(np.abs(before.vs[4] - after.vs[4]).min(), 1.0)

  @parameterized.parameters((), (4,), (2, 3))
  def test_more_dimensions(self, *more):
    inputs = _inputs(more=more)
    got = vtrace.from_importance_weights(**inputs)
    want = paper_vtrace(**inputs, rho_bar=1.0, pg_rho_bar=1.0)
    self.assertEqual(got.vs.shape, (7, 3, *more))
    np.testing.assert_allclose(got.vs, want[0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(got.pg_advantages, want[1], rtol=1e-4, atol=1e-4)

  def test_one_policy_and_many_rewards(self):
    inputs = _inputs(more=(4,))
    for name in ('log_rhos', 'discounts'):
      inputs[name] = inputs[name][..., :1]
    got = vtrace.from_importance_weights(**inputs)
    for n in range(4):
      column = {name: x[..., n if x.shape[-1] == 4 else 0] for name, x in inputs.items()}
      want = paper_vtrace(**column, rho_bar=1.0, pg_rho_bar=1.0)
      np.testing.assert_allclose(got.vs[..., n], want[0], rtol=1e-4, atol=1e-4)
      np.testing.assert_allclose(got.pg_advantages[..., n], want[1], rtol=1e-4, atol=1e-4)

  def test_from_logits(self):
    random = np.random.RandomState(0)
    behaviour, target = random.randn(2, 7, 3, 5).astype(np.float32)
    actions = random.randint(5, size=(7, 3))
    inputs = _inputs()
    del inputs['log_rhos']
    got = vtrace.from_logits(behaviour, target, actions, **inputs, clip_rho_threshold=0.8, clip_pg_rho_threshold=None,
                             lambda_=0.9)

    def log_probs(logits):
      logits = np.float64(logits)
      return np.take_along_axis(
          logits - np.log(np.exp(logits).sum(-1, keepdims=True)), actions[..., None], axis=-1)[..., 0]

    log_rhos = log_probs(target) - log_probs(behaviour)
    vs, pg_advantages = paper_vtrace(log_rhos, **inputs, rho_bar=0.8, pg_rho_bar=None, lambda_=0.9)
    np.testing.assert_allclose(got.behaviour_action_log_probs, log_probs(behaviour), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got.target_action_log_probs, log_probs(target), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got.log_rhos, log_rhos, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(got.vs, vs, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(got.pg_advantages, pg_advantages, rtol=1e-4, atol=1e-4)

  def test_no_gradient_flows_through_targets_and_advantages(self):
    inputs = {name: tf.constant(x) for name, x in _inputs().items()}
    with tf.GradientTape() as tape:
      tape.watch(inputs)
      got = vtrace.from_importance_weights(**inputs)
      total = tf.reduce_sum(got.vs) + tf.reduce_sum(got.pg_advantages)
    self.assertEqual(list(tape.gradient(total, inputs).values()), [None] * 5)

  def test_compiles_under_xla_for_any_number_of_steps(self):
    for steps in (1, 20, 100):
      inputs = _inputs(steps=steps)
      got = tf.function(vtrace.from_importance_weights, jit_compile=True)(**inputs)
      want = vtrace.from_importance_weights(**inputs)
      np.testing.assert_allclose(got.vs, want.vs, rtol=1e-5, atol=1e-5)
      np.testing.assert_allclose(got.pg_advantages, want.pg_advantages, rtol=1e-5, atol=1e-5)

  def test_unknown_ranks(self):
    inputs = _inputs()
    unknown = tf.function(vtrace.from_importance_weights, input_signature=[tf.TensorSpec(None)] * len(inputs))
    want = vtrace.from_importance_weights(**inputs)
    for got, wanted in zip(unknown(**inputs), want):
      np.testing.assert_allclose(got, wanted, 1e-6)

  def test_unknown_number_of_steps(self):
    function = tf.function(vtrace.from_importance_weights, input_signature=[
        *[tf.TensorSpec([None, None])] * 4, tf.TensorSpec([None])])
    inputs = _inputs()
    want = paper_vtrace(**inputs, rho_bar=1.0, pg_rho_bar=1.0)
    np.testing.assert_allclose(function(*inputs.values()).vs, want[0], rtol=1e-4, atol=1e-4)

  @parameterized.parameters(
      ('discounts', (7, 3, 1)), ('rewards', (7,)), ('values', (7, 3, 1)), ('bootstrap_value', (7, 3)))
  def test_inconsistent_ranks_are_named(self, name, shape):
    inputs = _inputs() | {name: np.zeros(shape, np.float32)}
    with self.assertRaisesRegex(ValueError, f'^{name}: want rank'):
      vtrace.from_importance_weights(**inputs)

  def test_scalars_are_refused(self):
    with self.assertRaisesRegex(ValueError, '^bootstrap_value: want rank -1'):
      vtrace.from_importance_weights(*[0.] * 5)

  @parameterized.parameters('clip_rho_threshold', 'clip_pg_rho_threshold')
  def test_thresholds_are_scalars(self, name):
    with self.assertRaisesRegex(ValueError, 'threshold.*want rank 0'):
      vtrace.from_importance_weights(**_inputs(), **{name: [1.0, 2.0]})

  @parameterized.parameters('behaviour_policy_logits', 'target_policy_logits', 'actions')
  def test_from_logits_names_wrong_ranks(self, name):
    inputs = _inputs()
    del inputs['log_rhos']
    logits = np.zeros([7, 3, 5], np.float32)
    arguments = {'behaviour_policy_logits': logits, 'target_policy_logits': logits,
                 'actions': np.zeros([7, 3], np.int32)}
    arguments[name] = arguments[name][0]
    with self.assertRaisesRegex(ValueError, f'^{name}: want rank'):
      vtrace.from_logits(**arguments, **inputs)

  def test_log_probs_of_wrong_rank(self):
    with self.assertRaisesRegex(ValueError, '^policy_logits: want rank 3'):
      vtrace.log_probs_from_logits_and_actions(np.zeros([7, 3], np.float32), np.zeros([7, 3], np.int32))

  def test_code_written_against_the_release_runs(self):
    names = ['log_rhos', 'discounts', 'rewards', 'values', 'bootstrap_value', 'clip_rho_threshold',
             'clip_pg_rho_threshold', 'name', 'lambda_', 'trusted', 'action_values', 'clip_c_threshold']
    parameters = inspect.signature(vtrace.from_importance_weights).parameters
    self.assertEqual(list(parameters), names)
    self.assertEqual([parameters[name].default for name in names[5:]],
                     [1.0, 1.0, 'vtrace_from_importance_weights', 1.0, None, 'bootstrapped', 1.0])
    parameters = inspect.signature(vtrace.from_logits).parameters
    self.assertEqual(list(parameters), ['behaviour_policy_logits', 'target_policy_logits', 'actions', *names[1:-3]])
    self.assertEqual([parameters[name].default for name in names[5:-3]], [1.0, 1.0, 'vtrace_from_logits', 1.0])
    self.assertEqual(list(inspect.signature(vtrace.log_probs_from_logits_and_actions).parameters),
                     ['policy_logits', 'actions'])
    self.assertEqual(vtrace.VTraceReturns._fields, ('vs', 'pg_advantages'))
    self.assertEqual(vtrace.VTraceFromLogitsReturns._fields,
                     ('vs', 'pg_advantages', 'log_rhos', 'behaviour_action_log_probs', 'target_action_log_probs'))


if __name__ == '__main__':
  absltest.main()
