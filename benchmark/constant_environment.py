"""An environment whose steps take almost no time, to measure the cost of everything else."""

from typing import NamedTuple

import dm_env
from dm_env import specs
import numpy as np

from scalable_agents.environments import instruction


class Level(NamedTuple):
  """A level with the number of actions and the observation shapes of a real environment."""
  num_actions: int
  observation: dict[str, np.ndarray]  # uint8 arrays by name, returned in every step.


def _noise(*shape):
  return np.random.RandomState(0).randint(256, size=shape, dtype=np.uint8)


LEVELS = {
    'atari': Level(6, {'pixels': _noise(84, 84, 4)}),
    'dmlab': Level(9, {'pixels': _noise(72, 96, 3), 'instruction': instruction.encode('pick up the red balloon')}),
}


class Constant(dm_env.Environment):
  """Returns the same observation in all steps. Episodes have 1,000 agent steps."""

  frames_per_step, frame_stacks = 1, {}

  def __init__(self, level_name: str, seed: int, protocol: dict | None = None):
    """The arguments are those of registry.make_from_json. `level_name` is one of LEVELS."""
    del seed, protocol
    self._level = LEVELS[level_name]
    self._middle = dm_env.transition(0., self._level.observation)
    self._last = dm_env.termination(1., self._level.observation)
    self._steps = 0

  def reset(self) -> dm_env.TimeStep:
    self._steps = 0
    return dm_env.restart(self._level.observation)

  def step(self, action) -> dm_env.TimeStep:
    del action
    self._steps += 1
    return self._last if self._steps == 1000 else self._middle

  def observation_spec(self):
    return {name: specs.Array(value.shape, value.dtype, name) for name, value in self._level.observation.items()}

  def action_spec(self):
    return specs.DiscreteArray(self._level.num_actions)
