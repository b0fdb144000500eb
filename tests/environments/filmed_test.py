"""Tests of an episode with pictures."""

from absl.testing import absltest
import numpy as np

from scalable_agents.environments import catch
from scalable_agents.environments import filmed
from scalable_agents.environments import gymnasium_adapter


class FilmedTest(absltest.TestCase):

  def test_it_is_the_environments_first_episode_with_a_picture_of_every_step(self):
    plain, environment = catch.Catch(seed=3), filmed.Filmed(catch.Catch(seed=3))
    plain.frame_stacks, plain.frames_per_step = {'pixels': 1}, 4
    of_plain = filmed.Filmed(plain)
    self.assertEqual((of_plain.frame_stacks, of_plain.frames_per_step), ({'pixels': 1}, 4))
    plain = catch.Catch(seed=3)
    self.assertEqual(environment.action_spec(), plain.action_spec())
    want, got = plain.reset(), environment.reset()
    for _ in range(100):
      for name, spec in environment.observation_spec().items():
        spec.validate(got.observation[name])
      np.testing.assert_array_equal(got.observation[filmed.PICTURE], plain.render())
      np.testing.assert_array_equal(got.observation['pixels'], want.observation['pixels'])
      self.assertEqual((got.reward, bool(got.observation[filmed.ENDED])), (want.reward, want.last()))
      self.assertFalse(got.last())  # Otherwise a worker would start the next episode and lose the last picture.
      if want.last():
        return
      want, got = plain.step(1), environment.step(1)
    self.fail('the episode has no end')

  def test_an_environment_without_pictures_is_played_only_unseen(self):
    sound = gymnasium_adapter.Gymnasium('scalable_agents.tests.training.faulty_environments:Sound-v0', seed=0)
    with self.assertRaisesRegex(ValueError, 'pictures'):
      filmed.Filmed(sound)
    observation = filmed.Filmed(sound, has_pictures=False).reset().observation
    self.assertCountEqual(observation, [*sound.observation_spec(), filmed.ENDED])


if __name__ == '__main__':
  absltest.main()
