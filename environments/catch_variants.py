"""Tasks like catch with other goals (levels `catch_mirror` and `catch_shift`), for agents of several tasks.

They have the actions of catch, and pictures of the same size. Only the brightness of the background shows which task it
is, and each task needs another policy: an agent that has learned one of them mostly fails in the others.
"""

import numpy as np

from scalable_agents.environments import catch


class _Variant(catch.Catch):
  """Catch with another goal column and a brighter background. Random and optimal returns are those of catch."""

  background: int

  def _pixels(self):
    return np.maximum(super()._pixels(), np.uint8(self.background))


class Mirror(_Variant):
  """The goal is the ball's column, mirrored about the middle column."""

  background = 80

  def _succeeds(self):
    return self._paddle_column == catch.CELLS - 1 - self._ball_column


class Shift(_Variant):
  """The goal is two columns to the right of the ball. Columns wrap around."""

  background = 160

  def _succeeds(self):
    return self._paddle_column == (self._ball_column + 2) % catch.CELLS
