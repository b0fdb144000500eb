"""Tests agents/a2c.py: the loss against NumPy and IMPALA's, what environments wait for, and whole runs that learn."""

import collections

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from scalable_agents.agents import a2c
from scalable_agents.agents import configs
from scalable_agents.agents import impala
from scalable_agents.agents import registry
from scalable_agents.learner import learner_step
from scalable_agents.tests.agents import training_runs
from scalable_agents.tests.processes import signal_handlers
from scalable_agents.tests.training import training
from scalable_agents.tests.training import unrolls
from scalable_agents.training import run_config

_BATCHINGS = ('sync_step', 'sync_trajectory', 'dynamic_batching')


def setUpModule():
  training.configure_tensorflow()


def _agent(**settings):
  return impala.Agent(unrolls.environment_spec(), configs.A2cConfig(torso='shallow', **settings))


def _numpy_terms(agent, unroll, config):
  """The n-step actor-critic loss in loops. Only the network's outputs come from the agent."""
  output, _ = unrolls.forward(agent, unroll)
  logits, values = np.float64(output.policy_logits), np.float64(output.baseline[..., 0])
  actions, environment = unroll.agent_output.action.numpy(), unroll.environment_output
  terms = collections.Counter()
  for b in range(values.shape[1]):
    for start in range(len(values) - 1):
      step, discount, target = start, 1., 0.
      while step < len(values) - 1:  # Rewards up to the end of the unroll, and then the value of its last state.
        squeezed = 5. * np.tanh(float(environment.reward[step + 1, b]) / 5.)
        target += discount * squeezed * (0.3 if squeezed < 0 else 1.)  # soft_asymmetric.
        discount *= config.discount * float(environment.discount[step + 1, b])
        step += 1
      target += discount * values[-1, b]
      probabilities = np.exp(logits[start, b]) / np.exp(logits[start, b]).sum()
      advantage = target - values[start, b]
      terms['loss/policy_gradient'] -= np.log(probabilities[actions[start + 1, b]]) * advantage
      terms['loss/baseline'] += 0.5 * advantage**2
      terms['loss/entropy'] += np.sum(probabilities * np.log(probabilities))
  return terms


class LossTest(parameterized.TestCase):

  @parameterized.parameters(False, True)
  def test_matches_numpy(self, use_lstm):
    config = configs.A2cConfig(use_lstm=use_lstm, discount=0.9, baseline_cost=0.3, entropy_cost=0.02,
                               reward_transform='soft_asymmetric')
    agent = _agent(use_lstm=use_lstm)
    unroll = unrolls.random_unroll(agent)
    loss, want = a2c.loss(agent, learner_step.Batch(unroll), config), _numpy_terms(agent, unroll, config)
    self.assertEqual(set(loss.terms), set(want))
    for name, value in want.items():
      np.testing.assert_allclose(loss.terms[name], value, rtol=1e-4, atol=1e-4, err_msg=name)
    np.testing.assert_allclose(loss.total, want['loss/policy_gradient'] + 0.3 * want['loss/baseline']
                               + 0.02 * want['loss/entropy'], rtol=1e-4, atol=1e-4)

  def test_on_policy_its_gradient_is_that_of_impala(self):
    """The unroll's behaviour policy is made the learner's own policy, so that rho is 1."""
    agent, config = _agent(use_lstm=True), configs.ImpalaConfig(use_lstm=True)
    unroll = unrolls.random_unroll(agent)
    behaviour = unrolls.forward(agent, unroll)[0].policy_logits[:-1]
    on_policy = unroll._replace(agent_output=unroll.agent_output._replace(
        policy_logits=tf.concat([unroll.agent_output.policy_logits[:1], behaviour], axis=0)))

    def gradient(loss, unroll):
      with tf.GradientTape() as tape:
        total = loss(agent, learner_step.Batch(unroll), config).total
      return tape.gradient(total, agent.trainable_variables)

    for ours, its, off_policy in zip(*(gradient(*case) for case in (
        (a2c.loss, on_policy), (impala.loss, on_policy), (impala.loss, unroll)))):
      np.testing.assert_allclose(ours, its, rtol=1e-5, atol=1e-6 * np.max(np.abs(its)))
      self.assertGreater(np.max(np.abs(ours - off_policy)), 1e-3 * np.max(np.abs(ours)))


class RunSettingsTest(parameterized.TestCase):

  @parameterized.parameters(*_BATCHINGS)
  def test_there_is_an_environment_for_each_unroll_of_a_batch(self, batching):
    config = configs.A2cConfig(batch_size=12, batching=batching)
    for wanted in ('auto', 12):
      run = a2c.complete_run(config, run_config.RunConfig(num_environments=wanted))
      self.assertEqual((run.num_environments, run.dynamic_batching), (12, batching != 'sync_trajectory'))
    if batching != 'sync_trajectory':
      with self.assertRaisesRegex(ValueError, '^--nodynamic_batching: want --batching=sync_trajectory, got'):
        a2c.complete_run(config, run_config.RunConfig(dynamic_batching=False))
    for wanted in (0, 11, 24):
      with self.assertRaisesRegex(ValueError, f'^--num_environments={wanted}: want auto or 12: '):
        a2c.complete_run(config, run_config.RunConfig(num_environments=wanted))

  def test_each_level_has_an_environment(self):
    config = configs.A2cConfig(level_name='pong,breakout,qbert', batch_size=2)
    with self.assertRaisesRegex(ValueError, '^--batch_size=2: want at least 3, one unroll per level in each batch, '):
      a2c.complete_run(config, run_config.RunConfig())

  def test_a_repeatable_run_steps_together(self):
    configs.validate_a2c(configs.A2cConfig(synchronous=True))
    with self.assertRaisesRegex(ValueError, '^--synchronous: want --batching=sync_step, got dynamic_batching$'):
      configs.validate_a2c(configs.A2cConfig(synchronous=True, batching='dynamic_batching'))

  @parameterized.parameters(('a2c', {'torso': 'shallow'}), ('a3c', {'batch_size': 1}))
  def test_on_dmlab_all_other_settings_are_those_of_impala(self, name, want):
    """Section 5.1, table 1 and figure 4: A2C is shallow. A worker of A3C learns from one unroll at a time."""
    ours, its = (vars(registry.PRESETS[f'{agent}_dmlab30'].config) for agent in (name, 'impala'))
    self.assertEqual({key: ours[key] for key in ours.keys() & its.keys() if ours[key] != its[key]}, want)

  @parameterized.parameters((configs.validate_a2c, configs.A2cConfig), (configs.validate_on_policy, configs.A3cConfig))
  def test_stale_parameters_are_not_corrected(self, validate, config):
    validate(config())
    with self.assertRaisesRegex(ValueError, '^--policy_lag=3: want 0; the on-policy loss does not correct'):
      validate(config(policy_lag=3))


class RunTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    signal_handlers.restore_after(self)

  def _train(self, batching, total_environment_frames, **settings):
    config = configs.A2cConfig(
        level_name='catch', torso='shallow', batch_size=32, unroll_length=5, batching=batching, optimizer='adam',
        learning_rate=2e-3, learning_rate_decay=False, total_environment_frames=total_environment_frames, **settings)
    return config, training_runs.train(
        self, a2c.A2C, config, num_environments='auto', until=training_runs.returns_more_than(0.98))

  def test_catch_is_learned(self):
    _, rows = self._train('sync_step', 60_000, synchronous=True)
    # So the mean has reached 0.98. Another unroll can end after that, and the last row can be lower.
    self.assertLess(rows[-1]['environment_frames'], 60_000)
    self.assertGreater(rows[-1]['episode_return'], 0.8)  # A random policy has -0.6.

  @parameterized.parameters(*_BATCHINGS)
  def test_there_is_no_policy_lag(self, batching):
    config, rows = self._train(batching, total_environment_frames=20 * 32 * 5)
    for row in rows:
      self.assertEqual(row['environment_frames'] % (config.batch_size * config.unroll_length), 0)
    # On a busy machine, there are rows without an update, and updates whose unrolls were played before the last row.
    self.assertEqual({row['policy_lag'] for row in rows if row.get('policy_lag') is not None}, {0.})
    sizes = {row['inference_batch_size'] for row in rows if row['inference_batch_size']}
    if batching == 'dynamic_batching':
      self.assertGreater(max(sizes), 1)  # The process steps its environments in groups.
    else:
      self.assertEqual(sizes, {32 if batching == 'sync_step' else 1})


if __name__ == '__main__':
  absltest.main()
