"""What a suite of levels is: names for training and testing, and the scores of a random policy and of a human."""

import csv
import os
from typing import Iterator, NamedTuple


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
  summary: str  # The field of scores.SuiteScore that the papers quote.


def rows(file: str) -> Iterator[dict[str, str]]:
  """The rows of a file in environments/data, by the names in its first line."""
  path = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'data', file)
  with open(path, newline='', encoding='utf-8') as lines:
    yield from csv.DictReader(lines)
