"""Tests of environments/step_time.py: the times of steps and resets, of which no time really passes here."""

import itertools
import time
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from scalable_agents.environments import registry
from scalable_agents.environments import step_time


class StepTimeTest(parameterized.TestCase):

  def _play(self, steps, seed=0, **arguments):
    """Returns the seconds slept in each step or reset, and which of them were resets."""
    with mock.patch.object(time, 'sleep') as sleep:
      environment = step_time.make(seed=seed, **arguments)
      firsts = [environment.step(0).first() for _ in range(steps)]
    return np.array([call.args[0] for call in sleep.call_args_list]), np.array(firsts)

  @parameterized.parameters(0., 0.2, 1., 1.5)
  def test_steps_have_the_mean_and_the_variation(self, variation):
    seconds, firsts = self._play(10_000, mean_ms=20., variation=variation, episode_steps=1e6)
    self.assertEqual(firsts.tolist(), [True] + [False] * 9_999)
    taken = seconds[1:]
    self.assertTrue(np.all(taken >= 0))
    # The error of the mean of n samples is their standard deviation / sqrt(n): 1.5 % for 1.5.
    np.testing.assert_allclose(taken.mean(), 0.02, rtol=0.06)
    np.testing.assert_allclose(taken.std(), 0.02 * variation, rtol=0.1, atol=1e-9)

  def test_episodes_have_a_fixed_length_and_a_slow_start(self):
    seconds, firsts = self._play(20, mean_ms=20., episode_steps=4, reset_ms=300.)
    self.assertEqual(firsts.tolist(), [True, False, False, False, False] * 4)
    np.testing.assert_allclose(seconds, np.where(firsts, 0.3, 0.02))

  def test_lengths_may_vary(self):
    _, firsts = self._play(20_000, mean_ms=1., episode_steps=25., has_varying_length=True)
    lengths = np.diff(np.flatnonzero(firsts)) - 1
    np.testing.assert_allclose([lengths.mean(), lengths.std()], [25., np.sqrt(25. * 24.)], rtol=0.12)  # Geometric.
    self.assertGreaterEqual(lengths.min(), 1)

  def test_the_seed_determines_the_times(self):
    plays = [self._play(50, seed, variation=1.)[0].tolist() for seed in (1, 1, 2)]
    self.assertEqual(plays[0], plays[1])
    self.assertNotEqual(plays[0], plays[2])

  @parameterized.parameters(('mean_ms', -1), ('variation', -0.1), ('reset_ms', -1), ('episode_steps', 0.5),
                            ('variation', float('nan')))
  def test_arguments_out_of_range_are_refused(self, name, value):
    with self.assertRaisesRegex(ValueError, f'^{name}={value}: want at least [01]$'):
      step_time.make(seed=0, **{name: value})

  def test_it_is_a_level(self):
    name = f'dm_env:{step_time.__name__}:make?mean_ms=0&variation=0.5&episode_steps=2&has_varying_length=false'
    registry.check(name)
    environment = registry.make(name, seed=0)
    self.assertEqual([environment.step(1).last() for _ in itertools.repeat(None, 6)], [False, False, True] * 2)
    self.assertEqual(environment.render().shape, (32, 32, 3))
    for pixels, observed, frames in (('true', ('pixels', np.uint8, (72, 96, 3)), 4),
                                     ('false', ('vector', np.float32, (1,)), 1)):
      environment = registry.make(f'{name}&has_pixels={pixels}', seed=0)
      (key, array), = environment.reset().observation.items()
      self.assertEqual((key, array.dtype, array.shape), observed)
      environment.observation_spec()[key].validate(array)
      self.assertEqual(environment.frames_per_step, frames)
    with self.assertRaisesRegex(ValueError, 'mean_ms=-1: want at least 0'):
      registry.check(f'dm_env:{step_time.__name__}:make?mean_ms=-1')


if __name__ == '__main__':
  absltest.main()
