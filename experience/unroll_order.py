"""Detects unrolls that are lost, late or repeated, by the stream and the index of each unroll.

An actor numbers the unrolls of each of its streams 0, 1, 2 and so on (actor/unroll.py), and sends them in this order.
If a connection breaks, some may be lost, and some may arrive after their successors. So the unrolls of a stream are
admitted only in the order of their indices, and every index that is skipped is counted.
"""

import collections
import threading
from typing import Any

import numpy as np

from scalable_agents.records import json_text

_MAX_STREAMS = 65_536  # About 10 MB.


class UnrollOrder:
  """Decides which unrolls are admitted, so that those of a stream are in order and every loss is counted.

  For each stream, the numbers of admitted and of missing unrolls add up to the highest admitted index plus one,
  unless the stream may have begun before this object; see `streams_may_have_begun`.
  """

  def __init__(self, streams_may_have_begun: bool = False, max_streams: int = _MAX_STREAMS):
    """Begins without any known stream.

    Args:
      streams_may_have_begun: says what it means if the first unroll of a stream has an index i > 0.
        False: unrolls 0 to i - 1 of the stream are missing. This is right where all actors are in this process.
        True: the stream began before this object was made, and nothing is missing. This is right for actor hosts, which
        may have played for an earlier learner. Losses before the first unroll of a stream are then not counted.
        An unroll that was admitted before `state` was taken still counts as late.
      max_streams: number of streams to remember, >= 1, so that memory stays bounded whatever is sent. If there are
        more, the one with the least recent admission is forgotten. If it comes again, it counts as a new stream.
    """
    self._streams_may_have_begun = streams_may_have_begun
    self._max_streams = max_streams
    self._next_index = collections.OrderedDict()  # By stream; the one with the least recent admission is the first.
    self._earlier_next_index = {}  # The same before a restart.
    self._lock = threading.Lock()  # A thread may ask for the state while another one admits.
    self._missing = self._late = self._missing_said = self._late_said = 0

  def admit(self, stream_id: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Decides about a batch. Must be called once for each batch, in the order in which the batches were taken.

    Args:
      stream_id: [B] integers, see actor/unroll.py.
      index: [B] integers. An unroll with a negative index is late.
    Returns:
      [B] bool, whether the unroll is admitted. A late unroll is not. An unroll is late if it, or a later one of the
      same stream, was admitted before.
    Raises:
      ValueError: the shapes are not [B].
    """
    if stream_id.ndim != 1 or stream_id.shape != index.shape:
      raise ValueError(f'stream_id and index: want [B] each, got {list(stream_id.shape)} and {list(index.shape)}')
    with self._lock:
      return np.array([self._admit_one(*pair) for pair in zip(stream_id.tolist(), index.tolist(), strict=True)], bool)

  def state(self) -> dict[str, Any]:
    """Returns the state that a restarted learner needs, as a dict that JSON can hold. Any thread may call it."""
    with self._lock:
      earlier = [known for known in self._earlier_next_index.items() if known[0] not in self._next_index]
      known = (earlier + list(self._next_index.items()))[-self._max_streams:]
      return {'next_index': known, 'missing': self._missing, 'late': self._late}

  def restore(self, state: dict[str, Any]):
    """Continues from what `state` has returned, before anything is admitted. Raises ValueError if it is damaged."""
    known = json_text.field(state, 'next_index', list)
    if not all(isinstance(one, (list, tuple)) and len(one) == 2 and all(json_text.is_a(number, int) for number in one)
               for one in known):
      raise ValueError('"next_index": want pairs of whole numbers')
    missing, late = (json_text.field(state, name, int) for name in ('missing', 'late'))
    self._earlier_next_index = dict(known)
    self._missing, self._late = self._missing_said, self._late_said = missing, late

  def metrics(self) -> dict[str, int]:
    """Returns counts since the run began: unrolls of known streams that are missing, and unrolls that were late."""
    return {'unrolls_missing': self._missing, 'unrolls_late': self._late}

  def warning(self) -> str:
    """A message for the user, one line, about unrolls missing or late since the last call; '' if there are none."""
    with self._lock:
      missing, late = self._missing - self._missing_said, self._late - self._late_said
      self._missing_said = self._missing
      self._late_said = self._late
    if not missing and not late:
      return ''
    return f'unrolls lost between actors and learner: {missing}; late or repeated, and dropped: {late}'

  def _admit_one(self, stream, index):
    new_index = max(index, self._earlier_next_index.get(stream, 0)) if self._streams_may_have_begun else 0
    expected = self._next_index.get(stream, new_index)
    if index < expected:
      self._late += 1
      return False
    self._missing += index - expected
    self._next_index[stream] = index + 1
    self._next_index.move_to_end(stream)
    if len(self._next_index) > self._max_streams:
      self._next_index.popitem(last=False)
    return True
