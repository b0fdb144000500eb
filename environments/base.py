"""The base class of all environments: dm_env with one discrete action, a count of frames and a picture.

A subclass implements `_start_episode`, `_advance` and `render`. The base class follows dm_env's rules: a step after the
last step of an episode starts the next episode. It also rejects invalid actions.
"""

import abc
from collections.abc import Mapping
import types
from typing import Any

import dm_env
from dm_env import specs
import numpy as np


class Environment(dm_env.Environment):
  """A seeded `dm_env.Environment` with a flat dict of observations and one discrete action.

  Observations are NumPy arrays by name: `pixels` uint8 [H, W, C] or `vector` float32 [N], and optionally `instruction`
  uint8 [instruction.BYTES]. The action is an integer in [0, A). Rewards are floats, neither clipped nor scaled.

  A discount of 0 in a MID step ends the episode only for learning: the environment continues. A LAST step with another
  discount than 0 is a truncation: the agent learns as if the episode went on from its observation. In the papers'
  suites and in the built-in tasks, an episode that reaches a time limit ends like any other episode, with discount 0.

  Attributes:
    frames_per_step: environment frames per agent step. The length of a run is counted in environment frames.
    frame_stacks: name -> k, for each observation whose last axis stacks the newest k frames, the newest one last. At
      an episode's start the frames before the first one are zeros. So a replay can store the newest frame alone.
  """

  frames_per_step: int = 1
  frame_stacks: Mapping[str, int] = types.MappingProxyType({})

  def __init__(self, num_actions: int, observation_spec: dict[str, specs.Array]):
    """Initialises the environment without starting an episode: the first call of `step` resets, as `reset` does.

    Args:
      num_actions: A, the number of actions.
      observation_spec: specs of the observations by name.
    """
    self._num_actions = num_actions
    self._action_spec = specs.DiscreteArray(num_actions, name='action')
    self._observation_spec = observation_spec
    self._between_episodes = True

  def reset(self) -> dm_env.TimeStep:
    """Starts an episode. Returns its FIRST step."""
    self._between_episodes = True  # Also if this start fails.
    first = dm_env.restart(self._start_episode())
    self._between_episodes = False
    return first

  def step(self, action) -> dm_env.TimeStep:
    """Plays one agent step. If no episode is running, it starts one and ignores the action.

    Args:
      action: integer in [0, A).

    Returns:
      The step's TimeStep: float reward, float discount, and observations as in `observation_spec`.

    Raises:
      ValueError: the action is out of its range.
    """
    if self._between_episodes:
      return self.reset()
    if not 0 <= action < self._num_actions:
      raise ValueError(f'action: want an integer in [0, {self._num_actions}), got {action}')
    time_step = self._advance(int(action))
    self._between_episodes = time_step.last()
    return time_step

  def write_observations_to(self, arrays: Mapping[str, np.ndarray]) -> None:
    """Allows the environment to write all later observations to these arrays, instead of making new ones.

    Environment workers call it, so that large observations are not copied. This method does nothing, which is always
    right. A subclass that overrides it returns these arrays as the observations of its steps; they are then valid until
    the next step.

    Args:
      arrays: a C-contiguous array for each name in `observation_spec`. Only the environment writes to them.
    """

  def observation_spec(self) -> dict[str, specs.Array]:
    """See dm_env.Environment."""
    return self._observation_spec

  def action_spec(self) -> specs.DiscreteArray:
    """See dm_env.Environment."""
    return self._action_spec

  @abc.abstractmethod
  def render(self) -> np.ndarray:
    """Returns a picture of the current state for videos, uint8 [H, W, 3]."""

  @abc.abstractmethod
  def _start_episode(self) -> dict[str, np.ndarray]:
    """Starts a new episode.

    Returns:
      The first observation: arrays by name, as in `observation_spec`. They must not be modified later.
    """

  @abc.abstractmethod
  def _advance(self, action: int) -> dm_env.TimeStep:
    """Plays one agent step of a running episode.

    Args:
      action: integer in [0, A), checked by the caller.

    Returns:
      A MID or LAST TimeStep. The arrays of its observation must not be modified later.
    """


def reward_of(given: Any) -> float:
  """Returns the reward that a user's environment gives. Raises ValueError if it is no number."""
  try:
    return float(given)
  except (TypeError, ValueError):
    raise ValueError(f'reward: want a number, got {one_line(given)}') from None


def picture(drawn: Any) -> np.ndarray:
  """Returns what a user's environment has drawn.

  Raises:
    ValueError: it is no picture, uint8 [H, W, 3].
  """
  array = np.asarray(drawn)
  if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3:
    got = 'None' if drawn is None else f'{array.dtype} {list(array.shape)}'
    raise ValueError(f'render: want a picture as uint8 [H, W, 3], got {got}')
  return array


def enlarge(pixels: np.ndarray, factor: int) -> np.ndarray:
  """Enlarges a gray picture uint8 [H, W] to uint8 [factor H, factor W, 3]. Every pixel becomes a square."""
  return np.repeat(np.kron(pixels, np.ones((factor, factor), np.uint8))[..., np.newaxis], 3, axis=2)


def squares(values: np.ndarray, size: int) -> np.ndarray:
  """Draws values in [0, 1], [W] or [H, W], as gray squares of this size, uint8 [size H, size W, 3]."""
  return enlarge((255 * np.atleast_2d(values)).astype(np.uint8), size)


def one_line(text: object) -> str:
  """Returns a text or an error's message on one line, for messages to the user."""
  return ' '.join(str(text).split())
