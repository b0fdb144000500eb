"""Tests agents/impala.py: settings, agent, and the loss against NumPy. learner_step_test.py tests the learner."""

import dataclasses

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from scalable_agents.actor import acting
from scalable_agents.agents import configs
from scalable_agents.agents import impala
from scalable_agents.experience import intake as intake_lib
from scalable_agents.experience import mixed_experience
from scalable_agents.learner import learner_step
from scalable_agents.tests.training import unrolls

NUM_ACTIONS, PIXELS, VECTOR, INSTRUCTED = unrolls.NUM_ACTIONS, unrolls.PIXELS, unrolls.VECTOR, unrolls.INSTRUCTED
_unroll, _forward = unrolls.random_unroll, unrolls.forward


def _agent(spec=None, **settings):
  return impala.Agent(unrolls.environment_spec(spec), configs.ImpalaConfig(torso='shallow', **settings))


def _inputs(last_action, reward, done, observation):
  batch = last_action.shape[0]
  return acting.ActorInput(tf.range(batch), tf.zeros([batch]), last_action, reward,
                           1. - tf.cast(done, tf.float32), done, observation)


def _loss(agent, unroll, config):
  return impala.loss(agent, learner_step.Batch(unroll), config)


class ImpalaConfigTest(parameterized.TestCase):

  def test_defaults_are_valid(self):
    configs.validate_impala(configs.ImpalaConfig())

  def test_defaults_are_those_of_table_g1(self):
    config = configs.ImpalaConfig()
    self.assertEqual(
        (config.unroll_length, config.batch_size, config.discount, config.baseline_cost,
         config.entropy_cost, config.rmsprop_momentum, config.rmsprop_epsilon, config.learning_rate,
         config.clip_gradient_norm, config.learning_rate_decay, config.reward_transform),
        (20, 32, 0.99, 0.5, 0.01, 0.0, 0.01, 0.0006, 40.0, True, 'abs_one'))
    self.assertEqual((config.torso, config.use_lstm, config.total_environment_frames), ('deep', False, 200_000_000))

  def test_every_setting_is_explained(self):
    for field in dataclasses.fields(configs.ImpalaConfig):
      self.assertGreater(len(field.metadata['help']), 15, field.name)
      self.assertEqual(field.metadata['help'][-1], '.', field.name)

  @parameterized.parameters(
      ('total_environment_frames', 0, 'a whole number from 1 to 1000000000000000'),
      ('unroll_length', 100_001, 'a whole number from 1 to 100000'),
      ('batch_size', 10 ** 25, 'a whole number from 1 to 10000'),
      ('queue_size', 0, 'a whole number from 1 to 100000'),
      ('policy_lag', -1, 'a whole number from 0 to 10000'),
      ('seed', -1, 'a whole number from 0 to 2147483647'),
      ('seed', 2**31, 'a whole number from 0 to 2147483647'),
      ('clip_rho_threshold', 0.0, 'a number of more than 0, or inf'),
      ('clip_pg_rho_threshold', float('nan'), 'a number of more than 0, or inf'),
      ('clip_c_threshold', -1.0, 'a number of at least 0, or inf'),
      ('baseline_cost', -0.5, 'a finite number of at least 0'),
      ('entropy_cost', float('inf'), 'a finite number of at least 0'),
      ('learning_rate', -1e-4, 'a finite number of at least 0'),
      ('learning_rate', float('nan'), 'a finite number of at least 0'),
      ('rmsprop_epsilon', 0.0, 'a finite number of more than 0'),
      ('adam_epsilon', 0.0, 'a finite number of more than 0'),
      ('clip_gradient_norm', -1.0, 'a finite number of at least 0'),
      ('discount', 1.01, 'a number from 0 to 1'),
      ('vtrace_lambda', -0.1, 'a number from 0 to 1'),
      ('rmsprop_decay', 1.0, 'a number of at least 0 and less than 1'),
      ('rmsprop_momentum', -0.1, 'a number of at least 0 and less than 1'),
      ('adam_beta1', 1.0, 'a number of at least 0 and less than 1'),
      ('adam_beta2', 2.0, 'a number of at least 0 and less than 1'),
      ('torso', 'tall', 'one of shallow, dqn, deep, deep_4x'),
      ('torso_precision', 'int8', 'one of float32, bfloat16, auto'),
      ('reward_transform', 'clip', 'one of abs_one, soft_asymmetric, optimistic_asymmetric, none'),
      ('off_policy_correction', 'retrace', 'one of vtrace, one_step, epsilon, none'),
      ('optimizer', 'sgd', 'one of rmsprop, adam'))
  def test_bad_values_are_named(self, name, value, wanted):
    with self.assertRaises(ValueError) as caught:
      configs.validate_impala(dataclasses.replace(configs.ImpalaConfig(), **{name: value}))
    self.assertEqual(str(caught.exception), f'--{name}={value}: want {wanted}')

  @parameterized.parameters(
      ('clip_rho_threshold', float('inf')), ('clip_gradient_norm', 0.0), ('discount', 1.0), ('policy_lag', 0))
  def test_values_at_the_edge_are_allowed(self, name, value):
    configs.validate_impala(dataclasses.replace(configs.ImpalaConfig(), **{name: value}))


class AgentTest(parameterized.TestCase):

  @parameterized.parameters(
      ('shallow', False, (84, 84, 4), 18, 681_027),
      ('dqn', False, (84, 84, 4), 18, 1_693_875),
      ('deep', False, (84, 84, 4), 18, 1_094_115),
      # With an instruction, as on DMLab. The paper's figure 3 has 1.2 and 1.6 million.
      ('shallow', True, (72, 96, 3), 9, 1_230_426),
      ('deep', True, (72, 96, 3), 9, 1_628_010),
      ('shallow', True, (72, 96, 3), 15, 1_238_112),
      ('deep', True, (72, 96, 3), 15, 1_635_696))
  def test_number_of_parameters(self, torso, use_lstm, shape, num_actions, want):
    config = configs.ImpalaConfig(torso=torso, use_lstm=use_lstm)
    instruction = {'instruction': tf.TensorSpec([128], tf.uint8)} if use_lstm else {}
    pixels = {'pixels': tf.TensorSpec(shape, tf.uint8)}
    agent = impala.Agent(unrolls.environment_spec(pixels | instruction, num_actions), config)
    self.assertEqual(sum(int(np.prod(v.shape)) for v in agent.trainable_variables), want)

  def test_number_of_parameters_of_pixel_control(self):
    """Fully connected from 256 to 9x9x32, and 4x4 kernels from 32 channels to a value and 18 advantages."""
    spec = unrolls.environment_spec({'pixels': tf.TensorSpec((84, 84, 4), tf.uint8)}, 18)
    agent = impala.Agent(spec, configs.ImpalaConfig(torso='shallow', use_pixel_control=True))
    self.assertEqual(sum(int(np.prod(v.shape)) for v in agent.trainable_variables),
                     681_027 + 257 * 9 * 9 * 32 + 4 * 4 * 32 * 19 + 19)

  @parameterized.product(spec=(VECTOR, PIXELS, INSTRUCTED), use_lstm=(False, True))
  def test_unroll_is_what_step_computed(self, spec, use_lstm):
    agent = _agent(spec, use_lstm=use_lstm)
    unroll = _unroll(agent, spec)
    want, last_state = _forward(agent, unroll)
    state, environment = unroll.agent_state, unroll.environment_output
    for t in range(7):
      got, state = agent.step(_inputs(
          unroll.agent_output.action[t], environment.reward[t], environment.done[t],
          {name: x[t] for name, x in environment.observation.items()}), state, tf.constant([1, t]))
      np.testing.assert_allclose(got.policy_logits, want.policy_logits[t], rtol=1e-4, atol=1e-5)
    tf.nest.map_structure(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), state, last_state)

  def test_the_core_is_reset_but_hears_of_the_last_action_and_reward(self):
    agent = _agent(use_lstm=True)
    unroll = _unroll(agent, batch=1)
    done = np.zeros([7, 1], bool)
    done[3] = True
    environment = unroll.environment_output._replace(done=tf.constant(done))
    want = _forward(agent, unroll._replace(environment_output=environment))[0].baseline[..., 0].numpy()

    def baseline(action=(), reward=()):
      changed_action, changed_reward = unroll.agent_output.action.numpy(), environment.reward.numpy()
      for t in action:
        changed_action[t] = (changed_action[t] + 1) % NUM_ACTIONS
      for t, value in reward:
        changed_reward[t] = value
      changed = unroll._replace(agent_output=unroll.agent_output._replace(action=tf.constant(changed_action)),
                                environment_output=environment._replace(reward=tf.constant(changed_reward)))
      return _forward(agent, changed)[0].baseline[..., 0].numpy()

    np.testing.assert_array_equal(baseline(action=(0, 1, 2))[3:], want[3:])
    self.assertGreater(np.abs(baseline(action=(2,))[2] - want[2]).max(), 1e-6)
    self.assertGreater(np.abs(baseline(action=(3,))[3] - want[3]).max(), 1e-6)
    self.assertGreater(np.abs(baseline(reward=((3, 0.123),))[3] - want[3]).max(), 1e-6)
    # The LSTM's input has the reward clipped to [-1, 1].
    np.testing.assert_array_equal(baseline(reward=((3, 1.0),)), baseline(reward=((3, 50.0),)))
    np.testing.assert_array_equal(baseline(reward=((3, -1.0),)), baseline(reward=((3, -50.0),)))

  @parameterized.parameters(False, True)
  def test_the_instruction_is_read(self, use_lstm):
    agent = _agent(INSTRUCTED, use_lstm=use_lstm)
    unroll = _unroll(agent, INSTRUCTED)
    environment = unroll.environment_output

    def baseline(text):
      texts = np.tile(np.frombuffer(text.ljust(24, b'\0'), np.uint8), (*environment.done.shape, 1))
      observation = environment.observation | {'instruction': tf.constant(texts)}
      changed = unroll._replace(environment_output=environment._replace(observation=observation))
      return _forward(agent, changed)[0].baseline[..., 0].numpy()

    np.testing.assert_array_equal(baseline(b'red cake'), baseline(b' red  cake '))
    self.assertGreater(np.abs(baseline(b'red cake') - baseline(b'cake red')).max(), 1e-6)
    self.assertGreater(np.abs(baseline(b'') - baseline(b'cake')).max(), 1e-6)

  def test_the_feed_forward_agent_sees_the_observation_only(self):
    agent = _agent()
    unroll = _unroll(agent)
    self.assertEqual(unroll.agent_state, ())
    want, state = _forward(agent, unroll)
    self.assertEqual(state, ())
    other = _unroll(agent, seed=1)
    got, _ = _forward(agent, other._replace(environment_output=other.environment_output._replace(
        observation=unroll.environment_output.observation)))
    np.testing.assert_array_equal(got.policy_logits, want.policy_logits)

  def test_settings_of_pixels_reach_the_torso(self):
    """An unscaled first kernel is 255 times the scaled one; a constant picture without its median is black."""
    agents = [_agent(PIXELS, **settings) for settings in ({}, {'scale_pixels': False}, {'centre_pixels': 'median'})]
    unroll = _unroll(agents[0], PIXELS)
    plain, unscaled, _ = (_forward(agent, unroll)[0].policy_logits for agent in agents)
    self.assertGreater(np.abs(unscaled - plain).max(), 0.1)
    [kernel] = [variable for variable in agents[1].trainable_variables if variable.name.endswith('conv1/w:0')]
    kernel.assign(kernel / 255.)
    np.testing.assert_allclose(_forward(agents[1], unroll)[0].policy_logits, plain, rtol=1e-4, atol=1e-5)
    environment = unroll.environment_output
    grey, black = ({name: tf.fill(x.shape, tf.constant(value, x.dtype)) for name, x in environment.observation.items()}
                   for value in (200, 0))
    logits = [_forward(agent, unroll._replace(environment_output=environment._replace(observation=observation)))[0]
              .policy_logits for agent, observation in ((agents[0], black), (agents[2], grey))]
    np.testing.assert_array_equal(*logits)

  def test_the_lstm_has_a_precision_of_its_own(self):
    agents = [_agent(use_lstm=True, **settings) for settings in (
        {}, {'torso_precision': 'bfloat16'}, {'lstm_precision': 'bfloat16'})]
    unroll = _unroll(agents[0])
    plain, of_torso, of_lstm = (_forward(agent, unroll)[0].policy_logits.numpy() for agent in agents)
    np.testing.assert_array_equal(of_torso, plain)  # Vectors are not seen through the torso of pixels.
    self.assertBetween(np.abs(of_lstm - plain).max(), 1e-5, 0.1)

  def test_actions_are_samples_of_the_policy_and_a_function_of_the_seed(self):
    agent = _agent()
    batch = 4000
    observation = {'vector': tf.tile(tf.constant([[1.0, -2.0, 3.0, 0.5]]), [batch, 1])}

    inputs = _inputs(tf.zeros([batch], tf.int32), tf.zeros([batch]), tf.zeros([batch], tf.bool), observation)

    def step(seed, *selection):
      return agent.step(inputs, (), tf.constant(seed), *selection)[0]

    output = step([1, 2])
    self.assertEqual(output.action.dtype, tf.int32)
    shares = np.bincount(output.action, minlength=NUM_ACTIONS) / batch
    # Four standard deviations of a share are at most 4 * sqrt(0.25 / 4000).
    np.testing.assert_allclose(shares, tf.nn.softmax(output.policy_logits[0]), atol=0.032)
    np.testing.assert_array_equal(step([1, 2]).action, output.action)
    self.assertGreater(np.mean(step([1, 3]).action != output.action), 0.2)
    self.assertGreater(np.mean(step([2, 2]).action != output.action), 0.2)
    sampled = step([1, 2], acting.Selection(acting.SAMPLED))
    np.testing.assert_array_equal(sampled.action, output.action)
    greedy = step([1, 2], acting.Selection(acting.GREEDY))
    np.testing.assert_array_equal(greedy.action, np.argmax(output.policy_logits, -1))
    half = step([1, 2], acting.Selection(acting.EPSILON, 0.5)).action
    # One of five random actions is the greedy one. Four standard deviations are at most 4 * sqrt(0.25 / 4000).
    self.assertAlmostEqual(np.mean(half == greedy.action), 0.6, delta=0.032)

  def test_variables_exist_from_the_start_in_one_order(self):
    names = [v.name for v in _agent(PIXELS, use_lstm=True).trainable_variables]
    agent = _agent(PIXELS, use_lstm=True, seed=2)
    self.assertEqual([v.name for v in agent.trainable_variables], names)
    _forward(agent, _unroll(agent, PIXELS))
    self.assertEqual([v.name for v in agent.trainable_variables], names)
    self.assertLen(set(names), 12)

  def test_other_observations_are_refused(self):
    with self.assertRaisesRegex(ValueError, r"want 'pixels' or 'vector', got \['sound'\]"):
      _agent({'sound': tf.TensorSpec([4], tf.float32)})


def _log_softmax(logits):
  return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def _numpy_loss(agent, unroll, config, of_targets=None):
  """The loss of sections 4.1, 4.2 and 5.2.2 in loops. Only the network's outputs come from the agent.

  The importance weights, the targets and the advantages are those of the outputs `of_targets`; None for the agent's.
  """
  output, _ = _forward(agent, unroll)
  of_targets = output if of_targets is None else of_targets
  learning_logits, learning_baseline = np.float64(output.policy_logits), np.float64(output.baseline[..., 0])
  logits, baseline = np.float64(of_targets.policy_logits), np.float64(of_targets.baseline[..., 0])
  rewards = np.float64(unroll.environment_output.reward)
  discounts = config.discount * np.float64(unroll.environment_output.discount)
  actions, behaviour_logits = unroll.agent_output.action.numpy(), np.float64(unroll.agent_output.policy_logits)
  steps, batch = rewards.shape[0] - 1, rewards.shape[1]
  policy_gradient = baseline_loss = entropy = 0.0
  for b in range(batch):
    vs = baseline[:, b].copy()
    for t in reversed(range(steps)):
      action = actions[t + 1, b]
      log_pi = _log_softmax(logits[t, b])
      rho = np.exp(log_pi[action] - _log_softmax(behaviour_logits[t + 1, b])[action])
      value_rho = rho if config.off_policy_correction == 'vtrace' else 1.0
      policy_rho = rho if config.off_policy_correction in ('vtrace', 'one_step') else 1.0
      squeezed = 5.0 * np.tanh(rewards[t + 1, b] / 5.0)
      reward = squeezed * (0.3 if squeezed < 0 else 1.0)  # soft_asymmetric.
      discount = discounts[t + 1, b]
      vs[t] = (baseline[t, b]
               + min(config.clip_rho_threshold, value_rho) * (
                   reward + discount * baseline[t + 1, b] - baseline[t, b])
               + discount * config.vtrace_lambda * min(config.clip_c_threshold, value_rho) * (
                   vs[t + 1] - baseline[t + 1, b]))
      action_value = {'bootstrapped': reward + discount * vs[t + 1], 'one_step': reward + discount * baseline[t + 1, b],
                      'target': vs[t]}[config.action_values]
      advantage = min(config.clip_pg_rho_threshold, policy_rho) * (action_value - baseline[t, b])
      epsilon = 1e-6 if config.off_policy_correction == 'epsilon' else 0.0
      log_pi = _log_softmax(learning_logits[t, b])
      policy_gradient -= np.log(np.exp(log_pi[action]) + epsilon) * advantage
      baseline_loss += 0.5 * (vs[t] - learning_baseline[t, b])**2
      entropy += np.sum(np.exp(log_pi) * log_pi)
  total = policy_gradient + config.baseline_cost * baseline_loss + config.entropy_cost * entropy
  return {'loss/total': total, 'loss/policy_gradient': policy_gradient, 'loss/baseline': baseline_loss,
          'loss/entropy': entropy}


def _value_targets(agent, unroll, config):
  """The value targets vs, [T, B], by the recursion of remark 1."""
  output, _ = _forward(agent, unroll)
  logits, baseline = np.float64(output.policy_logits), np.float64(output.baseline[..., 0])
  vs = baseline.copy()
  for t in reversed(range(len(baseline) - 1)):
    action = unroll.agent_output.action.numpy()[t + 1][:, None]
    log_rhos = (np.take_along_axis(_log_softmax(logits[t]), action, -1)
                - np.take_along_axis(_log_softmax(np.float64(unroll.agent_output.policy_logits[t + 1])), action, -1))
    rhos = np.minimum(1.0, np.exp(log_rhos[:, 0]))
    reward = np.clip(unroll.environment_output.reward[t + 1], -1.0, 1.0)
    discount = config.discount * unroll.environment_output.discount[t + 1].numpy()
    vs[t] = baseline[t] + rhos * (reward + discount * baseline[t + 1] - baseline[t]) + discount * rhos * (
        vs[t + 1] - baseline[t + 1])
  return vs[:-1]


class LossTest(parameterized.TestCase):

  @parameterized.product(correction=('vtrace', 'one_step', 'epsilon', 'none'),
                         action_values=('bootstrapped', 'one_step', 'target'), use_lstm=(False, True))
  def test_matches_numpy(self, correction, action_values, use_lstm):
    config = configs.ImpalaConfig(
        use_lstm=use_lstm, off_policy_correction=correction, action_values=action_values, discount=0.9,
        baseline_cost=0.3, entropy_cost=0.02, clip_rho_threshold=1.5, clip_pg_rho_threshold=1.2, clip_c_threshold=1.3,
        vtrace_lambda=0.9, reward_transform='soft_asymmetric')
    agent = _agent(use_lstm=use_lstm)
    weights = next(v for v in agent.trainable_variables if v.name == 'agent/policy/w:0')
    weights.assign(16. * weights)  # Some of the actions have a probability near 1e-6, which epsilon changes.
    unroll = _unroll(agent)
    loss = _loss(agent, unroll, config)
    terms = {'loss/total': loss.total} | loss.terms
    want = _numpy_loss(agent, unroll, config)
    self.assertEqual(set(terms), set(want))
    for name, value in want.items():
      np.testing.assert_allclose(terms[name], value, rtol=1e-4, atol=1e-4, err_msg=name)

  def test_is_a_sum_over_the_batch(self):
    agent, config = _agent(use_lstm=True), configs.ImpalaConfig()
    unroll = _unroll(agent, batch=2)
    twice = tf.nest.map_structure(lambda x: tf.repeat(x, 2, axis=0 if x.shape[0] == 2 else 1), unroll)
    gradients = []
    for one in (unroll, twice):
      with tf.GradientTape() as tape:
        total = _loss(agent, one, config).total
      gradients.append(tape.gradient(total, agent.trainable_variables))
    for once, double in zip(*gradients):
      np.testing.assert_allclose(double, 2.0 * once, rtol=1e-4, atol=1e-4)

  @parameterized.product(use_lstm=(False, True), cost=('', 'baseline_cost', 'entropy_cost'))
  def test_gradient_of_all_weights_is_that_of_constant_targets(self, use_lstm, cost):
    """Central differences along random directions, of the policy's term alone and with each of the others."""
    config = configs.ImpalaConfig(**dict(baseline_cost=0., entropy_cost=0.) | ({cost: 5.} if cost else {}),
                                  reward_transform='soft_asymmetric')
    agent = _agent(use_lstm=use_lstm)
    unroll, random = _unroll(agent), np.random.RandomState(0)
    of_targets, _ = _forward(agent, unroll)
    with tf.GradientTape() as tape:
      total = _loss(agent, unroll, config).total
    variables = agent.trainable_variables
    gradients = tape.gradient(total, variables, unconnected_gradients='zero')
    for variable, gradient in zip(variables, gradients, strict=True):
      start, got, want = variable.numpy(), [], []
      for _ in range(3):
        direction = random.randn(*start.shape).astype(np.float32)
        direction *= 0.002 / np.linalg.norm(direction)  # Longer steps cross more of the ReLUs' kinks.
        losses = []
        for sign in (1, -1):
          variable.assign(start + sign * direction)
          losses.append(_numpy_loss(agent, unroll, config, of_targets)['loss/total'])
        got.append(np.sum(gradient * direction) / 0.002)
        want.append((losses[0] - losses[1]) / 0.004)
      variable.assign(start)
      # float32 and kinks make errors of up to 2 %.
      np.testing.assert_allclose(got, want, rtol=0., atol=0.1 * np.abs(want).max(), err_msg=variable.name)

  def test_gradient_of_the_baseline_is_half_the_error_summed_over_time(self):
    agent, config = _agent(), configs.ImpalaConfig(baseline_cost=0.5)
    unroll = _unroll(agent)
    bias = next(v for v in agent.trainable_variables if v.name == 'agent/baseline/b:0')
    with tf.GradientTape() as tape:
      total = _loss(agent, unroll, config).total
    # A bias is added to all values, and the targets are constants. So its gradient is the sum of 0.5 (V - vs).
    output, _ = _forward(agent, unroll)
    want = 0.5 * np.sum(output.baseline[:-1, :, 0] - _value_targets(agent, unroll, config))
    np.testing.assert_allclose(tape.gradient(total, bias), [want], rtol=1e-4, atol=1e-4)

  def test_row_0_has_no_say_in_what_is_learned(self):
    agent, config = _agent(), configs.ImpalaConfig()
    unroll, other = _unroll(agent), _unroll(agent, seed=1)
    first_of = lambda x, y: tf.concat([y[:1], x[1:]], axis=0)
    changed = unroll._replace(
        agent_output=tf.nest.map_structure(first_of, unroll.agent_output, other.agent_output),
        environment_output=tf.nest.map_structure(
            first_of, unroll.environment_output, other.environment_output)._replace(
                observation=unroll.environment_output.observation))
    self.assertEqual(float(_loss(agent, unroll, config).total), float(_loss(agent, changed, config).total))


class ReplayTest(parameterized.TestCase):
  """Section 5.2.2. tests/experience/mixed_experience_test.py tests the experience."""

  @parameterized.parameters((0.5, 2), (0.75, 3), (0., 0))
  def test_batches_have_the_share(self, share, num_replayed):
    config = configs.ImpalaConfig(replay_share=share, batch_size=4, unroll_length=6, replay_capacity=60)
    configs.validate_impala(config)
    unroll = _unroll(_agent(), batch=4)
    one = lambda b, index: unrolls.one(unroll, b)._replace(index=tf.constant(index, tf.int64))
    intake = intake_lib.Intake(tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), one(0, 0)), 40, 1)
    for index in range(10):
      for b in range(4):
        intake.put(one(b, index))
    made = impala.make_experience(intake, unrolls.environment_spec(), config, 1, None, None)
    while made.fill():
      pass
    self.assertEqual(made.unrolls_per_batch, 4 - num_replayed)
    batch, arrived = made.take_batch()
    self.assertEqual(batch.unroll.agent_output.action.shape, [7, 4])
    self.assertEqual(int(arrived.environment_frames), 6 * (4 - num_replayed))
    if num_replayed:
      self.assertEqual(batch.sample.key.shape, [num_replayed])
      self.assertEqual(set(batch.sample.probability.numpy()), {batch.sample.probability.numpy()[0]})
      for _ in range(2):
        made.take_batch()
      self.assertLessEqual(made.metrics()['replay_size'], 60)
      self.assertTrue(made.is_required)
      unsaved = dataclasses.replace(config, save_replay=False)
      self.assertFalse(impala.make_experience(intake, unrolls.environment_spec(), unsaved, 1, None, None).is_required)
    else:
      self.assertEqual(batch.sample, ())

  def test_a_replayed_unroll_is_learned_from_like_any_other(self):
    agent, config = _agent(), configs.ImpalaConfig()
    unroll = _unroll(agent)
    sample = mixed_experience.MixedSample(tf.ones([2]), tf.constant([0, 1], tf.int64))
    self.assertEqual(float(impala.loss(agent, learner_step.Batch(unroll, sample), config).total),
                     float(_loss(agent, unroll, config).total))


if __name__ == '__main__':
  absltest.main()
