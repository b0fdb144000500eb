"""What a suite of levels is: names for training and testing, and the scores of a random policy and of a human."""

import csv
import os
from typing import Iterator, NamedTuple

_DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'data')


class ReferenceScores(NamedTuple):
  """Raw episode returns of one level."""
  random: float
  human: float


class Suite(NamedTuple):
  """Levels that one agent is trained and tested on."""
  name: str
  levels: tuple[str, ...]       # Trained on.
  test_levels: tuple[str, ...]  # Tested on, in the same order.
  scores: dict[str, ReferenceScores]  # By either name.
  summary: str        # The field of scores.SuiteScore that the papers quote.
  test_episodes: int  # Per level.
  noop_max: int = 0   # No-ops at the start of an episode: 1 to so many, drawn uniformly; 0 for none.
  max_episode_frames: int | None = None  # Environment frames; None where levels end by themselves.


def rows(file: str, folder: str = _DATA) -> Iterator[dict[str, str]]:
  """The rows of a CSV file, one of environments/data if not of another folder, by the names in its first line."""
  with open(os.path.join(folder, file), newline='', encoding='utf-8') as lines:
    yield from csv.DictReader(lines)
