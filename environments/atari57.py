"""The Atari-57 suite: its levels, with the scores of a random policy and of a human.

The scores are those that the four papers normalise with: no-op starts, a professional human tester. For video_pinball
the papers' own means only come out with a random score of 0.0, where other sources give 16256.9; the file has both
(`random_paper` and `random`), and the papers' is used.
"""

import csv
import os
from typing import NamedTuple


class ReferenceScores(NamedTuple):
  """Raw episode returns of one level."""
  random: float
  human: float


def _read_scores() -> dict[str, ReferenceScores]:
  path = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'data', 'atari57_scores.csv')
  with open(path, newline='', encoding='utf-8') as file:
    return {row['game']: ReferenceScores(float(row['random_paper']), float(row['human']))
            for row in csv.DictReader(file)}


SCORES: dict[str, ReferenceScores] = _read_scores()
LEVELS: tuple[str, ...] = tuple(SCORES)
