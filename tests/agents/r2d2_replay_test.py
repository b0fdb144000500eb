"""Tests of R2D2's way into the replay and out of it: states, masks and priorities belong to the same steps."""

import dataclasses
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from scalable_agents.actor import acting
from scalable_agents.actor import unroll as unroll_lib
from scalable_agents.agents import configs
from scalable_agents.agents import r2d2
from scalable_agents.experience import intake as intake_lib
from scalable_agents.networks import q_networks
from scalable_agents.tests.training import unrolls

_SEQUENCE = dict(burn_in=3, sequence_length=6, sequence_period=3)


def _config(**settings):
  return configs.R2d2Config(**_SEQUENCE | dict(n_step=2, replay_capacity=100, replay_minimum_size=1) | settings)


class ReplayTest(parameterized.TestCase):
  """Unrolls that the agent itself has made go through the replay and come back as sequences."""

  def setUp(self):
    super().setUp()
    self.enterContext(mock.patch.object(q_networks, '_HIDDEN', 32))

  def _play(self, agent, config, num_unrolls, num_actors=3, truncates=False):
    """Yields unrolls of [T+1, B, ...] as the actor pool makes them: random observations, the agent's own actions.

    With `truncates`, most episodes end by a time limit.
    """
    random, step = np.random.RandomState(1), tf.function(agent.step)
    spec = unrolls.environment_spec()
    state, output = agent.initial_state(num_actors), None
    rows, first_states = [], []
    for row in range(num_unrolls * config.unroll_length + 1):
      if row % config.unroll_length == 0:
        first_states.append(state)
      done = random.uniform(size=num_actors) < (0.1 if row else 2.)
      discount = np.float32((~done | truncates) & (random.uniform(size=num_actors) > 0.1))
      environment = unroll_lib.EnvironmentOutput(
          random.randn(num_actors).astype(np.float32), discount, done, np.zeros(num_actors, np.float32),
          np.zeros(num_actors, np.int32), {'vector': random.randn(num_actors, 4).astype(np.float32)})
      if output is None:  # Before the first decision all is zero.
        output = tf.nest.map_structure(tf.zeros_like, agent.step(
            acting.example_input(spec.observation), agent.initial_state(1), tf.zeros([2], tf.int64))[0])
        output = tf.nest.map_structure(lambda x: tf.repeat(x, num_actors, axis=0), output)
      rows.append((environment, output))
      inputs = acting.ActorInput(tf.range(num_actors), tf.zeros([num_actors]), output.action, environment.reward,
                                 discount, done, environment.observation)
      inputs = tf.nest.map_structure(tf.convert_to_tensor, inputs)
      output, state = step(inputs, state, tf.constant([1, row], tf.int64))
    stack = lambda first: tf.nest.map_structure(
        lambda *values: tf.stack(values), *rows[first:first + config.unroll_length + 1])
    for index in range(num_unrolls):
      environment, output = stack(index * config.unroll_length)
      ids = tf.range(num_actors)
      yield unroll_lib.Unroll(
          tf.zeros_like(ids), ids, tf.cast(ids, tf.int64) + 7, tf.fill([num_actors], tf.constant(index, tf.int64)),
          first_states[index], {}, environment, output, tf.zeros(output.action.shape, tf.int64))

  def _experience(self, agent, config, played):
    """Returns the experience after it has taken in the unrolls."""
    sent = lambda unroll, actor: r2d2.to_send(unrolls.one(unroll, actor), config)
    spec = tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), sent(played[0], 0))
    intake = intake_lib.Intake(spec, 3 * len(played), 1)
    sequences = r2d2.make_experience(intake, unrolls.environment_spec(), config, 1, None, None)
    self.addCleanup(sequences.close)
    for unroll in played:
      for actor in range(3):
        intake.put(sent(unroll, actor))
    return sequences

  def _states(self, agent, inputs):
    """Steps the network through all rows of the three actors. Returns the state before each row, of [3, D] arrays."""
    state, states, step = agent.online.initial_state(3), [], tf.function(agent.online.step)
    for row in range(len(inputs.done)):
      states.append(tf.nest.map_structure(lambda x: x.numpy(), state))
      _, state = step(tf.nest.map_structure(lambda x: tf.constant(x[row]), inputs), state)
    return states

  @parameterized.parameters(
      dict(), dict(burn_in=0), dict(sequence_period=5, unroll_length=4), dict(use_lstm=False), dict(n_step=9),
      dict(reset_on_life_loss=True), dict(value_rescaling=False), dict(cross_episodes=True), dict(truncates=True))
  def test_the_actors_priorities_are_those_of_the_learner_with_the_same_parameters(self, truncates=False, **settings):
    """This is so only if states, observations, masks and priorities all belong to the same steps."""
    config = _config(**dict(unroll_length=10, batch_size=10, samples_per_period=1., epsilon_base=0.5) | settings)
    agent = r2d2.Agent(unrolls.environment_spec(), config)
    num_unrolls = 12
    played = list(self._play(agent, config, num_unrolls, truncates=truncates))
    # Everything comes in before the one batch.
    config = dataclasses.replace(
        config, samples_per_period=config.batch_size * config.sequence_period / (
            config.unroll_length * num_unrolls * 3))
    sequences = self._experience(agent, config, played)
    batch, _ = sequences.take_batch()
    priorities = r2d2.loss(agent, batch, config).feedback
    np.testing.assert_allclose(
        np.diff(np.log(batch.sample.probability)), config.priority_exponent * np.diff(np.log(priorities)), rtol=1e-2,
        atol=2e-3)
    self.assertGreater(np.std(np.log(priorities)), 0.1)

  def test_the_replay_has_the_settings(self):
    settings = r2d2._replay_settings(_config(
        unroll_length=10, batch_size=7, samples_per_period=1., replay_capacity=700, replay_minimum_size=30,
        priority_exponent=0.6, save_replay=False))
    self.assertEqual((settings.capacity, settings.minimum_size, settings.batch_size, settings.priority_exponent,
                      settings.is_saved), (700, 30, 7, 0.6, False))

  def test_a_batch_waits_for_the_nearest_whole_number_of_unrolls(self):
    config = _config(unroll_length=10, batch_size=99, samples_per_period=10.)  # 99 * 3 / (10 * 10) = 2.97.
    configs.validate_r2d2(config)
    agent = r2d2.Agent(unrolls.environment_spec(), config)
    self.assertEqual(self._experience(agent, config, list(self._play(agent, config, 1))).unrolls_per_batch, 3)

  @parameterized.parameters('stored', 'zero')
  def test_delta_q_is_zero_with_stored_states_and_the_same_parameters(self, recurrent_state):
    config = _config(unroll_length=10, batch_size=30, samples_per_period=1., measure_delta_q=True,
                     recurrent_state=recurrent_state)
    agent = r2d2.Agent(unrolls.environment_spec(), config)
    played = list(self._play(agent, config, 9))
    sequences = self._experience(agent, dataclasses.replace(config, samples_per_period=30 * 3 / (10 * 9 * 3)), played)
    batch, _ = sequences.take_batch()
    means = r2d2.loss(agent, batch, config).means
    if recurrent_state == 'stored':
      np.testing.assert_allclose([means['delta_q/first'], means['delta_q/last']], [0, 0], atol=1e-4)
    else:
      self.assertGreater(means['delta_q/first'], 1e-2)
      self.assertLess(means['delta_q/last'], means['delta_q/first'])

  def test_regression_the_stored_state_is_the_one_before_the_first_row(self):
    """States are recomputed from the episode's start. A released implementation is off by the burn-in."""
    config = _config(unroll_length=10, batch_size=30, samples_per_period=30 * 3 / (10 * 9 * 3))
    agent = r2d2.Agent(unrolls.environment_spec(), config)
    played = list(self._play(agent, config, 9))
    batch, _ = self._experience(agent, config, played).take_batch()
    rows = tf.nest.map_structure(
        lambda *parts: np.concatenate([parts[0], *(part[1:] for part in parts[1:])]), *map(acting.inputs_of, played))
    states = self._states(agent, rows)
    num_checked = 0
    for b in np.flatnonzero(batch.sample.padding == 0):
      actor, first = int(batch.unroll.actor_id[b]), int(batch.unroll.index[b])
      if not batch.unroll.environment_output.done[0, b]:  # Else the state is reset.
        for got, want in zip(batch.unroll.agent_state, states[first]):
          np.testing.assert_allclose(got[b], want[actor], rtol=1e-4, atol=1e-5)
        num_checked += 1
    self.assertGreater(num_checked, 5)

  @parameterized.parameters(
      dict(), dict(cross_episodes=True), dict(reset_on_life_loss=True), dict(measure_delta_q=True), dict(burn_in=0),
      dict(burn_in=2, sequence_period=5, reset_on_life_loss=True, measure_delta_q=True))
  def test_stored_states_are_right_also_after_lost_unrolls(self, **settings):
    config = _config(**dict(unroll_length=7, batch_size=60) | settings)
    agent = r2d2.Agent(unrolls.environment_spec(), config)
    played = list(self._play(agent, config, 20))
    came = [unroll for index, unroll in enumerate(played) if index not in (0, 4, 5, 9, 13)]
    config = dataclasses.replace(config, samples_per_period=60 * config.sequence_period / (7 * 3 * len(came)))
    sequences = self._experience(agent, config, came)
    batch, _ = sequences.take_batch()
    self.assertEqual(sequences.metrics()['replay_gaps'], 3 * 3)
    inputs = tf.nest.map_structure(
        lambda *parts: np.concatenate([parts[0], *(part[1:] for part in parts[1:])]), *map(acting.inputs_of, played))
    resets = r2d2.resets(inputs, config)
    states = self._states(agent, inputs._replace(done=resets))
    offsets = [0] + [config.burn_in, config.burn_in + config.sequence_length - 1] * config.measure_delta_q
    num_checked = 0
    for number, offset in enumerate(offsets):
      stored = batch.unroll.agent_state if number == 0 else tf.nest.map_structure(
          lambda x: x[number - 1], batch.sample.later_states)
      for b in range(60):
        end = config.burn_in + int(np.sum(batch.sample.trains[:, b]))
        row, actor = int(batch.unroll.index[b]) + offset, int(batch.unroll.actor_id[b])
        if batch.sample.padding[b] <= offset < end and not resets[row, actor]:
          for got, want in zip(stored, states[row]):
            np.testing.assert_allclose(got[b], want[actor], rtol=1e-4, atol=1e-5)
          num_checked += 1
    self.assertGreater(num_checked, 10)


if __name__ == '__main__':
  absltest.main()
