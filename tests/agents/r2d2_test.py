"""Tests of R2D2's network, loss and learner, against slow computations in NumPy and numbers from the paper."""

import dataclasses
import functools
import unittest
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from scalable_agents.actor import acting
from scalable_agents.agents import configs
from scalable_agents.agents import r2d2
from scalable_agents.agents import registry
from scalable_agents.experience import replay_experience
from scalable_agents.learner import learner_step
from scalable_agents.networks import q_networks
from scalable_agents.tests.training import unrolls

_PIXELS = {'pixels': tf.TensorSpec([36, 36, 2], tf.uint8)}
_SEQUENCE = dict(burn_in=3, sequence_length=6, sequence_period=3)


def setUpModule():
  unittest.enterModuleContext(mock.patch.object(q_networks, '_HIDDEN', 64))


def _config(**settings):
  return configs.R2d2Config(**_SEQUENCE | dict(n_step=2, replay_capacity=100, replay_minimum_size=1) | settings)


@functools.cache
def _agent(config, instructed=False, pixels=False):
  """Returns an agent whose target network differs from its online network."""
  spec = _PIXELS if pixels else unrolls.INSTRUCTED if instructed else unrolls.VECTOR
  agent = r2d2.Agent(unrolls.environment_spec(spec), config)
  for number, variable in enumerate(agent.target.trainable_variables):
    variable.assign_add(0.1 * tf.random.stateless_normal(variable.shape, [1, number]))
  return agent


def _batch(agent, config, batch=4, seed=0, num_states=0):
  """Returns a batch of random sequences. Some steps at their ends are padding."""
  random = np.random.RandomState(seed)
  unroll = unrolls.random_unroll(agent.online, steps=config.burn_in + config.sequence_length, batch=batch, seed=seed)
  trains = np.arange(config.sequence_length)[:, np.newaxis] < random.randint(1, config.sequence_length + 1, batch)
  later_states = tf.nest.map_structure(
      lambda x: tf.constant(random.randn(num_states, *x.shape), tf.float32), unroll.agent_state)
  unroll = unroll._replace(agent_output=r2d2.BehaviourOutput(unroll.agent_output.action, (), (), (), ()))
  return learner_step.Batch(unroll, replay_experience.SequenceSample(
      tf.constant(trains), tf.constant(random.uniform(0.01, 1, batch), tf.float32), tf.zeros([batch], tf.int64),
      later_states, tf.range(10, 10 + batch, dtype=tf.int64), tf.range(batch, dtype=tf.int64)))


def _h(x):
  return np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + 1e-3 * x


def _h_inverse(x):
  return np.sign(x) * (((np.sqrt(1 + 4e-3 * (np.abs(x) + 1 + 1e-3)) - 1) / 2e-3)**2 - 1)


def _slow_values(network, batch, config):
  """Steps a network through the sequences, row by row: [burn_in + m + 1, B, A] float64."""
  environment, actions = batch.unroll.environment_output, batch.unroll.agent_output.action
  state = batch.unroll.agent_state
  if config.recurrent_state == 'zero':
    state = network.initial_state(actions.shape[1])
  values = []
  for row in range(actions.shape[0]):
    reset = environment.done[row]
    if config.reset_on_life_loss:
      reset |= environment.discount[row] == 0
    inputs = tf.nest.map_structure(lambda x: x[row], acting.inputs_of(batch.unroll))
    out, state = network.step(inputs._replace(done=reset, observation=network.prepare(inputs.observation)), state)
    values.append(out.numpy().astype(np.float64))
  return np.array(values)


def _slow_loss(agent, batch, config):
  """Returns the loss and the priorities, term by term as the paper writes them, and the mean of the trained values."""
  environment, actions = batch.unroll.environment_output, batch.unroll.agent_output.action.numpy()
  probability = batch.sample.probability.numpy().astype(np.float64)
  weights = (1 / (1000 * probability))**config.importance_exponent
  weights /= weights.max()
  h, h_inverse = (_h, _h_inverse) if config.value_rescaling else (lambda x: x, lambda x: x)
  clip = lambda r: np.clip(r, -1, 1) if config.reward_transform == 'abs_one' else r
  total, priorities, trained_values, length = 0., [], [], config.sequence_length
  values = [_slow_values(network, batch, config)[config.burn_in:] for network in (agent.online, agent.target)]
  for b in range(actions.shape[1]):
    online, target = (of_network[:, b] for of_network in values)
    rewards = clip(environment.reward.numpy()[config.burn_in + 1:, b].astype(np.float64))
    discounts = config.discount * environment.discount.numpy()[config.burn_in + 1:, b]
    taken = actions[config.burn_in + 1:, b]
    errors = []
    for t in range(length):
      if not batch.sample.trains[t, b]:
        continue
      y, product, end = 0., 1., min(t + config.n_step, length)
      for k in range(t, end):
        y += product * rewards[k]
        product *= discounts[k]
      y += product * h_inverse(target[end][np.argmax(online[end])])
      errors.append(h(y) - online[t][taken[t]])
      trained_values.append(online[t])
    total += weights[b] * 0.5 * np.sum(np.square(errors)) / actions.shape[1]
    sizes = np.abs(errors)
    priorities.append(config.priority_eta * sizes.max() + (1 - config.priority_eta) * sizes.mean())
  return total, priorities, np.mean(trained_values)


class StepTest(parameterized.TestCase):

  @parameterized.parameters(dict(), dict(instructed=True), dict(pixels=True), dict(use_lstm=False),
                            dict(pixels=True, torso='shallow', dense_before_lstm=True))
  def test_unroll_is_what_step_computes(self, instructed=False, pixels=False, **settings):
    config = _config(**settings)
    agent = _agent(config, instructed, pixels)
    spec = _PIXELS if pixels else unrolls.INSTRUCTED if instructed else unrolls.VECTOR
    unroll = unrolls.random_unroll(agent.online, spec)
    environment, actions = unroll.environment_output, unroll.agent_output.action
    values, last = unrolls.forward(agent.online, unroll)
    state = r2d2.ActorState(unroll.agent_state, tf.constant([0, 5, 9]))
    for t in range(7):
      observation = {name: x[t] for name, x in environment.observation.items()}
      inputs = acting.ActorInput(tf.range(3), tf.zeros([3]), actions[t], environment.reward[t],
                                 environment.discount[t], environment.done[t], observation)
      output, new_state = agent.step(inputs, state, tf.constant([1, t]), acting.Selection(acting.GREEDY))
      np.testing.assert_allclose(output.max_value, tf.reduce_max(values[t], axis=-1), rtol=1e-4, atol=1e-5)
      np.testing.assert_array_equal(output.action, tf.argmax(values[t], axis=-1))
      np.testing.assert_allclose(output.action_value, output.max_value)
      tf.nest.map_structure(np.testing.assert_array_equal, output.agent_state, state.network)  # The one before the row.
      state = new_state
    tf.nest.map_structure(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), state.network, last)

  def test_the_lstm_has_a_precision_of_its_own(self):
    agents = [_agent(_config(**settings)) for settings in (
        {}, {'torso_precision': 'bfloat16'}, {'lstm_precision': 'bfloat16'})]
    unroll = unrolls.random_unroll(agents[0].online)
    plain, of_torso, of_lstm = (unrolls.forward(agent.online, unroll)[0].numpy() for agent in agents)
    np.testing.assert_array_equal(of_torso, plain)  # Vectors are not seen through the torso of pixels.
    self.assertBetween(np.abs(of_lstm - plain).max(), 1e-5, 0.1)


class EpsilonTest(parameterized.TestCase):

  def test_actors_explore_as_often_as_their_epsilon_says(self):
    config = _config(epsilon_base=0.5, epsilon_exponent=1.)
    agent = _agent(config)
    size = 20_000
    inputs = acting.ActorInput(
        tf.zeros([size], tf.int32), tf.cast(tf.range(size) % 2, tf.float32), tf.zeros([size], tf.int32),
        tf.zeros([size]), tf.ones([size]), tf.zeros([size], tf.bool), {'vector': tf.ones([size, 4])})
    output, _ = agent.step(inputs, agent.initial_state(size), tf.constant([1, 1], tf.int64))
    greedy = (output.action_value == output.max_value).numpy()
    # Of the random actions, one in five is the greedy one.
    self.assertAlmostEqual(greedy[0::2].mean(), 1 - 0.5 * 0.8, delta=0.015)
    self.assertAlmostEqual(greedy[1::2].mean(), 1 - 0.25 * 0.8, delta=0.015)

  def test_the_ladder_has_as_many_rungs_as_the_cluster_has_actors(self):
    agent = _agent(_config(epsilon_base=0.5, epsilon_exponent=1., num_actors=2))
    inputs = acting.example_input(unrolls.VECTOR)._replace(actor_place=tf.constant([0.4, 0.6]))
    with absltest.mock.patch.object(acting, 'epsilon_greedy', return_value=tf.zeros([2], tf.int32)) as select:
      agent.step(inputs, agent.initial_state(2), tf.constant([1, 1], tf.int64))
    np.testing.assert_allclose(select.call_args.args[1], [0.5, 0.25])
    np.testing.assert_allclose(acting.ladder(tf.constant([0.5]), 0.4, 7., num_actors=1), [0.4])


class LossTest(parameterized.TestCase):

  @parameterized.parameters(
      dict(), dict(n_step=5), dict(n_step=20), dict(burn_in=0), dict(recurrent_state='zero'), dict(use_lstm=False),
      dict(value_rescaling=False, reward_transform='abs_one'), dict(discount=0.99), dict(reset_on_life_loss=True),
      dict(importance_exponent=0., priority_eta=0.3))
  def test_agrees_with_a_slow_loss(self, **settings):
    config = _config(**settings)
    agent = _agent(config)
    batch = _batch(agent, config)
    result = r2d2.loss(agent, batch, config)
    total, priorities, value = _slow_loss(agent, batch, config)
    np.testing.assert_allclose(result.total, total, rtol=1e-4)
    np.testing.assert_allclose(result.means['value'], value, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(result.feedback, priorities, rtol=1e-4)
    np.testing.assert_allclose(result.means['priority'], np.mean(priorities), rtol=1e-4)
    self.assertEqual(result.means['replay_age'], 11.5)  # The mean of 10 to 13.
    self.assertFalse(np.all(batch.sample.trains))

  def test_padding_makes_no_difference(self):
    config = _config()
    agent = _agent(config)
    batch = _batch(agent, config)
    # The discount of the last real step of a padded sequence is 0, as at every episode's end.
    trains = np.vstack([np.ones([config.burn_in + 1, 4], bool), batch.sample.trains])
    is_last = np.vstack([trains[:-1] & ~trains[1:], np.zeros([1, 4], bool)])
    environment = batch.unroll.environment_output
    environment = environment._replace(discount=tf.where(is_last, 0., environment.discount))
    other = environment._replace(
        reward=tf.where(trains, environment.reward, 7.), discount=tf.where(trains, environment.discount, 1.),
        observation={'vector': tf.where(trains[..., np.newaxis], environment.observation['vector'], 7.)})
    one, two = (r2d2.loss(agent, batch._replace(unroll=batch.unroll._replace(environment_output=output)), config)
                for output in (environment, other))
    np.testing.assert_allclose(one.total, two.total, rtol=1e-6)
    np.testing.assert_allclose(one.feedback, two.feedback, rtol=1e-6)

  def test_the_burn_in_has_no_gradient(self):
    def gradient_of_state(**settings):
      config = _config(**settings)
      agent = _agent(config)
      batch = _batch(agent, config)
      batch = batch._replace(unroll=batch.unroll._replace(environment_output=batch.unroll.environment_output._replace(
          done=tf.zeros_like(batch.unroll.environment_output.done))))
      with tf.GradientTape() as tape:
        tape.watch(batch.unroll.agent_state)
        total = r2d2.loss(agent, batch, config).total
      return tape.gradient(total, batch.unroll.agent_state).hidden

    self.assertIsNone(gradient_of_state())
    self.assertGreater(np.abs(gradient_of_state(burn_in=0)).max(), 0)

  def test_targets_have_no_gradient(self):
    config = _config()
    agent = _agent(config)
    with tf.GradientTape() as tape:
      total = r2d2.loss(agent, _batch(agent, config), config).total
    self.assertEqual(set(tape.gradient(total, agent.target.trainable_variables)), {None})

  def test_several_learners_have_the_mean_of_all_their_sequences(self):
    """Each learner's loss is divided by their number, because they add up their gradients."""
    config = _config()
    agent = _agent(config)
    batch = _batch(agent, config)
    alone = r2d2.loss(agent, batch, config).total
    four = mock.Mock(num_replicas_in_sync=4)
    with mock.patch.object(tf.distribute, 'get_strategy', return_value=four):
      np.testing.assert_allclose(r2d2.loss(agent, batch, config).total, alone / 4)


class DeltaQTest(parameterized.TestCase):

  def test_agrees_with_a_slow_computation(self):
    config = _config(measure_delta_q=True)
    agent = _agent(config)
    batch = _batch(agent, config, num_states=2)
    environment = batch.unroll.environment_output
    trains = batch.sample.trains.numpy()
    trains[:, 2] = True
    batch = batch._replace(
        sample=batch.sample._replace(padding=tf.constant([0, 2, 0, 0], tf.int64), trains=tf.constant(trains)),
        unroll=batch.unroll._replace(environment_output=environment._replace(
            done=tf.concat([[[False, False, False, True]], tf.zeros_like(environment.done[1:])], axis=0))))
    differences = {0: [], config.sequence_length - 1: []}
    all_values = _slow_values(agent.online, batch, config)
    for b in (0, 2):  # Sequences 1 and 3 begin their episodes, with and without padding.
      values = all_values[:, b]
      largest = abs(values[config.burn_in:-1][trains[:, b]].max())
      for number, step in enumerate(differences):
        if not batch.sample.trains[step, b]:
          continue
        row = config.burn_in + step
        its = lambda nest, index: tf.nest.map_structure(lambda x: x[index, b:b + 1], nest)
        inputs, state = its(acting.inputs_of(batch.unroll), row), its(batch.sample.later_states, number)
        actors, _ = agent.online.step(inputs, state)
        differences[step].append(np.linalg.norm(values[row] - actors[0]) / largest)
    means = r2d2.loss(agent, batch, config).means
    self.assertTrue(all(differences.values()))
    np.testing.assert_allclose([means['delta_q/first'], means['delta_q/last']],
                               [np.mean(those) for those in differences.values()], rtol=1e-4, atol=1e-6)

  def test_has_no_value_where_no_sequence_counts(self):
    config = _config(measure_delta_q=True)
    agent = _agent(config)
    batch = _batch(agent, config, num_states=2)
    batch = batch._replace(sample=batch.sample._replace(padding=tf.ones([4], tf.int64)))
    self.assertTrue(np.isnan(r2d2.loss(agent, batch, config).means['delta_q/first']))


class LearnerTest(parameterized.TestCase):

  def test_the_target_network_is_copied_at_intervals(self):
    config = _config(target_update_interval=3, learning_rate=1e-2)
    agent = r2d2.Agent(unrolls.environment_spec(), config)
    learner = r2d2.R2D2.make_learner(agent, config)
    batch = _batch(agent, config)
    same = lambda: all(np.array_equal(*pair) for pair in zip(agent.online.variables, agent.target.variables))
    self.assertTrue(same())
    for update in range(1, 8):
      learner.step(batch)
      self.assertEqual(same(), update % 3 == 0)
    self.assertContainsSubset({id(v) for v in agent.target.variables}, {id(v) for v in agent.variables})
    self.assertNoCommonElements({id(v) for v in agent.target.variables}, {id(v) for v in agent.acting_variables})

  @parameterized.parameters(0., 0.5)
  def test_three_steps_are_those_of_adam_on_the_clipped_gradient(self, clip):
    config = _config(learning_rate=0.01, adam_beta1=0.5, adam_beta2=0.8, adam_epsilon=2e-3, clip_gradient_norm=clip)
    agent = r2d2.Agent(unrolls.environment_spec(), config)
    learner = r2d2.R2D2.make_learner(agent, config)
    want = [np.float64(v) for v in agent.trainable_variables]
    first, second = ([np.zeros_like(values) for values in want] for _ in range(2))
    for step, epsilon in enumerate((2e-3, 2e-3, 0.3), 1):  # Kingma & Ba 2015, section 2, in the efficient form.
      if step == 3:  # As in a population.
        learner.hyper_parameters['adam_epsilon'].assign(epsilon)
      batch = _batch(agent, config, seed=step)
      with tf.GradientTape() as tape:
        total = r2d2.loss(agent, batch, config).total
      gradients = [np.float64(g) for g in tape.gradient(total, agent.trainable_variables)]
      norm = np.sqrt(sum(np.sum(gradient**2) for gradient in gradients))
      self.assertGreater(norm, 0.6)  # So a limit of 0.5 clips.
      for i, gradient in enumerate(gradients):
        gradient = gradient * (clip / norm if clip else 1.)
        first[i] = 0.5 * first[i] + 0.5 * gradient
        second[i] = 0.8 * second[i] + 0.2 * gradient**2
        rate = 0.01 * np.sqrt(1. - 0.8**step) / (1. - 0.5**step)
        want[i] -= rate * first[i] / (np.sqrt(second[i]) + epsilon)
      learner.step(batch)
      for value, variable in zip(want, agent.trainable_variables, strict=True):
        np.testing.assert_allclose(variable, value, rtol=1e-3, atol=2e-5)

  def test_xla_makes_no_difference(self):
    config = _config(learning_rate=1e-3, target_update_interval=2, measure_delta_q=True)
    results = []
    for xla in ('never', 'always'):
      agent = r2d2.Agent(unrolls.environment_spec(), config)
      learner = r2d2.R2D2.make_learner(agent, config, xla)
      for seed in range(4):
        metrics, feedback = learner.step(_batch(agent, config, seed=seed, num_states=2))
      results.append(([*agent.variables], learner.read(metrics), feedback))
    (variables, metrics, feedback), (compiled, compiled_metrics, compiled_feedback) = results
    for one, other in zip(variables, compiled, strict=True):
      np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)
    self.assertEqual(metrics['update_skipped'], 0)
    for name, value in metrics.items():
      np.testing.assert_allclose(value, compiled_metrics[name], rtol=1e-3, err_msg=name)
    np.testing.assert_allclose(feedback, compiled_feedback, rtol=1e-3)


class ConfigTest(parameterized.TestCase):

  def test_the_defaults_are_the_papers(self):
    config = configs.R2d2Config()
    self.assertEqual(round(configs.unrolls_per_batch(config)), 83)  # 64 sequences at a ratio of 0.77.
    # Section 2.3: five updates of 64 sequences per second, and 256 actors of 260 frames per second (DMLab: 130).
    for name, frames in (('r2d2_atari57', 260), ('r2d2_dmlab30', 130)):
      with self.subTest(name):
        made = 256 * frames / 4 / config.sequence_period
        self.assertAlmostEqual(registry.PRESETS[name].config.samples_per_period, 5 * 64 / made, delta=0.005)
    self.assertEqual(4 * r2d2.R2D2.steps_between_fetches(config), 400)  # Frames. Table 2.
    self.assertEqual(r2d2.R2D2.evaluation_policies[0], acting.EPSILON)  # The default of --test_policy. Ours.
    # Section 2.3 and table 2; the epsilons are those of Ape-X, and so are the clipping and the minimum size.
    self.assertEqual(
        (config.burn_in, config.sequence_length, config.sequence_period, config.cross_episodes, config.recurrent_state,
         config.n_step, config.discount, config.value_rescaling, config.reward_transform),
        (40, 80, 40, False, 'stored', 5, 0.997, True, 'none'))
    self.assertEqual(
        (config.replay_capacity, config.replay_minimum_size, config.priority_exponent, config.priority_eta,
         config.importance_exponent, config.epsilon_base, config.epsilon_exponent),
        (100_000, 50_000 / 40, 0.9, 0.9, 0.6, 0.4, 7.))
    self.assertEqual(
        (config.batch_size, config.target_update_interval, config.learning_rate, config.learning_rate_decay,
         config.adam_epsilon, config.clip_gradient_norm), (64, 2500, 1e-4, False, 1e-3, 40.))
    self.assertEqual((config.torso, config.dense_before_lstm, config.use_lstm), ('dqn', False, True))
    configs.validate_r2d2(config)
    configs.validate_r2d2(registry.PRESETS['r2d2_plus_dmlab30'].config)

  @parameterized.parameters(
      (dict(sequence_period=81), '--sequence_period=81: want at most --sequence_length=80'),
      (dict(replay_capacity=100), '--replay_minimum_size=1250: want at most --replay_capacity=100'),
      (dict(samples_per_period=300.), '--samples_per_period=300: a batch of 64 sequences would wait for 0.213 new .* '
       'for example with --samples_per_period=64'),
      (dict(samples_per_period=44.), 'would wait for 1.45 new unrolls of 40 steps: want a whole number'),
      (dict(samples_per_period=2., unroll_length=400), 'wait for 3.2 new .* example with --samples_per_period=2.13,'),
      (dict(samples_per_period=0.), '--samples_per_period=0.0: want a number from 1e-06 to 1000000.0'),
      (dict(recurrent_state='old'), '--recurrent_state=old'), (dict(n_step=0), '--n_step=0'))
  def test_refuses(self, settings, message):
    with self.assertRaisesRegex(ValueError, message):
      configs.validate_r2d2(dataclasses.replace(configs.R2d2Config(), **settings))


if __name__ == '__main__':
  absltest.main()
