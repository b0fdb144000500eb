"""Recall: memory tasks that only a recurrent agent can solve (levels `recall` and `recall_late`)."""

import dm_env
from dm_env import specs
import numpy as np

from scalable_agents.environments import base


class Recall(base.Environment):
  """The first observation shows one of two cues. Some blank steps later the agent must say which cue it was.

  The observation is {'vector': float32 [3]}. It is the one-hot cue in the first step, then zeros for 4 steps, then the
  question [0, 0, 1]. The correct answer to the question is the index of the cue. It earns +1, the other answer earns
  -1, and the episode ends. The five actions before it have no effect.

  The optimal return is 1. Without memory the best return is 0, because the question is the same for both cues. A random
  policy also has a return of 0. (An agent without a recurrent state could store the cue in its last action, if that is
  one of its inputs. An agent whose only inputs are observations cannot.)
  """

  delays = range(4, 5)  # Numbers of blank steps between the cue and the question, drawn uniformly.
  optimal_return = 1.0
  memoryless_return = 0.0
  random_return = 0.0

  def __init__(self, *, seed: int):
    super().__init__(2, {'vector': specs.BoundedArray((3,), np.float32, 0.0, 1.0, name='vector')})
    self._random = np.random.RandomState(seed % 2**32)
    self._cue = 0
    self._step = self._question = 0

  def render(self) -> np.ndarray:
    """Returns the observation as three squares, white for 1 and black for 0, uint8 [64, 192, 3]."""
    return base.squares(self._vector(), 64)

  def _start_episode(self):
    self._cue = self._random.randint(2)
    self._step = 0
    self._question = 1 + self._random.choice(self.delays)
    return {'vector': self._vector()}

  def _advance(self, action):
    if self._step == self._question:
      return dm_env.termination(1.0 if action == self._cue else -1.0, {'vector': self._vector()})
    self._step += 1
    return dm_env.transition(0.0, {'vector': self._vector()})

  def _vector(self):
    vector = np.zeros(3, np.float32)
    if self._step == 0:
      vector[self._cue] = 1
    elif self._step == self._question:
      vector[-1] = 1
    return vector


class RecallLate(Recall):
  """Recall with 8 to 15 blank steps, for agents that learn from parts of episodes.

  If sequences have at most 8 steps, burn-in included, then the question is never in a sequence with the cue. An agent
  can then learn the task only from the recurrent states at the starts of sequences.
  """

  delays = range(8, 16)
