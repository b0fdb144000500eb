"""Human-normalised scores: 0 is a random policy, 100 a human. Espeholt et al. 2018 (IMPALA), section 5.3."""

import statistics
from typing import Collection, Mapping, NamedTuple

from scalable_agents.environments import atari57
from scalable_agents.environments import dmlab30

SUITES = {suite.name: suite for suite in (atari57.SUITE, dmlab30.SUITE)}
_REFERENCES = {level: scores for suite in SUITES.values() for level, scores in suite.scores.items()}


class SuiteScore(NamedTuple):
  """One number per way of summing up a suite, in per cent of a human."""
  median: float
  mean: float
  mean_capped: float  # every level counts at most 100.


def has_reference(level: str) -> bool:
  """Whether a random and a human score of the level are known."""
  return level in _REFERENCES


def is_suite(levels: Collection[str]) -> bool:
  """Whether these are several levels of one suite, all of it or a part, so that they have a score together."""
  return len(levels) > 1 and any(suite.scores.keys() >= set(levels) for suite in SUITES.values())


def human_normalised(level: str, score: float) -> float:
  """100 (score - random) / (human - random), with the papers' reference scores.

  Args:
    level: a level of a suite.
    score: raw episode return, or a mean of them.

  Raises:
    ValueError: no reference scores are known for the level.
  """
  if not has_reference(level):
    raise ValueError(f'{level}: no human and random scores are known for this level')
  reference = _REFERENCES[level]
  return 100 * (score - reference.random) / (reference.human - reference.random)


def summarise(scores: Mapping[str, float]) -> SuiteScore:
  """Sums up raw scores per level as human-normalised median, mean and capped mean over the levels given.

  Raises:
    ValueError: there is no level, or one without reference scores.
  """
  if not scores:
    raise ValueError('scores: want at least one level, got none')
  normalised = [human_normalised(level, score) for level, score in scores.items()]
  return SuiteScore(statistics.median(normalised), statistics.fmean(normalised),
                    statistics.fmean(min(100.0, score) for score in normalised))


def suite_figures(scores: Mapping[str, float]) -> dict[str, float]:
  """What metrics say of a suite, in per cent of a human: every way to sum it up, and `suite_score`, what papers quote.

  Args:
    scores: mean raw return by level. All levels are of one suite, and need not be all of it.
  Raises:
    ValueError: as `summarise`.
  """
  summary = summarise(scores)
  quoted, = {suite.summary for suite in SUITES.values() if scores.keys() <= suite.scores.keys()}
  return {'suite_score': getattr(summary, quoted)} | {
      f'suite_score/{name}': value for name, value in summary._asdict().items()}
