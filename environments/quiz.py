"""Quiz: a task on which a shared replay can mislead or help (level `quiz`)."""

import dm_env
from dm_env import specs
import numpy as np

from scalable_agents.environments import base

# The right answer to each question, by subject.
ANSWERS = ((6, 1, 4, 4, 8, 4), (6, 3, 5, 8, 7, 9), (9, 2, 7, 8, 8, 9), (2, 6, 9, 5, 4, 1),
           (4, 6, 1, 3, 4, 9), (2, 4, 4, 4, 8, 1), (2, 1, 5, 8, 4, 3), (8, 3, 1, 1, 5, 6))
_NUM_SUBJECTS, _NUM_QUESTIONS = np.shape(ANSWERS)
_NUM_ACTIONS = 10


class Quiz(base.Environment):
  """A quiz of 6 questions on one of 8 subjects, which the agent may leave at any time.

  Each episode draws a subject. Its questions are always the same. Action 0 leaves: the episode ends with a reward of
  0. Actions 1 ... 9 are answers. One of them is right and earns 1, the others earn `wrong_reward`. After any answer the
  next question follows; the last one ends the episode. The observation is {'vector': float32 [48]}, the one-hot
  question.

  Answering pays only if the agent is right about the later questions, too. Experience of an agent that guesses shows
  these questions to an agent that leaves early. But if the agent mistakes the values of the guessing policy for its
  own values, it learns to leave early.

  The optimal policy knows all answers; its return is 6. A random policy leaves with probability 0.1 at each question,
  and is right with probability 0.1: with the default, its return is -3.8 (1 - 0.9^6) = -1.7805.
  """

  optimal_return = float(_NUM_QUESTIONS)
  random_return = -3.8 * (1 - 0.9**_NUM_QUESTIONS)

  def __init__(self, *, seed: int, wrong_reward: float = -0.6):
    super().__init__(
        _NUM_ACTIONS, {'vector': specs.BoundedArray((np.size(ANSWERS),), np.float32, 0.0, 1.0, name='vector')})
    self._random = np.random.RandomState(seed % 2**32)
    self._wrong_reward = wrong_reward
    self._subject = self._question = 0

  def render(self) -> np.ndarray:
    """Returns a white square for the question in a black row for each subject, uint8 [256, 192, 3]."""
    return base.squares(self._vector().reshape(np.shape(ANSWERS)), 32)

  def _start_episode(self):
    self._subject = self._random.randint(_NUM_SUBJECTS)
    self._question = 0
    return {'vector': self._vector()}

  def _advance(self, action):
    if not action:
      return dm_env.termination(0.0, {'vector': self._vector()})
    reward = 1. if action == ANSWERS[self._subject][self._question] else self._wrong_reward
    self._question += 1
    if self._question == _NUM_QUESTIONS:
      return dm_env.termination(reward, {'vector': self._vector()})
    return dm_env.transition(reward, {'vector': self._vector()})

  def _vector(self):
    vector = np.zeros(np.shape(ANSWERS), np.float32)
    vector[self._subject, min(self._question, _NUM_QUESTIONS - 1)] = 1
    return vector.ravel()
