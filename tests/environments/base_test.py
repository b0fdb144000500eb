"""Tests of environments/base.py."""

from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import dm_env
from dm_env import specs
import numpy as np

from scalable_agents.environments import base


class _Countdown(base.Environment):
  """An episode has three steps, with two actions. The observation is the number of steps that are left."""

  def __init__(self):
    super().__init__(2, {'vector': specs.Array((1,), np.float32, name='vector')})
    self.actions = []
    self.episodes = 0
    self._left = 0

  def render(self):
    return np.zeros((1, 1, 3), np.uint8)

  def _start_episode(self):
    self.episodes += 1
    self._left = 3
    return {'vector': np.array([self._left], np.float32)}

  def _advance(self, action):
    self.actions.append(action)
    self._left -= 1
    observation = {'vector': np.array([self._left], np.float32)}
    return dm_env.transition(0.0, observation) if self._left else dm_env.termination(1.0, observation)


class EnvironmentTest(parameterized.TestCase):

  def test_an_episode_goes_from_first_to_last_and_the_next_step_starts_another(self):
    environment = _Countdown()
    types = [environment.step(1).step_type.name for _ in range(9)]
    self.assertEqual(types, ['FIRST', 'MID', 'MID', 'LAST'] * 2 + ['FIRST'])
    self.assertEqual(environment.episodes, 3)
    self.assertLen(environment.actions, 6)  # Steps that reset ignore their actions.

  def test_reset_abandons_a_running_episode(self):
    environment = _Countdown()
    environment.reset()
    environment.step(0)
    self.assertTrue(environment.reset().first())
    self.assertEqual(environment.step(0).observation['vector'], 2)

  def test_after_a_start_that_fails_the_next_step_starts_an_episode(self):
    environment = _Countdown()
    environment.reset()
    with mock.patch.object(environment, '_start_episode', side_effect=OSError), self.assertRaises(OSError):
      environment.reset()
    self.assertTrue(environment.step(1).first())

  @parameterized.parameters(-1, 2, 100)
  def test_refuses_an_action_that_does_not_exist(self, action):
    environment = _Countdown()
    environment.reset()
    with self.assertRaisesRegex(ValueError, rf'want an integer in \[0, 2\), got {action}'):
      environment.step(action)
    self.assertEmpty(environment.actions)

  def test_takes_every_kind_of_integer_and_plays_a_python_one(self):
    for action in (1, np.int32(1), np.int64(1), np.array(1, np.int32)):
      environment = _Countdown()
      environment.reset()
      environment.step(action)
      self.assertEqual(environment.actions, [1])
      self.assertIs(type(environment.actions[0]), int)

  def test_specs(self):
    environment = _Countdown()
    self.assertEqual(environment.action_spec().num_values, 2)
    self.assertEqual(environment.observation_spec()['vector'].shape, (1,))
    self.assertEqual(environment.frames_per_step, 1)


class EnlargeTest(absltest.TestCase):

  def test_every_pixel_becomes_a_gray_square(self):
    picture = base.enlarge(np.array([[10, 20, 30], [40, 50, 60]], np.uint8), 2)
    self.assertEqual(picture.dtype, np.uint8)
    expected = np.array([[10, 10, 20, 20, 30, 30]] * 2 + [[40, 40, 50, 50, 60, 60]] * 2)
    for channel in range(3):
      np.testing.assert_array_equal(picture[..., channel], expected)


if __name__ == '__main__':
  absltest.main()
