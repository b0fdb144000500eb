"""Obey: catch with words that decide what is rewarded (levels `obey_ball`, `obey_side` and `obey_nothing`).

The three look alike and have the same actions, so that one agent can play them together: told apart by what is said,
they can all be solved; by an agent that does not listen, the last one only.
"""

from scalable_agents.environments import catch
from scalable_agents.environments import instruction

_MIDDLE = catch.CELLS // 2
# Where the paddle is to be when the ball arrives, given the columns of both.
_GOALS = {
    'catch the ball': lambda ball, paddle: paddle == ball,
    'avoid the ball': lambda ball, paddle: paddle != ball,
    'go left': lambda ball, paddle: paddle < _MIDDLE,
    'go right': lambda ball, paddle: paddle > _MIDDLE,
    '': lambda ball, paddle: paddle == ball,
}


class _Obey(catch.Catch):
  """Catch, but for the goal: one of several sentences, drawn for each episode and said in all of its steps, sets it.

  Observation: the 'pixels' of catch, which tell nothing of the sentence, and 'instruction', uint8 [instruction.BYTES].
  The last of an episode's 4 steps earns +1 where the goal is reached and -1 where it is not. Optimal return: 1.
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
  """To catch the ball or to avoid it, as told. Who does not listen returns 0, whatever the policy."""

  sentences = ('catch the ball', 'avoid the ball')
  deaf_return = 0.0
  random_return = 0.0


class ObeySide(_Obey):
  """To go left or right of the middle, as told, whatever the ball does. Who does not listen returns 0 at best.

  The random return is less by the probability of ending in the middle: 19 of the 81 equally likely walks do.
  """

  sentences = ('go left', 'go right')
  deaf_return = 0.0
  random_return = -19 / 81


class ObeyNothing(_Obey):
  """Catch itself: nothing is said."""

  sentences = ('',)
  deaf_return = 1.0
