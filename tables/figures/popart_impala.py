"""Draws the figures of Hessel et al. 2019 (PopArt-IMPALA) from run directories.

Scores of the whole suite against frames (figures 1, 2, 4 and 5), normalisation statistics (figure 3), and scores per
level. All show training, so the runs need not be evaluated. The runs may be on some levels of a suite only.
"""

from collections.abc import Mapping, Sequence
import os

from matplotlib import figure
import numpy as np

from scalable_agents.environments import scores
from scalable_agents.records import errors
from scalable_agents.records import run_rows
from scalable_agents.tables.figures import curves
from scalable_agents.tables.figures import drawing
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
  found = runs_lib.grouped(curves.fittest(runs), popart_tables.name_of)
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
  scores. The area around it extends from the worst run to the best one. Horizontal lines are the paper's scores, if the
  runs are on a whole suite. On Atari, these are from evaluations.

  Args:
    agents: from `by_agent`, at least one.
  """
  one = next(iter(agents.values()))[0]  # All are on the same levels.
  measure = popart_tables.summary_measure(one)
  rows, styles = curves.rows_of(agents), curves.styles_of(agents)
  picture, ((axes,),) = drawing.grid(1, 1, 7, 4.6)
  curves.draw_lines(axes, rows, f'suite_score/{measure}', styles)
  if not axes.lines:
    return None
  for name, (score, how) in popart_tables.published_scores(one).items():
    style = styles.setdefault(name, drawing.line_style(len(styles)))
    axes.axhline(score, color=style['color'], linewidth=1.2, linestyle='--', label=f'{name}: the paper, {how}')
  drawing.frames_panel(axes, _MEASURES[measure])
  levels = one.flags['level_name'].replace(',', ', ')
  drawing.title_and_legend(picture, f'Training scores on {levels}', [axes])
  return picture


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
  picture, panels = drawing.grid(2, len(levels), 1 + 3 * max(len(levels), 2), 5, sharex=True)
  for (upper, lower), level in zip(panels.T, levels, strict=True):
    means, scales = (curves.points(rows, f'popart/{name}/{level}') for name in ('mean', 'scale'))
    if len(means):
      frames, mean = means.T
      sigma = scales[:, 1]
      upper.plot(frames, mean, color=drawing.LINES[1], linewidth=1.4, label='mu, and mu ± sigma')
      upper.fill_between(frames, mean - sigma, mean + sigma, color=drawing.LINES[1], alpha=0.25, linewidth=0)
    if len(returns := curves.points(rows, f'episode_return/{level}')):
      lower.plot(*returns.T, color=drawing.LINES[0], linewidth=1.4, label='return of training episodes')
    upper.set_title(level, color=drawing.INK, loc='left', fontsize=10)
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
  bars = {name: reached for name, of_agent in agents.items() if (reached := _final_scores(of_agent))}
  levels = list(dict.fromkeys(level for reached in bars.values() for level in reached))
  if not levels:
    return None
  first = next(iter(bars.values()))
  levels.sort(key=lambda level: first.get(level, 0.))
  picture, ((axes,),) = drawing.grid(1, 1, 8, 1.6 + len(levels) * (0.12 + 0.16 * len(bars)))
  height = 0.8 / len(bars)
  for number, (name, reached) in enumerate(bars.items()):
    at = [levels.index(level) + 0.4 - (number + 0.5) * height for level in reached]
    axes.barh(at, list(reached.values()), height, color=drawing.LINES[number % len(drawing.LINES)], label=name)
  one = next(iter(agents.values()))[0]  # All are on the same levels.
  drawing.scores_axis(axes, is_logarithmic=popart_tables.summary_measure(one) == 'median')
  axes.set_yticks(range(len(levels)), levels, fontsize=8)
  axes.set_xlabel('human-normalised training score (%)', color=drawing.INK)
  drawing.plain(axes, 'x')
  drawing.title_and_legend(picture, 'Scores of the last training episodes per level', [axes])
  return picture


def _final_scores(runs: Sequence[runs_lib.Run]) -> Mapping[str, float]:
  """Returns the human-normalised training score of each level that has one, averaged over the runs."""
  values = {}
  for run in runs:
    for name, value in (run_rows.last_metrics(run.logdir) or {}).items():
      prefix, _, level = name.partition('/')
      if prefix == 'episode_return' and value is not None and scores.has_reference(level):
        values.setdefault(level, []).append(scores.human_normalised(level, value))
  return {level: float(np.mean(each)) for level, each in values.items()}


def pictures(runs: Sequence[runs_lib.Run]) -> dict[str, figure.Figure | None]:
  """Returns all figures by name.

  Raises:
    errors.UserError: the runs cannot be compared.
  """
  try:
    agents = by_agent(runs)
  except ValueError as error:
    raise errors.UserError(f'--figures: {error}') from error
  found = {'popart_scores': draw_scores(agents), 'popart_returns': curves.draw_returns(curves.returns_of(agents)),
           'popart_levels': draw_levels(agents)}
  with_statistics = [run for name, of_agent in agents.items() if name.endswith(popart_tables.POPART)
                     for run in of_agent]
  names = [os.path.basename(run.logdir) for run in with_statistics]
  for run, name in zip(with_statistics, names, strict=True):
    if names.count(name) > 1 or run.population > 1:  # A member's folder has the name of the population.
      name = f'{os.path.basename(os.path.dirname(run.logdir))}_{name}'
    found[f'popart_statistics_{name}'] = draw_statistics(run)
  return found
