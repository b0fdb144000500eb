"""Adds an environment's rendered pictures to its observations, so that another process can make a video of them."""

import dm_env
from dm_env import specs
import numpy as np

from scalable_agents.environments import base

PICTURE = 'picture'  # uint8 [H, W, 3].
ENDED = 'ended'      # bool [], whether the episode has ended.


class Filmed(base.Environment):
  """Plays one episode, with ENDED and perhaps PICTURE in its observations.

  The last step of the episode is a MID step with ENDED = True, so that its picture is part of the video. `step` must
  not be called after it.
  """

  def __init__(self, environment: base.Environment, has_pictures: bool = True):
    """Resets the environment, to find out the size of its pictures.

    Args:
      environment: the environment.
      has_pictures: whether there is PICTURE. Without it, the environment need not draw any.
    Raises:
      ValueError, ImportError: the environment draws no pictures.
    """
    self._environment = environment
    self._has_pictures = has_pictures
    self.frames_per_step = environment.frames_per_step
    self.frame_stacks = environment.frame_stacks
    self._first = environment.reset()
    added = {ENDED: specs.Array((), bool, name=ENDED)}
    if has_pictures:
      added[PICTURE] = specs.Array(environment.render().shape, np.uint8, name=PICTURE)
    super().__init__(environment.action_spec().num_values, environment.observation_spec() | added)

  def render(self) -> np.ndarray:
    return self._environment.render()

  def close(self):
    self._environment.close()

  def _start_episode(self):
    return self._filmed(self._first)

  def _advance(self, action):
    timestep = self._environment.step(action)
    return dm_env.transition(timestep.reward, self._filmed(timestep))

  def _filmed(self, timestep):
    pictures = {PICTURE: self._environment.render()} if self._has_pictures else {}
    return timestep.observation | pictures | {ENDED: np.bool_(timestep.last())}
