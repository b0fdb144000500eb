"""Draws figures of Schmitt et al. 2020 (LASER) from run directories: data efficiency, ablations, rejected experience.

Scores follow the paper's protocol (A.3). The returns of training episodes are averaged in buckets of environment
frames. The score of an agent is the median over its levels. On DMLab-30, it is averaged over ten buckets. The score of
a sweep at each time is that of its best agent at this time.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib import figure
import numpy as np

from scalable_agents.environments import scores
from scalable_agents.tables.figures import curves
from scalable_agents.tables.figures import drawing
from scalable_agents.tables.papers import laser_sweeps
from scalable_agents.tables.papers import laser_variants
from scalable_agents.tables.results import laser_published
from scalable_agents.tables.results import results
from scalable_agents.tables.results import runs as runs_lib
from scalable_agents.tables.results import training_returns

# Suite -> environment frames of a point of a curve, and the number of buckets that it is the mean of. A.3.
_POINTS = {'atari57': (1_000_000, 1), 'dmlab30': (100_000_000, 10)}
_MOST_POINTS = 50  # As in the paper's shortest curves, those of 50 million frames on Atari.
_REJECTED = {'rejected/online': 'new', 'rejected/replayed': 'replayed'}  # Metric -> which steps.


class _Curve(NamedTuple):
  """The score of a variant at each point."""
  values: np.ndarray  # [repetitions, points]. NaN where not all runs of a sweep have a score.
  agents: int         # Largest number of agents in a sweep.
  levels: frozenset[str]


def draw_data_efficiency(runs: Sequence[runs_lib.Run]) -> figure.Figure | None:
  """Draws scores of LASER, without a replay too, and of other agents against frames. Figures 1 and 3.

  Other ablations are left out.

  Args:
    runs: runs of LASER and of the agents that it is compared with.
  """
  compared = [run for run in runs if run.agent != runs_lib.LASER
              or laser_variants.ablations(run) in ([], [laser_variants.NO_REPLAY])]
  if not any(run.agent == runs_lib.LASER and not laser_variants.ablations(run) for run in compared):
    return None
  return _draw_scores(_by_task(compared), 'Data efficiency (figures 1 and 3)')


def draw_ablations(runs: Sequence[runs_lib.Run]) -> figure.Figure | None:
  """Draws scores of all variants against frames. Figures 2, 3 and 4.

  Args:
    runs: as for `draw_data_efficiency`. Tasks on which all runs of LASER are of one variant are left out.
  """
  compared = {task: group for task, group in _by_task(runs).items()
              if len(laser_variants.by_variant([run for run in group if run.agent == runs_lib.LASER])) > 1}
  return _draw_scores(compared, 'Variants of LASER (figures 2, 3 and 4)')


def draw_rejected(runs: Sequence[runs_lib.Run]) -> figure.Figure | None:
  """Draws the share of steps outside the trust region against frames: a row of panels per level, a line per variant.

  Args:
    runs: runs of LASER. Runs of other agents are left out.
  """
  groups = laser_variants.by_variant([run for run in runs if run.agent == runs_lib.LASER])
  styles = curves.styles_of(groups)
  of_levels = {}  # Level -> variant -> rows of each run.
  for name, rows in curves.rows_of(groups).items():
    for run, of_run in zip(groups[name], rows, strict=True):
      if any(len(curves.points(of_run, metric)) for metric in _REJECTED):
        of_levels.setdefault(run.flags['level_name'], {}).setdefault(name, []).append(of_run)
  if not of_levels:
    return None
  picture, panels = drawing.grid(len(of_levels), len(_REJECTED), 11, 0.3 + 2.9 * len(of_levels))
  for row, (level, rows) in zip(panels, sorted(of_levels.items()), strict=True):
    for axes, (metric, steps) in zip(row, _REJECTED.items(), strict=True):
      curves.draw_lines(axes, rows, metric, styles)
      axes.set_ylim(bottom=0)
      drawing.frames_panel(axes, 'rejected share', f'{level}: {steps} steps')
  drawing.title_and_legend(picture, 'Steps outside the trust region, which are not learned from', panels.flat)
  return picture


def _by_task(runs: Sequence[runs_lib.Run]) -> dict[str, list[runs_lib.Run]]:
  """Groups runs whose scores can be compared. Runs on single games of Atari-57 are of one task."""
  def task(run):
    suite = runs_lib.suite_of(run)
    return f'single levels of {suite.name}' if suite and runs_lib.is_expert(run) else run.flags['level_name']

  return runs_lib.grouped(runs, task)


def _draw_scores(tasks: Mapping[str, Sequence[runs_lib.Run]], title: str) -> figure.Figure | None:
  """Draws a panel per task and a line per variant: the mean over repetitions of a sweep, from the worst to the best."""
  of_tasks = {task: found for task, group in tasks.items() if (found := _curves(group))[1]}
  if not of_tasks:
    return None
  styles = curves.styles_of(dict.fromkeys(name for _, lines in of_tasks.values() for name in lines))
  picture, panels = drawing.grid(len(of_tasks), 1, 11, 0.3 + 4 * len(of_tasks))
  for axes, (task, (width, lines)) in zip(panels.flat, of_tasks.items(), strict=True):
    for name, curve in lines.items():
      filled = np.flatnonzero(np.isfinite(curve.values).all(axis=0))
      drawing.mean_and_range(axes, width * (filled + 1.), curve.values[:, filled], _label(name, curve), styles[name])
    levels = sorted(set().union(*(curve.levels for curve in lines.values())))
    _draw_papers(axes, levels)
    shown = levels[0] if len(levels) == 1 else f'{task}: {len(levels)} levels'
    drawing.frames_panel(axes, _quantity(levels), f'{shown}; returns averaged over {results.short(width)} frames',
                         'environment frames per agent')
  drawing.title_and_legend(picture, title, panels.flat)
  return picture


def _curves(runs: Sequence[runs_lib.Run]) -> tuple[int, dict[str, _Curve]]:
  """Returns the environment frames of a point and the curve of each variant, given the runs of a task.

  A point is for as many frames as in the paper, or for 1/50 of the frames of the longest run if that is less.
  """
  returns = {run.logdir: training_returns.read(run) for run in runs}
  # A run ends a few frames late.
  most = max(min(returns[run.logdir].frames, run.flags['total_environment_frames']) for run in runs)
  suite = runs_lib.suite_of(runs[0])
  widest, parts = _POINTS[suite.name] if suite else (most, 1)
  width = max(1, min(widest, most // _MOST_POINTS) // parts)  # Of a bucket.
  found = {}
  for name, group in laser_variants.by_variant(runs).items():
    if curve := _curve(group, returns, width, most // (parts * width), parts):
      found[name] = curve
  return parts * width, found


def _curve(runs, returns: Mapping[str, training_returns.Returns], width: int, number: int, parts: int) -> _Curve | None:
  """Returns the curve of a variant; None if there is none.

  Args:
    runs: its runs.
    returns: directory -> the episodes of the run.
    width: environment frames of a bucket.
    number: points of the curve.
    parts: buckets of a point.
  """
  of_agents = [[_buckets(agent, returns, width, parts * number) for agent in agents]
               for agents in laser_sweeps.repetitions(runs)]
  most = max(len(found) for agents in of_agents for found in agents)
  complete = [[found for found in agents if len(found) == most] for agents in of_agents]
  levels = next(frozenset(found) for agents in complete for found in agents)
  if not levels:
    return None
  values = [np.max([_down_sampled(_score(found), parts) for found in agents], axis=0)
            for agents in complete if agents]
  values = np.array([of_one for of_one in values if np.isfinite(of_one).any()])
  if not len(values) or not np.isfinite(values).all(axis=0).any():
    return None
  return _Curve(values, max(map(len, complete)), levels)


def _buckets(agent: laser_sweeps.Agent, returns: Mapping[str, training_returns.Returns], width: int,
             number: int) -> dict[str, np.ndarray]:
  """Returns level -> mean returns of an agent, [number]. They are NaN in buckets that the run has not finished."""
  found = {}
  for run in agent.values():
    of_run = returns[run.logdir]
    for level, episodes in of_run.of_levels.items():
      over = min(of_run.frames // width, number)
      found[level] = np.concatenate([training_returns.buckets(episodes, width, over), np.full(number - over, np.nan)])
  return found


def _score(of_levels: Mapping[str, Any]) -> np.ndarray:
  """Returns the score of an agent in each bucket, [buckets]. Several levels of suites have a median score.

  Args:
    of_levels: level -> returns in each bucket, [buckets].
  """
  if len(of_levels) == 1 or not all(map(scores.has_reference, of_levels)):
    return np.mean(list(of_levels.values()), axis=0)
  return np.median([scores.human_normalised(level, values) for level, values in of_levels.items()], axis=0)


def _down_sampled(values: np.ndarray, parts: int) -> np.ndarray:
  """Returns the mean of each `parts` values, [points], given [parts * points]. It is NaN if the last of them is NaN."""
  points = values.reshape(-1, parts)
  known = np.isfinite(points)
  means = np.where(known, points, 0.).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
  return np.where(known[:, -1], means, np.nan)


def _quantity(levels: Sequence[str]) -> str:
  """Returns the name of what `_score` computes for these levels."""
  if len(levels) == 1:
    return 'training return'
  has_median = all(map(scores.has_reference, levels))
  return 'median human-normalised score (%)' if has_median else 'mean training return'


def _label(name: str, curve: _Curve) -> str:
  parts = [name]
  if curve.agents > 1:
    parts.append(f'best of {curve.agents} agents')
  if len(curve.values) > 1:
    parts.append(f'{len(curve.values)} repetitions')
  if len(curve.levels) > 1:
    parts.append(f'{len(curve.levels)} levels')
  return ', '.join(parts)


def _draw_papers(axes: Any, levels: Sequence[str]):
  """Draws horizontal lines: the paper's scores at 200 million frames on these games.

  The axes keep their limits, so that the curves of short runs do not become flat; the label has the score.
  """
  limits = axes.get_ylim()
  of_several = f', {len(levels)} levels' if len(levels) > 1 else ''
  for name, style in ((laser_published.SHARED_200M, '--'), (laser_published.RAINBOW, ':')):
    paper = laser_published.PAPER.level_scores['atari57'][name]
    if paper.keys() >= set(levels):
      of_levels = {level: np.array([paper[level]]) for level in levels}
      score = _score(of_levels)[0]
      axes.axhline(score, color=drawing.INK, linewidth=1.2, linestyle=style,
                   label=f"{name}: {score:,.1f} (the paper's table 2{of_several})")
  axes.set_ylim(limits)


def pictures(runs: Sequence[runs_lib.Run]) -> dict[str, figure.Figure | None]:
  """Returns all figures by name."""
  return {f'laser_{name}': draw(runs) for name, draw in (
      ('data_efficiency', draw_data_efficiency), ('ablations', draw_ablations), ('rejected', draw_rejected))}
