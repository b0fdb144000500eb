"""Tests of benchmark/constant_environment.py."""

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from scalable_agents.benchmark import constant_environment


class ConstantTest(parameterized.TestCase):

  @parameterized.parameters(
      ('atari', 6, {'pixels': (84, 84, 4)}), ('dmlab', 9, {'pixels': (72, 96, 3), 'instruction': (128,)}))
  def test_looks_like_the_environment_that_it_stands_for(self, level, num_actions, shapes):
    environment = constant_environment.Constant(level, seed=1, protocol={})
    spec = environment.observation_spec()
    self.assertEqual({name: (part.shape, part.dtype) for name, part in spec.items()},
                     {name: (shape, np.uint8) for name, shape in shapes.items()})
    self.assertEqual(environment.action_spec().num_values, num_actions)
    observation = environment.reset().observation
    for name, part in spec.items():
      part.validate(observation[name])
      self.assertTrue(observation[name].any())

  def test_an_episode_has_a_thousand_steps_and_one_reward(self):
    environment = constant_environment.Constant('atari', seed=1)
    for _ in range(2):
      first = environment.reset()
      time_steps = [environment.step(0) for _ in range(1000)]
      self.assertEqual([time_step.reward for time_step in time_steps], [0.] * 999 + [1.])
      self.assertEqual([time_step.last() for time_step in time_steps], [False] * 999 + [True])
      self.assertTrue(all(time_step.observation is first.observation for time_step in time_steps))


if __name__ == '__main__':
  absltest.main()
