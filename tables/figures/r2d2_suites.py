"""Draws scores of R2D2, its variants and IMPALA on a whole suite. Kapturowski et al. 2019.

Scores against frames and hours (figures 2, left, 3 and 9), and per level (figure 11). As in the paper, a run is on one
level, and a suite's score summarises the runs on its levels. The runs may be on some levels of a suite only.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib import figure
import numpy as np

from scalable_agents.environments import scores
from scalable_agents.environments import suite as suite_lib
from scalable_agents.tables.figures import curves
from scalable_agents.tables.figures import drawing
from scalable_agents.tables.papers import paper_tables
from scalable_agents.tables.papers import r2d2_variants
from scalable_agents.tables.results import published
from scalable_agents.tables.results import r2d2_published
from scalable_agents.tables.results import runs as runs_lib

_FIGURES = {'atari57': 'figures 2 and 9', 'dmlab30': 'figure 3'}  # By suite.
_SECONDS_PER_HOUR = 3600


def by_agent(runs: Sequence[runs_lib.Run]) -> dict[str, list[runs_lib.Run]]:
  """Groups runs by variant of R2D2, and by the network of IMPALA. Runs of IMPALA on several levels are left out."""
  of_r2d2 = [run for run in runs if run.agent == runs_lib.R2D2]
  others = [run for run in runs if run.agent != runs_lib.R2D2 and runs_lib.is_expert(run)]
  return r2d2_variants.by_variant(of_r2d2) | runs_lib.grouped(others, _name_of_impala)


def _name_of_impala(run: runs_lib.Run) -> str:
  """Returns the paper's name. Its re-runs have the larger action set, unlike the agents of Espeholt et al. 2018."""
  suite = runs_lib.suite_of(run)
  name = f'IMPALA, {run.flags["torso"]}'
  if suite is None:
    return name
  is_again = suite.name == 'dmlab30' and run.flags.get('action_set') == 'popart'
  return f'{name} ({"re-run" if is_again else "original"})'


def published_scores(rows: curves.Rows) -> dict[str, dict[str, float]]:
  """Returns the paper's final scores of the agents that are drawn: name of a group -> level -> score.

  They are evaluations. Those of the original IMPALA on DMLab-30 are in its own paper.

  Args:
    rows: from curves.returns_of, of the groups of `by_agent`.
  """
  found = {}
  for suite in scores.SUITES.values():
    trained = dict(zip(suite.test_levels, suite.levels, strict=True))
    printed = dict(r2d2_published.PAPER.level_scores[suite.name])
    if suite.name == 'dmlab30':
      printed[r2d2_published.ORIGINAL] = published.LEVEL_SCORES[suite.name]['IMPALA-Experts, deep']
    for name in rows:
      of_levels = printed.get(curves.without_kind(name), {})
      found.setdefault(name, {}).update({trained[level]: score for level, score in of_levels.items()})
  return found


def draw_scores(suite: suite_lib.Suite, rows: curves.Rows) -> figure.Figure | None:
  """Draws the suite's score against frames and against hours of training, with a line per agent.

  A level's score is the mean over the runs on this level. A line has the frames or hours that all runs of the agent
  have. Horizontal lines are the paper's final scores on all levels that are drawn, for the agents that are drawn.

  Args:
    suite: the suite. Agents with a single level of it are left out.
    rows: from curves.returns_of, of the groups of `by_agent`.
  """
  picture, (panels,) = drawing.grid(1, 2, 11, 4.6, sharey=True)
  styles = curves.styles_of(rows)
  drawn = set()  # Levels.
  for axes, against, unit in zip(panels, (curves.FRAMES, curves.SECONDS), (1, _SECONDS_PER_HOUR), strict=True):
    for name, of_group in rows.items():
      found = {level: of_level for level in suite.levels
               if (of_level := curves.of_level(of_group, level, against))}
      if len(found) > 1:
        at, values = _score(suite, found)
        if len(at):
          axes.plot(at / unit, values, linewidth=1.6, label=f'{name}, {len(found)} levels', **styles[name])
          drawn |= found.keys()
  if not drawn:
    return None
  for name, of_levels in published_scores(rows).items():
    if drawn <= of_levels.keys():
      summary = scores.summarise({level: of_levels[level] for level in drawn})
      for axes in panels:
        drawing.papers_line(axes, getattr(summary, suite.summary), name, styles[name])
  quantity = f'{paper_tables.MEASURES[suite.summary]} human-normalised score (%)'
  drawing.frames_panel(panels[0], quantity, frames='environment frames per run')
  drawing.hours_panel(panels[1], quantity, 'hours of training per run')
  if suite.summary == 'median':
    for axes in panels:
      drawing.vertical_scores_axis(axes)
  kind = 'scores' if curves.are_evaluated(rows) else 'training scores'
  drawing.title_and_legend(picture, f'{suite.name}: {kind} ({_FIGURES[suite.name]})', panels)
  return picture


def _score(suite: suite_lib.Suite, found: Mapping[str, Sequence[np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
  """Returns frames or seconds [P] and the suite's score [P], given the curves of each level."""
  at, values = curves.on_common_frames([curve for of_level in found.values() for curve in of_level])
  ends = np.cumsum([len(of_level) for of_level in found.values()])
  means = np.array([of_level.mean(axis=0) for of_level in np.split(values, ends[:-1])])
  summaries = [scores.summarise(dict(zip(found, column, strict=True))) for column in means.T]
  return at, np.array([getattr(summary, suite.summary) for summary in summaries])


def draw_bars(suite: suite_lib.Suite, rows: curves.Rows) -> figure.Figure | None:
  """Draws the human-normalised score of each level at the end of training as bars, one for each agent. Figure 11.

  A bar is the mean over an agent's runs on the level. A mark in a bar's colour is the paper's score.

  Args:
    suite: the suite. It is drawn if there are at least two of its levels.
    rows: from curves.returns_of, of the groups of `by_agent`.
  """
  bars = {name: _finals(suite, of_group) for name, of_group in rows.items()}
  bars = {name: finals for name, finals in bars.items() if finals}
  levels = list(dict.fromkeys(level for finals in bars.values() for level in finals))
  if len(levels) < 2:
    return None
  first = next(iter(bars.values()))
  levels.sort(key=lambda level: first.get(level, 0.))
  picture, ((axes,),) = drawing.grid(1, 1, 8, 1.6 + len(levels) * (0.12 + 0.16 * len(bars)))
  height = 0.8 / len(bars)
  papers = published_scores(rows)
  for number, (name, finals) in enumerate(bars.items()):
    places = {level: levels.index(level) + 0.4 - (number + 0.5) * height for level in finals}
    colour = drawing.line_style(number)['color']
    axes.barh(list(places.values()), list(finals.values()), height, color=colour, alpha=0.75, label=name)
    marks = {level: scores.human_normalised(level, papers[name][level]) for level in finals if level in papers[name]}
    if marks:
      axes.plot(list(marks.values()), [places[level] for level in marks], linestyle='', marker='|', color=colour,
                markersize=9, markeredgewidth=2, label=drawing.papers_label(name))
  drawing.scores_axis(axes, is_logarithmic=suite.summary == 'median')
  axes.set_yticks(range(len(levels)), levels, fontsize=8)
  axes.set_ylim(-0.7, len(levels) - 0.3)
  axes.set_xlabel('human-normalised score at the end of training (%)', color=drawing.INK)
  drawing.plain(axes, 'x')
  drawing.title_and_legend(picture, f'{suite.name}: scores per level (figure 11)', [axes])
  return picture


def _finals(suite: suite_lib.Suite, of_group: Any) -> dict[str, float]:
  """Returns the human-normalised score of each level that has one, averaged over the runs."""
  found = {level: curves.of_level(of_group, level) for level in suite.levels}
  return {level: float(np.mean([scores.human_normalised(level, curve[-1, 1]) for curve in of_level]))
          for level, of_level in found.items() if of_level}
