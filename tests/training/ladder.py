"""A task in which the best policy is not found if only the values of the random policy are learned.

Importing this module registers it with gymnasium: level `gymnasium:scalable_agents.tests.training.ladder:Ladder-v0`.
"""

import gymnasium
import numpy as np

RUNGS = 4
_STAY_REWARD = 0.5


class Ladder(gymnasium.Env):
  """Four rungs. Action 1 climbs one, and from the last to the top, which earns 1; action 0 ends the episode.

  Stepping off on the first rung earns 0.5, and on the others nothing. The observation is the rung, one-hot. Always
  climbing is optimal and returns 1. But if a policy climbs with probability 1/2, climbing on the first rung is worth
  only 0.125. So an agent that learns the values of random behaviour steps off and returns 0.5.
  """

  optimal_return = 1.
  observation_space = gymnasium.spaces.Box(0., 1., [RUNGS], np.float32)
  action_space = gymnasium.spaces.Discrete(2)

  def __init__(self, render_mode=None):
    self.render_mode = render_mode
    self._rung = 0

  def reset(self, *, seed=None, options=None):
    super().reset(seed=seed)
    self._rung = 0
    return self._observation(), {}

  def step(self, action):
    if action == 0:
      return self._observation(), _STAY_REWARD if self._rung == 0 else 0., True, False, {}
    self._rung += 1
    top = self._rung == RUNGS
    return self._observation(), float(top), top, False, {}

  def render(self):
    return np.zeros([16, 16, 3], np.uint8)

  def _observation(self):
    return np.float32(np.arange(RUNGS) == min(self._rung, RUNGS - 1))


def expected_return(climb_probability) -> float:
  """The return of a policy that climbs on rung i with climb_probability[i]."""
  return _STAY_REWARD * (1 - climb_probability[0]) + float(np.prod(climb_probability))


gymnasium.register('Ladder-v0', entry_point=Ladder)
