"""Draws scores on a whole suite, for all papers: against frames and hours of training, and per level."""

from collections.abc import Mapping, Sequence

from matplotlib import figure
import numpy as np

from scalable_agents.environments import scores
from scalable_agents.environments import suite as suite_lib
from scalable_agents.tables.figures import curves
from scalable_agents.tables.figures import drawing
from scalable_agents.tables.papers import paper_tables

_SECONDS_PER_HOUR = 3600

Lines = Mapping[str, Mapping[str, Sequence[np.ndarray]]]  # Label -> curves.FRAMES or SECONDS -> a curve [P, 2] per run.


def of_experts(suite: suite_lib.Suite, rows: Sequence[Sequence[Mapping]]) -> dict[str, list[np.ndarray]]:
  """Returns the curve of the suite's score of an agent that has a run on each level, or several.

  A level's score is the mean over the runs on this level. The curve has the frames or seconds that all runs have.

  Args:
    suite: the suite.
    rows: of each run of the agent, from curves.rows_of or curves.returns_of.
  Returns:
    curves.FRAMES or SECONDS -> [the curve]. There is no curve if the runs are on fewer than two levels of the suite, or
    have no frames in common.
  """
  found = {}
  for against in (curves.FRAMES, curves.SECONDS):
    of_levels = {level: of_level for level in suite.levels if (of_level := curves.of_level(rows, level, against))}
    if len(of_levels) < 2:
      return {}
    at, means = curves.means_on_common_frames(list(of_levels.values()))
    summaries = [scores.summarise(dict(zip(of_levels, column, strict=True))) for column in np.transpose(means)]
    if summaries:
      found[against] = [np.stack([at, [getattr(summary, suite.summary) for summary in summaries]], axis=1)]
  return found


def draw_scores(suite: suite_lib.Suite, lines: Lines, papers: Mapping[str, float], title: str,
                frames: str) -> figure.Figure | None:
  """Draws a suite's score against frames and against hours of training.

  A line is the mean over an agent's runs where all of them have scores, and the area extends from worst to best.

  Args:
    suite: the suite.
    lines: the curves.
    papers: label of a line -> the paper's final score, which is drawn as a horizontal line in the same colour.
    title: the figure's title.
    frames: the label of the axis of frames.
  """
  picture, (panels,) = drawing.grid(1, 2, 11, 3.8, sharey=True)
  styles = curves.styles_of(lines)
  for axes, against, unit in zip(panels, (curves.FRAMES, curves.SECONDS), (1, _SECONDS_PER_HOUR), strict=True):
    for label, of_line in lines.items():
      at, values = curves.on_common_frames(of_line.get(against, ()))
      if len(at):
        drawing.mean_and_range(axes, at / unit, values, label, styles[label])
        if label in papers:
          drawing.papers_line(axes, papers[label], label, styles[label])
  if not any(axes.lines for axes in panels):
    return None
  quantity = f'{paper_tables.MEASURES[suite.summary]} human-normalised score (%)'
  drawing.frames_panel(panels[0], quantity, frames=frames)
  drawing.hours_panel(panels[1], quantity)
  if suite.summary == 'median':
    for axes in panels:
      drawing.vertical_scores_axis(axes)
  drawing.title_and_legend(picture, title, panels)
  return picture


def draw_bars(rows: curves.Rows, papers: Mapping[str, Mapping[str, float]], is_logarithmic: bool,
              title: str) -> figure.Figure | None:
  """Draws the human-normalised score of each level at the end of training as bars, one for each agent.

  A bar is the mean over an agent's runs on the level. A mark in a bar's colour is the paper's score.

  Args:
    rows: the agents' runs, from curves.rows_of or curves.returns_of.
    papers: agent -> level -> score of the paper. Agents and levels may be missing.
    is_logarithmic: see drawing.scores_axis.
    title: the figure's title.
  """
  bars = {name: finals for name, of_group in rows.items() if (finals := finals_of(of_group))}
  levels = list(dict.fromkeys(level for finals in bars.values() for level in finals))
  if not levels:
    return None
  first = next(iter(bars.values()))
  levels.sort(key=lambda level: first.get(level, 0.))
  picture, ((axes,),) = drawing.grid(1, 1, 8, 0.8 + len(levels) * (0.12 + 0.1 * len(bars)))
  height = 0.8 / len(bars)
  for number, (name, finals) in enumerate(bars.items()):
    places = {level: levels.index(level) + 0.4 - (number + 0.5) * height for level in finals}
    style = drawing.bar_style(drawing.line_style(number))
    axes.barh(list(places.values()), list(finals.values()), height, alpha=0.75, label=name, **style)
    of_paper = papers.get(name, {})
    marks = {level: scores.human_normalised(level, of_paper[level]) for level in finals if level in of_paper}
    if marks:
      axes.plot(list(marks.values()), [places[level] for level in marks], linestyle='', marker='|', markersize=9,
                markeredgewidth=2, color=style['color'], label=drawing.papers_label(name))
  drawing.scores_axis(axes, is_logarithmic)
  axes.set_yticks(range(len(levels)), levels, fontsize=8)
  axes.set_ylim(-0.7, len(levels) - 0.3)
  axes.set_xlabel('human-normalised score at the end of training (%)', color=drawing.INK)
  drawing.plain(axes, 'x')
  drawing.title_and_legend(picture, title, [axes])
  return picture


def finals_of(of_group: Sequence[Sequence[Mapping]]) -> dict[str, float]:
  """Returns the human-normalised score of each level that has one, averaged over the runs."""
  found = {level: curves.of_level(of_group, level) for level in curves.levels_of({'': of_group})
           if scores.has_reference(level)}
  return {level: float(np.mean([scores.human_normalised(level, curve[-1, 1]) for curve in of_level]))
          for level, of_level in found.items() if of_level}
