"""Recall: a memory task that only a recurrent agent solves (level `recall`)."""

import dm_env
from dm_env import specs
import numpy as np

from scalable_agents.environments import base

_DELAY = 4  # blank steps between the cue and the question.


class Recall(base.Environment):
  """One of two cues is shown once; some blank steps later the agent is asked which.

  Observation: {'vector': float32 [3]}: the cue one-hot in the first step, then 4 blank steps of zeros, then the
  question, a one in the last place. The action that answers the question (the cue's index) earns +1 where right and
  -1 where wrong and ends the episode; the five actions before it change nothing. Optimal return: 1, with memory.
  Without: 0, which is also the random return, since the question looks the same after either cue. (An agent without
  a recurrent state that is fed its own last action could keep the cue there; one that sees observations only cannot.)
  """

  optimal_return = 1.0
  memoryless_return = 0.0
  random_return = 0.0

  def __init__(self, *, seed: int):
    super().__init__(2, {'vector': specs.BoundedArray((3,), np.float32, 0.0, 1.0, name='vector')})
    self._random = np.random.RandomState(seed % 2**32)
    self._cue = 0
    self._step = 0

  def render(self) -> np.ndarray:
    """The observation as three squares, lit where one: uint8 [64, 192, 3]."""
    return base.enlarge(np.uint8(255 * self._vector())[np.newaxis], 64)

  def _start_episode(self):
    self._cue = self._random.randint(2)
    self._step = 0
    return {'vector': self._vector()}

  def _advance(self, action):
    if self._step == _DELAY + 1:
      return dm_env.termination(1.0 if action == self._cue else -1.0, {'vector': self._vector()})
    self._step += 1
    return dm_env.transition(0.0, {'vector': self._vector()})

  def _vector(self):
    vector = np.zeros(3, np.float32)
    if self._step == 0:
      vector[self._cue] = 1
    elif self._step == _DELAY + 1:
      vector[-1] = 1
    return vector
