"""Draws figures of Kapturowski et al. 2019 (R2D2) from run directories.

The discrepancy Delta Q with learning curves (figure 1), returns per level (figures 2, right, and 10), ablations
(figures 4, 7 and 8), the restricted memory (figure 5), and the effect of the number of actors (figure 6).
r2d2_suites.py draws scores of whole suites. None of them needs evaluation.json. Curves of returns are those of
evaluations during training where runs have them, as in the paper, else those of the actors, which explore.
"""

from collections.abc import Mapping, Sequence
import math
import os
from typing import Any, NamedTuple

from matplotlib import figure
import numpy as np

from scalable_agents.environments import scores
from scalable_agents.records import json_text
from scalable_agents.records import run_directory
from scalable_agents.tables.figures import curves
from scalable_agents.tables.figures import drawing
from scalable_agents.tables.figures import r2d2_suites
from scalable_agents.tables.papers import r2d2_variants
from scalable_agents.tables.results import results
from scalable_agents.tables.results import runs as runs_lib

_DELTA_Q = {'delta_q/first': 'first', 'delta_q/last': 'last'}  # Metric -> the trained step.
_ACTORS_AXES = {'policy_lag': 'parameter lag (updates)',
                **{metric: f'ΔQ, {step} trained step' for metric, step in _DELTA_Q.items()}}
_RETURN = 'episode_return'


class Memory(NamedTuple):
  """What restricted_history.json has for one level and one history, under these names."""
  mean_return: float
  greedy_match: float      # Per cent of the steps.
  value_difference: float  # Of the largest action values, in the scale of the network.


_MEMORY_AXES = ('mean return', 'greedy action match (%)', 'difference of max Q')  # Of each field of Memory.


def draw_delta_q(runs: Sequence[runs_lib.Run]) -> figure.Figure | None:
  """Draws Delta Q as bars, and the returns (curves.returns_of), with a row of panels for each level. Figures 1b and 1c.

  There is a bar and a line for each training strategy. A bar is the mean over the runs, with the standard deviation.
  The value of a run is its median over training: the start, where all action values are near 0, would dominate a mean.

  Args:
    runs: runs of R2D2. Only those with --measure_delta_q are drawn.
  """
  measured = _measured(runs)
  groups = r2d2_variants.by_strategy(measured)
  styles = curves.styles_of(groups)
  of_levels, runs_of_levels = {}, {}  # Level -> strategy -> rows of each run, or the runs.
  for name, rows in curves.rows_of(groups).items():
    for run, of_run in zip(groups[name], rows, strict=True):
      if all(len(curves.points(of_run, metric)) for metric in _DELTA_Q):
        of_levels.setdefault(run.flags['level_name'], {}).setdefault(name, []).append(of_run)
        runs_of_levels.setdefault(run.flags['level_name'], {}).setdefault(name, []).append(run)
  if not of_levels:
    return None
  picture, panels = drawing.grid(len(of_levels), 2, 11, 0.3 + 2.9 * len(of_levels))
  for (left, right), (level, rows) in zip(panels, sorted(of_levels.items()), strict=True):
    _draw_bars(left, rows, styles)
    returns = curves.returns_of(runs_of_levels[level])
    curves.draw_lines(right, returns, _RETURN, dict(zip(returns, (styles[name] for name in rows), strict=True)))
    drawing.panel_title(left, level)
    left.set_ylabel('ΔQ, median over training', color=drawing.INK)
    drawing.plain(left, 'y')
    drawing.frames_panel(right, 'mean return' if curves.are_evaluated(returns) else 'training return')
  drawing.title_and_legend(picture, 'ΔQ, the discrepancy of action values, and returns (figure 1)', panels.flat)
  return picture


def _measured(runs: Sequence[runs_lib.Run]) -> list[runs_lib.Run]:
  return [run for run in runs if run.flags.get('measure_delta_q')]


def draw_actors(runs: Sequence[runs_lib.Run]) -> figure.Figure | None:
  """Draws the parameter lag and Delta Q as bars, with a row of panels for each number of actors. Figure 6.

  The lag is the number of updates since the parameters with which the replayed steps were made. There is a group of
  bars for each level, and a bar for each training strategy. A bar is as for `draw_delta_q`.

  Args:
    runs: runs of R2D2. Only those with --measure_delta_q whose number of actors is known are drawn.
  """
  by_actors = runs_lib.grouped(_measured([run for run in runs if run.actors]), lambda run: run.actors)
  if len(by_actors) < 2:
    return None
  groups = {number: r2d2_variants.by_strategy(by_actors[number]) for number in sorted(by_actors, reverse=True)}
  styles = curves.styles_of(dict.fromkeys(name for of_number in groups.values() for name in of_number))
  levels = sorted(runs_lib.by_level([run for group in by_actors.values() for run in group]))
  picture, panels = drawing.grid(len(groups), len(_ACTORS_AXES), 11, 0.3 + 3 * len(groups))
  for row, (number, of_number) in zip(panels, groups.items(), strict=True):
    rows = curves.rows_of(of_number)
    for axes, (metric, quantity) in zip(row, _ACTORS_AXES.items(), strict=True):
      for place, (name, of_group) in enumerate(rows.items()):
        found = [[float(np.median(values[:, 1])) for run, of_run in zip(of_number[name], of_group, strict=True)
                  if run.flags['level_name'] == level and len(values := curves.points(of_run, metric))]
                 for level in levels]
        _draw_group(axes, place, len(rows), found, name, styles[name])
      axes.set_title(f'{number} actors', color=drawing.INK, loc='left', fontsize=10)
      axes.set_ylabel(quantity, color=drawing.INK)
      axes.set_xticks(range(len(levels)), [level.replace('_', '\n') for level in levels])
      drawing.plain(axes, 'y')
  for column in panels.T:  # The rows can be compared.
    for axes in column:
      axes.set_ylim(0, max(axes.get_ylim()[1] for axes in column))
  drawing.title_and_legend(picture, 'Parameter lag and ΔQ with different numbers of actors (figure 6)', panels.flat)
  return picture


def _draw_group(axes: Any, place: int, places: int, found: Sequence[Sequence[float]], label: str,
                style: Mapping[str, str]):
  """Draws one bar in each group of `places` bars: the mean of its values, and their standard deviation."""
  width = 0.8 / places
  drawn = [(at + (place + 0.5) * width - 0.4, results.mean_over_seeds(values))
           for at, values in enumerate(found) if values]
  spreads = [score.spread or 0 for _, score in drawn]
  axes.bar([at for at, _ in drawn], [score.mean for _, score in drawn], width, yerr=spreads if any(spreads) else None,
           label=label, **drawing.bar_style(style), error_kw={'ecolor': drawing.INK, 'elinewidth': 0.8})


def _draw_bars(axes: Any, rows: curves.Rows, styles: Mapping[str, dict[str, str]]):
  """Draws two groups of bars: for the first and the last trained step of the sequences."""
  for place, (name, of_group) in enumerate(rows.items()):
    found = [[float(np.median(curves.points(of_run, metric)[:, 1])) for of_run in of_group] for metric in _DELTA_Q]
    _draw_group(axes, place, len(rows), found, curves.label(name, len(of_group)), styles[name])
  axes.set_xticks(range(len(_DELTA_Q)), [f'{step} trained step' for step in _DELTA_Q.values()])


def draw_ablations(runs: Sequence[runs_lib.Run]) -> figure.Figure | None:
  """Draws returns (curves.returns_of) against frames: a panel per level, and a line per variant. Figures 4, 7 and 8.

  Args:
    runs: runs of R2D2. Levels on which all runs are of one variant are left out.
  """
  compared_levels = {level for level, group in runs_lib.by_level(runs).items()
                     if len(set(map(r2d2_variants.variant, group))) > 1}
  compared = [run for run in runs if run.flags['level_name'] in compared_levels]
  groups = r2d2_variants.by_variant(compared)
  return curves.draw_returns(curves.returns_of(groups),
                             'Returns of variants of R2D2 (figure 4), areas from the worst to the best run')


def draw_memory(runs: Sequence[runs_lib.Run]) -> figure.Figure | None:
  """Draws three panels per level against the length k of the history, with a line per training strategy. Figure 5.

  Args:
    runs: runs of R2D2. Only those with restricted_history.json are drawn.
  """
  memories = {run.logdir: read_memory(run) for run in runs}
  groups = r2d2_variants.by_strategy([run for run in runs if memories[run.logdir]])
  styles = curves.styles_of(groups)
  of_levels = {}  # Level -> strategy -> history -> Memory, for each run.
  for name, of_group in groups.items():
    for run in of_group:
      for level, histories in memories[run.logdir].items():
        of_levels.setdefault(level, {}).setdefault(name, []).append(histories)
  if not of_levels:
    return None
  picture, panels = drawing.grid(len(of_levels), len(_MEMORY_AXES), 11, 0.3 + 2.6 * len(of_levels))
  for row, (level, found) in zip(panels, sorted(of_levels.items()), strict=True):
    _draw_histories(row, found, styles)
    drawing.panel_title(row[0], level)
  drawing.title_and_legend(picture, 'Evaluations with a restricted memory (figure 5)', panels.flat)
  return picture


def _draw_histories(panels: Sequence[Any], found: Mapping[str, Sequence[Mapping[float, Memory]]],
                    styles: Mapping[str, dict[str, str]]):
  """Draws a level's lines. A line has the histories that all runs of its strategy have, the longest one first."""
  ordered = sorted({history for of_group in found.values() for of_run in of_group for history in of_run}, reverse=True)
  for number, (axes, quantity) in enumerate(zip(panels, _MEMORY_AXES, strict=True)):
    for name, of_group in found.items():
      common = [history for history in ordered if all(history in of_run for of_run in of_group)]
      values = np.array([[of_run[history][number] for history in common] for of_run in of_group])
      if common:
        drawing.mean_and_range(axes, np.array([ordered.index(history) for history in common]), values,
                               curves.label(name, len(of_group)), styles[name] | {'marker': 'o', 'markersize': '3.5'})
    axes.set_xticks(range(len(ordered)), ['∞' if history == math.inf else f'{history:g}' for history in ordered])
    axes.set_xlabel('k, number of last observations', color=drawing.INK)
    axes.set_ylabel(quantity, color=drawing.INK)
    drawing.plain(axes, 'both')


def read_memory(run: runs_lib.Run) -> dict[str, dict[float, Memory]]:
  """Reads restricted_history.json.

  Returns:
    Level -> history -> Memory, {} if there is no such file. A history is a number of observations, or infinite.
  Raises:
    run_directory.RunDirectoryError: the file is damaged.
  """
  def parse(content):
    found = {}
    for level, histories in json_text.as_object(content).items():
      for history, result in json_text.as_object(histories).items():
        mean_return, match, difference = json_text.numbers(result, Memory._fields).values()
        found.setdefault(level, {})[float(history)] = Memory(mean_return, 100 * match, difference)
    return found

  path = os.path.join(run.logdir, run_directory.RESTRICTED_HISTORY)
  return run_directory.read_json(path, parse, 'run `scalable-agents r2d2_history` again') or {}


def pictures(runs: Sequence[runs_lib.Run]) -> dict[str, figure.Figure | None]:
  """Returns all figures by name, given runs of R2D2, and runs of IMPALA to compare with."""
  drawn = curves.longest(runs_lib.fittest(runs))
  of_r2d2 = [run for run in drawn if run.agent == runs_lib.R2D2]
  returns = curves.returns_of(r2d2_suites.by_agent(drawn))
  found = {f'r2d2_{name}': draw(of_r2d2) for name, draw in (
      ('delta_q', draw_delta_q), ('actors', draw_actors), ('ablations', draw_ablations), ('memory', draw_memory))}
  found['r2d2_levels'] = curves.draw_returns(returns, 'Returns per level (figures 2, right, and 10)',
                                             r2d2_suites.published_scores(returns))
  for suite in scores.SUITES.values():
    found[f'r2d2_{suite.name}'] = r2d2_suites.draw_scores(suite, returns)
    found[f'r2d2_{suite.name}_bars'] = r2d2_suites.draw_bars(suite, returns)
  return found
