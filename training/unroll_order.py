"""Detects unrolls that are lost, late or repeated, by the life and the index of each unroll.

An actor numbers the unrolls of each of its lives 0, 1, 2 and so on (actor/unroll.py), and sends them in this order. If
a connection breaks, some may be lost, and some may arrive after their successors. So the unrolls of a life are admitted
only in the order of their indices, and every index that is skipped is counted.
"""

import collections

import numpy as np

_MAX_LIVES = 65_536  # About 10 MB.


class UnrollOrder:
  """Decides which unrolls are admitted, so that those of a life are in order and every loss is counted.

  For each life, the numbers of admitted and of missing unrolls add up to the highest admitted index plus one.
  """

  def __init__(self, lives_may_have_begun: bool = False, max_lives: int = _MAX_LIVES):
    """Begins without any known life.

    Args:
      lives_may_have_begun: says what it means if the first unroll of a life has an index i > 0.
        False: unrolls 0 to i - 1 of the life are missing. This is right at the start of a run.
        True: the life began before this object was made, and nothing is missing. This is right in a learner that was
        restarted while its actor hosts kept running. Losses before the first unroll of a life are then not counted.
      max_lives: number of lives to remember, >= 1, so that memory stays bounded whatever is sent. If there are more,
        the life with the least recent admission is forgotten. If it comes again, it counts as a new life.
    """
    self._lives_may_have_begun, self._max_lives = lives_may_have_begun, max_lives
    self._next_index = collections.OrderedDict()  # By life; the life with the least recent admission is the first.
    self._missing = self._late = self._missing_said = self._late_said = 0

  def admit(self, life_id: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Decides about a batch. Must be called once for each batch, in the order in which the batches were taken.

    Args:
      life_id: [B] integers, see actor/unroll.py.
      index: [B] integers. An unroll with a negative index is late.
    Returns:
      [B] bool, whether the unroll is admitted. It is not if it is late: if it or a later unroll of the same life was
      admitted before.
    Raises:
      ValueError: the shapes are not [B].
    """
    if life_id.ndim != 1 or life_id.shape != index.shape:
      raise ValueError(f'life_id and index: want [B] each, got {list(life_id.shape)} and {list(index.shape)}')
    return np.array([self._admit_one(*unroll) for unroll in zip(life_id.tolist(), index.tolist())], bool)

  def metrics(self) -> dict[str, int]:
    """Counts since this object was made: unrolls of known lives that are missing, and unrolls that were late."""
    return {'unrolls_missing': self._missing, 'unrolls_late': self._late}

  def complaint(self) -> str:
    """A message for the user, one line, about unrolls missing or late since the last call; '' if there are none."""
    missing, late = self._missing - self._missing_said, self._late - self._late_said
    self._missing_said, self._late_said = self._missing, self._late
    if not missing and not late:
      return ''
    return f'unrolls lost between actors and learner: {missing}; late or repeated, and dropped: {late}'

  def _admit_one(self, life, index):
    new_index = max(index, 0) if self._lives_may_have_begun else 0
    expected = self._next_index.get(life, new_index)
    if index < expected:
      self._late += 1
      return False
    self._missing += index - expected
    self._next_index[life] = index + 1
    self._next_index.move_to_end(life)
    if len(self._next_index) > self._max_lives:
      self._next_index.popitem(last=False)
    return True
