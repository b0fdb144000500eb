"""Harvest: a task in which clipped rewards lead to another policy than the true ones (level `harvest`)."""

import dm_env
from dm_env import specs
import numpy as np

from scalable_agents.environments import base

_STEPS = 4
_HARVEST = 20.


class Harvest(base.Environment):
  """In each step the agent picks an unripe fruit, or waits. An agent that has only waited gets the harvest at the end.

  An episode has 4 steps. Action 0 picks a fruit, which earns 1. Action 1 waits, which earns 0. The last step earns 20
  in addition if all actions were 1. The observation is {'vector': float32 [5]}: the one-hot number of the step, and
  whether a fruit has been picked.

  The optimal policy waits; its return is 20. If rewards are clipped to [-1, 1], the harvest is worth no more than a
  fruit, and the optimal policy picks in each step: its true return is 4. A random policy returns 2 + 20 / 16 = 3.25.
  """

  optimal_return = _HARVEST
  clipped_return = float(_STEPS)  # The true return of the policy that is optimal with clipped rewards.
  random_return = _STEPS / 2 + _HARVEST / 2**_STEPS

  def __init__(self, *, seed: int):
    del seed  # Nothing is random.
    super().__init__(2, {'vector': specs.BoundedArray((_STEPS + 1,), np.float32, 0.0, 1.0, name='vector')})
    self._step = 0
    self._has_picked = False

  def render(self) -> np.ndarray:
    """Returns the observation as a row of squares, white for 1 and black for 0, uint8 [32, 160, 3]."""
    return base.squares(self._vector(), 32)

  def _start_episode(self):
    self._step = 0
    self._has_picked = False
    return {'vector': self._vector()}

  def _advance(self, action):
    picks = action == 0
    self._has_picked |= picks
    self._step += 1
    reward = float(picks)
    if self._step < _STEPS:
      return dm_env.transition(reward, {'vector': self._vector()})
    return dm_env.termination(reward + _HARVEST * (not self._has_picked), {'vector': self._vector()})

  def _vector(self):
    vector = np.zeros(_STEPS + 1, np.float32)
    vector[min(self._step, _STEPS - 1)] = 1
    vector[-1] = self._has_picked
    return vector
