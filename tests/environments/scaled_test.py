"""Tests of environments/scaled.py."""

from absl.testing import absltest
from dm_env import test_utils
import numpy as np

from scalable_agents.environments import atari
from scalable_agents.environments import catch
from scalable_agents.environments import scaled


class ContractTest(test_utils.EnvironmentTestMixin, absltest.TestCase):

  def make_object_under_test(self):
    return scaled.Scaled(catch.Catch(seed=0), 100.)


class ScaledTest(absltest.TestCase):

  def test_only_the_rewards_differ(self):
    plain, hundredfold = catch.Catch(seed=1), scaled.Scaled(catch.Catch(seed=1), 100.)
    actions, rewards = np.random.RandomState(1).randint(3, size=100), []
    for action in actions:
      one, other = plain.step(action), hundredfold.step(action)
      self.assertEqual((one.step_type, one.discount), (other.step_type, other.discount))
      np.testing.assert_array_equal(one.observation['pixels'], other.observation['pixels'])
      np.testing.assert_array_equal(plain.render(), hundredfold.render())
      if one.reward is not None:
        self.assertEqual(other.reward, 100 * one.reward)
        rewards.append(one.reward)
    self.assertEqual(set(rewards), {-1., 0., 1.})

  def test_frames_are_those_of_the_environment(self):
    environment = atari.Atari('pong', seed=0)
    self.addCleanup(environment.close)
    other = scaled.Scaled(environment, 0.1)
    self.assertEqual((other.frames_per_step, other.frame_stacks), (4, {'pixels': 4}))


if __name__ == '__main__':
  absltest.main()
