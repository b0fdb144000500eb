"""Tasks like catch with other goals (levels `catch_mirror` and `catch_shift`), for agents of several tasks.

They have the actions of catch, and pictures of the same size. Only the shades of grey show which task it is, and each
task needs another policy: an agent that has learned one of them mostly fails in the others. The random and the optimal
returns are those of catch.
"""

import numpy as np

from scalable_agents.environments import catch


class Mirror(catch.Catch):
  """The goal is the ball's column, mirrored about the middle column. The background is dark grey."""

  def _succeeds(self):
    return self._paddle_column == catch.CELLS - 1 - self._ball_column

  def _pixels(self):
    return np.maximum(super()._pixels(), np.uint8(80))


class Shift(catch.Catch):
  """The goal is two columns to the right of the ball. Columns wrap around. The picture is black on white."""

  def _succeeds(self):
    return self._paddle_column == (self._ball_column + 2) % catch.CELLS

  def _pixels(self):
    return 255 - super()._pixels()
