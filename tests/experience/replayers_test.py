"""Tests of replayers: the order in which they replay, and that their recurrent states are those of the latest network.

tests/replay/episode_replay_test.py tests the replay itself, and shared_replay_test the one that agents share.
"""

from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from scalable_agents.actor import inference
from scalable_agents.actor import parameters as parameters_lib
from scalable_agents.agents import configs
from scalable_agents.agents import impala
from scalable_agents.experience import replayers
from scalable_agents.experience import shared_replay
from scalable_agents.experience import stored_unrolls
from scalable_agents.processes import machine
from scalable_agents.records import errors
from scalable_agents.tests.experience import streams as streams_lib
from scalable_agents.tests.training import unrolls

_LENGTH = 4
_NUMBER = 5  # Replayers.


def _agent(seed, use_lstm=True):
  return impala.Agent(unrolls.environment_spec(), configs.ImpalaConfig(use_lstm=use_lstm, seed=seed))


class ReplayersTest(parameterized.TestCase):

  def _make(self, agent=None, parameters=None, longest=20, capacity=1000, minimum_size=1, must_fill=False):
    """Returns replayers with some episodes, and the streams."""
    streams = {stream_id: streams_lib.Stream(stream_id, longest) for stream_id in range(1, 4)}
    state = tf.nest.map_structure(lambda x: x[0].numpy(), agent.initial_state(1)) if agent else ()
    spec = streams[1].spec(_LENGTH, state)
    own = replayers.own_replay(spec, streams_lib.FRAME_STACKS, capacity, _NUMBER)
    made = replayers.Replayers(spec, streams_lib.FRAME_STACKS, own, _NUMBER, agent, parameters, minimum_size,
                               must_fill)
    for index in range(20):
      made.insert(streams_lib.batch([stream.unroll(index, _LENGTH, state) for stream in streams.values()]))
    draw = tf.function(lambda seed: made.draw(_NUMBER, seed), autograph=False)
    return made, streams, lambda seed: tf.nest.map_structure(lambda x: x.numpy(), draw(tf.constant(seed, tf.int64)))

  def test_goes_through_whole_episodes_one_after_the_other(self):
    _, streams, draw = self._make()
    positions, episodes = [None] * _NUMBER, set()
    for seed in range(60):
      replayed = draw(seed)
      unroll = replayed.unroll
      for b in range(_NUMBER):
        self.assertEqual(unroll.index[b], streams_lib.first_row(unroll, b))
        positions[b] = streams_lib.check(unroll, b, streams, positions[b])
      starts = unroll.environment_output.done
      episodes |= set(map(tuple, unroll.environment_output.observation['record'][starts].tolist()))
      np.testing.assert_array_less(-1, replayed.key)
    self.assertGreater(len(episodes), 12)
    self.assertLen({stream_id for stream_id, _ in episodes}, 3)
    self.assertEqual(set(replayed.probability), {1.})

  def test_states_are_those_of_the_network_that_computed_them(self):
    """The parameters change after every other draw. From there, a state goes on from the older network's state."""
    copy, learner = _agent(seed=1), _agent(seed=2)
    parameters = parameters_lib.ParameterSnapshot(inference.specs(learner.acting_variables))
    publish = lambda version: parameters.publish(version, learner.acting_variables)
    publish(0)
    _, streams, draw = self._make(copy, parameters, longest=12)
    zeros = tf.nest.map_structure(lambda x: x[0].numpy(), learner.initial_state(1))
    states, num_going_on = [zeros] * _NUMBER, 0
    for seed in range(16):
      replayed = draw(seed)
      done = replayed.unroll.environment_output.done
      for b in range(_NUMBER):
        if done[0, b]:  # The network resets its state itself.
          states[b] = zeros
        else:
          num_going_on += 1
          for got, want in zip(replayed.unroll.agent_state, states[b], strict=True):
            np.testing.assert_allclose(got[b], want, rtol=1e-4, atol=1e-6)
            self.assertEqual(np.any(got[b]), seed > 0)  # A new replayer has the initial state also inside an episode.
        states[b] = self._step(learner, replayed.unroll, b, states[b])
      if seed % 2:
        for number, variable in enumerate(learner.acting_variables):
          variable.assign_add(0.05 * tf.random.stateless_normal(variable.shape, [seed, number]))
        publish(seed)
    self.assertGreater(num_going_on, 30)

  def _step(self, agent, unroll, b, state):
    """Steps an agent through rows 0 to T - 1 of an unroll. Returns the state after them."""
    environment, actions = unroll.environment_output, unroll.agent_output.action
    one = lambda values: tf.constant(values[np.newaxis])
    state = tf.nest.map_structure(one, state)
    for row in range(_LENGTH):
      inputs = mock.Mock(last_action=one(actions[row, b]), reward=one(environment.reward[row, b]),
                         done=one(environment.done[row, b]), observation={'vector': one(
                             environment.observation['vector'][row, b])})
      _, state = agent.step(inputs, state, tf.zeros([2], tf.int64))
    return tf.nest.map_structure(lambda x: x[0].numpy(), state)

  def test_without_a_recurrent_state_nothing_is_computed(self):
    """There is no agent to compute with, and nobody asks for parameters."""
    _, _, draw = self._make(None, None)
    self.assertEqual(draw(0).unroll.agent_state, ())

  def test_the_latest_parameters_are_asked_for_with_each_draw(self):
    parameters = mock.Mock()
    agent = _agent(seed=1)
    parameters.latest.return_value = 0, list(agent.acting_variables)
    made, *_ = self._make(agent, parameters)
    for seed in range(3):
      made.draw(_NUMBER, tf.constant(seed, tf.int64))
      self.assertEqual(parameters.latest.call_count, seed + 1)

  def test_draws_are_a_function_of_the_seed(self):
    draws = [self._make()[2] for _ in range(3)]
    first, again, other = (draw(seed) for draw, seed in zip(draws, (1, 1, 2)))
    np.testing.assert_array_equal(first.key, again.key)
    self.assertTrue(np.any(first.key != other.key))

  @parameterized.parameters((2, 5, [True, True]), (1, 5, [False, True]), (2, 4, [False, False]))
  def test_a_shared_replay_refuses_levels_and_actions_that_do_not_exist(self, num_levels, num_actions, wanted):
    """The two unrolls are of the levels 1 and 0, and have the actions 0 to 4."""
    streams = [streams_lib.Stream(stream_id) for stream_id in (1, 2)]
    with mock.patch.object(shared_replay, 'SharedReplay') as made:
      replayers.join_replay('localhost:1', streams[0].spec(_LENGTH), streams_lib.FRAME_STACKS, 1000, {}, 0, num_levels,
                            num_actions)
    unroll = streams_lib.batch([stream.unroll(0, _LENGTH) for stream in streams])
    are_valid = made.call_args.kwargs['check'](unroll.index, stored_unrolls.of_unroll(unroll))
    self.assertEqual(are_valid.numpy().tolist(), wanted)

  def test_an_empty_replay_gives_nothing(self):
    agent, stream = _agent(seed=1), streams_lib.Stream(1, 20)
    parameters = parameters_lib.ParameterSnapshot(inference.specs(agent.acting_variables))
    parameters.publish(0, agent.acting_variables)
    state = tf.nest.map_structure(lambda x: x[0].numpy(), agent.initial_state(1))
    spec = stream.spec(_LENGTH, state)
    own = replayers.own_replay(spec, streams_lib.FRAME_STACKS, 100, _NUMBER)
    made = replayers.Replayers(spec, streams_lib.FRAME_STACKS, own, _NUMBER, agent, parameters, minimum_size=1)
    for _ in range(2):
      np.testing.assert_array_equal(made.draw(_NUMBER, tf.constant(1, tf.int64)).key, [-1] * _NUMBER)
    for index in range(10):
      made.insert(streams_lib.batch([stream.unroll(index, _LENGTH, state)]))
    replayed = made.draw(_NUMBER, tf.constant(1, tf.int64))
    np.testing.assert_array_less(-1, replayed.key)

  @parameterized.parameters(False, True)
  def test_replays_from_the_minimum_size_on(self, must_fill):
    made, *_ = self._make()
    size = made.metrics()['replay_size']
    for minimum_size, is_enough in ((size, True), (size + 1, False)):
      made = self._make(minimum_size=minimum_size, must_fill=must_fill)[0]
      np.testing.assert_array_equal(made.draw(_NUMBER, tf.constant(1, tf.int64)).key >= 0, is_enough)
      self.assertEqual(made.is_ready(), is_enough or not must_fill)
      self.assertEqual(made.metrics().get('replay_filled'), size / minimum_size if must_fill else None)

  def test_metrics(self):
    made, streams, draw = self._make()
    draw(1)
    starts = [np.flatnonzero(stream.rows['environment_output'].done[:20 * _LENGTH + 1]) for stream in streams.values()]
    metrics = made.metrics()
    self.assertEqual(metrics.pop('replay_megabytes') > 0, True)
    self.assertEqual(metrics, {
        'replay_size': sum(its[-1] for its in starts), 'replay_episodes': sum(len(its) - 1 for its in starts),
        'replay_gaps': 0, 'replay_long_episodes': 0, 'unrolls_replayed': _NUMBER})
    self.assertEmpty(made.warnings())
    for stream in streams.values():
      made.insert(streams_lib.batch([stream.unroll(30, _LENGTH)]))  # Some are missing.
    self.assertEqual(made.metrics()['replay_gaps'], 3)

  def test_an_episode_without_end_is_not_kept_and_the_user_is_told(self):
    made, streams, _ = self._make_empty({1: streams_lib.Stream(1)})
    unroll = streams[1].unroll(0, _LENGTH)
    for index, length in enumerate((26_996, 8)):  # Another 8 steps are too many.
      rows = np.minimum(np.arange(length + 1), 1)  # Row 0, and then row 1 again and again.
      environment, agent, version = tf.nest.map_structure(
          lambda values: values[rows],
          (unroll.environment_output, unroll.agent_output, unroll.parameter_version))
      made.insert(streams_lib.batch([unroll._replace(
          index=np.int64(index), environment_output=environment._replace(done=rows + index == 0), agent_output=agent,
          parameter_version=version)]))
      self.assertEqual(made.metrics()['replay_long_episodes'], index)
      self.assertEqual(made.metrics()['replay_megabytes'] < 1., index > 0)
      self.assertLen(made.warnings(), index)
    self.assertEmpty(made.warnings())  # Once.

  def test_keeps_as_many_agent_steps_as_the_capacity_says(self):
    made, *_ = self._make(capacity=60, longest=9)
    self.assertBetween(made.metrics()['replay_size'], 60 - 8, 60)

  def test_positions_do_not_survive_a_restart(self):
    made, streams, draw = self._make(longest=20)
    draw(1)
    path = self.create_tempdir().full_path + '/replay'
    made.save(path)
    other, _, draw_other = self._make_empty(streams)
    other.restore(path)
    replayed = draw_other(1)
    self.assertGreater(len(set(replayed.unroll.index.numpy())), 2)  # They begin with any step of an episode.

  def _make_empty(self, streams):
    spec = streams[1].spec(_LENGTH)
    own = replayers.own_replay(spec, streams_lib.FRAME_STACKS, 1000, _NUMBER)
    made = replayers.Replayers(spec, streams_lib.FRAME_STACKS, own, _NUMBER, None, None, minimum_size=1)
    return made, streams, lambda seed: made.draw(_NUMBER, tf.constant(seed, tf.int64))

  def test_rewards_that_are_not_finite_are_stored_as_0(self):
    stream = streams_lib.Stream(1)
    stream.rows['environment_output'].reward[:] = np.inf
    made, _, draw = self._make_empty({1: stream})
    for index in range(10):
      made.insert(streams_lib.batch([stream.unroll(index, _LENGTH)]))
    np.testing.assert_array_equal(draw(1).unroll.environment_output.reward, np.zeros([_LENGTH + 1, _NUMBER]))

  def test_what_does_not_fit_into_memory_is_refused(self):
    spec = streams_lib.Stream(1).spec(_LENGTH)
    make = lambda capacity: replayers.own_replay(spec, streams_lib.FRAME_STACKS, capacity, batch_size=7)
    # A row: level, actor (int32), the environment's five, two observations and the newest frame, the agent's two, and
    # the version.
    row_bytes = 4 + 4 + (4 + 4 + 1 + 4 + 4) + (16 + 16 + 4) + (4 + 5 * 4) + 8
    with mock.patch.object(machine, 'memory_bytes', lambda: 1_000_000_000):
      with self.assertRaisesRegex(
          errors.UserError, r'^--replay_capacity=20000000, --batch_size=7: a full replay of 20,000,000 agent steps '
          r'takes 1\.9 GB and two batches take 0\.0 GB, but the machine has 1\.0 GB of memory: '
          r'--replay_capacity=\d+ would fit$') as caught:
        make(20_000_000)
      fitting = int(str(caught.exception).rpartition('--replay_capacity=')[2].split()[0])
      self.assertBetween(fitting * row_bytes, 0.7e9, 0.8e9)
      make(fitting)


if __name__ == '__main__':
  absltest.main()
