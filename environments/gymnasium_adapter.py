"""Adapts gymnasium environments with discrete actions, such as those of users, to dm_env."""

import difflib
import functools
from typing import Any
import warnings

import dm_env
from dm_env import specs
import numpy as np

from scalable_agents.environments import base


class Gymnasium(base.Environment):
  """One gymnasium environment.

  The action space must be Discrete. The observation space determines the observation:
    Box uint8 [H, W, C], [C, H, W] or [H, W]: {'pixels': uint8 [H, W, C]}, with C = 1 for [H, W]. The channels are the
      first dimension if it is smaller than the last one, as when gymnasium stacks frames.
    any other Box of at most two dimensions: {'vector': float32 [N]}, flattened.
    Discrete: {'vector': float32 [N]}, one-hot.

  Rewards are raw. Truncation (a time limit) ends an episode in the same way as termination: with a LAST step and
  discount 0, as in the papers.
  """

  def __init__(self, environment_id: str, *, seed: int):
    """Makes the environment.

    Args:
      environment_id: the id for `gymnasium.make`. 'package:id' imports the package first.
      seed: random seed, >= 0. Only the first reset gets it, as gymnasium recommends. Later episodes continue with the
        same random stream.

    Raises:
      ImportError: gymnasium, or a package that this environment needs, is not installed.
      ValueError: the id is unknown, or a space is not one of those above.
    """
    self._id = environment_id
    self._gymnasium, self._environment, self._draws_not = _make(environment_id)
    self._seed = seed % 2**31
    actions: Any = self._environment.action_space
    if not isinstance(actions, self._gymnasium.spaces.Discrete):
      raise ValueError(f'gymnasium:{environment_id}: want a Discrete action space, got {_line(actions)}')
    self._first_action = int(actions.start)
    super().__init__(int(actions.n), self._convert_space(self._environment.observation_space))

  def render(self) -> np.ndarray:
    """Returns the environment's own picture, uint8 [H, W, 3].

    Raises:
      ImportError: drawing needs a package that is not installed.
      ValueError: the environment has no render mode 'rgb_array'.
    """
    if self._environment.render_mode != 'rgb_array':
      raise ValueError(f'gymnasium:{self._id}: this environment draws no pictures ({self._draws_not})')
    try:
      return np.asarray(self._environment.render(), np.uint8)
    except (ImportError, self._gymnasium.error.DependencyNotInstalled) as error:
      raise ImportError(f'gymnasium:{self._id}: {_line(error)}') from error

  def close(self):
    self._environment.close()

  def _start_episode(self):
    observation, _ = self._environment.reset(seed=self._seed)
    self._seed = None
    return self._convert(observation)

  def _advance(self, action):
    observation, reward, terminated, truncated, _ = self._environment.step(self._first_action + action)
    if terminated or truncated:
      return dm_env.termination(float(reward), self._convert(observation))
    return dm_env.transition(float(reward), self._convert(observation))

  def _convert_space(self, space) -> dict[str, specs.Array]:
    """Returns the observation spec of a gymnasium space, and selects the conversion that `_convert` does."""
    spaces = self._gymnasium.spaces
    self._one_hot = None
    if isinstance(space, spaces.Discrete):
      self._one_hot = np.eye(int(space.n), dtype=np.float32)
      self._first_observation = int(space.start)
      return {'vector': specs.BoundedArray((int(space.n),), np.float32, 0.0, 1.0, name='vector')}
    if not isinstance(space, spaces.Box):
      raise ValueError(f'gymnasium:{self._id}: want a Box or Discrete observation space, got {_line(space)}')
    self._channels_first = len(space.shape) == 3 and space.shape[0] < space.shape[2]
    if space.dtype == np.uint8 and len(space.shape) in (2, 3):
      shape = (*space.shape[1:], space.shape[0]) if self._channels_first else (*space.shape, 1)[:3]
      self._name = 'pixels'
      self._dtype = np.uint8
      self._shape = shape
      return {'pixels': specs.BoundedArray(self._shape, np.uint8, 0, 255, name='pixels')}
    if len(space.shape) > 2:
      raise ValueError(f'gymnasium:{self._id}: want images as uint8 of two or three dimensions, got {space.dtype} '
                       f'{list(space.shape)}')
    self._name = 'vector'
    self._dtype = np.float32
    self._shape = (int(np.prod(space.shape)),)
    return {'vector': specs.Array(self._shape, np.float32, name='vector')}

  def _convert(self, observation):
    if self._one_hot is not None:
      return {'vector': self._one_hot[int(observation) - self._first_observation].copy()}
    if self._channels_first:
      observation = np.moveaxis(observation, 0, -1)
    # Makes a copy, because the environment may write the next observation into the same array.
    return {self._name: np.array(observation, self._dtype).reshape(self._shape)}


def _make(environment_id):
  """Returns the gymnasium module, the environment, and why the environment cannot draw pictures, if it cannot.

  gymnasium is imported here, so that workers for other levels start faster.
  """
  name = f'gymnasium:{environment_id}'
  try:
    import gymnasium
  except ImportError as error:
    raise ImportError(f'{name}: gymnasium is not installed ({error}): pip install gymnasium') from error
  try:
    with warnings.catch_warnings():
      warnings.simplefilter('ignore')  # For example, that the id is out of date. The user has chosen it.
      make = functools.partial(gymnasium.make, environment_id, disable_env_checker=True)
      environment, draws_not = make(), "no render mode 'rgb_array'"
      if 'rgb_array' in (environment.metadata.get('render_modes') or ()):
        environment.close()
        try:
          environment = make(render_mode='rgb_array')
        except Exception as error:  # Without drawing, it can still be played.
          environment = make()
          draws_not = f'{type(error).__name__}: {_line(error)}'
  except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
    raise ImportError(f'{name}: {_line(error)}') from error
  except (gymnasium.error.Error, ValueError) as error:
    closest = difflib.get_close_matches(environment_id, gymnasium.registry, n=3)
    hint = f' Closest ids: {", ".join(closest)}.' if closest else ''
    raise ValueError(f'{name}: {_line(error)}{hint}') from error
  return gymnasium, environment, draws_not


def _line(message) -> str:
  return ' '.join(str(message).split())
