"""Catch: a very small task with pixels as observations, for tests and first steps (level `catch`)."""

import dm_env
from dm_env import specs
import numpy as np

from scalable_agents.environments import base

CELLS = 5        # the board has CELLS x CELLS cells.
_CELL_SIZE = 4   # pixels. The picture has 20x20: two VALID convolutions (8x8/4, 4x4/2) use all its rows and columns.


class Catch(base.Environment):
  """A ball falls one cell per step from the top of a random column. The agent moves a paddle on the bottom row.

  The observation is {'pixels': uint8 [20, 20, 1]}. The ball and the paddle are white squares of 4x4 pixels. The actions
  are left, stay and right. An episode has 4 steps. The last step earns +1 if the paddle catches the ball, else -1. The
  paddle starts in the middle, so that it can reach every column. The optimal return is 1. A random policy has a return
  of 2/5 - 1 = -0.6, because the ball's column is uniform and does not depend on the paddle.
  """

  optimal_return = 1.0
  random_return = 2 / CELLS - 1

  def __init__(self, *, seed: int):
    shape = (CELLS * _CELL_SIZE, CELLS * _CELL_SIZE, 1)
    super().__init__(3, {'pixels': specs.BoundedArray(shape, np.uint8, 0, 255, name='pixels')})
    self._random = np.random.RandomState(seed % 2**32)
    self._ball_row = self._ball_column = 0
    self._paddle_column = CELLS // 2

  def render(self) -> np.ndarray:
    """Returns the board, uint8 [240, 240, 3]."""
    return base.enlarge(self._pixels()[..., 0], 12)

  def _start_episode(self):
    self._ball_row = 0
    self._ball_column = self._random.randint(CELLS)
    self._paddle_column = CELLS // 2
    return self._observe()

  def _advance(self, action):
    self._paddle_column = min(max(self._paddle_column + action - 1, 0), CELLS - 1)
    self._ball_row += 1
    if self._ball_row < CELLS - 1:
      return dm_env.transition(0.0, self._observe())
    return dm_env.termination(1.0 if self._succeeds() else -1.0, self._observe())

  def _observe(self):
    return {'pixels': self._pixels()}

  def _succeeds(self):
    return self._ball_column == self._paddle_column

  def _pixels(self):
    board = np.zeros((CELLS, CELLS), np.uint8)
    board[self._ball_row, self._ball_column] = 255
    board[-1, self._paddle_column] = 255
    return board.repeat(_CELL_SIZE, axis=0).repeat(_CELL_SIZE, axis=1)[..., np.newaxis]
