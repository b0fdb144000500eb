"""Adapts users' dm_env environments with discrete actions to `base.Environment`."""

import contextlib
from typing import Any

import dm_env
from dm_env import specs
import numpy as np

from scalable_agents.environments import base
from scalable_agents.environments import observations
from scalable_agents.environments import user_modules


class DmEnv(base.Environment):
  """One dm_env environment, made by a function of the user's.

  The action must be a DiscreteArray. observations.py says which observations it may have. Rewards are raw. Discounts
  other than 0 count as 1: the agents have a discount of their own. A LAST step with discount 0 is the end of the task.
  A LAST step with another discount is a time limit: agents then bootstrap from its observation; see actor/unroll.py.
  An environment with an attribute `frames_per_step` says how many environment frames an agent step has, a whole number
  of at least 1; otherwise it is 1.
  """

  def __init__(self, path: str, /, *, seed: int, **arguments):
    """Makes the environment.

    Args:
      path: 'MODULE:FUNCTION'. The function is called with `seed` and the arguments, and returns a dm_env.Environment.
      seed: random seed, >= 0.
      **arguments: further arguments of the function.

    Raises:
      ImportError: the module cannot be imported.
      ValueError: the module has no such function, or it returns no dm_env.Environment as above.
    """
    self._environment = _make(path, seed, arguments)
    with _named(path):
      actions: Any = self._environment.action_spec()
    if not isinstance(actions, specs.DiscreteArray):
      raise ValueError(f'dm_env:{path}: want an action of specs.DiscreteArray, got {base.one_line(actions)}')
    with _named(path):
      spec, self._convert = observations.convert_spec(self._environment.observation_spec())
    super().__init__(int(actions.num_values), spec)
    self._path = path
    self._action_type = actions.dtype.type  # The spec's own check wants it.
    frames = getattr(self._environment, 'frames_per_step', 1)
    if not isinstance(frames, (int, np.integer)) or frames < 1:
      raise ValueError(
          f'dm_env:{path}: frames_per_step: want a whole number of at least 1, got {base.one_line(frames)}')
    self.frames_per_step = int(frames)

  def render(self) -> np.ndarray:
    """Returns the picture that a method `render` of the user's environment draws, uint8 [H, W, 3].

    Raises:
      ValueError: it has no such method, or the method draws something else.
    """
    if not hasattr(self._environment, 'render'):
      raise ValueError(f'dm_env:{self._path}: this environment draws no pictures (it has no method `render`)')
    return base.picture(self._environment.render())  # pyright: ignore[reportAttributeAccessIssue]

  def close(self):
    """See dm_env.Environment."""
    self._environment.close()

  def _start_episode(self):
    return self._convert(self._environment.reset().observation)

  def _advance(self, action):
    step = self._environment.step(self._action_type(action))
    return step._replace(reward=base.reward_of(step.reward), observation=self._convert(step.observation))


@contextlib.contextmanager
def _named(path):
  """Puts the level before the message of an error, and the message on one line."""
  try:
    yield
  except ImportError as error:
    raise ImportError(f'dm_env:{path}: {base.one_line(error)}') from error
  except ValueError as error:
    raise ValueError(f'dm_env:{path}: {base.one_line(error)}') from error


def _make(path, seed, arguments):
  module_name, _, function_name = path.partition(':')
  if not module_name or not function_name:
    raise ValueError(f'dm_env:{path}: want dm_env:MODULE:FUNCTION')
  with _named(path):
    module = user_modules.import_module(module_name)
  function = getattr(module, function_name, None)
  if not callable(function):
    raise ValueError(f'dm_env:{path}: the module {module_name} has no function {function_name}; it is '
                     f'{getattr(module, "__file__", "built in")}')
  with _named(path):
    environment = function(seed=seed, **arguments)
  if not isinstance(environment, dm_env.Environment):
    raise ValueError(f'dm_env:{path}: want a dm_env.Environment, got {type(environment).__name__}')
  return environment
