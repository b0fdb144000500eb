"""The definition of a suite: its levels for training and testing, and the scores of a random policy and of a human."""

from collections.abc import Iterator
import csv
import os
from typing import NamedTuple

_DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'data')


class ReferenceScores(NamedTuple):
  """Mean raw episode returns on one level."""
  random: float  # of a random policy.
  human: float   # of a human.


class Suite(NamedTuple):
  """A set of levels on which one agent is trained and evaluated."""
  name: str
  levels: tuple[str, ...]       # for training.
  test_levels: tuple[str, ...]  # for evaluation. test_levels[i] belongs to levels[i].
  scores: dict[str, ReferenceScores]  # by level. Has the names in both tuples.
  summary: str        # the field of scores.SuiteScore that the papers quote.
  test_episodes: int  # episodes per level in an evaluation.
  noop_max: int = 0   # an episode starts with 1 to noop_max no-ops, drawn uniformly; 0: none.
  max_episode_frames: int | None = None  # environment frames; None: no limit, because levels end by themselves.

  @property
  def trained(self) -> dict[str, str]:
    """Test level -> the training level that it belongs to."""
    return dict(zip(self.test_levels, self.levels, strict=True))


def rows(file: str, folder: str = _DATA) -> Iterator[dict[str, str]]:
  """Yields the rows of a CSV file as dicts, with the names in the file's first line as keys.

  Args:
    file: the file's name.
    folder: the file's folder, by default environments/data.
  """
  with open(os.path.join(folder, file), newline='', encoding='utf-8') as lines:
    yield from csv.DictReader(lines)
