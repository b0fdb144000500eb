"""Human-normalised scores: 0 is the score of a random policy, 100 of a human.

Espeholt et al. 2018 (IMPALA), section 5.3. To add a suite, add a `suite.Suite` to SUITES.
"""

from collections.abc import Collection, Mapping
import statistics
from typing import NamedTuple

from scalable_agents.environments import atari57
from scalable_agents.environments import dmlab30

SUITES = {suite.name: suite for suite in (atari57.SUITE, dmlab30.SUITE)}
_REFERENCES = {level: scores for suite in SUITES.values() for level, scores in suite.scores.items()}


class SuiteScore(NamedTuple):
  """Summaries of the human-normalised scores of a suite's levels. The first three are in per cent of a human."""
  median: float
  mean: float
  mean_capped: float  # the mean of scores that are capped at 100.
  above_human: int    # the number of levels with more than 100 %.


def has_reference(level: str) -> bool:
  """Returns whether the level has a random and a human reference score."""
  return level in _REFERENCES


def is_suite(levels: Collection[str]) -> bool:
  """Returns whether these are at least two levels of one suite. Such levels have a suite score."""
  return len(levels) > 1 and any(suite.scores.keys() >= set(levels) for suite in SUITES.values())


def human_normalised(level: str, score: float) -> float:
  """Returns 100 (score - random) / (human - random), with the papers' reference scores.

  Args:
    level: a level of a suite.
    score: a raw episode return, or the mean of several.

  Raises:
    ValueError: the level has no reference scores.
  """
  if not has_reference(level):
    raise ValueError(f'{level}: no human and random scores are known for this level')
  reference = _REFERENCES[level]
  return 100 * (score - reference.random) / (reference.human - reference.random)


def summarise(scores: Mapping[str, float]) -> SuiteScore:
  """Returns the summaries of the levels' human-normalised scores.

  Args:
    scores: mean raw return by level.

  Raises:
    ValueError: there is no level, or a level has no reference scores.
  """
  if not scores:
    raise ValueError('scores: want at least one level, got none')
  normalised = [human_normalised(level, score) for level, score in scores.items()]
  return SuiteScore(statistics.median(normalised), statistics.fmean(normalised),
                    statistics.fmean(min(100.0, score) for score in normalised),
                    sum(score > 100 for score in normalised))


def suite_figures(scores: Mapping[str, float]) -> dict[str, float]:
  """Returns the metrics of a suite.

  Args:
    scores: mean raw return by level, for all or some levels of one suite.

  Returns:
    `suite_score`, the summary that the papers quote for the suite, and `suite_score/NAME` for each field of SuiteScore.

  Raises:
    ValueError: as for `summarise`.
  """
  summary = summarise(scores)
  quoted, = {suite.summary for suite in SUITES.values() if scores.keys() <= suite.scores.keys()}
  return {'suite_score': getattr(summary, quoted)} | {
      f'suite_score/{name}': value for name, value in summary._asdict().items()}
