"""A corridor in which an agent learns to walk to the right: an environment for dm_env."""

import dm_env
from dm_env import specs
import numpy as np


class Corridor(dm_env.Environment):
  """The agent walks from the left end of a corridor to the right end."""

  def __init__(self, length):
    self._length, self._place = length, 0

  def observation_spec(self):
    """The observation is the agent's place, [] int32, counted from the left end."""
    return specs.DiscreteArray(self._length)

  def action_spec(self):
    """Action 0 walks to the left and action 1 to the right."""
    return specs.DiscreteArray(2)

  def reset(self):
    """Begins an episode at the left end."""
    self._place = 0
    return dm_env.restart(np.int32(0))

  def step(self, action):
    """Walks one place. The step to the right end earns 1 and ends the episode; each other step costs 0.01."""
    self._place = max(0, self._place + (1 if action else -1))
    if self._place == self._length - 1:
      return dm_env.termination(1.0, np.int32(self._place))
    return dm_env.transition(-0.01, np.int32(self._place))


def corridor(seed, length=5):
  """Makes the environment. The name of a level, dm_env:corridor:corridor?length=8, gives the length in places."""
  del seed  # Nothing is random here.
  return Corridor(length)
