"""Multiplies the rewards of an environment (levels such as `catch_x100`)."""

import numpy as np

from scalable_agents.environments import base


class Scaled(base.Environment):
  """An environment whose rewards are multiplied by a factor. Everything else is unchanged."""

  def __init__(self, environment: base.Environment, factor: float):
    super().__init__(environment.action_spec().num_values, environment.observation_spec())
    self._environment = environment
    self._factor = factor
    self.frames_per_step = environment.frames_per_step
    self.frame_stacks = environment.frame_stacks

  def render(self) -> np.ndarray:
    return self._environment.render()

  def close(self):
    self._environment.close()

  def _start_episode(self):
    return self._environment.reset().observation

  def _advance(self, action):
    timestep = self._environment.step(action)
    return timestep._replace(reward=self._factor * timestep.reward)
