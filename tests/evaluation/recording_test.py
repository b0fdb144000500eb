"""Tests what a policy is given while it plays for somebody to watch."""

import types
from unittest import mock

from absl.testing import absltest
import numpy as np
import tensorflow as tf

from scalable_agents.environments import filmed
from scalable_agents.evaluation import lone_environment
from scalable_agents.evaluation import recording


class RecordingTest(absltest.TestCase):

  def test_the_policy_is_given_its_state_its_last_action_and_every_row(self):
    rewards, dones, ended = [0., 3., 5., 7.], [True, False, False, False], [False, False, False, True]
    rows = [lone_environment.Row(reward, done, sum(rewards[:place + 1]), 4 * place, {
        'vector': np.float32([place]), filmed.PICTURE: np.full([1, 1, 3], place, np.uint8),
        filmed.ENDED: np.array(end)}) for place, (reward, done, end) in enumerate(zip(rewards, dones, ended))]
    environment, viewer, given = mock.Mock(**{'advance.side_effect': rows}), mock.Mock(), []

    def step(inputs, state, seed):
      given.append((int(state[0]), int(inputs.last_action[0]), float(inputs.reward[0]), bool(inputs.done[0]),
                    float(inputs.observation['vector'][0, 0]), *seed.numpy().tolist()))
      return types.SimpleNamespace(action=state + 2, logits=tf.zeros([1, 5])), state + 1

    agent = types.SimpleNamespace(initial_state=lambda number: tf.zeros([number], tf.int32))
    policy = types.SimpleNamespace(agent=agent, learner_steps=1)
    with mock.patch.object(recording.inference, 'is_finite', return_value=True):
      shown = recording._play_episode(policy, step, environment, 7, [viewer], 0)
    self.assertEqual(shown, recording.Shown(15., 12, True))
    self.assertEqual(given, [(0, 0, 0., True, 0., 7, 0), (1, 2, 3., False, 1., 7, 1), (2, 3, 5., False, 2., 7, 2)])
    self.assertEqual(environment.advance.call_args_list, [mock.call(), mock.call(2), mock.call(3), mock.call(4)])
    self.assertEqual([int(call.args[0].max()) for call in viewer.add.call_args_list], [0, 1, 2, 3])


if __name__ == '__main__':
  absltest.main()
