"""The results of runs as agents of the paper: per level and over a suite, with the spread over seeds."""

import collections
from collections.abc import Callable, Container, Hashable, Iterable, Sequence
import json
import math
import statistics
from typing import Any, NamedTuple

from scalable_agents.agents import sweeps
from scalable_agents.environments import scores
from scalable_agents.records import run_rows
from scalable_agents.tables.results import departures
from scalable_agents.tables.results import published
from scalable_agents.tables.results import runs as runs_lib

NOT_RUN = 'not run'
IN_FULL = 'in full'
# A note below tables about DMLab-30.
REWARD_FORM = "On DMLab-30, the released code's form of the reward, which is the default, counts as the paper's."
SWEEPS = {'impala': sweeps.IMPALA, runs_lib.A3C: sweeps.IMPALA, runs_lib.R2D2: sweeps.R2D2,
          runs_lib.LASER: sweeps.LASER}  # By family.
_UNITS = ((1_000_000_000, 'B'), (1_000_000, 'M'), (1_000, 'K'))


class Score(NamedTuple):
  """A score over seeds."""
  mean: float
  spread: float | None = None  # Sample standard deviation over seeds; None for a single seed.
  seeds: int = 1


class Cell(NamedTuple):
  """A cell of a table."""
  score: Score | None
  extent: str  # IN_FULL, NOT_RUN, or how the runs were scaled down and differ from the paper.


class Result:
  """The results of the runs of one agent.

  For a population, only the best member counts, as in the paper. Runs that differ only in the seed are repetitions of
  one setting. Runs of experts may also differ in the level. The same holds for the best members of populations.

  If the runs have several settings, as in a sweep, the runs of the best setting are shown, as in the paper ("the best
  score for each architecture"). The best setting has the most levels. Among equals, a setting that was run in full
  comes first, then one without departures from the paper, and then the one with the highest score. For this, the
  numbers of hyper-parameters, actors and seeds do not count.

  Attributes:
    runs: the runs that are shown.
    num_settings: the number of settings among all runs.
    note: which runs are shown, and why the others are not. '' if all are shown.
  """

  def __init__(self, agent: published.Agent, runs: Sequence[runs_lib.Run]):
    """Selects the runs to show.

    Args:
      agent: the agent.
      runs: evaluated runs of this agent (see runs.agent_of). There may be none.
    """
    self._agent = agent
    self._suite = scores.SUITES[agent.suite]
    by_setting = {}
    self._sweeps = {}  # Settings that a sweep has in common, as JSON -> level -> the settings of its samples.
    for run in self._fittest(runs):
      by_setting.setdefault(setting(run, agent.experts), []).append(run)
      sweep = self._sweeps.setdefault(setting(run, agent.experts, swept=False), {})
      for level in run.means:
        sweep.setdefault(level, set()).add(setting(run, agent.experts))
    groups = [longest(group, _evaluated_frames, papers=agent.frames) if agent.experts else group
              for group in by_setting.values()]
    self.num_settings = len(groups)
    self.runs = max(groups, key=self._rank, default=[])
    self.note = ''
    if len(self.runs) < len(runs):
      why = (f'the best of {self.num_settings} settings' if self.num_settings > 1 else
             'the best of each population' if agent.population > 1 else 'the longest of each level')
      self.note = (f'{agent.name}: of {len(runs)} runs these are shown, {why}: '
                   + ', '.join(run.logdir for run in self.runs))

  def level(self, level: str) -> Cell:
    """Returns the mean return on a level."""
    played = [run for run in self.runs if level in run.means]
    if not played:
      return Cell(None, NOT_RUN)
    return Cell(mean_over_seeds([run.means[level] for run in played]), self._extent(played))

  def summary(self, measure: str) -> Cell:
    """Returns a field of scores.SuiteScore. There is no score if a level is missing."""
    if not self.runs:
      return Cell(None, NOT_RUN)
    num_levels = len(self._suite.test_levels)
    complete = _complete(self.runs, num_levels)
    if not complete:
      evaluated = {level for run in self.runs for level in run.means}
      return Cell(None, 'no seed has all levels' if len(evaluated) == num_levels else
                  self._extent(self.runs, num_levels))
    return Cell(mean_over_seeds([getattr(scores.summarise(sample), measure) for sample in complete]),
                self._extent(self.runs, seeds=len(complete)))

  def training_summary(self, measure: str) -> Cell:
    """Returns a field of scores.SuiteScore, computed from the returns of the last training episodes.

    Raises:
      run_directory.RunDirectoryError: a metrics.jsonl is damaged.
    """
    if not self.runs:
      return Cell(None, NOT_RUN)
    values, trained = [], []
    for run in self.runs:
      row = run_rows.last_metrics(run.logdir) or {}
      returns = {level: row[name] for level in self._suite.levels
                 if row.get(name := f'episode_return/{level}') is not None}
      if len(returns) == len(self._suite.levels):
        values.append(getattr(scores.summarise(returns), measure))
        # The evaluation plays no part: only the number of frames at the end of training does.
        trained.append(run._replace(
            evaluation=runs_lib.Evaluation({}, self._suite.test_episodes, row['environment_frames'])))
    if not values:
      return Cell(None, 'no run has episodes of all levels')
    return Cell(mean_over_seeds(values), self._extent(trained))

  def _fittest(self, runs: Sequence[runs_lib.Run]) -> list[runs_lib.Run]:
    """Returns the best member of each population, and all runs without a population."""
    return [max(members, key=lambda run: self._rank([run])) for members in runs_lib.populations(runs)]

  def _rank(self, group: Sequence[runs_lib.Run]):
    seeds = {}
    for run in group:
      for level, mean in run.means.items():
        seeds.setdefault(level, []).append(mean)
    means = {level: statistics.fmean(values) for level, values in seeds.items()}
    is_as_papers = extent((), group, self._agent) == IN_FULL
    is_complete = not self._scaled_down(group)
    return (len(means), is_as_papers and is_complete, is_as_papers,
            getattr(scores.summarise(means), self._suite.summary))

  def _extent(self, runs: Sequence[runs_lib.Run], num_levels: int = 0, seeds: int | None = None) -> str:
    """Returns IN_FULL or a text with all differences from the paper.

    Args:
      runs: the runs that are shown.
      num_levels: the wanted number of levels; 0 for any.
      seeds: the number of seeds that are averaged. None: the smallest number of runs of a level.
    """
    agent = self._agent
    evaluated = collections.Counter(level for run in runs for level in run.means)
    less = []
    if len(evaluated) < num_levels:
      less.append(f'{len(evaluated)} of {num_levels} levels')
    of_levels = self._sweeps[setting(runs[0], agent.experts, swept=False)]
    samples = min(len(of_levels[level]) for level in evaluated or of_levels)
    if samples < agent.samples:
      less.append(f'{samples} of {agent.samples} hyper-parameters')
    less += self._scaled_down(runs)
    actors = [run.actors for run in runs if run.actors is not None]
    if agent.actors and len(actors) < len(runs):
      less.append(f'an unknown number of {agent.actors} actors')
    elif agent.actors and min(actors) < agent.actors:
      less.append(f'{span(min(actors), max(actors), str)} of {agent.actors} actors')
    seeds = seeds or min(evaluated.values(), default=len(runs))
    if seeds < agent.seeds:
      less.append(f'{seeds} of {agent.seeds} seeds')
    return extent(less, runs, agent)

  def _scaled_down(self, runs: Sequence[runs_lib.Run]) -> list[str]:
    """Returns what is smaller than in the paper in each of these runs or in some of them."""
    less = []
    for name, wanted, get, write in (
        ('frames', self._agent.frames, lambda run: run.evaluation.frames, short),
        ('episodes', scores.SUITES[self._agent.suite].test_episodes, lambda run: run.evaluation.episodes, str),
        ('members', self._agent.population, lambda run: run.population, str),
        ('learners', self._agent.learners, lambda run: run.learners, str)):
      least, most = min(map(get, runs)), max(map(get, runs))
      if least < wanted:
        less.append(f'{out_of(least, most, wanted, write)} {name}')
    return less


def extent(less: Sequence[str], runs: Iterable[runs_lib.Run], agent: published.Agent) -> str:
  """Returns IN_FULL, or a text with all differences from the paper.

  Args:
    less: what is smaller than in the paper, for example '1M of 50M frames'.
    runs: the runs, whose settings are compared with the paper's.
    agent: the agent of the paper to which they correspond.
  """
  runs = list(runs)
  other = {}  # Setting -> its value in each run that departs in it.
  for run in runs:
    for name, value in departures.departures(run, agent).items():
      other.setdefault(name, []).append(written(value))
  otherwise = [f'{name}={" or ".join(sorted(set(values)))}'
               + (f' in {len(values)} of {len(runs)} runs' if len(values) < len(runs) else '')
               for name, values in other.items()]
  parts = []
  if less:
    parts.append('scaled down: ' + ', '.join(less))
  if otherwise:
    parts.append('departs from the paper: ' + ', '.join(otherwise))
  return '; '.join(parts) or IN_FULL


def written(value: Any) -> str:
  """Returns a setting's value as it can be written in a flag. It is never rounded."""
  if isinstance(value, int) and not isinstance(value, bool):
    return f'{value:_}'
  return f'{value:g}' if isinstance(value, float) and float(f'{value:g}') == value else str(value)


def setting(run: runs_lib.Run, expert: bool, swept: bool = True) -> str:
  """Returns a key that is equal for runs that differ only in their seed.

  Members of a population may also differ in their initial hyper-parameters.

  Args:
    run: the run.
    expert: True: runs of experts, which may also differ in the level and the number of frames.
    swept: False: the samples of a sweep may also differ in the swept hyper-parameters.
  """
  return json.dumps(settings_of(run, expert, swept), sort_keys=True)


def settings_of(run: runs_lib.Run, expert: bool, swept: bool = True) -> dict[str, Any]:
  """Returns the settings that `setting` compares, by name."""
  apart = {'level_name', 'total_environment_frames'} if expert else set()
  if run.population > 1 or not swept:
    apart |= {'sweep_index', *SWEEPS[run.family].ranges}
  suite = runs_lib.suite_of(run)
  # Settings that are missing in an older run had the default values.
  defaults = departures.papers(run.family, suite.name if suite else None)
  values = defaults | departures.decisive(run) | {'agent': run.agent}
  return {name: value for name, value in values.items() if name not in apart}


def differing(groups: Sequence[Hashable], of_runs: Sequence[dict[str, Any]], apart: Container[str]) -> list[list[str]]:
  """Returns for each run the settings in which it differs from other runs of its group, as 'name=value'.

  Args:
    groups: the group of each run, such as its level. Runs of one group are compared.
    of_runs: the settings of each run by name.
    apart: names of settings to leave out.
  """
  values = {}  # (group, setting) -> the setting's values, as JSON.
  for group, those in zip(groups, of_runs, strict=True):
    for name, value in those.items():
      values.setdefault((group, name), set()).add(json.dumps(value))
  return [[f'{name}={written(value)}' for name, value in sorted(those.items())
           if len(values[group, name]) > 1 and name not in apart] for group, those in zip(groups, of_runs, strict=True)]


def named(runs: Sequence[runs_lib.Run], names: Sequence[str], groups: Sequence[Hashable],
          of_runs: Sequence[dict[str, Any]], apart: Container[str] = ()) -> dict[str, list[runs_lib.Run]]:
  """Collects runs by their names, to which the settings are added in which they differ from other runs of their group.

  Args:
    runs: the runs.
    names: the name of each run.
    groups, of_runs, apart: as in `differing`.
  """
  found = {}
  for run, name, settings in zip(runs, names, differing(groups, of_runs, apart), strict=True):
    found.setdefault(', '.join([name, *settings]), []).append(run)
  return found


def short(frames: int) -> str:
  """Returns a short form of a number of frames, such as 200M or 11.4B. It is rounded down."""
  for unit, letter in _UNITS:
    if frames >= unit:
      step = unit if frames >= 100 * unit else unit // 10 if frames >= 10 * unit else unit // 100
      return f'{frames // step * step / unit:g}{letter}'
  return str(frames)


def exact(frames: int) -> str:
  """Returns a number of frames with its unit and all digits, such as 100.5M."""
  for unit, letter in _UNITS:
    if frames >= unit:
      return f'{frames / unit:.15g}{letter}'
  return str(frames)


def span(least: int, most: int, write: Callable[[int], str]) -> str:
  """Returns a text for the numbers from `least` to `most`, given what writes a number."""
  return write(least) if write(least) == write(most) else f'{write(least)} to {write(most)}'


def out_of(least: int, most: int, wanted: int, write: Callable[[int], str]) -> str:
  """Returns a text such as '8M to 50M of 200M', given what writes a number. It has all digits if both looked equal."""
  if span(least, most, write) == write(wanted):
    write = written
  return f'{span(least, most, write)} of {write(wanted)}'


def mean_over_seeds(values: Sequence[float]) -> Score:
  """Returns the score over seeds, given the value of each seed."""
  return Score(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))


def longest(runs: Iterable[runs_lib.Run], frames_of: Callable[[runs_lib.Run], int], at_most: float = math.inf,
            papers: float = math.inf) -> list[runs_lib.Run]:
  """Returns the runs of each level that have trained longest.

  Runs with the same --total_environment_frames stay together, because some seeds may not be finished yet.

  Args:
    runs: runs that differ in nothing else than the level, the seed and that number.
    frames_of: returns the environment frames that a run has trained for.
    at_most: frames after this number do not count, nor does it if runs want more.
    papers: the frames of the paper. Runs that want more than these show another result, so they do not count as longer.
  """
  found = []
  for group in runs_lib.by_level(runs).values():
    together = runs_lib.grouped(group, lambda run: min(run.flags['total_environment_frames'], at_most))
    # A run ends a few frames late.
    trained = {wanted: min(max(map(frames_of, those)), wanted) for wanted, those in together.items()}
    found += together[max(trained, key=lambda wanted: (min(trained[wanted], papers), wanted <= papers, wanted))]
  return found


def _evaluated_frames(run):
  return run.evaluation.frames


def _complete(runs: Iterable[runs_lib.Run], num_levels: int) -> list[dict[str, float]]:
  """Returns a dict from level to score for each seed that has all levels.

  Runs with the same seed on different levels are experts of one suite and are combined.
  """
  samples = []  # (seed, {level: score})
  for run in runs:
    means = run.means
    for seed, sample in samples:
      if seed == run.flags['seed'] and not sample.keys() & means.keys():
        sample.update(means)
        break
    else:
      samples.append((run.flags['seed'], dict(means)))
  return [sample for _, sample in samples if len(sample) == num_levels]
