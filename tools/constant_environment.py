"""An environment that costs nothing, to measure what everything around it costs."""

import dm_env
from dm_env import specs
import numpy as np


class Constant(dm_env.Environment):
  """One 84x84x4 observation, shared by all steps, in episodes of 1,000 agent steps."""

  frames_per_step = 1

  def __init__(self, seed: int):
    del seed
    self._observation = {'pixels': np.zeros([84, 84, 4], np.uint8)}
    self._middle = dm_env.transition(0., self._observation)
    self._last = dm_env.termination(1., self._observation)
    self._steps = 0

  def reset(self) -> dm_env.TimeStep:
    self._steps = 0
    return dm_env.restart(self._observation)

  def step(self, action) -> dm_env.TimeStep:
    del action
    self._steps += 1
    return self._last if self._steps == 1000 else self._middle

  def observation_spec(self):
    return {'pixels': specs.BoundedArray([84, 84, 4], np.uint8, 0, 255, 'pixels')}

  def action_spec(self):
    return specs.DiscreteArray(6)
