"""dm_env environments for tests of the actors: their observations tell what happened, and they fail on demand."""

import os
import signal
import time

import dm_env
from dm_env import specs
import numpy as np


class Constant(dm_env.Environment):
  """Costs nothing: one observation, shared by all steps, in episodes of 1,000 steps."""

  frames_per_step = 1

  def __init__(self, seed, shape=(84, 84, 4)):
    del seed
    self._observation = {'pixels': np.zeros(shape, np.uint8)}
    self._middle = dm_env.transition(0., self._observation)
    self._last = dm_env.termination(1., self._observation)
    self._steps = 0

  def reset(self):
    self._steps = 0
    return dm_env.restart(self._observation)

  def step(self, action):
    del action
    self._steps += 1
    return self._last if self._steps == 1000 else self._middle

  def observation_spec(self):
    pixels = self._observation['pixels']
    return {'pixels': specs.BoundedArray(pixels.shape, pixels.dtype, 0, 255, 'pixels')}

  def action_spec(self):
    return specs.DiscreteArray(6)
