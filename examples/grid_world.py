"""A grid in which an agent learns to walk to a goal: an environment for gymnasium."""

import gymnasium
from gymnasium import spaces
import numpy as np

MOVES = np.array([[0, 1], [0, -1], [1, 0], [-1, 0]])


class GridWorld(gymnasium.Env):
  """The agent walks from a corner of a grid to a goal at a random place. It observes the way to the goal."""

  def __init__(self, size=5):
    self._size = size
    self.observation_space = spaces.Box(-1., 1., [2])
    self.action_space = spaces.Discrete(len(MOVES))

  def reset(self, *, seed=None, options=None):
    """Draws a goal and begins an episode. Returns the observation and an empty dict."""
    super().reset(seed=seed)
    self._place = np.zeros(2, int)
    self._goal = np.array(divmod(self.np_random.integers(1, self._size**2), self._size))
    return self._way(), {}

  def step(self, action):
    """Walks one place. The step to the goal earns 1 and ends the episode; each other step costs 0.05."""
    self._place = np.clip(self._place + MOVES[action], 0, self._size - 1)
    arrived = np.array_equal(self._place, self._goal)
    return self._way(), 1. if arrived else -0.05, arrived, False, {}

  def _way(self):
    """Returns the observation, [2] float32: the rows and columns from the agent to the goal, divided by the size."""
    return np.float32(self._goal - self._place) / self._size


gymnasium.register('GridWorld-v0', GridWorld, max_episode_steps=50)
