"""Quiz: a task in which experience of agents with other policies misleads (level `quiz`)."""

import dm_env
from dm_env import specs
import numpy as np

from scalable_agents.environments import base

ANSWERS = (6, 1, 4, 4, 8, 4, 6, 3)  # The right answer to each question.
_NUM_ACTIONS = 10


class Quiz(base.Environment):
  """A quiz of 8 questions, which the agent may leave at any time.

  Action 0 leaves: the episode ends with a reward of 0. Actions 1 ... 9 are answers. One of them is right and earns 1,
  the others earn -1.25. After any answer the next question follows; the last one ends the episode. The questions are
  always the same. The observation is {'vector': float32 [8]}, the one-hot number of the question.

  It pays to stay only for an agent that is mostly right later, too. So an agent that learns from the experience of
  agents with other policies leaves if its values are theirs.

  The optimal policy knows all answers; its return is 8. A random policy earns -0.9 per question, and leaves with
  probability 0.1 at each: its return is -9 (1 - 0.9^8) = -5.1258.
  """

  optimal_return = float(len(ANSWERS))
  random_return = -9 * (1 - 0.9**len(ANSWERS))

  def __init__(self, *, seed: int):
    del seed  # Nothing is random.
    super().__init__(_NUM_ACTIONS, {'vector': specs.BoundedArray((len(ANSWERS),), np.float32, 0.0, 1.0, name='vector')})
    self._question = 0

  def render(self) -> np.ndarray:
    """Returns the observation as a row of squares, white for 1 and black for 0, uint8 [32, 256, 3]."""
    return base.enlarge(np.uint8(255 * self._vector())[np.newaxis], 32)

  def _start_episode(self):
    self._question = 0
    return {'vector': self._vector()}

  def _advance(self, action):
    if not action:
      return dm_env.termination(0.0, {'vector': self._vector()})
    reward = 1. if action == ANSWERS[self._question] else -1.25
    self._question += 1
    if self._question == len(ANSWERS):
      return dm_env.termination(reward, {'vector': self._vector()})
    return dm_env.transition(reward, {'vector': self._vector()})

  def _vector(self):
    vector = np.zeros(len(ANSWERS), np.float32)
    vector[min(self._question, len(ANSWERS) - 1)] = 1
    return vector
