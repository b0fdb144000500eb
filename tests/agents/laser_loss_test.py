"""Tests of LASER's loss: values, masks and gradients against loops in NumPy, with policies far from each other."""

import dataclasses
import types
from typing import NamedTuple

from absl.testing import absltest
from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st
import numpy as np
import tensorflow as tf

from scalable_agents.actor import unroll as unroll_lib
from scalable_agents.agents import configs
from scalable_agents.agents import impala
from scalable_agents.agents import laser
from scalable_agents.agents import popart_impala
from scalable_agents.experience import mixed_experience
from scalable_agents.learner import learner_step
from scalable_agents.learner import popart
from scalable_agents.tests.training import unrolls

_STEPS, _ACTIONS, _LEVELS = 4, 3, 3
_MU, _SIGMA = np.array([3., -1., 7.]), np.array([0.5, 2., 4.])
_CELLS = 4  # Rows and columns of cells of pixel control, for pictures of 16x16 pixels.


class _Heads(NamedTuple):
  """The outputs of the network's heads, or what belongs to each of them."""
  policy_logits: tf.Tensor
  baseline: tf.Tensor
  pixel_control: tf.Tensor


class _Table:
  """An agent whose outputs are variables, so that their gradients show what each step contributes."""

  def __init__(self, output, statistics):
    self.output, self.statistics = output, statistics

  def unroll(self, *unused_inputs):
    """Returns the outputs, whatever the inputs."""
    return impala.NetworkOutput(*self.output, features=()), ()

  def newest_frames(self, observation):
    """Returns the pixels."""
    return observation['pixels']


class _Case(NamedTuple):
  """An agent, a batch of online and replayed unrolls, and the config."""
  agent: _Table
  batch: learner_step.Batch
  config: configs.LaserConfig


def _case(seed=0, online=2, replayed=3, spread=2., **settings):
  """Draws a case. Logits are up to `spread`. Unrolls go on with episodes of other levels. Not all are drawn."""
  config = configs.LaserConfig(**{'reward_transform': 'none', 'discount': 0.9, 'replay_sampling': 'prioritised',
                                  'use_pixel_control': True, 'pixel_control_cost': 0.7, 'entropy_cost': 0.3,
                                  'trust_region_threshold': np.inf} | settings)
  random = np.random.RandomState(seed)
  batch = online + replayed
  shape = [_STEPS + 1, batch]
  done = random.uniform(size=shape) < 0.2
  discount = ~done & (random.uniform(size=shape) < 0.8)
  logits = lambda: random.uniform(-spread, spread, [*shape, _ACTIONS])
  level_of_episode = random.randint(_LEVELS, size=shape)
  level_id = np.take_along_axis(level_of_episode, np.cumsum(done, axis=0) % len(shape), axis=0)
  unroll = unroll_lib.Unroll(
      level_id=np.int32(level_id), actor_id=(), stream_id=(), index=(), agent_state=(), earlier_frames={},
      environment_output=unroll_lib.EnvironmentOutput(
          np.float32(4 * random.randn(*shape)), np.float32(discount), done, (), (),
          {'pixels': random.randint(256, size=[*shape, 16, 16, 1]).astype(np.uint8)}),
      agent_output=impala.BehaviourOutput(np.int32(random.randint(_ACTIONS, size=shape)), np.float32(logits())),
      parameter_version=())
  key = np.where(random.uniform(size=replayed) < 0.2, -1, np.arange(replayed))
  sample = mixed_experience.MixedSample(np.float32(random.uniform(0.01, 1., replayed)), key)
  normal = lambda *sizes: tf.Variable(np.float32(random.randn(*shape, *sizes)))
  output = _Heads(tf.Variable(np.float32(logits())), normal(_LEVELS), normal(_CELLS, _CELLS, _ACTIONS))
  statistics = popart.Moments(tf.constant(_MU), tf.constant(_SIGMA**2 + _MU**2))
  if config.value_normalization == 'none':
    statistics = popart.initial_moments(_LEVELS)
  return _Case(_Table(output, statistics), learner_step.Batch(*tf.nest.map_structure(tf.constant, (unroll, sample))),
               config)


def _log_softmax(logits):
  shifted = np.float64(logits) - np.max(logits)
  return shifted - np.log(np.sum(np.exp(shifted)))


def _relevances(agent, unroll, config):
  """Both kinds of relevance of each step, [T, B], by their definitions."""
  relevances = np.zeros([_STEPS, unroll.level_id.shape[1]])
  for t, b in np.ndindex(*relevances.shape):
    log_pi, log_mu = map(_log_softmax, (agent.output.policy_logits[t, b], unroll.agent_output.policy_logits[t + 1, b]))
    implied = np.minimum(np.log(config.clip_rho_threshold) + log_mu, log_pi)  # Equation 3.
    implied -= np.log(np.sum(np.exp(implied)))
    relevances[t, b] = np.sum(np.exp(log_pi) * (log_pi - (log_mu if config.relevance == 'kl_mu' else implied)))
  return relevances


def _value_targets(values, rewards, discounts, rhos, lambdas, config):
  """Equation 8 for one unroll: V(x_t) + sum_k (prod_i discount_i lambda_i c_i) lambda_k rho_k delta_k."""
  cs = config.vtrace_lambda * np.minimum(rhos, config.clip_c_threshold)
  targets = values.copy()
  for t in range(_STEPS):
    for k in range(t, _STEPS):
      product = np.prod([discounts[i] * lambdas[i] * cs[i] for i in range(t, k)])
      delta = rewards[k] + discounts[k] * values[k + 1] - values[k]
      targets[t] += product * lambdas[k] * min(rhos[k], config.clip_rho_threshold) * delta
  return targets


def _slow_means(unrolls_of, values_of, value_losses, config):
  """The means of the loss. Unrolls are [B] bool, values [T, B], and value losses one list of pairs per level."""
  mean = lambda values, chosen: np.mean(values[np.broadcast_to(chosen, values.shape)])
  means = {f'{name}/{kind}': mean(values, chosen)
           for name, values in values_of.items() for kind, chosen in unrolls_of.items()}
  for index, name in enumerate(('normalized', 'unnormalized')):
    means[f'value_loss/{name}'] = [np.mean([loss[index] for loss in losses] or np.nan) for losses in value_losses]
  if config.value_normalization == 'popart':
    means |= {'popart/mean': _MU, 'popart/scale': _SIGMA}
  return means


def _slow_loss(case):
  """Everything that the loss computes, step by step: a namespace of numbers and arrays."""
  agent, (unroll, sample), config = case
  environment, actor = tf.nest.map_structure(np.array, (unroll.environment_output, unroll.agent_output))
  logits, heads, q = (values.numpy() for values in agent.output)
  probability, key = map(np.array, sample)
  batch = logits.shape[1]
  num_online = batch - len(key)
  is_online = np.arange(batch) < num_online
  weights = np.ones(batch)
  weights[num_online:] = (probability.min(initial=np.inf) / probability)**config.importance_exponent
  relevance = _relevances(agent, unroll, config)
  there = np.concatenate([np.full(num_online, True), key >= 0])
  lambdas = (relevance < config.trust_region_threshold) & there
  terms = dict.fromkeys(('policy_gradient', 'baseline', 'entropy', 'pixel_control'), 0.)
  gradients = _Heads(*map(np.zeros_like, (logits, heads, q)))
  feedback, moments, value_losses = np.zeros(batch), np.zeros([batch, _LEVELS, 2]), [[] for _ in range(_LEVELS)]
  pixels = environment.observation['pixels'] / 255.
  for b, levels in enumerate(unroll.level_id.numpy().T):
    mus, sigmas = agent.statistics.first.numpy()[levels], popart.scale(agent.statistics).numpy()[levels]
    values = sigmas * np.float64(heads[np.arange(_STEPS + 1), b, levels]) + mus
    log_pi = np.array([_log_softmax(row) for row in logits[:, b]])
    taken = actor.action[1:, b]
    rhos = np.array([np.exp(log_pi[t, a] - _log_softmax(actor.policy_logits[t + 1, b])[a])
                     for t, a in enumerate(taken)])
    rewards, discounts = environment.reward[1:, b], config.discount * environment.discount[1:, b]
    targets = _value_targets(values, rewards, discounts, rhos, lambdas[:, b], config)
    for level in range(_LEVELS):  # A rollout of each level.
      its = targets[:-1][lambdas[:, b] & (levels[:-1] == level)]
      moments[b, level] = [np.sum(its**power) / len(its) for power in (1, 2)]
    change = np.mean(np.abs(np.diff(pixels[:, b], axis=0)).reshape(_STEPS, _CELLS, 4, _CELLS, 4), axis=(2, 4))
    q_target = np.max(q[-1, b], axis=-1)
    for t in reversed(range(_STEPS)):
      a, pi, weight = taken[t], np.exp(log_pi[t]), weights[b] * lambdas[t, b]
      level, mu, sigma = levels[t], mus[t], sigmas[t]
      best = {'bootstrapped': rewards[t] + discounts[t] * targets[t + 1],
              'one_step': rewards[t] + discounts[t] * values[t + 1], 'target': targets[t]}[config.action_values]
      advantage = min(rhos[t], config.clip_pg_rho_threshold) * (best - values[t]) / sigma
      error = (targets[t] - mu) / sigma - heads[t, b, level]
      q_target = 0. if environment.done[t + 1, b] else change[t] + config.pixel_control_discount * q_target
      if not lambdas[t, b]:  # Section 4.3: bootstraps stop at a rejected step, also those of auxiliary tasks.
        q_target = np.max(q[t, b], axis=-1)
      q_error = q_target - q[t, b, :, :, a]
      bonus = weight if config.entropy_steps == 'all' else weight * is_online[b]
      entropy = bonus * np.sum(pi * log_pi[t])
      terms['policy_gradient'] -= weight * log_pi[t, a] * advantage
      terms['baseline'] += 0.5 * weight * error**2
      terms['entropy'] += entropy
      terms['pixel_control'] += 0.5 * weight * np.sum(q_error**2)
      gradients.policy_logits[t, b] = weight * advantage * (pi - np.eye(_ACTIONS)[a]) + (
          config.entropy_cost * bonus * pi * (log_pi[t] - np.sum(pi * log_pi[t])))
      gradients.baseline[t, b, level] = -config.baseline_cost * weight * error
      gradients.pixel_control[t, b, :, :, a] = -config.pixel_control_cost * weight * q_error
      if there[b]:
        value_losses[level].append(_STEPS * 0.5 * weight * error**2 * np.array([1., sigma**2]))
      feedback[b] += abs(error) / _STEPS
  means = _slow_means({'online': is_online & there, 'replayed': ~is_online & there},
                      {'rejected': ~lambdas, 'relevance': relevance}, value_losses, config)
  total = terms['policy_gradient'] + config.baseline_cost * terms['baseline'] + config.entropy_cost * terms[
      'entropy'] + config.pixel_control_cost * terms['pixel_control']
  return types.SimpleNamespace(
      terms={f'loss/{name}': term for name, term in terms.items()}, total=total, gradients=gradients, means=means,
      feedback=feedback[num_online:], moments=moments, relevance=relevance, trusted=lambdas)


def _loss(case):
  """Returns the loss, and the gradients of its total with respect to the agent's outputs."""
  with tf.GradientTape() as tape:
    loss = laser.loss(*case)
  return loss, tape.gradient(loss.total, case.agent.output)


class LossTest(parameterized.TestCase):

  @hypothesis.settings(deadline=None, derandomize=True, max_examples=60)
  @hypothesis.given(st.integers(0, 10**6), st.fixed_dictionaries({
      'online': st.integers(1, 2), 'replayed': st.integers(1, 3), 'spread': st.sampled_from([0.5, 2., 50.]),
      'trust_region_threshold': st.sampled_from([0.02, 0.1, 1., np.inf]),
      'relevance': st.sampled_from(['implied', 'kl_mu']), 'clip_rho_threshold': st.sampled_from([1., 4.]),
      'clip_pg_rho_threshold': st.sampled_from([1., 3.]), 'clip_c_threshold': st.sampled_from([1., 1.9]),
      'vtrace_lambda': st.sampled_from([1., 0.7]),
      'action_values': st.sampled_from(['bootstrapped', 'one_step', 'target']),
      'importance_exponent': st.sampled_from([0.5, 1.]), 'entropy_steps': st.sampled_from(['online', 'all']),
      'value_normalization': st.sampled_from(['popart', 'none']),
      'popart_second_moment': st.sampled_from(popart.SECOND_MOMENTS)}))
  def test_is_what_loops_compute(self, seed, settings):
    case = _case(seed, **settings)
    with np.errstate(invalid='ignore'):  # Means of no steps are NaN.
      want = _slow_loss(case)
    threshold = case.config.trust_region_threshold
    # Steps at the very edge of the trust region may fall on either side of it in float32.
    hypothesis.assume(np.isinf(threshold) or np.all(np.abs(want.relevance - threshold) > 1e-4))
    loss, gradients = _loss(case)
    size = sum(abs(term) for term in want.terms.values()) + 1.
    for name, term in want.terms.items():
      np.testing.assert_allclose(loss.terms[name], term, rtol=1e-4, atol=1e-5 * size, err_msg=name)
    np.testing.assert_allclose(loss.total, want.total, rtol=1e-4, atol=1e-5 * size)
    for name, gradient in want.gradients._asdict().items():
      got = getattr(gradients, name).numpy()
      np.testing.assert_allclose(got, gradient, rtol=1e-4, atol=1e-4, err_msg=name)
      # Exactly nothing, not something small.
      np.testing.assert_array_equal(got[:-1][~want.trusted], 0., name)
      np.testing.assert_array_equal(got[-1], 0., name)
    self.assertEqual(set(loss.means), set(want.means))
    for name, mean in want.means.items():
      np.testing.assert_allclose(loss.means[name], mean, rtol=1e-4, atol=1e-4, err_msg=name)
    np.testing.assert_allclose(loss.feedback, want.feedback, rtol=1e-4, atol=1e-5)
    if settings['value_normalization'] == 'popart':
      rollouts, level_ids = loss.gathered
      is_literal = settings['popart_second_moment'] == 'literal'
      first, second = np.moveaxis(want.moments, -1, 0)
      np.testing.assert_allclose(rollouts.first, first.ravel(), rtol=1e-4, atol=1e-4)
      np.testing.assert_allclose(rollouts.second, (first**2 if is_literal else second).ravel(), rtol=1e-4, atol=1e-3)
      np.testing.assert_array_equal(level_ids, np.tile(np.arange(_LEVELS), len(first)))

  def test_cases_have_trusted_and_rejected_steps_and_several_levels(self):
    """Else the test above would show less than it says."""
    cases = [_case(seed, trust_region_threshold=0.1) for seed in range(5)]
    rejected = [laser.loss(*case).means['rejected/replayed'] for case in cases]
    self.assertBetween(np.nanmean(rejected), 0.2, 0.8)
    changes = [np.mean(np.any(np.diff(case.batch.unroll.level_id, axis=0), axis=0)) for case in cases]
    self.assertBetween(np.mean(changes), 0.2, 0.9)  # Of the unrolls.
    self.assertBetween(np.mean([np.mean(case.batch.sample.key < 0) for case in cases]), 0.05, 0.5)

  @parameterized.parameters('implied', 'kl_mu')
  def test_rejected_steps_contribute_nothing(self, relevance):
    case = _case(trust_region_threshold=0.3, relevance=relevance, reward_transform='abs_one')
    unroll, sample = case.batch
    with np.errstate(invalid='ignore'):
      relevances = _slow_loss(case).relevance
    there = np.concatenate([[True, True], sample.key >= 0])
    outside = np.concatenate([np.zeros([1, 5], bool), (relevances >= 0.3) | ~there])
    self.assertBetween(np.sum(outside), 5, 20)
    environment, actor = unroll.environment_output, unroll.agent_output
    other = environment._replace(reward=tf.where(outside, 77., environment.reward))
    changed = unroll._replace(
        environment_output=other,
        agent_output=actor._replace(action=tf.where(outside, (actor.action + 1) % _ACTIONS, actor.action)))
    want, want_gradients = _loss(case)
    got, gradients = _loss(case._replace(batch=case.batch._replace(unroll=changed)))
    tf.nest.map_structure(np.testing.assert_array_equal, (got, gradients), (want, want_gradients))
    for gradient in gradients:
      is_learned_from = np.any(gradient.numpy()[:-1] != 0, axis=tuple(range(2, len(gradient.shape))))
      np.testing.assert_array_equal(is_learned_from, ~outside[1:])

  def test_what_follows_a_rejected_step_does_not_change_targets_before_it(self):
    """Rewards, and the change of pixels and the values of the cells: none passes through a rejected step."""
    case = _case(trust_region_threshold=0.3)
    with np.errstate(invalid='ignore'):
      want = _slow_loss(case)
    # The last rejected step of each unroll; -1 if there is none.
    last = np.max(np.where(want.trusted, -1, np.arange(_STEPS)[:, np.newaxis]), axis=0)
    row = np.arange(_STEPS + 1)[:, np.newaxis]
    before, after = row < last, (row > last) & (last >= 0)
    self.assertGreater(np.sum(before), 5)
    unroll, output = case.batch.unroll, case.agent.output
    environment = unroll.environment_output
    spread = lambda values: after.reshape(*after.shape, *[1] * (len(values.shape) - 2))
    pixels = environment.observation['pixels']
    changed = environment._replace(reward=tf.where(after, 77., environment.reward),
                                   observation={'pixels': tf.where(spread(pixels), 255 - pixels, pixels)})
    others = output._replace(**{name: tf.Variable(tf.where(spread(values), values + 1., values)) for name, values in (
        ('baseline', output.baseline), ('pixel_control', output.pixel_control))})
    got = _loss(case._replace(agent=_Table(others, case.agent.statistics), batch=case.batch._replace(
        unroll=unroll._replace(environment_output=changed))))[1]
    for one, other in zip(got, _loss(case)[1]):
      np.testing.assert_array_equal(one[before], other[before])

  def test_what_was_not_drawn_counts_nowhere(self):
    """Before the replay has its minimum size: a batch is learned from as if it had the online unrolls only."""
    case = _case(trust_region_threshold=0.3)
    unroll, sample = case.batch
    nothing = sample._replace(key=tf.fill([3], tf.constant(-1, tf.int64)))
    got, gradients = _loss(case._replace(batch=learner_step.Batch(unroll, nothing)))
    want = _case(trust_region_threshold=0.3)
    first = lambda values: values[:, :2]
    online = unroll._replace(**{name: tf.nest.map_structure(first, getattr(unroll, name))
                                for name in ('level_id', 'environment_output', 'agent_output')})
    output = _Heads(*(tf.Variable(first(values)) for values in want.agent.output))
    want, want_gradients = _loss(want._replace(agent=_Table(output, want.agent.statistics),
                                               batch=learner_step.Batch(online)))
    for name, term in want.terms.items():
      np.testing.assert_allclose(got.terms[name], term, rtol=1e-5, err_msg=name)
    for one, other in zip(gradients, want_gradients):
      np.testing.assert_allclose(one[:, :2], other, rtol=1e-5, atol=1e-7)
      np.testing.assert_array_equal(one[:, 2:], tf.zeros_like(one[:, 2:]))
    for name in ('rejected', 'relevance'):
      self.assertTrue(np.isnan(got.means[f'{name}/replayed']))
      np.testing.assert_allclose(got.means[f'{name}/online'], want.means[f'{name}/online'], rtol=1e-6)
    self.assertTrue(np.all(np.isnan(got.gathered[0].first[2 * _LEVELS:])))  # No statistics.

  @parameterized.parameters((2, 3, 'online', 2), (0, 5, 'online', 0), (2, 3, 'all', 5), (0, 5, 'all', 5))
  def test_entropy_is_that_of_the_steps_that_have_a_bonus(self, online, replayed, steps, num_unrolls):
    """Pure replay (no unroll is online) has none by default."""
    case = _case(online=online, replayed=replayed, entropy_steps=steps, importance_exponent=0.)
    sample = case.batch.sample._replace(key=tf.range(replayed))  # All are drawn.
    logits = case.agent.output.policy_logits.numpy()[:-1, :num_unrolls].reshape(-1, _ACTIONS)
    want = sum(np.sum(np.exp(_log_softmax(row)) * _log_softmax(row)) for row in logits)
    loss = laser.loss(*case._replace(batch=case.batch._replace(sample=sample)))
    self.assertAlmostEqual(float(loss.terms['loss/entropy']), want, places=4)
    self.assertEqual(bool(want), num_unrolls > 0)

  def test_a_threshold_of_0_learns_nothing(self):
    loss, gradients = _loss(_case(trust_region_threshold=0.))
    for gradient in gradients:
      np.testing.assert_array_equal(gradient, 0.)
    self.assertEqual({float(term) for term in loss.terms.values()}, {0.})
    self.assertEqual((loss.means['rejected/online'], loss.means['rejected/replayed']), (1., 1.))
    self.assertTrue(np.all(np.isnan(loss.gathered[0].first)))

  def test_shares_have_no_value_where_there_are_no_such_steps(self):
    nothing_online = laser.loss(*_case(online=0)).means
    all_online = laser.loss(*_case(replayed=0)._replace(batch=learner_step.Batch(_case(replayed=0).batch.unroll))).means
    for means, kind, other in ((nothing_online, 'online', 'replayed'), (all_online, 'replayed', 'online')):
      for name in ('rejected', 'relevance'):
        self.assertTrue(np.isnan(means[f'{name}/{kind}']))
        self.assertTrue(np.isfinite(means[f'{name}/{other}']))

  def test_importance_weights_are_relative_to_the_largest(self):
    """Twice as likely unrolls count half as much (beta = 1). Online unrolls have the weight 1."""
    case = _case(trust_region_threshold=np.inf, importance_exponent=1.)
    plain = _loss(case._replace(config=dataclasses.replace(case.config, importance_exponent=0.)))[1]
    sample = case.batch.sample._replace(probability=tf.constant([0.2, 0.4, 0.1]))
    weighted = _loss(case._replace(batch=case.batch._replace(sample=sample)))[1]
    for got, want in zip(weighted, plain):
      weights = np.array([1., 1., 0.5, 0.25, 1.]).reshape(1, 5, *[1] * (len(want.shape) - 2))
      np.testing.assert_allclose(got, weights * want, rtol=1e-5, atol=1e-7)


class WithoutTrustRegionTest(parameterized.TestCase):

  @parameterized.parameters(popart_impala, impala)
  def test_on_online_data_it_is_the_loss_of_its_parents(self, module):
    """Bit for bit, with the real networks."""
    config = configs.LaserConfig(torso='shallow', use_lstm=True, use_pixel_control=True, trust_region_threshold=np.inf,
                                 value_normalization='popart' if module is popart_impala else 'none')
    levels = ('catch', 'chain', 'recall') if module is popart_impala else ('catch',)
    agent = laser.Agent(unrolls.environment_spec(unrolls.PIXELS, levels=levels), config)
    if module is popart_impala:
      agent.statistics.first.assign(_MU)
      agent.statistics.second.assign(_SIGMA**2 + _MU**2)
    unroll = unrolls.random_unroll(agent, unrolls.PIXELS, batch=4, level_ids=range(len(levels)))
    sample = mixed_experience.MixedSample(tf.zeros([0]), tf.zeros([0], tf.int64))
    results = []
    for loss, given in ((module.loss, ()), (laser.loss, ()), (laser.loss, sample)):
      with tf.GradientTape() as tape:
        result = loss(agent, learner_step.Batch(unroll, given), config)
      results.append((result, tape.gradient(result.total, agent.trainable_variables)))
    (want, want_gradients), *others = results
    for got, gradients in others:
      self.assertEqual(float(got.total), float(want.total))
      self.assertEqual(set(got.terms), set(want.terms))
      tf.nest.map_structure(np.testing.assert_array_equal, (got.terms, gradients), (want.terms, want_gradients))
      self.assertContainsSubset(want.means, got.means)
      for name, mean in want.means.items():
        np.testing.assert_array_equal(got.means[name], mean)
      if module is popart_impala:
        tf.nest.map_structure(np.testing.assert_array_equal, got.gathered, want.gathered)


if __name__ == '__main__':
  absltest.main()
