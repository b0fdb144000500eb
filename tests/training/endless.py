"""An environment of dm_env whose task has no end. Its episodes have a time limit, which the agent does not observe."""

import dm_env
from dm_env import specs
import numpy as np


class Endless(dm_env.Environment):
  """Every step earns 1. An episode has 4 steps. The observation is always the same."""

  def __init__(self, is_task_over: bool):
    self._end = dm_env.termination if is_task_over else dm_env.truncation
    self._steps = 0

  def action_spec(self):
    return specs.DiscreteArray(2)

  def observation_spec(self):
    return {'place': specs.Array((1,), np.float64)}

  def _observation(self):
    return {'place': np.ones(1)}

  def reset(self):
    self._steps = 0
    return dm_env.restart(self._observation())

  def step(self, unused_action):
    self._steps += 1
    return (self._end if self._steps == 4 else dm_env.transition)(1., self._observation())


def make(seed, is_task_over=False):
  """Makes the environment. `is_task_over` makes the time limit an ordinary end of the episode."""
  del seed
  return Endless(is_task_over)
