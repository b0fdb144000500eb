"""Tests of the experience with a replay: the experience of real environments and actors comes back as sequences."""

import os
import tempfile
import types
from typing import Any, NamedTuple

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from scalable_agents.actor import actor_host
from scalable_agents.actor import parameters as parameters_lib
from scalable_agents.experience import intake as intake_lib
from scalable_agents.experience import replay_experience
from scalable_agents.learner import frame_stacks
from scalable_agents.records import errors
from scalable_agents.replay import sequence_replay as replay_lib
from scalable_agents.tests.actor import test_environments
from scalable_agents.tests.actor import waiting
from scalable_agents.tests.training import stacked_environment
from scalable_agents.training import run_config

_GEOMETRY = replay_lib.Geometry(burn_in=3, length=5, period=2)
_SETTINGS = replay_experience.ReplaySettings(
    _GEOMETRY, capacity=400, minimum_size=150, batch_size=16, unrolls_per_batch=6, priority_exponent=0.5,
    state_offsets=(0, 3, 7))
_FEW_STATES = _SETTINGS._replace(capacity=200, state_offsets=(0,), unrolls_per_batch=3)


class _Output(NamedTuple):
  """What the agent of this test tells: with `place`, the row that it acted on."""
  action: Any        # [] int32.
  place: Any         # [2] float32, episode and step.
  agent_state: Any   # The state before the row.
  episode_step: Any  # [] int32.


class _Agent(tf.Module):
  """Its state before a row is episode and step of the row before, or zeros at a stream's start."""

  def __init__(self):
    super().__init__()
    self.acting_variables = [tf.Variable(0.)]

  def initial_state(self, batch_size):
    return {'before': tf.zeros([batch_size, 2])}

  def step(self, inputs, agent_state, seed, selection=None):
    del seed, selection
    place = tf.cast(inputs.observation['record'][:, 1:3], tf.float32)
    action = tf.cast(tf.reduce_sum(place, axis=1), tf.int32) % test_environments.NUM_ACTIONS
    return _Output(action, place, agent_state, tf.cast(place[:, 1], tf.int32)), {'before': place}


class SequenceExperienceTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.story, self.settings = {}, _SETTINGS

  def _start(self, settings=_SETTINGS, unroll_length=4, **faults):
    """Lets six environments play into a replay. Returns the experience, the host and a function that takes a batch."""
    self.settings = settings
    run = run_config.RunConfig(num_environments=6, num_environment_workers=3)
    host = actor_host.ActorHost(['any'], faults, run, seed=0, environment=f'{stacked_environment.__name__}:make')
    self.addCleanup(host.close)
    host.make_pool(
        _Agent, unroll_length, 1, lambda fault: None,
        to_send=lambda unroll: replay_experience.to_send(unroll, settings))
    self.assertEqual(host.unroll_spec.environment_output.observation['pixels'].shape, [unroll_length + 1, 2, 2, 1])
    intake = intake_lib.Intake(host.unroll_spec, 4, 1)
    experience = replay_experience.SequenceExperience(
        intake, host.specification.frame_stacks, settings, 1, lambda environment: environment.done,
        # More recent steps are likelier, which tells whether signals belong to their sequence.
        lambda unroll, trains: tf.reduce_max(unroll.agent_output.place[:, :, 0], axis=0) + 1.)
    self.addCleanup(experience.close)
    self.addCleanup(host.pool.close)
    parameters = parameters_lib.ParameterSnapshot([tf.TensorSpec([])])
    parameters.publish(7, [tf.constant(0.)])
    host.start(parameters, intake.put, lambda: None)
    take = tf.function(experience.take_batch, autograph=False)
    return experience, host, lambda: tf.nest.map_structure(lambda x: x.numpy(), take())

  def _episode(self, seed, number):
    if seed not in self.story:
      self.story[seed] = test_environments.Story(seed)
    return self.story[seed].episode(number)

  def _check(self, batch):
    """Checks every row of every sequence of a batch against what the environments must have done."""
    unroll, sample, geometry = batch.unroll, batch.sample, self.settings.geometry
    environment, observation = unroll.environment_output, unroll.environment_output.observation
    stacks = frame_stacks.stack(observation['pixels'], unroll.earlier_frames['pixels'], environment.done)
    num_rows = geometry.burn_in + geometry.length + 1
    for b in range(sample.key.size):
      first = geometry.burn_in
      seed, episode, trained, _ = observation['record'][first, b].tolist()
      rewards, lost = self._episode(seed, episode)
      padding = max(first - trained, 0)
      self.assertEqual(sample.padding[b], padding)
      exists = np.arange(num_rows) + trained - first  # The step of each row.
      np.testing.assert_array_equal(sample.trains[:, b], exists[first:-1] < len(rewards))
      for row, step in enumerate(exists.tolist()):
        if step < 0 or step > len(rewards):
          for values in tf.nest.flatten(environment._replace(observation=observation['record'])):
            self.assertFalse(values[row, b].any())
          continue
        # The row after an episode's last step has the next episode's first observation.
        place = (episode, step) if step < len(rewards) else (episode + 1, 0)
        self.assertEqual(observation['record'][row, b, :3].tolist(), [seed, *place])
        frames = [stacked_environment.frame(seed, place[0], place[1] - age) if age <= place[1] else np.zeros([2, 2])
                  for age in reversed(range(stacked_environment.STACK))]
        np.testing.assert_array_equal(stacks[row, b], np.stack(frames, axis=-1))
        self.assertEqual(environment.done[row, b], place[1] == 0)
        if step:
          before = (episode, step - 1)
          self.assertEqual(environment.reward[row, b], rewards[step - 1])
          is_end = step == len(rewards) or lost[step - 1]
          self.assertEqual(environment.discount[row, b], 0. if is_end else 1.)
          self.assertEqual(unroll.agent_output.place[row, b].tolist(), list(before))
          self.assertEqual(unroll.agent_output.action[row, b], sum(before) % test_environments.NUM_ACTIONS)
      states = [unroll.agent_state['before'][b], *sample.later_states['before'][:, b]]
      for offset, state in zip(self.settings.state_offsets, states):
        step = exists[offset]
        if 0 < step < len(rewards):
          self.assertEqual(state.tolist(), [episode, step - 1], f'offset {offset}')
      self.assertEqual(unroll.actor_id[b], seed % 6)
    begins_stream = unroll.index + np.arange(num_rows)[:, np.newaxis] == 0
    self.assertEqual(set(unroll.parameter_version[~begins_stream]), {7})  # Also in padding, or it would seem to be old.

  @parameterized.parameters(
      (_SETTINGS, 4, 4),  # Every row needs a state: the offsets 0 and 3 are different modulo the period of 2.
      (_FEW_STATES._replace(geometry=replay_lib.Geometry(3, 5, 4)), 8, 4),  # A row needs one if its step modulo 4 is 1.
      (_FEW_STATES._replace(geometry=replay_lib.Geometry(4, 5, 4)), 8, 2))  # If it is 0, but not in step 0.
  def test_sequences_are_what_the_environments_did(self, settings, unroll_length, num_states):
    experience, host, take = self._start(settings, unroll_length)
    self.assertEqual(host.unroll_spec.agent_output.agent_state.state['before'].shape, [num_states, 2])
    shares = []
    while filled := experience.fill():
      self.assertEqual(filled.environment_frames, 4 * 6)
      shares.append(experience.metrics()['replay_filled'])
    self.assertEqual(shares, sorted(shares))
    self.assertBetween(shares[0], 0., 0.5)
    self.assertEqual(shares[-1], 1.)
    self.assertGreaterEqual(experience.metrics()['replay_size'], 150)
    keys = set()
    for _ in range(40):
      batch, arrived = take()
      self.assertEqual(arrived.environment_frames, 4 * 6)
      self._check(batch)
      keys.update(batch.sample.key.tolist())
      experience.update(tf.nest.map_structure(tf.constant, batch.sample), tf.ones([16]))
    metrics = experience.metrics()
    self.assertEqual(metrics['sequences_sampled'], 40 * 16)
    self.assertEqual(metrics['replay_size'], settings.capacity)
    self.assertGreater(metrics['sequences_inserted'], settings.capacity)  # Old sequences were replaced.
    self.assertEqual(metrics['replay_gaps'], 0)
    self.assertGreater(len(keys), settings.capacity // 2)

  def test_killed_environments_never_mix_sequences(self):
    experience, host, take = self._start(fault='kill', fault_step=60, faulty_below=12)
    while experience.fill():
      pass
    seeds = [0]
    while host.pool.restarts < 6 or min(seeds) < 6:
      batch, _ = take()
      self._check(batch)
      seeds = batch.unroll.environment_output.observation['record'][_GEOMETRY.burn_in, :, 0].tolist()

  def test_first_priorities_and_saves_restores_or_fills_again(self):
    experience, _, take = self._start()
    while experience.fill():
      pass
    batch, _ = take()
    # The priority is the last episode that a trained step saw, plus 1; to the power of 0.5.
    trained = slice(_GEOMETRY.burn_in + 1, None)
    episodes = batch.unroll.agent_output.place[trained, :, 0].max(axis=0) + 1
    np.testing.assert_allclose(batch.sample.probability / batch.sample.probability[0],
                               np.sqrt(episodes / episodes[0]), rtol=1e-4)
    with tempfile.TemporaryDirectory() as folder:
      experience.save(folder)
      restored, _, take = self._start()
      restored.restore(folder)
      self.assertIsNone(restored.fill())
      self.assertEqual(restored.metrics()['sequences_inserted'], experience.metrics()['sequences_inserted'])
      for _ in range(5):
        self._check(take()[0])
      other, _, _ = self._start(_SETTINGS._replace(capacity=300))
      with self.assertRaisesRegex(ValueError, 'other settings'):
        other.restore(folder)
      other, _, _ = self._start(_SETTINGS._replace(capacity=300, is_saved=False))
      other.restore(folder)  # With --nosave_replay, the file is ignored.
    with tempfile.TemporaryDirectory() as folder:
      self.assertIsNotNone(other.fill())
      other.save(folder)
      self.assertEmpty(os.listdir(folder))

  def test_wrong_rows_of_states_from_another_process_do_no_harm(self):
    states = tf.fill([4, 1, 2], 3e38)  # The sum of two is not finite.
    sent = replay_experience.SentStates(tf.constant([[-1], [100], [2], [2]]), {'before': states})
    unroll = types.SimpleNamespace(
        agent_output=types.SimpleNamespace(agent_state=sent), parameter_version=tf.zeros([5, 1], tf.int64))
    of_rows = replay_experience._states_of_rows(unroll)['before']
    np.testing.assert_allclose(of_rows[:, 0, 0], [3e38, 0, 3e38, 0, 3e38])

  def test_an_infinite_first_priority_is_the_largest_number(self):
    experience, _, take = self._start()
    experience._first_priorities = lambda unroll, trains: tf.fill([tf.shape(trains)[1]], np.inf)
    while experience.fill():
      pass
    batch, _ = take()
    self._check(batch)
    np.testing.assert_allclose(batch.sample.probability, batch.sample.probability[0])

  def test_close_ends_the_wait(self):
    experience, host, _ = self._start()
    host.pool.close()
    filling = waiting.start(lambda: [None for _ in iter(experience.fill, None)])
    experience.close()
    with self.assertRaises((tf.errors.OutOfRangeError, tf.errors.CancelledError)):
      filling()

  @parameterized.parameters(dict(capacity=10**12), dict(batch_size=10**12))
  def test_what_does_not_fit_into_memory_is_refused(self, **too_large):
    settings = _SETTINGS._replace(**too_large)
    with self.assertRaisesRegex(
        errors.UserError, f'^--replay_capacity={settings.capacity}, --batch_size={settings.batch_size}: a full '
        f'replay of {settings.capacity:,} sequences takes ' r'[\d,.]+ GB and two batches take [\d,.]+ GB, but the '
        'machine has '):
      self._start(settings)

  def test_too_many_new_unrolls_per_update_are_refused(self):
    with self.assertRaisesRegex(errors.UserError, r' and 10,000,000,000 new unrolls per update \(fewer with a larger '
                                r'--samples_per_period\) take [\d,]+\.\d GB, but the machine has '):
      self._start(_SETTINGS._replace(unrolls_per_batch=10**10))


if __name__ == '__main__':
  absltest.main()
