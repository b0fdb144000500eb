"""Tests agents/popart_impala.py: the loss against NumPy, and the learner's step with its statistics."""

import dataclasses

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from scalable_agents.actor import agent as agent_lib
from scalable_agents.agents import configs
from scalable_agents.agents import impala
from scalable_agents.agents import popart_impala
from scalable_agents.agents import registry
from scalable_agents.learner import learner_step
from scalable_agents.learner import pixel_control
from scalable_agents.learner import popart
from scalable_agents.records import checkpoint
from scalable_agents.tests.training import training
from scalable_agents.tests.training import unrolls

_LEVELS = ('catch', 'chain', 'recall')
_BATCH = 8
_LEVEL_IDS = [0, 2, 0, 0, 2, 2, 0, 2]  # Nothing comes from level 1.
_MU, _SIGMA = np.array([3., -1., 700.]), np.array([0.5, 2., 90.])


def setUpModule():
  training.configure_tensorflow()


def _config(**settings):
  return configs.PopArtImpalaConfig(**{
      'torso': 'shallow', 'reward_transform': 'none', 'total_environment_frames': 10_000,
      'learning_rate_decay': False} | settings)


def _agent(config, levels=_LEVELS, spec=None):
  return popart_impala.Agent(unrolls.environment_spec(spec, levels=levels), config)


def _set_statistics(agent, mu=_MU, sigma=_SIGMA):
  agent.statistics.first.assign(mu)
  agent.statistics.second.assign(sigma**2 + mu**2)


def _unroll(agent, seed=0, spec=None):
  """Returns random unrolls of levels 0 and 2, with rewards of the sizes of these levels."""
  unroll = unrolls.random_unroll(agent, spec, batch=_BATCH, seed=seed, level_ids=_LEVEL_IDS)
  environment = unroll.environment_output
  scales = tf.constant(_SIGMA[_LEVEL_IDS], tf.float32)
  return unroll._replace(environment_output=environment._replace(reward=environment.reward * scales))


def _values(agent, unroll):
  """The un-normalised values of all levels, [T+1, B, N] float64, from the normalised outputs of the network."""
  outputs = np.float64(unrolls.forward(agent, unroll)[0].baseline)
  mu, nu = (variable.numpy() for variable in agent.statistics)
  return outputs * np.clip(np.sqrt(np.maximum(nu - mu**2, 0)), 1e-4, 1e6) + mu


def _log_softmax(logits):
  return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def _numpy_loss(agent, unroll, config):
  """Equations 4, 11 and 12 in loops. Returns the terms of the loss, the value targets [T, B], and for each level the
  normalised and the un-normalised value loss of each of its rollouts."""
  output = unrolls.forward(agent, unroll)[0]
  logits, n = np.float64(output.policy_logits), np.float64(output.baseline)
  rewards = np.float64(unroll.environment_output.reward)
  discounts = config.discount * np.float64(unroll.environment_output.discount)
  actions, behaviour_logits = unroll.agent_output.action.numpy(), np.float64(unroll.agent_output.policy_logits)
  terms = {'loss/policy_gradient': 0., 'loss/baseline': 0., 'loss/entropy': 0.}
  targets, value_losses = np.zeros([len(rewards) - 1, _BATCH]), [[] for _ in _LEVELS]
  for b, level in enumerate(unroll.level_id.numpy()):
    mu, sigma = agent.statistics.first.numpy()[level], popart.scale(agent.statistics).numpy()[level]
    v = sigma * n[:, b, level] + mu
    target = v[-1]  # Of row t + 1.
    value_losses[level].append(np.zeros(2))
    for t in reversed(range(len(rewards) - 1)):
      log_pi, action = _log_softmax(logits[t, b]), actions[t + 1, b]
      rho = min(1., np.exp(log_pi[action] - _log_softmax(behaviour_logits[t + 1, b])[action]))
      policy_target = rewards[t + 1, b] + discounts[t + 1, b] * target  # G^pi of equation 4.
      targets[t, b] = v[t] + rho * (rewards[t + 1, b] + discounts[t + 1, b] * v[t + 1] - v[t]) + (
          discounts[t + 1, b] * rho * (target - v[t + 1]))
      target = targets[t, b]
      terms['loss/policy_gradient'] -= rho * ((policy_target - mu) / sigma - n[t, b, level]) * log_pi[action]
      terms['loss/baseline'] += 0.5 * ((target - mu) / sigma - n[t, b, level])**2
      value_losses[level][-1] += 0.5 * ((target - mu) / sigma - n[t, b, level])**2, 0.5 * (target - v[t])**2
      terms['loss/entropy'] += np.sum(np.exp(log_pi) * log_pi)
  total = terms['loss/policy_gradient'] + config.baseline_cost * terms['loss/baseline'] + (
      config.entropy_cost * terms['loss/entropy'])
  return terms | {'loss/total': total}, targets, value_losses


class ConfigTest(parameterized.TestCase):

  def test_defaults_are_the_papers(self):
    config = configs.PopArtImpalaConfig()
    configs.validate_impala(config)
    self.assertEqual((config.popart_decay, config.value_normalization, config.popart_second_moment),
                     (3e-4, 'popart', 'literal'))
    atari, dmlab = registry.PRESETS['popart_impala_atari57'].config, registry.PRESETS['popart_impala_dmlab30'].config
    self.assertEqual((atari.level_name, atari.reward_transform, atari.total_environment_frames, atari.use_lstm),
                     ('atari57', 'none', 57 * 200_000_000, False))
    self.assertContainsSubset(dataclasses.asdict(registry.PRESETS['impala_dmlab30'].config), dataclasses.asdict(dmlab))
    self.assertEqual((dmlab.level_name, dmlab.unroll_length, dmlab.use_lstm), ('dmlab30', 100, True))
    self.assertEqual(registry.PRESETS['popart_impala_dmlab30'].protocol.action_set, 'popart')

  @parameterized.parameters(
      ('value_normalization', 'layer', 'one of popart, none'),
      ('popart_decay', 1.5, 'a number from 0 to 1'),
      ('popart_second_moment', 'first', 'one of literal, mean_of_squares'),
      ('pixel_control_cost', -1., 'a finite number of at least 0'),
      ('pixel_control_discount', 1.5, 'a number from 0 to 1'))
  def test_bad_values_are_named(self, name, value, wanted):
    with self.assertRaisesRegex(ValueError, f'--{name}={value}: want {wanted}'):
      configs.validate_impala(_config(**{name: value}))


class LossTest(parameterized.TestCase):

  @parameterized.parameters((False, 'literal'), (True, 'mean_of_squares'))
  def test_matches_numpy(self, use_lstm, second_moment):
    config = _config(use_lstm=use_lstm, discount=0.9, entropy_cost=0.02, popart_second_moment=second_moment)
    agent = _agent(config)
    _set_statistics(agent)
    unroll = _unroll(agent)
    got = popart_impala.loss(agent, learner_step.Batch(unroll), config)
    want, targets, value_losses = _numpy_loss(agent, unroll, config)
    for name, value in ({'loss/total': got.total} | got.terms).items():
      np.testing.assert_allclose(value, want[name], rtol=1e-4, err_msg=name)
    losses = np.stack([got.means['value_loss/normalized'], got.means['value_loss/unnormalized']], axis=1)
    for level, of_rollouts in enumerate(value_losses):
      mean = np.mean(of_rollouts, axis=0) if of_rollouts else 2 * [np.nan]
      np.testing.assert_allclose(losses[level], mean, rtol=1e-4)
    np.testing.assert_allclose(got.means['popart/mean'], _MU, rtol=1e-6)
    np.testing.assert_allclose(got.means['popart/scale'], _SIGMA, rtol=1e-6)
    rollouts, level_ids = got.gathered
    np.testing.assert_allclose(rollouts.first, targets.mean(axis=0), rtol=1e-4, atol=1e-4)
    second = targets.mean(axis=0)**2 if second_moment == 'literal' else (targets**2).mean(axis=0)
    np.testing.assert_allclose(rollouts.second, second, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(level_ids, _LEVEL_IDS)

  def test_of_one_level_is_impalas_with_a_normalised_head(self):
    """An IMPALA head of sigma w, sigma b + mu has sigma times the advantages, and sigma^2 times the squared errors."""
    config, mu, sigma = _config(), 5., 0.25
    agent = _agent(config, ('catch',))
    _set_statistics(agent, np.array([mu]), np.array([sigma]))
    other = impala.Agent(unrolls.environment_spec(), config)
    for ours, its in zip(other.trainable_variables, agent.trainable_variables, strict=True):
      ours.assign(its)
    weights, bias = (next(v for v in other.trainable_variables if v.name == f'agent/baseline/{name}:0')
                     for name in 'wb')
    weights.assign(sigma * weights)
    bias.assign(sigma * bias + mu)
    unroll = unrolls.random_unroll(agent)
    got = popart_impala.loss(agent, learner_step.Batch(unroll), config).terms
    want = impala.loss(other, learner_step.Batch(unroll), config).terms
    np.testing.assert_allclose(got['loss/policy_gradient'], want['loss/policy_gradient'] / sigma, rtol=1e-4)
    np.testing.assert_allclose(got['loss/baseline'], want['loss/baseline'] / sigma**2, rtol=1e-4)
    np.testing.assert_allclose(got['loss/entropy'], want['loss/entropy'], rtol=1e-6)

  def test_only_the_levels_own_heads_learn(self):
    config = _config()
    agent = _agent(config)
    with tf.GradientTape() as tape:
      total = popart_impala.loss(agent, learner_step.Batch(_unroll(agent)), config).total
    weights, bias = tape.gradient(total, agent.baseline_weights)
    self.assertTrue(np.all(np.any(weights.numpy()[:, [0, 2]] != 0, axis=0)))
    np.testing.assert_array_equal(weights[:, 1], np.zeros(256))
    self.assertEqual(np.count_nonzero(bias), 2)

  def test_actors_get_no_value_heads_and_no_statistics(self):
    agent = _agent(_config(use_pixel_control=True), spec=unrolls.PIXELS)
    names = {variable.name.split('/')[1] for variable in agent.acting_variables}
    self.assertEqual(names, {'shallow_torso', 'policy'})

  @parameterized.parameters(impala, popart_impala)
  def test_pixel_control_is_a_further_term(self, module):
    terms = {}
    for use in (False, True):
      config = _config(use_pixel_control=use, pixel_control_cost=2.)
      agent = module.Agent(unrolls.environment_spec(unrolls.PIXELS, levels=_LEVELS), config)
      unroll = _unroll(agent, spec=unrolls.PIXELS)
      loss = module.loss(agent, learner_step.Batch(unroll), config)
      terms[use] = {'loss/total': loss.total} | loss.terms
    more = terms[True].pop('loss/pixel_control')
    environment = unroll.environment_output
    want = pixel_control.loss(  # tests/learner/pixel_control_test.py tests it. Row t's action was taken in state t - 1.
        unrolls.forward(agent, unroll)[0].pixel_control, unroll.agent_output.action[1:],
        environment.observation['pixels'], environment.done[1:], 0.9)
    np.testing.assert_allclose(more, want, rtol=1e-6)
    np.testing.assert_allclose(terms[True].pop('loss/total'), terms[False].pop('loss/total') + 2 * more, rtol=1e-5)
    self.assertEqual(set(terms[True]), set(terms[False]))
    for name, value in terms[True].items():  # The other parts of the network have the same initial values.
      np.testing.assert_allclose(value, terms[False][name], rtol=1e-5, err_msg=name)

  def test_pixel_control_sees_the_newest_frame_of_a_stack(self):
    spec = agent_lib.EnvironmentSpec(
        3, {'pixels': tf.TensorSpec([20, 20, 4], tf.uint8)}, ('pong',), {'pixels': 4})
    pixels = tf.random.stateless_uniform([5, 20, 20, 4], [1, 2], 0, 256, tf.int32)
    np.testing.assert_array_equal(
        popart_impala.Agent(spec, _config()).newest_frames({'pixels': pixels}), pixels[..., 3:])

  def test_pixel_control_needs_large_images(self):
    with self.assertRaisesRegex(ValueError, 'want images of at least 16x16 pixels, got 20x12'):
      _agent(_config(use_pixel_control=True, torso='deep'), spec={'pixels': tf.TensorSpec([20, 12, 1], tf.uint8)})


class LearnerTest(parameterized.TestCase):

  def _step(self, xla='never', statistics=True, **settings):
    """Makes an update. Returns the learner, the value targets [T, B] and the unroll."""
    config = _config(**settings)
    agent = _agent(config)
    learner = popart_impala.POPART_IMPALA.make_learner(agent, config, xla)
    if statistics:
      _set_statistics(agent)
    unroll = _unroll(agent)
    targets = _numpy_loss(agent, unroll, config)[1]
    self.assertEqual(float(unrolls.update(learner, unroll)['update_skipped']), 0.)
    return learner, targets, unroll

  @parameterized.parameters(('never', 3e-4, 'rmsprop'), ('always', 0.5, 'adam'))
  def test_statistics_follow_and_values_are_preserved(self, xla, decay, optimizer):
    """A learner whose statistics never change (decay 0) makes the same update, so it has the same values after it."""
    learner, targets, unroll = self._step(xla, popart_decay=decay, optimizer=optimizer)
    still, *_ = self._step(popart_decay=0., optimizer=optimizer)
    mu, nu = _MU.copy(), _SIGMA**2 + _MU**2
    for level, rollout in zip(_LEVEL_IDS, targets.T):
      mu[level] = (1 - decay) * mu[level] + decay * rollout.mean()
      nu[level] = (1 - decay) * nu[level] + decay * rollout.mean()**2
    old_nu = _SIGMA**2 + _MU**2
    np.testing.assert_allclose(learner.agent.statistics.first - _MU, mu - _MU, rtol=1e-3, atol=1e-9)
    np.testing.assert_allclose(learner.agent.statistics.second - old_nu, nu - old_nu, rtol=1e-3, atol=1e-9)
    values, want = _values(learner.agent, unroll), _values(still.agent, unroll)
    np.testing.assert_allclose(values, want, rtol=1e-5, atol=1e-5)
    head = {variable.ref() for variable in learner.agent.baseline_weights}
    for ours, its in zip(learner.optimizer.variables, still.optimizer.variables, strict=True):
      if ours.ref() not in head:  # Also the slots of the head are left alone.
        np.testing.assert_allclose(ours, its, rtol=1e-4, atol=1e-5, err_msg=ours.name)

  @parameterized.parameters(True, False)
  def test_only_with_normalisation_the_size_of_rewards_does_not_matter(self, popart_is_on):
    """The factor is a power of two, so that all roundings are the same: the learned variables are equal bit for bit."""
    config, factor = _config(value_normalization='popart' if popart_is_on else 'none', popart_decay=0.3), 1024
    learners = [popart_impala.POPART_IMPALA.make_learner(_agent(config), config, 'never') for _ in range(2)]
    for learner, scale in zip(learners, (1, factor)):
      if popart_is_on:
        _set_statistics(learner.agent, scale * _MU, scale * _SIGMA)
      for update in range(3):
        unroll = _unroll(learner.agent, seed=update)
        environment = unroll.environment_output
        environment = environment._replace(reward=scale * environment.reward)
        unrolls.update(learner, unroll._replace(environment_output=environment))
    one, other = (learner.agent for learner in learners)
    same = [np.array_equal(*pair) for pair in zip(one.trainable_variables, other.trainable_variables, strict=True)]
    self.assertEqual(all(same), popart_is_on)
    if popart_is_on:
      np.testing.assert_array_equal(factor * one.statistics.first, other.statistics.first)
      np.testing.assert_array_equal(factor**2 * one.statistics.second, other.statistics.second)

  def test_without_normalisation_nothing_is_tracked(self):
    learner, *_ = self._step(statistics=False, value_normalization='none')
    np.testing.assert_array_equal(learner.agent.statistics.first, np.zeros(3))
    np.testing.assert_array_equal(learner.agent.statistics.second, np.ones(3))

  def test_without_normalisation_one_level_is_impala(self):
    """Bit for bit."""
    config = _config(value_normalization='none')
    ours = popart_impala.POPART_IMPALA.make_learner(_agent(config, ('catch',)), config, 'never')
    its = impala.IMPALA.make_learner(impala.Agent(unrolls.environment_spec(), config), config, 'never')
    for update in range(3):
      unroll = unrolls.random_unroll(ours.agent, seed=update)
      got, want = unrolls.update(ours, unroll), unrolls.update(its, unroll)
      for name, value in want.items():
        self.assertEqual(got[name], value, name)
      np.testing.assert_array_equal(got['value_loss/unnormalized'], got['value_loss/normalized'])
    for one, other in zip(ours.agent.trainable_variables, its.agent.trainable_variables, strict=True):
      np.testing.assert_array_equal(one, other)

  def test_a_restored_learner_goes_on_bit_for_bit(self):
    config, folder = _config(popart_decay=0.3), self.create_tempdir().full_path
    first, second = (popart_impala.POPART_IMPALA.make_learner(_agent(config), config) for _ in range(2))
    for update in range(2):
      unrolls.update(first, _unroll(first.agent, seed=update))
    checkpoint.Checkpointer(folder, learner=first).save()
    checkpoint.Checkpointer(folder, learner=second).restore()
    for learner in (first, second):
      unrolls.update(learner, _unroll(learner.agent, seed=2))
    self.assertTrue(np.all(first.agent.statistics.first.numpy()[[0, 2]] != 0))
    for one, other in zip(first.variables, second.variables, strict=True):
      np.testing.assert_array_equal(one, other, one.name)

  def test_huge_rewards_are_learned(self):
    """Their un-normalised value loss and second moment overflow float32."""
    config = _config(popart_decay=0.5)
    learner = popart_impala.POPART_IMPALA.make_learner(_agent(config), config)
    _set_statistics(learner.agent, np.zeros(3), np.full(3, 1e6))  # The largest sigma.
    unroll = _unroll(learner.agent)
    huge = unroll._replace(environment_output=unroll.environment_output._replace(
        reward=1e18 * unroll.environment_output.reward))
    metrics = unrolls.update(learner, huge)
    self.assertEqual(metrics['update_skipped'], 0.)
    self.assertEqual(metrics['value_loss/unnormalized'][2], np.inf)
    self.assertTrue(np.all(learner.agent.statistics.second.numpy()[[0, 2]] > 1e34))
    self.assertTrue(np.all(np.isfinite(learner.agent.statistics.second)))

  @parameterized.parameters(np.nan, np.inf, 3e38)
  def test_what_is_not_finite_enters_no_statistics(self, reward):
    config = _config(popart_decay=0.5)
    agent = _agent(config)
    unroll = _unroll(agent)
    rewards = unroll.environment_output.reward.numpy()
    rewards[2:, 1] = reward  # The sum of several rewards of 3e38 is not finite.
    bad = unroll._replace(environment_output=unroll.environment_output._replace(reward=tf.constant(rewards)))
    learner = popart_impala.POPART_IMPALA.make_learner(agent, config)
    _set_statistics(agent)
    before = [variable.numpy() for variable in agent.variables]
    self.assertEqual(float(unrolls.update(learner, bad)['update_skipped']), 1.)
    for variable, value in zip(agent.variables, before, strict=True):
      np.testing.assert_array_equal(variable, value, variable.name)


if __name__ == '__main__':
  absltest.main()
