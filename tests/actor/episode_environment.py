"""An environment for tests of evaluation: which episode of which length ended can be read off its return."""

import dm_env
from dm_env import specs
import numpy as np


class Episodes(dm_env.Environment):
  """Episodes of `length` steps; the n-th one returns n, all of it in the last step.

  A first stream, which is one with a seed below `first_streams`, raises in the middle of episode `faulty_episode`.
  """

  frames_per_step, frame_stacks = 4, {}

  def __init__(self, seed, length, first_streams=0, faulty_episode=None):
    self._length = length
    self._faulty_episode = faulty_episode if seed < first_streams else None
    self._episode = self._step = 0
    self._observation = {'vector': np.zeros([1], np.float32)}

  def reset(self):
    self._episode += 1
    self._step = 0
    return dm_env.restart(self._observation)

  def step(self, action):
    del action
    if self._episode == self._faulty_episode:
      raise RuntimeError('a fault on demand')
    self._step += 1
    if self._step < self._length:
      return dm_env.transition(0., self._observation)
    return dm_env.termination(float(self._episode), self._observation)

  def observation_spec(self):
    return {'vector': specs.Array([1], np.float32, 'vector')}

  def action_spec(self):
    return specs.DiscreteArray(2)
