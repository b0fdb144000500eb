"""Adapts gymnasium environments with discrete actions, such as those of users, to dm_env."""

import contextlib
import difflib
import functools
from typing import Any
import warnings

import dm_env
from dm_env import specs
import numpy as np

from scalable_agents.environments import base
from scalable_agents.environments import observations
from scalable_agents.environments import user_modules


class Gymnasium(base.Environment):
  """One gymnasium environment.

  The action space must be Discrete. The observation space is an array of numbers, a Discrete or a Dict of these;
  observations.py says which ones an agent can observe. Rewards are raw.

  A truncation (a time limit) is a LAST step with discount 1, and agents then bootstrap from its observation; see
  actor/unroll.py. A termination is a LAST step with discount 0.
  """

  def __init__(self, environment_id: str, /, *, seed: int, **arguments):
    """Makes the environment.

    Args:
      environment_id: the id for `gymnasium.make`. 'package:id' imports the package first.
      seed: random seed, >= 0. Only the first reset gets it, as gymnasium recommends. Later episodes continue with the
        same random stream.
      **arguments: further arguments of `gymnasium.make`, which gives them to the environment.

    Raises:
      ImportError: gymnasium, or a package that this environment needs, is not installed.
      ValueError: the id is unknown, or a space is not one of those above.
    """
    self._id = environment_id
    self._gymnasium, self._environment, self._draws_not = _make(environment_id, arguments)
    self._seed = seed % 2**31
    actions: Any = self._environment.action_space
    if not isinstance(actions, self._gymnasium.spaces.Discrete):
      raise ValueError(f'gymnasium:{environment_id}: want a Discrete action space, got {base.one_line(actions)}')
    self._first_action = int(actions.start)
    try:
      spec, self._convert = observations.convert_spec(self._spec(self._environment.observation_space))
    except ValueError as error:
      raise ValueError(f'gymnasium:{environment_id}: {error}') from None
    super().__init__(int(actions.n), spec)

  def render(self) -> np.ndarray:
    """Returns the environment's own picture, uint8 [H, W, 3].

    Raises:
      ImportError: drawing needs a package that is not installed.
      ValueError: the environment has no render mode 'rgb_array', or draws something else.
    """
    if self._environment.render_mode != 'rgb_array':
      raise ValueError(f'gymnasium:{self._id}: this environment draws no pictures ({self._draws_not})')
    try:
      return base.picture(self._environment.render())
    except (ImportError, self._gymnasium.error.DependencyNotInstalled) as error:
      raise ImportError(f'gymnasium:{self._id}: {base.one_line(error)}') from error

  def close(self):
    """See dm_env.Environment."""
    self._environment.close()

  def _start_episode(self):
    observation, _ = self._environment.reset(seed=self._seed)
    self._seed = None
    return self._convert(observation)

  def _advance(self, action):
    observation, reward, terminated, truncated, _ = self._environment.step(np.int64(self._first_action + action))
    make_step = dm_env.termination if terminated else dm_env.truncation if truncated else dm_env.transition
    return make_step(base.reward_of(reward), self._convert(observation))

  def _spec(self, space):
    """Returns the dm_env spec of a space, or the space itself if dm_env has none for it."""
    spaces = self._gymnasium.spaces
    if isinstance(space, spaces.Dict):
      return {name: self._spec(entry) for name, entry in space.spaces.items()}
    if isinstance(space, spaces.Discrete):
      return specs.BoundedArray((), np.int64, int(space.start), int(space.start) + int(space.n) - 1)
    has_numbers = isinstance(space, (spaces.Box, spaces.MultiBinary, spaces.MultiDiscrete))
    return specs.Array(space.shape, space.dtype) if has_numbers else space


def _make(environment_id, arguments):
  """Returns the gymnasium module, the environment, and why the environment cannot draw pictures, if it cannot.

  gymnasium is imported here, so that workers for other levels start faster.
  """
  name = f'gymnasium:{environment_id}'
  if environment_id.count(':') > 1:
    raise ValueError(f'{name}: want gymnasium:ID or gymnasium:PACKAGE:ID')
  if 'render_mode' in arguments:
    raise ValueError(f'{name}: leave out render_mode: it is rgb_array, for videos, if the environment has it')
  try:
    import gymnasium
  except ImportError as error:
    raise ImportError(f'{name}: gymnasium is not installed ({error}): pip install gymnasium') from error
  try:
    if ':' in environment_id:  # gymnasium would import it too, but does not search the current folder.
      user_modules.import_module(environment_id.split(':')[0])
    with warnings.catch_warnings():
      warnings.simplefilter('ignore')  # For example, that the id is out of date. The user has chosen it.
      make = functools.partial(gymnasium.make, environment_id, disable_env_checker=True, **arguments)
      environment, draws_not = make(), "no render mode 'rgb_array'"
      if 'rgb_array' in (environment.metadata.get('render_modes') or ()):
        with contextlib.suppress(Exception):  # It may need a reset first.
          environment.close()
        try:
          environment = make(render_mode='rgb_array')
        except Exception as error:  # Without drawing, it can still be played.
          environment = make()
          draws_not = f'{type(error).__name__}: {base.one_line(error)}'
  except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
    raise ImportError(f'{name}: {base.one_line(error)}') from error
  except (gymnasium.error.Error, ValueError) as error:
    plain_id = environment_id.split(':')[-1]
    is_known = plain_id in gymnasium.registry
    closest = [] if is_known else difflib.get_close_matches(plain_id, gymnasium.registry, n=3)
    hint = f' Closest ids: {", ".join(closest)}.' if closest else ''
    raise ValueError(f'{name}: {base.one_line(error)}{hint}') from error
  return gymnasium, environment, draws_not
