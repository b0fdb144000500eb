"""Draws figures of Espeholt et al. 2018 (IMPALA) from run directories, with the paper's numbers.

Tables B.1 and C.1 (scores as bars), figures 4 and E.1 (curves of a sweep), 4 (stability), E.3 and E.4 (estimates of
action values), and F.1 (schedules of a population).
"""

import collections
from collections.abc import Mapping, Sequence
import math
import textwrap
from typing import Any

from matplotlib import figure
from matplotlib import ticker
import numpy as np

from scalable_agents.environments import registry
from scalable_agents.environments import scores
from scalable_agents.tables.figures import curves
from scalable_agents.tables.figures import drawing
from scalable_agents.tables.papers import paper_tables
from scalable_agents.tables.papers import sweep
from scalable_agents.tables.results import published
from scalable_agents.tables.results import results
from scalable_agents.tables.results import runs as runs_lib

_EXTENT_WIDTH = 52  # Characters per line.
# Labels of the paper's numbers in legends.
_PAPERS_SCORES = {'dmlab30': "the paper's test scores (table B.1)", 'atari57': "the paper's scores (table C.1)"}
_BARS_TITLES = {
    'dmlab30': "DMLab-30: evaluation scores and the paper's test scores (table B.1)",
    'atari57': "Atari-57: evaluation scores and the paper's scores (table C.1)"}


def draw_bars(suite_name: str, gathered: Mapping[str, results.Result]) -> figure.Figure:
  """Draws human-normalised evaluation scores of all levels as bars.

  There is a panel for each agent whose scores per level the paper prints. Each level has a bar for the runs and a bar
  for the paper's score. (The paper's figure B.1 shows training scores, as impala_training.py does.)

  Args:
    suite_name: name of the suite.
    gathered: agent -> result, for all agents in the suite's table of levels.
  """
  suite = scores.SUITES[suite_name]
  names = [name for name in published.LEVEL_SCORES[suite_name] if name in published.AGENTS]
  order = sorted(suite.test_levels, key=lambda level: _normalised_paper(suite_name, names[-1], level))
  positions = np.arange(len(order))
  picture, (panels,) = drawing.grid(1, len(names), 3 + 3.6 * len(names), 0.8 + 0.22 * len(order), sharex=True,
                                    sharey=True)
  extents = {name: textwrap.wrap(gathered[name].summary(suite.summary).extent, _EXTENT_WIDTH) for name in names}
  above_extents = 6 + 11 * max(map(len, extents.values()))  # Points.
  for name, axes in zip(names, panels, strict=True):
    axes.barh(positions + 0.2, [_normalised_paper(suite_name, name, level) for level in order], 0.4,
              color=drawing.PAPER, label=_PAPERS_SCORES[suite_name])
    reached = [(position, scores.human_normalised(level, cell.score.mean), _spread(level, cell.score))
               for position, level in zip(positions, order, strict=True)
               for cell in [gathered[name].level(level)] if cell.score]
    if reached:
      at, values, spreads = np.array(reached).T
      axes.barh(at - 0.2, values, 0.4, color=drawing.LINES[0], label='this run',
                xerr=spreads if spreads.any() else None, error_kw={'ecolor': drawing.INK, 'elinewidth': 0.8})
    drawing.scores_axis(axes, is_logarithmic=suite.summary == 'median')  # These scores are not capped.
    drawing.plain(axes, 'x')
    axes.set_title(name, color=drawing.INK, loc='left', fontweight='bold', fontsize=10, pad=above_extents)
    axes.text(0, 1.005, '\n'.join(extents[name]), color=drawing.INK, fontsize=8, transform=axes.transAxes)
    axes.set_xlabel('human-normalised evaluation score (%)', color=drawing.INK)
    axes.set_ylim(-0.7, len(order) - 0.3)
  panels[0].set_yticks(positions, order, fontsize=8)
  drawing.title_and_legend(picture, _BARS_TITLES[suite_name], panels)
  return picture


def draw_learning_curves(suite_name: str, gathered: Mapping[str, results.Result]) -> figure.Figure | None:
  """Draws a panel per level with training returns against frames per level, and the paper's evaluation score as a line.

  The curve of a population's member follows the members that its agent was copied from, as in the paper's appendix F.
  If a member with fewer frames copied one with more frames, the curve goes back in frames there. If a level has a test
  version, the curve shows the training version and the line shows the test version. For an agent without printed scores
  per level, the line shows the scores of the multi-task agent for which the paper prints them.

  Args:
    suite_name: name of the suite.
    gathered: agent -> result.
  """
  suite = scores.SUITES[suite_name]
  by_level = {}  # Level -> [(agent, frames, returns)].
  for name, result in gathered.items():
    for run in result.runs:
      for level, curve in _curves(run, suite.levels).items():
        by_level.setdefault(level, []).append((name, *curve))
  if not by_level:
    return None
  levels = [level for level in suite.levels if level in by_level]
  picture, panels = curves.grid_of_returns(levels, frames='environment frames per level')
  agents = (name for name, agent in published.AGENTS.items() if agent.suite == suite_name)
  colours = dict(zip(agents, drawing.LINES, strict=False))
  for level, axes in panels.items():
    for name, frames, returns in by_level[level]:
      axes.plot(frames, returns, color=colours[name], linewidth=1.2, label=name)
    for name in dict.fromkeys(_with_levels(suite_name, name) for name, _, _ in by_level[level]):
      score = published.LEVEL_SCORES[suite_name][name][registry.test_level(level)]
      axes.axhline(score, color=colours[name], linewidth=1.2, linestyle='--',
                   label=f'{name}: {_PAPERS_SCORES[suite_name]}')
    drawing.frames_axis(axes)
  drawing.title_and_legend(picture, f'Training returns. Dashed lines: {_PAPERS_SCORES[suite_name]}, from evaluations',
                           panels.values())
  return picture


def draw_sweep_curves(found: Sequence[sweep.Sample]) -> figure.Figure | None:
  """Draws training scores of a sweep against frames: a panel per level, and a line per setting.

  A line is the mean of the best three samples of the setting.

  Args:
    found: from `sweep.samples`.
  """
  best = sweep.best_three(found)
  if not best:
    return None
  samples = collections.Counter((sample.level, sample.line) for sample in found)
  styles = curves.styles_of(dict.fromkeys(line for _, line in best))
  picture, panels = _level_panels(list(dict.fromkeys(level for level, _ in best)))
  for (level, line), three in best.items():
    panels[level].plot(*_mean_curve(three), linewidth=1.6, label=f'{line}: best {len(three)} of {samples[level, line]}',
                       **styles[line])
  for level, axes in panels.items():
    axes.set_xlabel('environment frames', color=drawing.INK)
    axes.set_ylabel(f'training {sweep.unit(level)}', color=drawing.INK)
    drawing.frames_axis(axes)
  drawing.title_and_legend(picture, 'Mean of the best 3 samples by final training score (figure 4, upper row)',
                           panels.values())
  return picture


def draw_action_values(found: Sequence[sweep.Sample]) -> figure.Figure | None:
  """Draws training scores for several values of --action_values: two panels per level, and a line per setting.

  A line is the mean of the best three samples of the setting (left, figure E.3), or of all samples (right, figure E.4).

  Args:
    found: from `sweep.samples`. Levels with a single value of --action_values are left out.
  """
  values, lines = {}, {}  # Level -> values of the setting; level -> setting -> samples, best first.
  for sample in found:
    if sample.score and 'off_policy_correction' in sample.flags:  # A3C and batched A2C have no such setting.
      values.setdefault(sample.level, set()).add(sample.flags.get('action_values', 'bootstrapped'))
      lines.setdefault(sample.level, {}).setdefault(sample.line, []).append(sample)
  levels = [level for level in lines if len(values[level]) > 1]
  if not levels:
    return None
  names = dict.fromkeys(line for level in levels for line in lines[level])
  styles = curves.styles_of(names)
  picture, panels = drawing.grid(len(levels), 2, 10.5, 0.3 + 3 * len(levels))
  for level, row in zip(levels, panels, strict=True):
    for axes, most, shown in zip(row, (3, None), ('best 3 samples', 'all samples'), strict=True):
      for line, samples in lines[level].items():
        axes.plot(*_mean_curve(samples[:most]), linewidth=1.6, label=line, **styles[line])
      drawing.frames_panel(axes, f'training {sweep.unit(level)}', f'{level}: mean of {shown}')
  drawing.title_and_legend(picture, "Estimates of the action's value in the policy gradient (figures E.3 and E.4)",
                           panels.flat)
  return picture


def draw_stability(found: Sequence[sweep.Sample]) -> figure.Figure:
  """Draws the final training scores of a sweep's samples, best first: a panel per level, and a line per setting.

  Args:
    found: from `sweep.samples`.
  """
  styles = curves.styles_of(dict.fromkeys(sample.line for sample in found))
  picture, panels = _level_panels(list(dict.fromkeys(sample.level for sample in found)))
  for level, axes in panels.items():
    most = 1
    lines = runs_lib.grouped((sample for sample in found if sample.level == level), lambda sample: sample.line)
    for line, samples in lines.items():
      if reached := [sample.score for sample in samples if sample.score]:
        ranks = np.arange(1, len(reached) + 1)
        axes.errorbar(ranks, [score.mean for score in reached], [score.spread or 0 for score in reached], marker='o',
                      markersize=3.5, linewidth=1.6, elinewidth=0.8, label=line, **styles[line])
        most = max(most, len(reached))
    axes.set_xlabel('hyper-parameter combination, best first', color=drawing.INK)
    axes.set_ylabel(f'final training {sweep.unit(level)}', color=drawing.INK)
    axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_xlim(0.5, most + 0.5)
  drawing.title_and_legend(picture, 'Stability: final training scores of all samples (figure 4, lower row)',
                           panels.values())
  return picture


def draw_schedules(members: Mapping[str, Sequence[sweep.Points]], fittest: Mapping[str, Sequence[sweep.Points]],
                   name: str, compared: sweep.Points = ()) -> figure.Figure:
  """Draws the hyper-parameters of a population against environment frames, with a panel per hyper-parameter.

  Args:
    members: hyper-parameter -> a line per member. A point is (frames, value from there on).
    fittest: hyper-parameter -> the segments of the fittest member's ancestry, which are drawn bold.
    name: name of the fittest member.
    compared: the learning rate of a run without a population, for figure F.1.
  """
  picture, (panels,) = drawing.grid(1, len(members), 1 + 3.6 * len(members), 3)
  for hyper_parameter, axes in zip(members, panels, strict=True):
    for points in members[hyper_parameter]:
      axes.step(*np.transpose(points), where='post', color=drawing.PAPER, linewidth=0.9, label='members')
    for points in fittest[hyper_parameter]:
      axes.step(*np.transpose(points), where='post', color=drawing.LINES[0], linewidth=2.4,
                label=f'{name}, the fittest, and its ancestors')
    if hyper_parameter == 'learning_rate' and compared:
      axes.plot(*np.transpose(compared), color=drawing.LINES[1], linewidth=1.6, label='a run without a population')
    axes.set_yscale('log')
    # A learning rate that decays to 0 would take most of a logarithmic axis.
    if lowest := min((value for points in members[hyper_parameter] for _, value in points if value > 0), default=0):
      axes.set_ylim(bottom=lowest / 10)
    axes.tick_params(which='minor', labelsize=8)
    axes.set_title(hyper_parameter, color=drawing.INK, loc='left', fontweight='bold', fontsize=10)
    drawing.frames_axis(axes)
    drawing.plain(axes, 'both')
  picture.supxlabel('environment frames', color=drawing.INK, fontsize=10)
  drawing.title_and_legend(
      picture, "Hyper-parameters in the population (the paper's figure F.1 shows the learning rate)", panels)
  return picture


def _level_panels(levels: Sequence[str]) -> tuple[figure.Figure, dict[str, Any]]:
  """Makes a picture with a panel for each level."""
  columns = min(3, len(levels))
  lines = math.ceil(len(levels) / columns)
  picture, grid = drawing.grid(lines, columns, 1.5 + 4 * max(columns, 2), 0.3 + 3.2 * lines)
  return picture, curves.panels_of_levels(levels, grid, 10)


def _mean_curve(samples: Sequence[sweep.Sample]) -> tuple[np.ndarray, np.ndarray]:
  """Returns frames [N] and mean scores [N] of samples.

  A sample's curve is the mean over its seeds. The result is the mean over the samples, from the latest curve's
  start to the shortest curve's end.
  """
  frames, means = curves.means_on_common_frames([[np.array(curve) for curve in sample.curves] for sample in samples])
  return frames, means.mean(axis=0)


def _curves(run: runs_lib.Run, levels: Sequence[str]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
  """Returns frames per level [N] and training returns [N] by level, without those that have no returns; thinned."""
  rows, num_levels = curves.rows_of_run(run), len(registry.expand(run.flags['level_name']))
  found = {}
  for level in levels:
    points = [(row['environment_frames'] / num_levels, row[f'episode_return/{level}']) for row in rows
              if row.get(f'episode_return/{level}') is not None]
    if points:
      found[level] = tuple(np.transpose(runs_lib.thinned(points)))
  return found


def _with_levels(suite_name: str, agent: str) -> str:
  """Returns `agent` if the paper prints its scores per level, else the multi-task agent whose scores it prints."""
  printed = published.LEVEL_SCORES[suite_name]
  if agent in printed:
    return agent
  return next(name for name in printed if name in published.AGENTS and not published.AGENTS[name].experts)


def _normalised_paper(suite_name: str, agent: str, level: str) -> float:
  return scores.human_normalised(level, published.LEVEL_SCORES[suite_name][agent][level])


def _spread(level: str, score: results.Score) -> float:
  """Returns the standard deviation over seeds, in per cent of a human."""
  return scores.human_normalised(level, score.mean + (score.spread or 0)) - scores.human_normalised(level, score.mean)


def pictures(table: paper_tables.PaperTable, runs: Sequence[runs_lib.Run]) -> dict[str, figure.Figure | None]:
  """Returns the figures of a table by name."""
  of_levels, _ = paper_tables.gather(paper_tables.levels_table(table.suite), runs)
  gathered, _ = paper_tables.gather(table, runs)
  return {f'{table.suite}_scores': draw_bars(table.suite, of_levels),
          f'{table.suite}_learning_curves': draw_learning_curves(table.suite, gathered)}


def sweep_pictures(found: Sequence[sweep.Sample]) -> dict[str, figure.Figure | None]:
  """Returns the figures of a sweep by name."""
  return {'stability': draw_stability(found), 'best_three_curves': draw_sweep_curves(found),
          'action_values': draw_action_values(found)}
