"""Tests of LASER's settings, its network, its learner and its choice of a replay. laser_loss_test.py tests the loss."""

import dataclasses
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from scalable_agents.agents import configs
from scalable_agents.agents import laser
from scalable_agents.agents import registry
from scalable_agents.experience import experience as experience_lib
from scalable_agents.experience import intake as intake_lib
from scalable_agents.experience import mixed_experience
from scalable_agents.launch import atari57_protocol
from scalable_agents.launch import dmlab30_protocol
from scalable_agents.learner import learner_step
from scalable_agents.learner import popart
from scalable_agents.learner import trust_region
from scalable_agents.learner import vtrace
from scalable_agents.tests.training import unrolls

_LEVELS = ('catch', 'chain', 'recall')
_LEVEL_IDS = [0, 2, 0, 0, 2, 2, 0, 2]  # Nothing comes from level 1.
_MU, _SIGMA = np.array([3., -1., 700.]), np.array([0.5, 2., 90.])
_SHARED = dict(shared_replay='localhost:20000')


def _config(**settings):
  return configs.LaserConfig(**dict(
      torso='shallow', reward_transform='none', learning_rate_decay=False, unroll_length=6, batch_size=8,
      replay_capacity=1000, replay_minimum_size=1) | settings)


class ConfigTest(parameterized.TestCase):

  def test_the_defaults_are_the_papers_where_it_states_them(self):
    config = configs.LaserConfig()
    configs.validate_laser(config)
    self.assertEqual((config.replay_share, config.replay_capacity), (0.875, 10_000_000))  # Section 5.3, figure 2.
    self.assertEqual((config.relevance, config.clip_rho_threshold), ('implied', 1.))      # Sections 4.3 and 2.3.
    self.assertEqual((config.replay_sampling, config.learn_online), ('episodes', True))   # Section 5.1.
    self.assertEqual(config.trust_region_threshold, 0.1)                                  # Not stated.
    self.assertEqual((config.importance_exponent, config.shared_replay), (1., ''))        # Figure 4.
    for field in dataclasses.fields(configs.LaserConfig):
      self.assertEqual(field.metadata['help'][-1], '.', field.name)

  def test_atari_has_the_papers_values(self):
    config, protocol = registry.PRESETS['laser_atari57'].config, registry.PRESETS['laser_atari57'].protocol
    configs.validate_laser(config)
    self.assertEqual(config.split_batch(), (32, 128))  # Section 5.1.
    self.assertEqual(
        (config.torso, config.use_lstm, config.unroll_length, config.discount, config.clip_gradient_norm,
         config.learning_rate_decay, config.replay_capacity),
        ('deep_4x', False, 19, 0.995, 0., False, 10_000_000))                                    # Sections 5.1 and 5.3.
    self.assertEqual((config.learning_rate, config.entropy_cost), (6e-4, 1e-2))  # The middle of section 5.1's grid.
    self.assertEqual((config.value_normalization, config.use_pixel_control), ('none', False))
    self.assertEqual(dataclasses.replace(protocol, noop_max=30), atari57_protocol.Protocol())
    self.assertEqual((protocol.noop_max, protocol.max_episode_frames), (37, 30 * 60 * 60))       # Appendix D.
    # What the paper does not state is IMPALA's (table G.1).
    its = dataclasses.asdict(configs.ImpalaConfig())
    changed = {name for name, value in its.items() if getattr(config, name) != value}
    self.assertEqual(changed, {'torso', 'unroll_length', 'batch_size', 'discount', 'clip_gradient_norm',
                               'learning_rate_decay', 'replay_share', 'replay_capacity'})

  def test_dmlab_has_the_papers_values(self):
    config = registry.PRESETS['laser_dmlab30'].config
    configs.validate_laser(config)
    self.assertEqual(config.split_batch(), (32, 224))  # Figures 2 and 3.
    self.assertEqual(
        (config.unroll_length, config.use_lstm, config.value_normalization, config.use_pixel_control,
         config.rmsprop_epsilon, config.clip_gradient_norm, config.replay_capacity, config.total_environment_frames),
        (79, True, 'popart', True, 0.1, 0., 10_000_000, 10_000_000_000))       # Sections 5.1 and 5.3, table 1.
    its = dataclasses.asdict(registry.PRESETS['impala_dmlab30'].config)
    changed = {name for name, value in its.items() if getattr(config, name) != value}
    self.assertEqual(changed, {'unroll_length', 'batch_size', 'replay_share', 'replay_capacity', 'use_pixel_control'})
    self.assertIs(type(registry.PRESETS['laser_dmlab30'].run), type(registry.PRESETS['laser_atari57'].run))
    self.assertEqual(registry.PRESETS['laser_dmlab30'].protocol, dmlab30_protocol.Protocol(action_set='popart'))

  def test_the_sweep_is_that_of_section_5_1(self):
    """IMPALA's table D.1 for learning rate and entropy cost. The epsilon of RMSProp stays 0.1."""
    self.assertEqual(laser.LASER.sweep.num_samples, 10)
    self.assertEqual({name: (drawn.least, drawn.most) for name, drawn in laser.LASER.sweep.ranges.items()},
                     {'learning_rate': (5e-6, 5e-3), 'entropy_cost': (5e-5, 1e-2)})

  @parameterized.parameters(
      (dict(replay_share=0.04), '--replay_share=0.04: a batch of 8 unrolls would have 8 new and 0 replayed ones: want '
       'at least one of each, for example with a larger --batch_size'),
      (dict(replay_share=0.95), '--replay_share=0.95: a batch of 8 unrolls would have 0 new and 8 replayed ones: want '
       'at least one of each, for example with a larger --batch_size'),
      (dict(replay_minimum_size=51, replay_capacity=101),
       '--replay_minimum_size=51: want at most half of --replay_capacity=101'),
      (dict(learn_online=False, replay_share=0.), '--nolearn_online: want a --replay_share above 0, because '
       'without a replay nothing would be learned'),
      (dict(shared_replay='somewhere'), '--shared_replay=somewhere: want HOST:PORT'),
      (_SHARED | dict(replay_sampling='unrolls'), '--shared_replay=localhost:20000: want --replay_sampling=episodes '
       'and a --replay_share above 0: agents share whole episodes, because their recurrent states and priorities '
       'differ'),
      (_SHARED | dict(replay_share=0.), '--shared_replay=localhost:20000: want --replay_sampling=episodes and a '
       '--replay_share above 0: agents share whole episodes, because their recurrent states and priorities differ'),
      (dict(replay_share=1.), '--replay_share=1.0: want a number of at least 0 and less than 1'),
      (dict(trust_region_threshold=-1.), '--trust_region_threshold=-1.0: want a number of more than 0, or inf'),
      (dict(trust_region_threshold=0.), '--trust_region_threshold=0.0: want a number of more than 0, or inf'),
      (dict(relevance='kl'), '--relevance=kl: want one of implied, kl_mu'),
      (dict(replay_sampling='steps'), '--replay_sampling=steps: want one of episodes, unrolls, prioritised'),
      (dict(importance_exponent=2.), '--importance_exponent=2.0: want a number from 0 to 1'))
  def test_refuses(self, settings, message):
    with self.assertRaises(ValueError) as caught:
      configs.validate_laser(_config(**settings))
    self.assertStartsWith(str(caught.exception), message)
    self.assertNotIn('\n', str(caught.exception))

  @parameterized.parameters(
      dict(replay_share=0.1), dict(replay_share=0.9), dict(replay_minimum_size=50, replay_capacity=100), _SHARED,
      dict(replay_share=0., replay_minimum_size=51, replay_capacity=101),
      dict(replay_share=0.), dict(trust_region_threshold=np.inf), dict(clip_rho_threshold=np.inf))
  def test_values_at_the_edge_are_allowed(self, **settings):
    configs.validate_laser(_config(**settings))


class AgentTest(absltest.TestCase):

  def test_number_of_parameters_with_four_times_the_channels(self):
    """Section 5.1. The convolutions have about 16 times IMPALA's parameters, the fully connected layer 4 times."""
    pixels = {'pixels': tf.TensorSpec((84, 84, 4), tf.uint8)}
    agent = laser.Agent(unrolls.environment_spec(pixels, 18), registry.PRESETS['laser_atari57'].config)
    sections = sum(9 * before * after + after + 4 * (9 * after**2 + after)
                   for before, after in ((4, 64), (64, 128), (128, 128)))
    want = sections + (11 * 11 * 128 + 1) * 256 + 257 * (18 + 1)
    self.assertEqual(want, 5_522_259)
    self.assertEqual(sum(int(np.prod(variable.shape)) for variable in agent.trainable_variables), want)

  def test_levels_without_pixels_have_no_pixel_control(self):
    config = registry.PRESETS['laser_dmlab30'].config
    agent = laser.Agent(unrolls.environment_spec(), config)
    loss = laser.loss(agent, learner_step.Batch(unrolls.random_unroll(agent)), config)
    self.assertTrue(config.use_pixel_control)
    self.assertNotIn('loss/pixel_control', loss.terms)


class LearnerTest(parameterized.TestCase):

  def _learner(self, config, xla='never'):
    agent = laser.Agent(unrolls.environment_spec(levels=_LEVELS), config)
    agent.statistics.first.assign(_MU)
    agent.statistics.second.assign(_SIGMA**2 + _MU**2)
    unroll = unrolls.random_unroll(agent, batch=8, level_ids=_LEVEL_IDS)
    environment = unroll.environment_output
    return laser.LASER.make_learner(agent, config, xla), unroll._replace(environment_output=environment._replace(
        reward=environment.reward * tf.constant(_SIGMA[_LEVEL_IDS], tf.float32)))

  @parameterized.parameters('literal', 'mean_of_squares')
  def test_statistics_follow_the_targets_of_trusted_steps(self, second_moment):
    config = _config(popart_decay=0.3, popart_second_moment=second_moment, trust_region_threshold=0.25)
    learner, unroll = self._learner(config)
    logits = unroll.agent_output.policy_logits.numpy()
    logits[:, 3] = 100 * np.eye(unrolls.NUM_ACTIONS)[0]  # Unroll 3 has no trusted step.
    unroll = unroll._replace(agent_output=unroll.agent_output._replace(policy_logits=tf.constant(logits)))
    agent = learner.agent
    output, _ = unrolls.forward(agent, unroll)
    trusted = trust_region.relevance('implied', logits[1:], output.policy_logits[:-1]).numpy() < 0.25
    self.assertFalse(trusted[:, 3].any())
    self.assertBetween(trusted.mean(), 0.2, 0.8)
    values = popart.select(output.baseline, unroll.level_id) * np.float32(_SIGMA[_LEVEL_IDS]) + np.float32(
        _MU[_LEVEL_IDS])
    log_pi, log_mu = (vtrace.log_probs_from_logits_and_actions(policy, unroll.agent_output.action[1:])
                      for policy in (output.policy_logits[:-1], logits[1:]))
    targets = np.float64(vtrace.from_importance_weights(  # tests/learner/trust_region_test.py tests it.
        log_pi - log_mu, config.discount * unroll.environment_output.discount[1:], unroll.environment_output.reward[1:],
        values[:-1], values[-1], trusted=trusted).vs)
    first, second = _MU.copy(), _SIGMA**2 + _MU**2
    for b, level in enumerate(_LEVEL_IDS):
      if trusted[:, b].any():
        its = targets[trusted[:, b], b]
        first[level] = 0.7 * first[level] + 0.3 * its.mean()
        second[level] = 0.7 * second[level] + 0.3 * (
            its.mean()**2 if second_moment == 'literal' else (its**2).mean())
    metrics = unrolls.update(learner, unroll)
    self.assertEqual(metrics['update_skipped'], 0.)
    np.testing.assert_allclose(agent.statistics.first, first, rtol=1e-5)
    np.testing.assert_allclose(agent.statistics.second, second, rtol=1e-5)

  def test_xla_makes_no_difference(self):
    config = _config(trust_region_threshold=0.25, replay_sampling='prioritised', importance_exponent=0.5)
    results = []
    for xla in ('never', 'always'):
      learner, unroll = self._learner(config, xla)
      sample = mixed_experience.MixedSample(np.linspace(0.1, 0.9, 6, dtype=np.float32), np.arange(6))
      level_id = tf.constant(np.random.RandomState(1).randint(3, size=[7, 8]), tf.int32)  # Of each row.
      metrics, feedback = learner.step(learner_step.Batch(
          unroll._replace(level_id=level_id), tf.nest.map_structure(tf.constant, sample)))
      results.append((learner.read(metrics), feedback, learner.agent.variables))
    (want, want_feedback, want_variables), (got, feedback, variables) = results
    self.assertEqual((want['update_skipped'], feedback.shape), (0., [6]))
    self.assertBetween(want['rejected/replayed'], 0.1, 0.9)
    self.assertEqual(set(want), set(got))
    for name, value in want.items():
      np.testing.assert_allclose(got[name], value, rtol=1e-3, err_msg=name)
    np.testing.assert_allclose(feedback, want_feedback, rtol=1e-3)
    for one, other in zip(variables, want_variables, strict=True):
      np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)

  def test_populations_do_not_tune_epsilon(self):
    learner, _ = self._learner(_config(clip_gradient_norm=40.))
    self.assertEqual(list(learner.hyper_parameters), ['learning_rate', 'entropy_cost', 'clip_gradient_norm'])

  @parameterized.parameters('literal', 'mean_of_squares')
  def test_with_a_threshold_of_0_nothing_changes(self, second_moment):
    config = _config(popart_decay=0.3, popart_second_moment=second_moment, trust_region_threshold=0.)
    learner, unroll = self._learner(config)
    before = [variable.numpy() for variable in learner.agent.variables]
    metrics = unrolls.update(learner, unroll)
    self.assertEqual((metrics['update_skipped'], metrics['grad_norm'], metrics['rejected/online']), (0., 0., 1.))
    for variable, value in zip(learner.agent.variables, before, strict=True):
      np.testing.assert_array_equal(variable, value, variable.name)


class ExperienceTest(parameterized.TestCase):

  def _make(self, make_agent=None, **settings):
    """Returns the agent's experience, after 48 unrolls of 16 streams in which an episode ends in each unroll."""
    config = _config(**settings)
    configs.validate_laser(config)
    spec = unrolls.environment_spec()
    agent = laser.Agent(spec, config)
    unroll = unrolls.random_unroll(agent, batch=16)
    environment = unroll.environment_output
    done = tf.tile(tf.constant([[i in (0, 2, 5)] for i in range(7)]), [1, 16])
    unroll = unroll._replace(environment_output=environment._replace(done=done))
    one = lambda b, index: unrolls.one(unroll, b)._replace(index=tf.constant(index, tf.int64))
    intake = intake_lib.Intake(tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), one(0, 0)), 48, 1)
    made = laser.make_experience(intake, spec, config, 1, None, make_agent)  # Not called without an LSTM.
    self.addCleanup(made.close)
    for index in range(3):
      for b in range(16):
        intake.put(one(b, index))
    while made.fill():
      pass
    return made

  @parameterized.product(replay_sampling=('episodes', 'unrolls', 'prioritised'), learn_online=(True, False))
  def test_batches_have_the_shares_of_the_settings(self, replay_sampling, learn_online):
    made = self._make(replay_sampling=replay_sampling, learn_online=learn_online, replay_share=0.75)
    self.assertEqual(made.unrolls_per_batch, 2)
    for _ in range(2):
      batch, arrived = made.take_batch()
      self.assertEqual(batch.unroll.environment_output.reward.shape, [7, 8])
      self.assertEqual(batch.sample.key.shape, [6 if learn_online else 8])
      self.assertEqual(int(arrived.environment_frames), 2 * 6)

  def test_a_replay_is_saved_unless_it_must_not_be(self):
    for is_saved in (True, False):
      self.assertEqual(self._make(save_replay=is_saved).is_required, is_saved)

  def test_replayers_of_a_variant_have_its_network(self):
    with mock.patch.object(laser.replayers, 'Replayers', side_effect=InterruptedError) as replayers, \
         self.assertRaises(InterruptedError):
      self._make(lambda: 'the network of the variant', use_lstm=True)
    self.assertEqual(replayers.call_args.args[4], 'the network of the variant')

  def test_an_agent_may_be_four_batches_ahead_of_those_it_shares_its_replay_with(self):
    with mock.patch.object(laser.replayers, 'join_replay', side_effect=InterruptedError) as join, \
         self.assertRaises(InterruptedError):
      self._make(replay_share=0.75, **_SHARED)
    tolerance, num_levels, num_actions = join.call_args.args[5:]
    self.assertEqual(tolerance, 4 * 2 * 6)  # Agent steps: 2 of the 8 unrolls in a batch are new.
    # What others send is checked with these.
    self.assertEqual((num_levels, num_actions), (len(unrolls.LEVELS), unrolls.NUM_ACTIONS))

  def test_a_replay_of_its_own_has_the_capacity(self):
    with mock.patch.object(laser.replayers, 'own_replay', side_effect=InterruptedError) as own, \
         self.assertRaises(InterruptedError):
      self._make(replay_sampling='episodes', replay_share=0.75, replay_capacity=700)
    self.assertEqual(own.call_args.args[2:], (700, 8))

  def test_without_replay_it_is_a_queue(self):
    made = self._make(replay_share=0.)
    self.assertIsInstance(made, experience_lib.QueueExperience)
    self.assertEqual(made.take_batch()[0].sample, ())

  @parameterized.parameters('episodes', 'unrolls')
  def test_fills_up_to_the_minimum(self, replay_sampling):
    made = self._make(replay_sampling=replay_sampling, replay_minimum_size=50,
                      learn_online=replay_sampling != 'episodes')  # Else it would not wait for episodes.
    self.assertBetween(made.metrics()['replay_size'], 50, 50 + 2 * 6)

  def test_only_prioritised_replay_has_priorities(self):
    for sampling, exponent, is_prioritised in (
        ('prioritised', 0.6, True), ('prioritised', 0., False), ('unrolls', 0.6, False)):
      made = self._make(replay_sampling=sampling, priority_exponent=exponent, replay_minimum_size=100)
      batch, _ = made.take_batch()
      made.update(batch.sample, tf.range(1., 1. + batch.sample.key.shape[0]))
      batch, _ = made.take_batch()
      self.assertEqual(len(set(batch.sample.probability.numpy())) > 1, is_prioritised)


if __name__ == '__main__':
  absltest.main()
