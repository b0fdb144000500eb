"""Draws figures of Kapturowski et al. 2019 (R2D2) from run directories.

The discrepancy Delta Q with learning curves (figure 1), ablations (figures 4, 7 and 8), the restricted memory (figure
5) and the median score over Atari games (figure 9). None of them needs evaluation.json. Curves of returns are those of
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
from scalable_agents.tables.papers import r2d2_variants
from scalable_agents.tables.results import r2d2_published
from scalable_agents.tables.results import results
from scalable_agents.tables.results import runs as runs_lib

_DELTA_Q = {'delta_q/first': 'first', 'delta_q/last': 'last'}  # Metric -> the trained step.
_RETURN = 'episode_return'
HISTORIES = 'restricted_history.json'  # From //agents:r2d2_history.


class Memory(NamedTuple):
  """What restricted_history.json has for one level and one history."""
  mean_return: float
  greedy_match: float      # Per cent of the steps.
  value_difference: float  # Of the largest action values, in the scale of the network.


_MEMORY_FIELDS = ('mean_return', 'greedy_match', 'value_difference')  # In the file.
_MEMORY_AXES = ('mean return', 'greedy action match (%)', 'difference of max Q')  # Of each field of Memory.


def draw_delta_q(runs: Sequence[runs_lib.Run]) -> figure.Figure | None:
  """Draws Delta Q as bars, and the returns (curves.returns_of), with a row of panels for each level. Figures 1b and 1c.

  There is a bar and a line for each training strategy. A bar is the median over training, since the start,
  where all action values are near 0, would dominate a mean. It is the mean over the runs, with the standard deviation.

  Args:
    runs: runs of R2D2. Only those with --measure_delta_q are drawn.
  """
  measured = [run for run in runs if run.flags.get('measure_delta_q')]
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
  picture, panels = drawing.grid(len(of_levels), 2, 11, 1.2 + 0.25 * len(styles) + 2.9 * len(of_levels))
  for (left, right), (level, rows) in zip(panels, sorted(of_levels.items()), strict=True):
    _draw_bars(left, rows, styles)
    returns = curves.returns_of(runs_of_levels[level])
    curves.draw_lines(right, returns, _RETURN, dict(zip(returns, (styles[name] for name in rows), strict=True)))
    left.set_title(level, color=drawing.INK, loc='left', fontsize=10)
    left.set_ylabel('ΔQ, median over training', color=drawing.INK)
    drawing.plain(left, 'y')
    drawing.frames_panel(right, 'mean return' if curves.are_evaluated(returns) else 'training return')
  drawing.title_and_legend(picture, 'ΔQ, the discrepancy of action values, and returns (figure 1)', panels.flat)
  return picture


def _draw_bars(axes: Any, rows: curves.Rows, styles: Mapping[str, dict[str, str]]):
  """Draws two groups of bars: for the first and the last trained step of the sequences."""
  width = 0.8 / len(rows)
  for number, (name, of_group) in enumerate(rows.items()):
    found = [results.mean_over_seeds([float(np.median(curves.points(of_run, metric)[:, 1])) for of_run in of_group])
             for metric in _DELTA_Q]
    spreads = [score.spread or 0 for score in found]
    axes.bar(np.arange(len(found)) + (number + 0.5) * width - 0.4, [score.mean for score in found], width,
             yerr=spreads if any(spreads) else None, label=curves.label(name, len(of_group)),
             color=styles[name]['color'], error_kw={'ecolor': drawing.INK, 'elinewidth': 0.8})
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
  return curves.draw_returns(groups, 'Returns of variants of R2D2 (figure 4)')


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
  picture, panels = drawing.grid(len(of_levels), len(_MEMORY_AXES), 11, 1.2 + 0.25 * len(styles) + 2.6 * len(of_levels))
  for row, (level, found) in zip(panels, sorted(of_levels.items()), strict=True):
    _draw_histories(row, found, styles)
    row[0].set_title(level, color=drawing.INK, loc='left', fontsize=10)
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
    axes.set_xlabel('k, observations before the present one', color=drawing.INK)
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
        mean_return, match, difference = json_text.numbers(result, _MEMORY_FIELDS).values()
        found.setdefault(level, {})[float(history)] = Memory(mean_return, 100 * match, difference)
    return found

  return run_directory.read_json(os.path.join(run.logdir, HISTORIES), parse, 'run //agents:r2d2_history again') or {}


def draw_atari_median(runs: Sequence[runs_lib.Run]) -> figure.Figure | None:
  """Draws the median human-normalised score over Atari games against frames, with a line per variant. Figure 9.

  A game's score is the mean over the runs on this game, of evaluations or of training (curves.returns_of). A line has
  the frames that all runs of the variant have. The horizontal line is the median of the paper's final scores of R2D2,
  which are evaluations, on all games that are drawn.

  Args:
    runs: runs of R2D2. Variants with a single game are left out.
  """
  suite = scores.SUITES['atari57']
  picture, ((axes,),) = drawing.grid(1, 1, 7, 4.6)
  drawn = set()  # Games.
  groups = r2d2_variants.by_variant(runs)
  returns = curves.returns_of(groups)
  styles = curves.styles_of(returns)
  for name, rows in returns.items():
    found = {game: [curve for of_run in rows if len(curve := curves.points(of_run, f'{_RETURN}/{game}'))]
             for game in suite.levels}
    found = {game: of_game for game, of_game in found.items() if of_game}
    if len(found) > 1:
      frames, median = _median(found)
      if len(frames):
        axes.plot(frames, median, linewidth=1.6, label=f'{name}, {len(found)} games', **styles[name])
        drawn |= found.keys()
  if not drawn:
    return None
  paper = r2d2_published.PAPER.level_scores[suite.name][r2d2_published.R2D2]
  axes.axhline(scores.summarise({game: paper[game] for game in drawn}).median, color=drawing.INK, linewidth=1.2,
               linestyle='--', label=f"R2D2: the paper's final evaluated scores, {len(drawn)} games")
  drawing.vertical_scores_axis(axes)
  drawing.frames_panel(axes, 'median human-normalised score (%)', frames='environment frames per run')
  kind = 'score' if curves.are_evaluated(returns) else 'training score'
  drawing.title_and_legend(picture, f'Median {kind} over Atari games (figure 9)', [axes])
  return picture


def _median(found: Mapping[str, Sequence[np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
  """Returns frames [P] and the median score over games [P], given the curves of each game."""
  frames, values = curves.on_common_frames([curve for of_game in found.values() for curve in of_game])
  ends = np.cumsum([len(of_game) for of_game in found.values()])
  of_games = [scores.human_normalised(game, of_game.mean(axis=0))
              for game, of_game in zip(found, np.split(values, ends[:-1]), strict=True)]
  return frames, np.median(of_games, axis=0)


def pictures(runs: Sequence[runs_lib.Run]) -> dict[str, figure.Figure | None]:
  """Returns all figures by name, given runs of R2D2 and other agents."""
  of_r2d2 = curves.fittest([run for run in runs if run.agent == runs_lib.R2D2])
  return {f'r2d2_{name}': draw(of_r2d2) for name, draw in (
      ('delta_q', draw_delta_q), ('ablations', draw_ablations), ('memory', draw_memory),
      ('atari_median', draw_atari_median))}
