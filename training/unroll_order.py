"""Finds unrolls that were lost, are late or come twice, by the life and the index that every unroll carries.

An actor numbers the unrolls of each of its lives from 0 without a gap (actor/unroll.py), and they travel in this order.
A connection that breaks may lose some of them, or let some arrive behind their successors. So what comes of a life is
admitted in the order of its indices only, and every index that is skipped is counted.
"""

import collections

import numpy as np

_MAX_LIVES = 65_536  # About 10 MB.


class UnrollOrder:
  """Says which unrolls are to be admitted, so that those admitted of a life are in order and no loss is silent.

  For each life, the admitted unrolls and the missing ones add up to the highest index admitted, plus one.
  """

  def __init__(self, lives_may_have_begun: bool = False, max_lives: int = _MAX_LIVES):
    """Knows no life yet.

    Args:
      lives_may_have_begun: what the first unroll of a life with an index i > 0 means. False: unrolls 0 to i - 1 of it
        are missing. This is right where a run begins. True: the life began before this object was made, and nothing is
        missing. This is right in a learner that was started again while its actors lived on. Then unrolls that are
        lost before the first of their life are not counted.
      max_lives: lives to remember, >= 1. Beyond that, the life that was admitted from least recently is forgotten, so
        that memory stays bounded whatever is sent. If it comes again, it counts as a new life.
    """
    self._lives_may_have_begun, self._max_lives = lives_may_have_begun, max_lives
    self._next_index = collections.OrderedDict()  # By life; the life admitted from least recently is the first.
    self._missing = self._late = self._missing_said = self._late_said = 0

  def admit(self, life_id: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Looks at a batch. Each batch has to be given once, in the order in which they were taken.

    Args:
      life_id: [B] integers, see actor/unroll.py.
      index: [B] integers. A negative index is late.
    Returns:
      [B] bool, whether the unroll is to be admitted. False for one that is late: the life's next unrolls were admitted
      before it, or it was itself.
    Raises:
      ValueError: the shapes are not [B].
    """
    if life_id.ndim != 1 or life_id.shape != index.shape:
      raise ValueError(f'life_id and index: want [B] each, got {list(life_id.shape)} and {list(index.shape)}')
    return np.array([self._admit_one(*unroll) for unroll in zip(life_id.tolist(), index.tolist())], bool)

  def metrics(self) -> dict[str, int]:
    """Counts since this object was made: unrolls of known lives that were skipped, and those not admitted."""
    return {'unrolls_missing': self._missing, 'unrolls_late': self._late}

  def complaint(self) -> str:
    """A line for the user about what was missing or late since the last call; '' if nothing was."""
    missing, late = self._missing - self._missing_said, self._late - self._late_said
    self._missing_said, self._late_said = self._missing, self._late
    if not missing and not late:
      return ''
    return f'unrolls missing: {missing}, lost between actors and learner; late or twice, and not learned from: {late}'

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
