"""Draws the figures of Hessel et al. 2019 (PopArt-IMPALA) from run directories.

Scores of the whole suite against frames (figures 1, 2, 4 and 5), normalisation statistics (figure 3), and scores per
level. All show training, so the runs need not be evaluated. The runs may be on some levels of a suite only.
"""

from typing import Mapping, Sequence

from matplotlib import figure
import numpy as np

from scalable_agents.environments import scores
from scalable_agents.tables import drawing
from scalable_agents.tables import figures
from scalable_agents.tables import popart_tables
from scalable_agents.tables import runs as runs_lib

# Figure 3 shows these games. If a run has others, those follow, up to the same number.
_PAPERS_GAMES = ('breakout', 'crazy_climber', 'qbert', 'seaquest')
_POINTS = 300
_HUMAN = 100.  # Per cent.
_LINEAR_UP_TO = 100.  # Per cent. The axis of scores per level is logarithmic above it.
_MEASURES = {'median': 'median human-normalised score (%)', 'mean_capped': 'mean capped human-normalised score (%)'}


def by_agent(runs: Sequence[runs_lib.Run]) -> dict[str, list[runs_lib.Run]]:
  """Returns the runs by the names that the paper gives to their agents."""
  found = {}
  for run in runs:
    found.setdefault(popart_tables.name_of(run), []).append(run)
  return found


def draw_scores(runs: Sequence[runs_lib.Run], file: str) -> bool:
  """Draws the score of the suite in training against frames, a line per agent. Figures 1, 2, 4 and 5.

  The line is the mean over an agent's runs. The area around it extends from the worst run to the best one.

  Args:
    runs: runs on the same levels.
    file: path of the PNG file to write.
  Returns:
    Whether there was a curve to draw. Only runs on several levels of one suite have a score.
  Raises:
    run_directory.RunDirectoryError: a metrics.jsonl is damaged, or the picture cannot be written.
  """
  measure = popart_tables.summary_measure(runs)
  curves = {}  # Agent -> [(frames, scores)].
  for name, of_agent in by_agent(runs).items():
    found = [_points(run, f'suite_score/{measure}') for run in of_agent]
    if found := [curve for curve in found if len(curve)]:
      curves[name] = found
  if not curves:
    return False
  picture = figure.Figure(figsize=(7, 4.6), dpi=110, layout='constrained')
  axes = picture.subplots()
  for number, (name, found) in enumerate(curves.items()):
    frames = np.linspace(max(curve[0, 0] for curve in found), min(curve[-1, 0] for curve in found), _POINTS)
    values = np.array([np.interp(frames, *curve.T) for curve in found])
    style = drawing.line_style(number)
    label = name + f', {len(found)} runs' * (len(found) > 1)
    axes.plot(frames, values.mean(axis=0), linewidth=1.6, label=label, **style)
    axes.fill_between(frames, values.min(axis=0), values.max(axis=0), color=style['color'], alpha=0.2, linewidth=0)
  axes.set_xlabel('environment frames', color=drawing.INK)
  axes.set_ylabel(_MEASURES[measure], color=drawing.INK)
  drawing.frames_axis(axes)
  drawing.plain(axes, 'both')
  drawing.title_and_legend(picture, f'Training scores on {_shown_levels(runs)}', [axes])
  drawing.save(picture, file)
  return True


def draw_statistics(run: runs_lib.Run, file: str) -> bool:
  """Draws the statistics of PopArt and the returns of four levels against frames. Figure 3.

  Upper row: mu, with the area from mu - sigma to mu + sigma. Lower row: returns of training episodes.

  Args:
    run: a run of PopArt-IMPALA.
    file: path of the PNG file to write.
  Returns:
    Whether there was anything to draw.
  Raises:
    run_directory.RunDirectoryError: its metrics.jsonl is damaged, or the picture cannot be written.
  """
  rows = figures.rows_of(run)
  prefix = 'popart/mean/'
  levels = [name.removeprefix(prefix) for name in (rows[-1] if rows else ()) if name.startswith(prefix)]
  levels = sorted(levels, key=lambda level: level not in _PAPERS_GAMES)[:len(_PAPERS_GAMES)]
  if not levels:
    return False
  picture = figure.Figure(figsize=(1 + 3 * max(len(levels), 2), 5), dpi=110, layout='constrained')
  panels = picture.subplots(2, len(levels), sharex=True, squeeze=False)
  for (upper, lower), level in zip(panels.T, levels):
    means, scales = (_points(run, f'popart/{name}/{level}') for name in ('mean', 'scale'))
    if len(means):
      frames, mean = means.T
      sigma = scales[:, 1]
      upper.plot(frames, mean, color=drawing.LINES[1], linewidth=1.4, label='mu, and mu ± sigma')
      upper.fill_between(frames, mean - sigma, mean + sigma, color=drawing.LINES[1], alpha=0.25, linewidth=0)
    if len(returns := _points(run, f'episode_return/{level}')):
      lower.plot(*returns.T, color=drawing.LINES[0], linewidth=1.4, label='return of training episodes')
    upper.set_title(level, color=drawing.INK, loc='left', fontsize=10)
    for axes in (upper, lower):
      drawing.frames_axis(axes)
      drawing.plain(axes, 'both')
  picture.supxlabel('environment frames', color=drawing.INK, fontsize=10)
  drawing.title_and_legend(picture, 'Statistics of the value targets, and undiscounted returns', panels.flat)
  drawing.save(picture, file)
  return True


def draw_levels(runs: Sequence[runs_lib.Run], file: str) -> bool:
  """Draws the human-normalised score of each level at the end of training as bars, one for each agent.

  Args:
    runs: runs on levels of one suite. A bar is the mean over an agent's runs.
    file: path of the PNG file to write.
  Returns:
    Whether there was a bar to draw.
  Raises:
    run_directory.RunDirectoryError: a metrics.jsonl is damaged, or the picture cannot be written.
  """
  bars = {name: reached for name, of_agent in by_agent(runs).items() if (reached := _final_scores(of_agent))}
  levels = list(dict.fromkeys(level for reached in bars.values() for level in reached))
  if not levels:
    return False
  first = next(iter(bars.values()))
  levels.sort(key=lambda level: first.get(level, 0.))
  picture = figure.Figure(figsize=(8, 1.6 + len(levels) * (0.12 + 0.16 * len(bars))), dpi=110, layout='constrained')
  axes = picture.subplots()
  height = 0.8 / len(bars)
  for number, (name, reached) in enumerate(bars.items()):
    at = [levels.index(level) + 0.4 - (number + 0.5) * height for level in reached]
    axes.barh(at, list(reached.values()), height, color=drawing.LINES[number % len(drawing.LINES)], label=name)
  axes.axvline(_HUMAN, color=drawing.INK, linewidth=0.9, linestyle=':', label='human')
  axes.axvline(0, color=drawing.INK, linewidth=0.9)
  axes.set_xscale('symlog', linthresh=_LINEAR_UP_TO, linscale=1.5)
  axes.set_yticks(range(len(levels)), levels, fontsize=8)
  axes.set_xlabel('human-normalised training score (%)', color=drawing.INK)
  drawing.plain(axes, 'x')
  drawing.title_and_legend(picture, 'Scores of the last training episodes per level', [axes])
  drawing.save(picture, file)
  return True


def _points(run: runs_lib.Run, name: str) -> np.ndarray:
  """Returns frames and values of a metric, [P, 2]. Rows without the metric are left out, and the others are thinned."""
  points = [(row['environment_frames'], row[name]) for row in figures.rows_of(run) if row.get(name) is not None]
  return np.array(runs_lib.thinned(points), np.float64).reshape(-1, 2)


def _final_scores(runs: Sequence[runs_lib.Run]) -> Mapping[str, float]:
  """Returns the human-normalised training score of each level that has one, averaged over the runs."""
  values = {}
  for run in runs:
    rows = figures.rows_of(run)
    for name, value in (rows[-1] if rows else {}).items():
      prefix, _, level = name.partition('/')
      if prefix == 'episode_return' and value is not None and scores.has_reference(level):
        values.setdefault(level, []).append(scores.human_normalised(level, value))
  return {level: float(np.mean(each)) for level, each in values.items()}


def _shown_levels(runs: Sequence[runs_lib.Run]) -> str:
  names = list(dict.fromkeys(run.flags['level_name'] for run in runs))
  return names[0].replace(',', ', ') if len(names) == 1 else 'different levels'
