"""Chain: a stochastic walk whose optimal value is known in closed form (level `chain`)."""

import dm_env
from dm_env import specs
import numpy as np

from scalable_agents.environments import base

_LENGTH = 8          # positions 0 ... 8; both ends are terminal.
_START = 2
_SLIP = 0.1          # probability of moving against the action.
_LEFT_REWARD = 0.1
_RIGHT_REWARD = 1.0


def _return(probability_right: float) -> float:
  """Returns the expected return of a policy that moves right with this probability everywhere (gambler's ruin)."""
  odds = (1 - probability_right) / probability_right
  reach = _START / _LENGTH if odds == 1 else (1 - odds**_START) / (1 - odds**_LENGTH)
  return reach * _RIGHT_REWARD + (1 - reach) * _LEFT_REWARD


class Chain(base.Environment):
  """A walk between a small reward nearby on the left (0.1) and a large one far on the right (1).

  The positions are 0 ... 8, and an episode starts at 2. Action 1 (right) moves one position to the right with
  probability 0.9, else one to the left. Action 0 (left) moves to the left with probability 0.9, else to the right.
  Reaching 0 earns 0.1, reaching 8 earns 1, and both end the episode. All other rewards are 0. The observation is
  {'vector': float32 [9]}, the one-hot position.

  The optimal policy always moves right. With r = 0.1 / 0.9 it reaches 8 from position k with probability
  (1 - r^k) / (1 - r^8), so the optimal return is 0.98889. A random policy reaches 8 with probability 2/8, so its return
  is 0.325.
  """

  optimal_return = _return(1 - _SLIP)
  random_return = _return(0.5)

  def __init__(self, *, seed: int):
    super().__init__(2, {'vector': specs.BoundedArray((_LENGTH + 1,), np.float32, 0.0, 1.0, name='vector')})
    self._random = np.random.RandomState(seed % 2**32)
    self._position = _START

  def render(self) -> np.ndarray:
    """Returns the chain as a row of squares, white at the position and black elsewhere, uint8 [32, 288, 3]."""
    return base.squares(self._vector(), 32)

  def _start_episode(self):
    self._position = _START
    return {'vector': self._vector()}

  def _advance(self, action):
    slips = self._random.random_sample() < _SLIP
    self._position += 1 if (action == 1) != slips else -1
    observation = {'vector': self._vector()}
    if self._position == 0:
      return dm_env.termination(_LEFT_REWARD, observation)
    if self._position == _LENGTH:
      return dm_env.termination(_RIGHT_REWARD, observation)
    return dm_env.transition(0.0, observation)

  def _vector(self):
    vector = np.zeros(_LENGTH + 1, np.float32)
    vector[self._position] = 1
    return vector
