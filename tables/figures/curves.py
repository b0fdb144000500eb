"""Draws curves of groups of runs. A line is the mean over a group, the area extends from worst to best.

Returns are those of training, or of evaluations during training (--evaluation_interval) where runs have them.
"""

from collections.abc import Iterable, Mapping, Sequence
import math
import os
import sys
import textwrap
import types
from typing import Any

from matplotlib import figure
import numpy as np

from scalable_agents.population import population_directory
from scalable_agents.records import run_rows
from scalable_agents.tables.figures import drawing
from scalable_agents.tables.figures import lineage
from scalable_agents.tables.results import results
from scalable_agents.tables.results import runs as runs_lib

EVALUATED, TRAINING = ', evaluated', ', training'  # Ends of names that say which returns are drawn.
FRAMES, SECONDS = 'environment_frames', 'wall_seconds'  # What curves are drawn against.
_PREFIX = 'episode_return/'
_POINTS = 300
_TITLE_WIDTH = 44  # In characters. Names of users' levels may be long.

Groups = Mapping[str, Sequence[runs_lib.Run]]  # Name -> runs that differ only in the seed, or also in the level.
Rows = Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]  # Name -> the rows of metrics.jsonl of each run.


def rows_of_run(run: runs_lib.Run) -> list[dict[str, Any]]:
  """Returns evenly spaced rows of metrics.jsonl. For a member of a population, they follow the agent's ancestry."""
  population, index = os.path.dirname(run.logdir), population_directory.member_index(run.logdir)
  members = lineage.read(population) if run.population > 1 else {}
  if index not in members:
    return run_rows.read_metrics(run.logdir, runs_lib.ROWS)
  segments = lineage.ancestry(members, index, math.inf)
  logdirs = population_directory.members(population)
  rows = {member: run_rows.read_metrics(logdirs[member], runs_lib.ROWS)
          for member in {segment.member for segment in segments}}
  return [row for segment in reversed(segments) for row in rows[segment.member]
          if segment.begin < row['environment_frames'] <= segment.end]


def grid_of_returns(levels: Sequence[str], are_evaluated: bool = False, frames: str = 'environment frames',
                    ) -> tuple[figure.Figure, dict[str, Any]]:
  """Makes a picture for returns against frames, with a panel for each level.

  Args:
    levels: the levels.
    are_evaluated: whether there are returns of evaluations among them. Otherwise all are those of training.
    frames: the label of the horizontal axis.
  """
  columns = min(6, math.ceil(math.sqrt(len(levels))))
  lines = math.ceil(len(levels) / columns)
  picture, grid = drawing.grid(lines, columns, 1 + 3.4 * max(columns, 2), 0.5 + 2.5 * lines)
  panels = panels_of_levels(levels, grid, 9)
  picture.supxlabel(frames, color=drawing.INK, fontsize=10)
  for axes in grid[:, 0]:
    axes.set_ylabel('mean return' if are_evaluated else 'training return', color=drawing.INK)
  return picture, panels


def panels_of_levels(levels: Sequence[str], grid: np.ndarray, fontsize: int) -> dict[str, Any]:
  """Titles a panel of returns for each level, hides the other panels of the grid, and returns level -> panel."""
  panels = dict(zip(levels, grid.flat, strict=False))
  for level, axes in panels.items():
    drawing.panel_title(axes, textwrap.fill(level, _TITLE_WIDTH), fontsize)
    drawing.returns_axis(axes)
    drawing.plain(axes, 'both')
  for axes in grid.flat[len(levels):]:
    axes.set_visible(False)
  return panels


def longest(runs: Sequence[runs_lib.Run]) -> list[runs_lib.Run]:
  """Returns the runs without those of which a longer run has the same settings. Those are named on stderr.

  Raises:
    run_directory.RunDirectoryError: a metrics.jsonl is damaged.
  """
  found = []
  for group in runs_lib.grouped(runs, lambda run: results.setting(run, runs_lib.is_expert(run))).values():
    found += results.longest(group, _trained_frames)
  for run in runs:
    if run not in found:
      print('skipped:', f'{run.logdir}: another run of this level has the same settings and more frames',
            file=sys.stderr)
  return found


def _trained_frames(run):
  return (run_rows.last_metrics(run.logdir) or {}).get('environment_frames', 0)


def rows_of(groups: Groups) -> dict[str, list[list[dict[str, Any]]]]:
  """Reads the rows of the runs. Raises run_directory.RunDirectoryError if a metrics.jsonl is damaged."""
  return {name: [rows_of_run(run) for run in runs] for name, runs in groups.items()}


def returns_of(groups: Groups) -> Rows:
  """Reads the returns of the runs, as rows with the metrics `episode_return` and `episode_return/LEVEL`.

  They are those of evaluations during training if all runs of a group have some, else those of training. If a group has
  evaluations, the name of each group gets an end that says which returns they are.

  Raises:
    run_directory.RunDirectoryError: a metrics.jsonl or evaluations.jsonl is damaged.
  """
  evaluated = {name: [_evaluations(run) for run in runs] for name, runs in groups.items()}
  evaluated = {name: rows for name, rows in evaluated.items() if all(rows)}
  rows = rows_of({name: runs for name, runs in groups.items() if name not in evaluated})
  if not evaluated:
    return rows
  return {name + (EVALUATED if name in evaluated else TRAINING): (evaluated | rows)[name] for name in groups}


def without_kind(name: str) -> str:
  """Returns a group's name without the end that says which returns are drawn."""
  return name.removesuffix(EVALUATED).removesuffix(TRAINING)


def are_evaluated(rows: Rows) -> bool:
  """Returns whether the rows are from `returns_of`, and some of them are of evaluations."""
  return any(name.endswith(EVALUATED) for name in rows)


def _evaluations(run: runs_lib.Run) -> list[dict[str, Any]]:
  """Returns the evaluations of a run as rows; [] for a member of a population, whose ancestors are other runs."""
  if run.population > 1:
    return []
  evaluations = run_rows.read_evaluations(run.logdir, runs_lib.ROWS)
  trained = points(run_rows.read_metrics(run.logdir, runs_lib.ROWS) if evaluations else [], SECONDS)
  if not len(trained):  # The times of the evaluations are not known.
    return []
  suite = runs_lib.suite_of(run)
  names = suite.trained if suite else {}
  return [{FRAMES: row.frames, SECONDS: float(np.interp(row.frames, *trained.T)), 'episode_return': row.mean_return} | {
      _PREFIX + names.get(level, level): mean for level, mean in row.means.items()} for row in evaluations]


def styles_of(names: Iterable[str]) -> dict[str, dict[str, str]]:
  """Returns the colour and style of each name's line."""
  return {name: drawing.line_style(number) for number, name in enumerate(names)}


def label(name: str, num_runs: int) -> str:
  """Returns the label of the line or bar that shows the mean over some runs."""
  return f'{name}, {num_runs} runs' if num_runs > 1 else name


def points(rows: Sequence[Mapping[str, Any]], metric: str, against: str = FRAMES) -> np.ndarray:
  """Returns frames and values of a metric, [P, 2], in the order of frames. Rows without it are left out.

  If a member of a population copied one with more frames, the frames of the rows decrease there.

  Args:
    rows: of metrics.jsonl.
    metric: the metric's name.
    against: FRAMES, or SECONDS for the seconds of training in place of the frames.
  """
  found = sorted((row[against], row[metric]) for row in rows if row.get(metric) is not None)
  return np.array(runs_lib.thinned(found), np.float64).reshape(-1, 2)


def on_common_frames(curves: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
  """Interpolates curves where all of them have values.

  Args:
    curves: from `points`.
  Returns:
    frames [P] and values [curves, P]. P is 0 if there are no curves, or no common frames.
  """
  if not curves:
    return np.empty(0), np.empty([0, 0])
  begin, end = max(curve[0, 0] for curve in curves), min(curve[-1, 0] for curve in curves)
  frames = np.linspace(begin, end, _POINTS if begin <= end else 0)
  return frames, np.array([np.interp(frames, *curve.T) for curve in curves])


def means_on_common_frames(groups: Sequence[Sequence[np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
  """Interpolates the curves of several groups where all of them have values, and returns the mean of each group.

  Args:
    groups: the curves of each group, not empty; see `on_common_frames`.
  Returns:
    frames [P] and means [groups, P].
  """
  frames, values = on_common_frames([curve for of_group in groups for curve in of_group])
  ends = np.cumsum([len(of_group) for of_group in groups])
  return frames, np.array([of_group.mean(axis=0) for of_group in np.split(values, ends[:-1])])


def draw_lines(axes: Any, rows: Rows, metric: str, styles: Mapping[str, dict[str, str]]):
  """Draws a line for each group that has this metric.

  The line has the frames for which all runs of the group have the metric. If there are none, there is no line.

  Args:
    axes: the panel.
    rows: from `rows_of`.
    metric: the metric's name.
    styles: from `styles_of`.
  """
  for name, of_group in rows.items():
    frames, values = on_common_frames(of_metric(of_group, metric))
    if len(frames):
      drawing.mean_and_range(axes, frames, values, label(name, len(values)), styles[name])


def levels_of(rows: Rows) -> list[str]:
  """Returns the levels that the last rows of the runs have returns of."""
  names = {name for of_group in rows.values() for of_run in of_group for row in of_run[-1:] for name in row}
  return sorted(name.removeprefix(_PREFIX) for name in names if name.startswith(_PREFIX))


def of_metric(rows: Sequence[Sequence[Mapping[str, Any]]], metric: str, against: str = FRAMES) -> list[np.ndarray]:
  """Returns the curves of a metric of those runs of a group that have it. See `points`."""
  return [curve for of_run in rows if len(curve := points(of_run, metric, against))]


def of_level(rows: Sequence[Sequence[Mapping[str, Any]]], level: str, against: str = FRAMES) -> list[np.ndarray]:
  """Returns the curves of returns of those runs of a group that have the level. See `points`."""
  return of_metric(rows, _PREFIX + level, against)


def draw_returns(rows: Rows, title: str = 'Returns',
                 published: Mapping[str, Mapping[str, float]] = types.MappingProxyType({})) -> figure.Figure | None:
  """Draws a panel per level with returns against frames, and a line per group.

  Args:
    rows: from `returns_of`.
    title: the figure's title.
    published: name of a group -> level -> final score of a paper, which is drawn as a horizontal line.
  """
  styles, levels = styles_of(rows), levels_of(rows)
  if not levels:
    return None
  picture, panels = grid_of_returns(levels, are_evaluated(rows))
  for level, axes in panels.items():
    draw_lines(axes, rows, _PREFIX + level, styles)
    for name, of_levels in published.items():
      if level in of_levels:
        drawing.papers_line(axes, of_levels[level], name, styles[name])
    drawing.frames_axis(axes)
  drawing.title_and_legend(picture, title, panels.values())
  return picture
