"""What every environment of this project offers: dm_env, one discrete action, a count of frames and a picture.

An environment implements `_start_episode` and `_advance`; the base class keeps dm_env's rules (a step after the last
one of an episode starts the next) and refuses actions that do not exist.
"""

import abc

import dm_env
from dm_env import specs
import numpy as np


class Environment(dm_env.Environment):
  """A seeded `dm_env.Environment` with a flat dict of observations and one discrete action.

  Rewards are raw. A discount of 0 in a MID step ends the episode for learning only: the environment goes on. A time
  limit ends an episode as its goal does: LAST with discount 0.

  Attributes:
    frames_per_step: environment frames in one agent step, the unit in which runs are counted.
  """

  frames_per_step: int = 1

  def __init__(self, num_actions: int, observation_spec: dict[str, specs.Array]):
    """Starts between two episodes: the first call of `step` resets, as `reset` does."""
    self._num_actions = num_actions
    self._action_spec = specs.DiscreteArray(num_actions, name='action')
    self._observation_spec = observation_spec
    self._between_episodes = True

  def reset(self) -> dm_env.TimeStep:
    self._between_episodes = False
    return dm_env.restart(self._start_episode())

  def step(self, action) -> dm_env.TimeStep:
    """Plays one agent step; starts an episode instead, whatever the action, where none is running.

    Raises:
      ValueError: there is no such action.
    """
    if self._between_episodes:
      return self.reset()
    if not 0 <= action < self._num_actions:
      raise ValueError(f'action: want an integer in [0, {self._num_actions}), got {action}')
    time_step = self._advance(int(action))
    self._between_episodes = time_step.last()
    return time_step

  def observation_spec(self) -> dict[str, specs.Array]:
    return self._observation_spec

  def action_spec(self) -> specs.DiscreteArray:
    return self._action_spec

  @abc.abstractmethod
  def render(self) -> np.ndarray:
    """A picture of the present state for videos: uint8 [H, W, 3]."""

  @abc.abstractmethod
  def _start_episode(self) -> dict[str, np.ndarray]:
    """The first observation of a new episode, in arrays that are not written again."""

  @abc.abstractmethod
  def _advance(self, action: int) -> dm_env.TimeStep:
    """Plays a valid action in a running episode; its observation's arrays are not written again."""


def enlarge(pixels: np.ndarray, factor: int) -> np.ndarray:
  """A gray picture uint8 [H, W] as uint8 [factor H, factor W, 3], every pixel a square."""
  return np.repeat(np.kron(pixels, np.ones((factor, factor), np.uint8))[..., np.newaxis], 3, axis=2)
