"""Obey: catch with an instruction that determines the goal (levels `obey_ball`, `obey_side` and `obey_nothing`).

The three levels have the same pixels and the same actions, so that one agent can play all of them. An agent that reads
the instruction can solve all three. An agent that ignores it can solve only the last one.
"""

from scalable_agents.environments import catch
from scalable_agents.environments import instruction

_MIDDLE = catch.CELLS // 2
# Whether the goal is reached, given the columns of the ball and the paddle when the ball reaches the bottom row.
_GOALS = {
    'catch the ball': lambda ball, paddle: paddle == ball,
    'avoid the ball': lambda ball, paddle: paddle != ball,
    'go left': lambda ball, paddle: paddle < _MIDDLE,
    'go right': lambda ball, paddle: paddle > _MIDDLE,
    '': lambda ball, paddle: paddle == ball,
}


class _Obey(catch.Catch):
  """Catch with a random goal in each episode. A sentence states the goal and is part of every observation.

  Observations:
    pixels: uint8 [20, 20, 1], as in catch. They do not depend on the sentence.
    instruction: uint8 [instruction.BYTES], the sentence.

  The last of an episode's 4 steps earns +1 if the goal is reached, else -1. The optimal return is 1.

  Attributes:
    sentences: the possible sentences. Each episode draws one of them at random.
    uninstructed_return: the highest return of an agent that ignores the instruction.
  """

  sentences: tuple[str, ...]

  def __init__(self, *, seed: int):
    super().__init__(seed=seed)
    self._observation_spec = self._observation_spec | {'instruction': instruction.spec()}
    self._sentence = self.sentences[0]

  def _start_episode(self):
    self._sentence = self.sentences[self._random.randint(len(self.sentences))]
    return super()._start_episode()

  def _observe(self):
    return super()._observe() | {'instruction': instruction.encode(self._sentence)}

  def _succeeds(self):
    return _GOALS[self._sentence](self._ball_column, self._paddle_column)


class ObeyBall(_Obey):
  """The goal is to catch the ball or to avoid it. An agent that ignores the instruction has a return of 0."""

  sentences = ('catch the ball', 'avoid the ball')
  uninstructed_return = 0.0
  random_return = 0.0


class ObeySide(_Obey):
  """The goal is to move left or right of the middle. An agent that ignores the instruction has a return of 0 at best.

  A random policy has a lower return, because 19 of the 81 equally likely walks end in the middle.
  """

  sentences = ('go left', 'go right')
  uninstructed_return = 0.0
  random_return = -19 / 81


class ObeyNothing(_Obey):
  """Catch with an empty instruction."""

  sentences = ('',)
  uninstructed_return = 1.0
