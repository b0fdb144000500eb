"""What runs have reached as the agents of the paper: per level and over a suite, with the spread over seeds."""

import json
import os
import statistics
from typing import Any, Callable, Iterable, NamedTuple, Sequence

from scalable_agents.agents import sweeps
from scalable_agents.environments import scores
from scalable_agents.records import settings
from scalable_agents.tables import departures
from scalable_agents.tables import published
from scalable_agents.tables import runs as runs_lib
from scalable_agents.training.cluster import cluster_config
from scalable_agents.training import dmlab30_protocol
from scalable_agents.training import run_flags

NOT_RUN = 'not run'
IN_FULL = 'in full'
_UNITS = ((1_000_000_000, 'B'), (1_000_000, 'M'), (1_000, 'K'))


class Score(NamedTuple):
  """The mean over seeds."""
  mean: float
  spread: float | None = None  # Sample standard deviation; None of a single seed.
  seeds: int = 1


class Cell(NamedTuple):
  """A cell of a table."""
  score: Score | None
  extent: str  # In full, or how it was scaled down and departs from the paper, or not run.


class Result:
  """What the runs of one agent have reached.

  Of a population the best member counts, as in the paper. Runs that differ in no setting but the seed (experts: and the
  level) are repetitions, and so are populations. Where runs have other settings too, as in a sweep, those of one setting
  are shown, as in the paper ("the best score for each architecture"). The best: most levels first, then those in full,
  then the best score.
  """

  def __init__(self, agent: published.Agent, runs: Sequence[runs_lib.Run]):
    """Args: the agent, and runs that are all of it (runs.agent_of); there may be none."""
    self._agent = agent
    self._suite = scores.SUITES[agent.suite]
    by_setting = {}
    for run in self._fittest(runs):
      by_setting.setdefault(setting(run, agent.experts), []).append(run)
    groups = [_longest(group) if agent.experts else group for group in by_setting.values()]
    self.num_settings = len(groups)
    self.runs = max(groups, key=self._rank, default=[])  # Those that are shown.

  def level(self, level: str) -> Cell:
    """The mean return on a level."""
    played = [run for run in self.runs if level in run.evaluation.means]
    if not played:
      return Cell(None, NOT_RUN)
    return Cell(mean_over_seeds([run.evaluation.means[level] for run in played]), self._extent(played))

  def summary(self, measure: str) -> Cell:
    """A field of scores.SuiteScore; no score before every level has one."""
    if not self.runs:
      return Cell(None, NOT_RUN)
    num_levels = len(self._suite.test_levels)
    complete = _complete(self.runs, num_levels)
    if not complete:
      evaluated = {level for run in self.runs for level in run.evaluation.means}
      return Cell(None, 'no seed has all levels' if len(evaluated) == num_levels else
                  self._extent(self.runs, num_levels))
    return Cell(mean_over_seeds([getattr(scores.summarise(sample), measure) for sample in complete]),
                self._extent(self.runs))

  def _fittest(self, runs: Sequence[runs_lib.Run]) -> list[runs_lib.Run]:
    """The best member of each population, and the runs that are of none."""
    populations = {}  # Members lie side by side.
    for run in runs:
      populations.setdefault(os.path.dirname(run.logdir) if run.population > 1 else run.logdir, []).append([run])
    return [max(members, key=self._rank)[0] for members in populations.values()]

  def _rank(self, group: Sequence[runs_lib.Run]):
    seeds = {}
    for run in group:
      for level, mean in run.evaluation.means.items():
        seeds.setdefault(level, []).append(mean)
    means = {level: statistics.fmean(values) for level, values in seeds.items()}
    return (len(means), self._extent(group) == IN_FULL, getattr(scores.summarise(means), self._suite.summary))

  def _extent(self, runs: Sequence[runs_lib.Run], num_levels: int = 0) -> str:
    """In full, or all that is not as in the paper. `num_levels`: that there should be, where they count."""
    evaluated = len({level for run in runs for level in run.evaluation.means})
    less = [f'{evaluated} of {num_levels} levels'] if evaluated < num_levels else []
    for name, wanted, get, write in (
        ('frames', self._agent.frames, lambda run: run.evaluation.frames, short),
        ('episodes', scores.SUITES[self._agent.suite].test_episodes, lambda run: run.evaluation.episodes, str),
        ('members', self._agent.population, lambda run: run.population, str),
        ('learners', self._agent.learners, lambda run: run.learners, str)):
      least, most = min(map(get, runs)), max(map(get, runs))
      if least < wanted:
        less.append(f'{_range(least, most, write)} of {write(wanted)} {name}')
    other = {}  # Setting -> its values.
    for run in runs:
      for name, value in departures.departures(run, self._agent).items():
        other.setdefault(name, set()).add(written(value))
    otherwise = [f'{name}={" or ".join(sorted(values))}' for name, values in other.items()]
    parts = ['scaled down: ' + ', '.join(less)] * bool(less) + [
        'departs from the paper: ' + ', '.join(otherwise)] * bool(otherwise)
    return '; '.join(parts) or IN_FULL


def written(value: Any) -> str:
  """A setting's value as a flag could have it, never rounded."""
  if isinstance(value, int) and not isinstance(value, bool):
    return f'{value:_}'
  return f'{value:g}' if isinstance(value, float) and float(f'{value:g}') == value else str(value)


def setting(run: runs_lib.Run, expert: bool) -> str:
  """A key that is the same for runs that differ only in their seed; experts: or in level and length; members of
  populations: or in what they have started with.
  """
  return json.dumps(settings_of(run, expert), sort_keys=True)


def settings_of(run: runs_lib.Run, expert: bool) -> dict[str, Any]:
  """The settings that `setting` compares."""
  apart = {'seed', *run_flags.FREE_FLAGS}
  for config in (dmlab30_protocol.Protocol, cluster_config.ClusterConfig):
    apart |= settings.free_settings(config)
  if expert:
    apart |= {'level_name', 'total_environment_frames'}
  if run.population > 1:
    apart |= {'sweep_index', *sweeps.IMPALA.ranges}
  suite = runs_lib.suite_of(run)
  # Settings that an older run does not have were as they are by default.
  defaults = departures.PAPER[suite.name] if suite else departures.COMMON
  values = defaults | run.flags | {'num_learners': run.learners}  # Learners may be in one process or in several.
  return {name: value for name, value in values.items() if name not in apart}


def short(frames: int) -> str:
  """A number of frames as it is spoken: 200M, 11.4B. Rounded down, so that nothing seems more than it is."""
  for unit, letter in _UNITS:
    if frames >= unit:
      step = unit if frames >= 100 * unit else unit // 10 if frames >= 10 * unit else unit // 100
      return f'{frames // step * step / unit:g}{letter}'
  return str(frames)


def _range(least: int, most: int, write: Callable[[float], str]) -> str:
  return write(least) if write(least) == write(most) else f'{write(least)} to {write(most)}'


def mean_over_seeds(values: Sequence[float]) -> Score:
  """The score that runs with these values, of different seeds, have together."""
  return Score(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))


def _longest(runs: Iterable[runs_lib.Run]) -> list[runs_lib.Run]:
  """Of the runs of each level those with the most frames to train for."""
  by_level = {}
  for run in runs:
    by_level.setdefault(run.flags['level_name'], []).append(run)
  longest = {level: max(run.flags['total_environment_frames'] for run in group) for level, group in by_level.items()}
  return [run for level, group in by_level.items() for run in group
          if run.flags['total_environment_frames'] == longest[level]]


def _complete(runs: Iterable[runs_lib.Run], num_levels: int) -> list[dict[str, float]]:
  """Level -> score, once for each seed that has them all. Runs of one seed on other levels are experts of one suite."""
  samples = []  # (seed, {level: score})
  for run in runs:
    means = run.evaluation.means
    for seed, sample in samples:
      if seed == run.flags['seed'] and not sample.keys() & means.keys():
        sample.update(means)
        break
    else:
      samples.append((run.flags['seed'], dict(means)))
  return [sample for _, sample in samples if len(sample) == num_levels]
