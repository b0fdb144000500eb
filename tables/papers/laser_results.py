"""The results of LASER's runs, which the paper measures in training. Schmitt et al. 2020, appendix D and A.3.

A score is the mean return of the last 100 training episodes before a number of frames, as appendix D has it for Atari.
The score of a sweep is that of its best agent: the one with the highest median score over the levels.
"""

from collections.abc import Mapping, Sequence
import statistics
from typing import NamedTuple

from scalable_agents.environments import scores
from scalable_agents.tables.papers import laser_sweeps
from scalable_agents.tables.papers import laser_variants
from scalable_agents.tables.results import laser_published
from scalable_agents.tables.results import published
from scalable_agents.tables.results import results
from scalable_agents.tables.results import runs as runs_lib
from scalable_agents.tables.results import training_returns

_AllReturns = Mapping[str, training_returns.Returns]  # Directory -> its episodes.


class _Best(NamedTuple):
  """The best agent of one repetition of a sweep."""
  runs: Mapping[str, runs_lib.Run]              # Level -> run. A run on a suite is the run of all its levels.
  reached: Mapping[str, training_returns.Last]  # Level -> its last episodes.
  agents: int                                   # Agents of the sweep.


class Result:
  """The results of the runs of one agent of the paper.

  If the runs have several settings, those of the best setting are shown. It has the most levels. Among equals, a
  setting that was run in full comes first, and then the one with the highest median score. Repetitions of a sweep are
  averaged.

  Attributes:
    note: which setting is shown, which agents of the sweeps, and which runs are left out. '' if all are shown.
  """

  def __init__(self, agent: published.Agent, runs: Sequence[runs_lib.Run], returns: _AllReturns):
    """Selects the runs to show.

    Args:
      agent: the agent.
      runs: its runs. There may be none.
      returns: directory -> the episodes of the run, for all runs.
    """
    self._agent = agent
    self._returns = returns
    self._suite = scores.SUITES[agent.suite]
    faults = {run.logdir: fault for run in runs if (fault := self._fault(run))}
    runs = [run for run in runs if run.logdir not in faults]
    by_setting = runs_lib.grouped(runs, laser_sweeps.setting)
    candidates = [self._repetitions(results.longest(group, lambda run: returns[run.logdir].frames, agent.frames))
                  for group in by_setting.values()]
    self._best = max(candidates, key=self._rank, default=[])
    shown = dict.fromkeys(run.logdir for best in self._best for run in best.runs.values())
    parts = []
    if len(shown) < len(runs):
      settings = f'the best of {len(by_setting)} settings, ' if len(by_setting) > 1 else ''
      parts.append(f'of {len(runs)} runs these are shown, {settings}the best agent of each sweep: {", ".join(shown)}')
    if faults:
      parts.append('left out: ' + ', '.join(f'{logdir} ({fault})' for logdir, fault in faults.items()))
    self.note = f'{agent.name}: {"; ".join(parts)}' if parts else ''

  def level(self, level: str) -> results.Cell:
    """Returns the mean return on a level."""
    played = [best for best in self._best if level in best.reached]
    if not played:
      return results.Cell(None, results.NOT_RUN)
    return results.Cell(results.mean_over_seeds([best.reached[level].mean for best in played]),
                        self._extent(played, [level]))

  def summary(self, measure: str) -> results.Cell:
    """Returns a field of scores.SuiteScore. There is no score if a level is missing."""
    levels = self._suite.levels
    if not any(best.reached for best in self._best):
      return results.Cell(None, results.NOT_RUN)
    complete = [best for best in self._best if len(best.reached) == len(levels)]
    values = [getattr(_summary(best), measure) for best in complete]
    return results.Cell(results.mean_over_seeds(values) if values else None,
                        self._extent(complete or self._best, levels))

  def _fault(self, run: runs_lib.Run) -> str:
    """Returns why a run has no returns at the agent's number of frames; '' if it has."""
    returns = self._returns[run.logdir]
    if not returns.of_levels:
      return 'no training episodes: an excerpt needs --returns_every'
    # An excerpt has the last episodes before multiples of this, and before the run's end.
    every = run.returns_every * returns.levels if run.returns_every > 1 else 1
    is_longer = min(returns.frames, run.flags['total_environment_frames']) > self._agent.frames
    return f'an excerpt with --returns_every={run.returns_every}' if is_longer and self._agent.frames % every else ''

  def _repetitions(self, runs: Sequence[runs_lib.Run]) -> list[_Best]:
    """Returns the best agent of each repetition of a sweep, given runs of one setting."""
    return [max((self._reached(agent, len(agents)) for agent in agents), key=self._rank_of)
            for agents in laser_sweeps.repetitions(runs)]

  def _reached(self, agent: laser_sweeps.Agent, num_agents: int) -> _Best:
    runs, reached = {}, {}
    for run in agent.values():
      for level, episodes in self._returns[run.logdir].of_levels.items():
        if found := training_returns.last(episodes, self._agent.frames):
          runs[level], reached[level] = run, found
    return _Best(runs, reached, num_agents)

  def _rank_of(self, best: _Best) -> tuple[int, float]:
    return (len(best.reached), _summary(best).median if best.reached else 0)

  def _rank(self, group: Sequence[_Best]) -> tuple[int, bool, float]:
    medians = [_summary(best).median for best in group if best.reached]
    most = max(len(best.reached) for best in group)
    in_full = bool(medians) and self._extent(group, ()) == results.IN_FULL
    return (most, in_full, statistics.fmean(medians) if medians else 0)

  def _extent(self, group: Sequence[_Best], levels: Sequence[str]) -> str:
    """Returns IN_FULL, or a text with all differences from the paper. `levels`: the wanted ones, () for any."""
    played = {level for best in group for level in best.reached if level in levels or not levels}
    less = [f'{len(played)} of {len(levels)} levels'] if len(played) < len(levels) else []
    of_levels = [(best, level) for best in group for level in best.reached if level in played]
    for name, wanted, found, write in (
        ('frames', self._agent.frames, [self._returns[best.runs[level].logdir].frames for best, level in of_levels],
         results.short),
        ('episodes', training_returns.WINDOW, [best.reached[level].episodes for best, level in of_levels], str),
        ('agents', self._agent.population, [best.agents for best, _ in of_levels], str)):
      if min(found) < wanted:
        less.append(f'{results.span(min(found), min(max(found), wanted), write)} of {write(wanted)} {name}')
    if levels and len(group) < self._agent.seeds:
      less.append(f'{len(group)} of {self._agent.seeds} repetitions')
    runs = {run.logdir: run for run in (best.runs[level] for best, level in of_levels)}
    return results.extent(less, map(self._as_scored, runs.values()), self._agent)

  def _as_scored(self, run: runs_lib.Run) -> runs_lib.Run:
    """Returns the run as if it had ended when it was scored, unless its learning rate depends on the end."""
    if run.flags.get('learning_rate_decay'):
      return run
    frames = min(run.flags['total_environment_frames'], self._agent.frames)
    return run._replace(flags=run.flags | {'total_environment_frames': frames})


def _summary(best: _Best) -> scores.SuiteScore:
  return scores.summarise({level: last.mean for level, last in best.reached.items()})


def assign(runs: Sequence[runs_lib.Run]) -> tuple[dict[str, list[runs_lib.Run]], list[str]]:
  """Assigns each run to agents of laser_published.

  Runs that share a replay form a sweep. So do the members of a population, and runs on one level that differ only in
  swept hyper-parameters. A sweep with a shared replay that runs for more than 50 million frames per game also has a
  score at 50 million frames.

  Args:
    runs: runs of LASER and other agents.
  Returns:
    A dict from the name of an agent to its runs, and notes on runs that belong to none.
  """
  found = {name: [] for name in laser_published.AGENTS}
  groups = runs_lib.grouped(runs, lambda run: _is_papers(run) and (laser_sweeps.setting(run), run.flags['level_name']))
  others = groups.pop(False, [])
  for group in groups.values():
    for name in _names_of(group):
      found[name] += group
  notes = []
  if others:
    notes.append('None of these agents (want runs of LASER on single games of Atari-57, or on dmlab30, or of '
                 'popart_impala_dmlab30 --use_pixel_control): '
                 + ', '.join(run.logdir for run in others))
  left_out = {}  # Directory -> variant.
  for name, group in found.items():
    if name == laser_published.PIXEL_POPART:
      continue
    fewest = min((len(laser_variants.ablations(run)) for run in group), default=0)
    more = [run for run in group if len(laser_variants.ablations(run)) > fewest]
    left_out |= {run.logdir: ', '.join(laser_variants.ablations(run)) for run in more}
    found[name] = [run for run in group if run not in more]
  if left_out:
    notes.append('Ablations, which are not in the table: '
                 + ', '.join(f'{logdir} ({variant})' for logdir, variant in left_out.items()))
  return found, notes


def _is_papers(run: runs_lib.Run) -> bool:
  """Returns whether a run is of LASER or PopArt-IMPALA with pixel control, and on levels of the paper."""
  if run.agent == 'popart_impala':
    flags = run.flags
    return (flags['level_name'] == 'dmlab30' and bool(flags.get('use_pixel_control'))
            and flags.get('value_normalization') == 'popart' and not flags.get('replay_share'))
  is_game = runs_lib.suite_of(run) is scores.SUITES['atari57'] and runs_lib.is_expert(run)
  return run.agent == runs_lib.LASER and (is_game or run.flags['level_name'] == 'dmlab30')


def _names_of(group: Sequence[runs_lib.Run]) -> list[str]:
  """Returns the agents to which runs on one level with equal settings belong."""
  if group[0].agent != runs_lib.LASER:
    return [laser_published.PIXEL_POPART]
  is_shared = laser_sweeps.is_shared(group[0])
  if group[0].flags['level_name'] == 'dmlab30':
    return [laser_published.SHARED_DMLAB if is_shared else laser_published.OWN_DMLAB]
  if is_shared:
    short = laser_published.AGENTS[laser_published.SHARED_50M].frames
    is_long = any(run.flags['total_environment_frames'] > short for run in group)
    return [laser_published.SHARED_50M, laser_published.SHARED_200M] if is_long else [laser_published.SHARED_50M]
  has_several = any(len(sweep) > 1 for sweep in laser_sweeps.sweeps(group))
  return [laser_published.OWN_50M if has_several else laser_published.SINGLE_200M]
