"""Draws the figures of Hessel et al. 2019 (PopArt-IMPALA) from run directories.

Scores of the whole suite against frames (figures 1, 2, 4 and 5), normalisation statistics (figure 3), and scores per
level. All show training, so the runs need not be evaluated. The runs may be on some levels of a suite only.
"""

from collections.abc import Mapping, Sequence
import itertools
import os
from typing import Any, NamedTuple

from matplotlib import figure
import numpy as np

from scalable_agents.records import errors
from scalable_agents.tables.figures import curves
from scalable_agents.tables.figures import drawing
from scalable_agents.tables.figures import suites
from scalable_agents.tables.papers import popart_tables
from scalable_agents.tables.results import results
from scalable_agents.tables.results import runs as runs_lib

# Figure 3 shows these games. A run's other levels follow, up to four levels in all.
_PAPERS_GAMES = ('breakout', 'crazy_climber', 'qbert', 'seaquest')
_MEASURES = {'median': 'median human-normalised score (%)', 'mean_capped': 'mean capped human-normalised score (%)'}


def by_agent(runs: Sequence[runs_lib.Run]) -> dict[str, list[runs_lib.Run]]:
  """Groups the runs by the paper's name of their agent. Of a population, only the fittest member counts.

  Raises:
    ValueError: the runs are on different levels or rewards, or runs of one agent have different settings. The message
      is one line.
  """
  for name in ('level_name', 'reward_transform'):
    if len(values := {run.flags.get(name) for run in runs}) > 1:
      raise ValueError(f'these runs have different values of --{name} ({", ".join(sorted(map(str, values)))}): want '
                       'runs of one figure')
  found = runs_lib.grouped(runs_lib.fittest(runs), popart_tables.name_of)
  for agent, of_agent in found.items():
    settings = [results.settings_of(run, expert=False) for run in of_agent]
    for name in sorted(set().union(*settings)):
      if len(values := {str(each.get(name)) for each in settings}) > 1:
        raise ValueError(f'the runs of {agent} have different values of --{name} ({", ".join(sorted(values))}): want '
                         'runs that differ only in the seed')
  return found


def draw_scores(agents: Mapping[str, Sequence[runs_lib.Run]]) -> figure.Figure | None:
  """Draws the score of the suite in training against frames, a line per agent. Figures 1, 2, 4 and 5.

  The line is the mean over an agent's runs, or over the fittest members of its populations, where all of them have
  scores. The area around it extends from the worst run to the best one. Dashed lines are the paper's scores, if the
  runs are on a whole suite. On Atari, these are from evaluations. Dotted lines mark where the line that ends highest
  reaches the final score of each other line, as in figure 5.

  Args:
    agents: from `by_agent`, at least one.
  """
  one = next(iter(agents.values()))[0]  # All are on the same levels.
  measure = popart_tables.summary_measure(one)
  rows, styles = curves.rows_of(agents), curves.styles_of(agents)
  picture, ((axes,),) = drawing.grid(1, 1, 8.5, 4)
  curves.draw_lines(axes, rows, f'suite_score/{measure}', styles)
  if not axes.lines:
    return None
  _draw_meetings(axes, rows, f'suite_score/{measure}', styles)
  for name, (score, how) in popart_tables.published_scores(one).items():
    style = styles.setdefault(name, drawing.line_style(len(styles)))
    axes.axhline(score, color=style['color'], linewidth=1.2, linestyle='--', label=f'{name}: the paper, {how}')
  drawing.frames_panel(axes, _MEASURES[measure])
  levels = one.flags['level_name'].replace(',', ', ')
  drawing.title_and_legend(picture, f'Training scores on {levels}', [axes])
  return picture


class Meeting(NamedTuple):
  """The point where the best agent's mean curve first reaches the final score of another agent."""
  frames: float  # Environment frames of the best agent at this point.
  score: float   # The final score of the other agent.
  ends: float    # Environment frames of the other agent at its end.


def meetings(curves_of: Mapping[str, np.ndarray]) -> dict[str, Meeting]:
  """Finds where the agent with the highest final score reaches those of the others.

  Args:
    curves_of: agent -> its mean curve, frames and scores [P, 2].
  Returns:
    Each other agent -> Meeting.
  """
  if not curves_of:
    return {}
  best = max(curves_of, key=lambda name: curves_of[name][-1, 1])
  frames, values = curves_of[best].T
  found = {}
  for name, curve in curves_of.items():
    if name != best:
      ends, score = curve[-1]
      found[name] = Meeting(float(frames[np.argmax(values >= score)]), float(score), float(ends))
  return found


def _draw_meetings(axes: Any, rows: curves.Rows, metric: str, styles: Mapping[str, dict[str, str]]):
  """Draws a dotted line down from each Meeting. Its label has the share of frames that the best agent needs."""
  means = {}
  for name, of_group in rows.items():
    frames, values = curves.on_common_frames(curves.of_metric(of_group, metric))
    if len(frames):
      means[name] = np.stack([frames, values.mean(axis=0)], axis=1)
  for name, (frames, score, ends) in meetings(means).items():
    label = f'as good as {name} at {results.short(int(frames))} frames'
    if ends > frames:
      label += f', 1/{ends / frames:.2g} of its frames'
    axes.plot([frames, frames], [0, score], color=styles[name]['color'], linewidth=1.2, linestyle=':', label=label)


def draw_statistics(run: runs_lib.Run) -> figure.Figure | None:
  """Draws the statistics of PopArt and the returns of four levels against frames. Figure 3.

  Upper row: mu, with the area from mu - sigma to mu + sigma. Lower row: returns of training episodes.

  Args:
    run: a run of PopArt-IMPALA.
  """
  rows = curves.rows_of_run(run)
  prefix = 'popart/mean/'
  levels = [name.removeprefix(prefix) for name in (rows[-1] if rows else ()) if name.startswith(prefix)]
  levels = sorted(levels, key=lambda level: level not in _PAPERS_GAMES)[:len(_PAPERS_GAMES)]
  if not levels:
    return None
  picture, panels = drawing.grid(2, len(levels), 1 + 3 * max(len(levels), 2), 4.4, sharex=True)
  for (upper, lower), level in zip(panels.T, levels, strict=True):
    means, scales = (curves.points(rows, f'popart/{name}/{level}') for name in ('mean', 'scale'))
    if len(means):
      frames, mean = means.T
      sigma = scales[:, 1]
      upper.plot(frames, mean, color=drawing.LINES[1], linewidth=1.4, label='mu, and mu ± sigma')
      upper.fill_between(frames, mean - sigma, mean + sigma, color=drawing.LINES[1], alpha=0.25, linewidth=0)
    if len(returns := curves.points(rows, f'episode_return/{level}')):
      lower.plot(*returns.T, color=drawing.LINES[0], linewidth=1.4, label='return of training episodes')
    drawing.panel_title(upper, level)
    for axes in (upper, lower):
      drawing.frames_axis(axes)
      drawing.plain(axes, 'both')
  picture.supxlabel('environment frames', color=drawing.INK, fontsize=10)
  drawing.title_and_legend(picture, 'Statistics of the value targets, and undiscounted returns', panels.flat)
  return picture


def draw_levels(agents: Mapping[str, Sequence[runs_lib.Run]]) -> figure.Figure | None:
  """Draws the human-normalised score of each level at the end of training as bars, one for each agent.

  Args:
    agents: from `by_agent`. A bar is the mean over an agent's runs.
  """
  one = next(iter(agents.values()))[0]  # All are on the same levels.
  return suites.draw_bars(curves.rows_of(agents), {}, popart_tables.summary_measure(one) == 'median',
                          'Scores of the last training episodes per level')


def pictures(runs: Sequence[runs_lib.Run]) -> dict[str, figure.Figure | None]:
  """Returns all figures by name.

  Raises:
    errors.UserError: the runs cannot be compared.
  """
  with errors.of_user(ValueError, prefix='--figures: '):
    agents = by_agent(runs)
  found = {'popart_scores': draw_scores(agents), 'popart_returns': curves.draw_returns(curves.returns_of(agents)),
           'popart_levels': draw_levels(agents)}
  with_statistics = [run for name, of_agent in agents.items() if name.endswith(popart_tables.POPART)
                     for run in of_agent]
  names = [os.path.basename(run.logdir) for run in with_statistics]
  for run, name in zip(with_statistics, names, strict=True):
    if names.count(name) > 1 or run.population > 1:  # A member's folder has the name of the population.
      name = f'{os.path.basename(os.path.dirname(run.logdir))}_{name}'
    numbered = (f'popart_statistics_{name}{f"_{number}" if number > 1 else ""}' for number in itertools.count(1))
    found[next(key for key in numbered if key not in found)] = draw_statistics(run)
  return found
