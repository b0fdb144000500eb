"""Makes a table of the training returns after equal numbers of frames, beside those of others and the papers' scores.

A return is the mean of the last 100 training episodes, and of the runs that differ only in their seeds. Schmitt et al.
2020 (LASER), appendix D. Frames of a run with several levels are counted per level, as in the papers.

tables/data/dopamine_returns.csv has the returns of others after each million frames. They are from baselines/atari/data
of Dopamine (Castro et al. 2018, https://github.com/google/dopamine). A return there is the mean of all episodes that
ended in a million frames.

The CSV file has all digits. Only the Markdown has the intervals of interquartile means.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from scalable_agents.environments import registry
from scalable_agents.environments import scores
from scalable_agents.records import errors
from scalable_agents.tables.papers import laser_sweeps
from scalable_agents.tables.papers import layout
from scalable_agents.tables.papers import r2d2_tables
from scalable_agents.tables.results import intervals
from scalable_agents.tables.results import laser_published
from scalable_agents.tables.results import published
from scalable_agents.tables.results import r2d2_published
from scalable_agents.tables.results import results
from scalable_agents.tables.results import runs as runs_lib
from scalable_agents.tables.results import training_returns

_NOTES = (
    'The returns are those of training, with its exploration: the mean of the last 100 episodes up to a number of '
    'frames, and of the runs. Of a population, the fittest member counts: its own episodes, also those before it '
    'copied another member.',
    "Human-normalised: 0 % is a random policy, 100 % a human. It is that of the line's last return.",
    'IQM: interquartile mean of the human-normalised scores of all levels, in %, with a 95 % interval from a bootstrap '
    'over the runs (Agarwal et al. 2021). Each level has as many runs as the level with the fewest. They are '
    'those with the lowest seeds.',
    "The paper's scores are those of evaluations after its number of frames, and LASER's are training returns. Rows of "
    "PopArt-IMPALA have IMPALA's. R2D2's are those of its network, `dqn`, and LASER's those of `deep_4x`, whatever "
    'network the runs have.')
_OTHERS = (
    "Dopamine: DQN and Rainbow of Castro et al. 2018, five runs each, from Dopamine's repository. Their games have "
    'sticky actions. 1 % of their actions are random, and more in the first million frames. A return is the mean of '
    'all episodes that ended in the last million frames.')
_MILLION = 1_000_000


class Line(NamedTuple):
  """Runs that differ only in their seeds."""
  of_levels: Mapping[str, np.ndarray]  # Level -> returns at each number of frames, [seeds, M]. NaN after a run's end.
  papers: Mapping[str, str]            # Level -> the final score of a paper.
  iqm: Sequence[intervals.Interval]    # Over the levels, in %, [M]; NaN after a run's end. Empty for less than two.


class Returns(NamedTuple):
  """What the table and the picture show."""
  frames: Sequence[int]       # Environment frames per level, [M].
  levels: Sequence[str]       # Those of our runs.
  lines: Mapping[str, Line]   # Name -> runs.
  others: Mapping[str, Line]  # Name -> runs that others published.
  left_out: Sequence[str]     # Runs that are not shown, and why.


def gather(runs: Sequence[runs_lib.Run], every: int) -> Returns:
  """Reads the returns of runs, and those that others published.

  Args:
    runs: runs of any agents.
    every: environment frames from one return to the next.
  Raises:
    errors.UserError: all runs are shorter, or a file of a run is damaged.
  """
  runs = runs_lib.fittest(runs)
  read = {run.logdir: training_returns.read(run) for run in runs}
  if not any(episodes.frames_per_level for episodes in read.values()):
    raise errors.UserError(f'{runs[0].logdir}: has no metrics yet')
  without = {run.logdir: f'{run.logdir}: {fault}' for run in runs if (fault := _fault(run, read[run.logdir], every))}
  runs = [run for run in runs if run.logdir not in without]
  if not runs:
    raise errors.UserError(next(iter(without.values())))
  longest = max(read[run.logdir].frames_per_level for run in runs)
  if longest < every:
    raise errors.UserError(f'--returns_every={every}: want at most {longest}, the frames per level of the longest run')
  marks = range(every, longest + 1, every)
  chosen = {name: _longest(of_line, read, every) for name, of_line in _by_name(runs, read).items()}
  lines = {name: _of_runs(of_line, read, marks) for name, (of_line, _) in chosen.items()}
  levels = list(dict.fromkeys(level for line in lines.values() for level in line.of_levels))
  left_out = [*without.values(), *(
      f'{run.logdir}: other seeds have more frames' for _, shorter in chosen.values() for run in shorter)]
  return Returns(marks, levels, lines, _of_others(levels, marks), left_out)


def table(found: Returns) -> layout.Table:
  """Makes the table."""
  lines = {**found.lines, **found.others}
  rows = [_row(level, name, line) for level in found.levels for name, line in lines.items() if level in line.of_levels]
  rows += [_summary(name, line) for name, line in lines.items() if line.iqm]
  notes = [f'Not in the table: {"; ".join(found.left_out)}.'] if found.left_out else []
  return layout.Table(
      'Training returns',
      ['level', 'agent', 'runs', *map(results.exact, found.frames), 'human-normalised (%)', 'paper'],
      rows, (*_NOTES, *([_OTHERS] if found.others else []), *notes))


def _fault(run: runs_lib.Run, episodes: training_returns.Returns, every: int) -> str:
  """Returns why a run has no returns at multiples of `every` environment frames; '' if it has."""
  if not episodes.of_levels:
    return 'no training episodes; an excerpt needs --returns_every'
  return f'an excerpt with --returns_every={run.returns_every}' if every % run.returns_every else ''


def _longest(runs: Sequence[runs_lib.Run], read: Mapping[str, training_returns.Returns],
             every: int) -> tuple[list[runs_lib.Run], list[runs_lib.Run]]:
  """Splits the runs of a line: those with the most returns on their level, and those that are still behind."""
  numbers = {run.logdir: read[run.logdir].frames_per_level // every for run in runs}
  most = {level: max(numbers[run.logdir] for run in of_level) for level, of_level in runs_lib.by_level(runs).items()}
  behind = [run for run in runs if numbers[run.logdir] < most[run.flags['level_name']]]
  return [run for run in runs if run not in behind], behind


def _by_name(runs: Sequence[runs_lib.Run],
             read: Mapping[str, training_returns.Returns]) -> dict[str, list[runs_lib.Run]]:
  """Groups runs by agent and settings. Settings are part of a name if an agent has runs with several values of them."""
  groups = {}
  for agent, of_agent in runs_lib.grouped(runs, lambda run: run.agent).items():
    levels = [read[run.logdir].levels for run in of_agent]
    settings = []
    for run, number in zip(of_agent, levels, strict=True):
      # The tables of the papers accept several values of parameter_refresh.
      also = {'parameter_refresh'} | ({'level_name'} if number > 1 else set())
      settings.append(results.settings_of(run, expert=True) | {
          'levels': number, 'frames_per_level': run.flags['total_environment_frames'] // number
      } | {name: run.flags[name] for name in also & run.flags.keys()})
    groups |= results.named(
        of_agent, [runs_lib.NAMES.get(agent) or agent] * len(of_agent), [agent] * len(of_agent), settings)
  return groups


def _of_runs(runs: Sequence[runs_lib.Run], read: Mapping[str, training_returns.Returns],
             marks: Sequence[int]) -> Line:
  of_levels, papers = {level: [] for run in runs for level in read[run.logdir].of_levels}, {}
  for run in sorted(runs, key=lambda run: (run.flags['seed'], run.logdir)):
    of_run = read[run.logdir]
    for level, episodes in of_run.of_levels.items():
      found = [training_returns.last(episodes, mark * of_run.levels) if mark <= of_run.frames_per_level else None
               for mark in marks]
      of_levels[level].append([last.mean if last else np.nan for last in found])
      papers[level] = _paper(level, run)
  return _line(of_levels, papers)


def _of_others(levels: Collection[str], marks: range) -> dict[str, Line]:
  """Returns the published lines of others by name. There is none between two million frames."""
  lines = {}
  for row in published.rows('dopamine_returns.csv') if not marks.step % _MILLION else ():
    if row['level'] in levels:
      of_level = lines.setdefault(f'{row["agent"]} (Dopamine)', {}).setdefault(row['level'], [])
      of_level.append([float(row.get(str(mark // _MILLION), 'nan')) for mark in marks])
  return {name: _line(line, dict.fromkeys(line, layout.MISSING)) for name, line in lines.items()}


def _line(returns: Mapping[str, Sequence[Sequence[float]]], papers: Mapping[str, str]) -> Line:
  """Adds the interquartile means. `returns`: level -> [seeds, M]; `papers`: see `Line`."""
  of_levels = {level: np.array(of_seeds) for level, of_seeds in returns.items()}
  scored = _scored(of_levels)
  if len(scored) < 2:
    return Line(of_levels, papers, [])
  normalised = [[[scores.human_normalised(level, score) for score in of_run] for of_run in of_level]
                for level, of_level in scored.items()]
  return Line(of_levels, papers, [
      intervals.Interval(np.nan, np.nan, np.nan) if np.isnan(of_mark).any() else intervals.interquartile_mean(of_mark)
      for of_mark in np.array(normalised).T])


def _scored(of_levels: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Returns the levels that have scores of a random policy and a human, with equal numbers of runs."""
  scored = {level: of_level for level, of_level in of_levels.items() if scores.has_reference(level)}
  seeds = min(map(len, scored.values()), default=0)
  return {level: of_level[:seeds] for level, of_level in scored.items()}


def _row(level: str, name: str, line: Line) -> list[str | layout.Number]:
  means = line.of_levels[level].mean(axis=0)
  reached = means[~np.isnan(means)]
  normalised = (scores.human_normalised(level, reached[-1]) if len(reached) and scores.has_reference(level) else None)
  return [level, name, layout.Number(len(line.of_levels[level]), 0),
          *(layout.Number(None if np.isnan(mean) else mean, 2) for mean in means), layout.Number(normalised, 0),
          line.papers[level]]


def _paper(level: str, run: runs_lib.Run) -> str:
  """Returns the final score of a paper's agent, and its number of frames.

  The agent has the network of the run, or is R2D2, whose paper states no number of frames for Atari, or LASER.
  """
  for paper, agent_of in ((published.IMPALA, runs_lib.agent_of), (r2d2_published.PAPER, r2d2_tables.agent_of),
                          (laser_published.PAPER, _agent_of_laser)):
    agent = agent_of(run, paper.agents)
    score = agent and paper.level_scores.get(agent.suite, {}).get(agent.name, {}).get(registry.test_level(level))
    if agent and score is not None:
      has_frames = (agent.name, agent.suite) != (r2d2_published.R2D2, 'atari57')
      named = f'{agent.name}, {results.short(agent.frames)}' if has_frames else agent.name
      return f'{score:.15g} ({named})'
  return layout.MISSING


def _agent_of_laser(run: runs_lib.Run, agents: Sequence[published.Agent]) -> published.Agent | None:
  """Returns LASER's agent in the paper with this replay; of several, the one of the run's length."""
  if run.agent != runs_lib.LASER or runs_lib.suite_of(run) is None or not runs_lib.is_expert(run):
    return None
  named = {True: (laser_published.SHARED_50M, laser_published.SHARED_200M), False: (laser_published.SINGLE_200M,)}
  ours = [agent for agent in agents if agent.name in named[laser_sweeps.is_shared(run)]]
  return min(ours, key=lambda agent: abs(agent.frames - run.flags['total_environment_frames']))


def _summary(name: str, line: Line) -> list[str | layout.Number]:
  """Returns the row of the interquartile means over levels."""
  cells = [layout.Number(None if np.isnan(middle) else middle, 0,
                         '' if np.isnan(low) else f' ({low:z.0f} to {high:z.0f})') for middle, low, high in line.iqm]
  scored = _scored(line.of_levels)
  return [f'IQM of {len(scored)} levels', name, layout.Number(len(next(iter(scored.values()))), 0), *cells, '', '']
