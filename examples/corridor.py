"""A corridor in which an agent learns to walk to the right: an environment for dm_env."""

import dm_env
from dm_env import specs
import numpy as np


class Corridor(dm_env.Environment):
  """The agent walks from the left end of a corridor to the right one."""

  def __init__(self, length):
    self._length, self._place = length, 0

  def observation_spec(self):
    return specs.DiscreteArray(self._length)

  def action_spec(self):
    return specs.DiscreteArray(2)

  def reset(self):
    self._place = 0
    return dm_env.restart(np.int64(0))

  def step(self, action):
    self._place = max(0, self._place + (1 if action else -1))
    if self._place == self._length - 1:
      return dm_env.termination(1.0, np.int64(self._place))
    return dm_env.transition(-0.01, np.int64(self._place))


def corridor(seed, length=5):
  del seed  # Nothing is random here.
  return Corridor(length)
