"""A task whose steps and resets take a given time, to measure waiting times (level `dm_env:...step_time:make`).

A level's name has the arguments, for example
`dm_env:scalable_agents.environments.step_time:make?mean_ms=20&variation=0.5`. The environment sleeps for that time, so
a few cores suffice for many environments.
"""

import time

import dm_env
from dm_env import specs
import numpy as np

from scalable_agents.environments import base


class StepTime(base.Environment):
  """An environment in which only time passes. The observation is constant, rewards are 0, and there are 2 actions.

  As in DeepMind Lab, the observation is {'pixels': uint8 [72, 96, 3]}, and an agent step has 4 environment frames.
  Without pixels it is {'vector': float32 [1]}, and an agent step has 1 frame.
  """

  def __init__(self, *, seed: int, mean_ms: float = 20., variation: float = 0., episode_steps: float = 1000.,
               has_varying_length: bool = False, reset_ms: float = 0., has_pixels: bool = True):
    """Makes the environment.

    Args:
      seed: random seed of the times and lengths.
      mean_ms: mean time of a step, in milliseconds, >= 0.
      variation: standard deviation of a step's time divided by its mean, >= 0. The time has a gamma distribution.
      episode_steps: mean length of an episode in agent steps, >= 1.
      has_varying_length: whether an episode may end after each step with the same probability. Otherwise all episodes
        have the same length.
      reset_ms: time that the start of an episode takes, in milliseconds, >= 0.
      has_pixels: whether the observation is a picture; see above.
    Raises:
      ValueError: an argument is out of its range.
    """
    for name, value, least in (('mean_ms', mean_ms, 0), ('variation', variation, 0), ('reset_ms', reset_ms, 0),
                               ('episode_steps', episode_steps, 1)):
      if not value >= least:
        raise ValueError(f'{name}={value}: want at least {least}')
    if has_pixels:
      self.frames_per_step = 4
      self._observation = {'pixels': np.full((72, 96, 3), 255, np.uint8)}
    else:
      self._observation = {'vector': np.ones(1, np.float32)}
    super().__init__(2, {name: specs.Array(array.shape, array.dtype, name=name)
                         for name, array in self._observation.items()})
    self._random = np.random.RandomState(seed % 2**32)
    self._mean, self._variation, self._reset = mean_ms / 1000, variation, reset_ms / 1000
    self._episode_steps, self._has_varying_length = episode_steps, has_varying_length
    self._steps_left = 0

  def render(self) -> np.ndarray:
    """Returns a white picture, uint8 [32, 32, 3]."""
    return np.full((32, 32, 3), 255, np.uint8)

  def seconds(self) -> float:
    """Draws the time of a step."""
    if not self._variation:
      return self._mean
    shape = self._variation**-2  # The mean is shape * scale, and the variance shape * scale**2.
    return self._mean / shape * self._random.standard_gamma(shape)

  def _start_episode(self):
    time.sleep(self._reset)
    self._steps_left = (self._random.geometric(1 / self._episode_steps) if self._has_varying_length
                        else round(self._episode_steps))
    return dict(self._observation)

  def _advance(self, action):
    time.sleep(self.seconds())
    self._steps_left -= 1
    step = dm_env.transition if self._steps_left else dm_env.termination
    return step(reward=0.0, observation=dict(self._observation))


def make(seed: int, **arguments) -> StepTime:
  """Makes the environment; see StepTime."""
  return StepTime(seed=seed, **arguments)
