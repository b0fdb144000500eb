"""learning_curve.png: the mean return of a run over environment frames, drawn from its run directory."""

import gc
import math
from typing import Any

import numpy as np

from scalable_agents.records import progress
from scalable_agents.records import run_directory
from scalable_agents.records import run_rows

_INK = '#3b3b3b'
_LINE = '#1f5fa8'
_EVALUATED = '#c8511b'
_MAX_ROWS = 2_000  # Rows of metrics.jsonl and of evaluations.jsonl that are drawn: two per column of pixels.
_MAX_EPISODES = 20_000  # A run may have millions of short episodes.
_MAX_DOTS = 4000
_LEGEND_MARKER = 10.  # In points. Dots of episodes are too small to be recognised in the legend.
_MAX_SPANS = 60  # The band shows the quartiles of each span of consecutive episodes.
_EPISODES_PER_SPAN = 20  # The least number of episodes in a span.
_LABEL_WIDTH = 0.06  # As a fraction of the picture's width.
_NAME_LENGTH = 44  # The largest number of characters of the level's name in the title.


def draw(logdir: str):
  """Draws the learning curve of a run into its directory. Does nothing before an episode has been finished.

  The line of training is the mean return of the last 100 episodes, the dots are single episodes, and the band is the
  middle half of the episodes around each point. A line of another colour shows the evaluations during training, if
  there are any. For a suite, whose levels have returns of different sizes, the lines are scores, and there are no dots
  and no band. The top axis has the hours of training. In a long run, only some rows and episodes are read, spread
  evenly, so the time to draw does not grow. Any thread may call it: it shares no state with other figures.

  Raises:
    run_directory.RunDirectoryError: a file of the run is damaged, or the picture cannot be written.
  """
  rows = [row for row in run_rows.read_metrics(logdir, _MAX_ROWS) if row.get('episode_return') is not None]
  if not rows:
    return
  scored = [row for row in rows if 'suite_score' in row]
  name, label, quantity = 'episode_return', 'training: mean of the last 100 episodes', 'episode return'
  if scored:
    rows, name, label, quantity = scored, 'suite_score', 'training: all levels', 'human-normalised score, %'
  from matplotlib import figure  # Imported here because it takes a second.
  picture = figure.Figure(figsize=(8, 5), dpi=120, layout='constrained')
  axes = picture.add_subplot()
  if not scored:
    _draw_episodes(axes, logdir)
  frames = np.array([row['environment_frames'] for row in rows])
  values = [row[name] for row in rows]
  axes.plot(frames, values, color=_LINE, linewidth=2, label=label)
  _draw_evaluations(axes, run_rows.read_evaluations(logdir, _MAX_ROWS), bool(scored))
  level_name = run_directory.read_config(logdir)['flags'].get('level_name', 'training')
  if len(level_name) > _NAME_LENGTH:
    level_name = f'{level_name[:_NAME_LENGTH // 2 - 1]}…{level_name[-_NAME_LENGTH // 2:]}'
  _label(axes, quantity, f'{level_name}: {progress.short(values[-1])} after {frames[-1]:,} frames')
  _add_hours(axes, frames, np.array([row['wall_seconds'] for row in rows]) / 3600)
  with run_directory.replaced(run_directory.path(logdir, run_directory.LEARNING_CURVE)) as new:
    picture.savefig(new, format='png')
  del picture, axes
  gc.collect()  # A figure has megabytes in reference cycles, and a run draws one every few minutes.


def _draw_episodes(axes: Any, logdir: str):
  """Draws single episodes as dots, and the middle half of them as a band."""
  episodes = np.array([(row.frames, row.episode_return) for row in run_rows.read_episodes(logdir, _MAX_EPISODES)])
  if not len(episodes):
    return
  dots = episodes[::math.ceil(len(episodes) / _MAX_DOTS)]
  axes.plot(dots[:, 0], dots[:, 1], '.', color=_LINE, alpha=0.25, markersize=3.5, markeredgewidth=0, label='episode')
  spans = np.array_split(episodes, min(_MAX_SPANS, len(episodes) // _EPISODES_PER_SPAN) or 1)
  if len(spans) > 1:
    low, high = np.transpose([np.quantile(span[:, 1], (0.25, 0.75)) for span in spans])
    axes.fill_between([span[:, 0].mean() for span in spans], low, high, color=_LINE, alpha=0.15, linewidth=0,
                      label='middle half of episodes')


def _draw_evaluations(axes: Any, evaluations: list[run_rows.Evaluation], are_scores: bool):
  """Draws the mean returns of evaluations, or their suite scores, as a line."""
  points = [(evaluation.frames, evaluation.suite_score if are_scores else evaluation.mean_return)
            for evaluation in evaluations if not are_scores or evaluation.suite_score is not None]
  if points:
    axes.plot(*zip(*points, strict=True), color=_EVALUATED, linewidth=2, marker='.', markersize=8,
              label=f'evaluation: mean of {evaluations[-1].num_episodes:,} episodes per level')


def _label(axes: Any, quantity: str, title: str):
  from matplotlib import ticker
  axes.set_xlabel('environment frames', color=_INK)
  axes.set_ylabel(quantity, color=_INK)
  axes.set_title(title, color=_INK, loc='left', fontweight='bold', parse_math=False)  # A level may have a $.
  axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=''))
  axes.set_xlim(left=0)
  axes.grid(color='#dddddd', linewidth=0.6)
  axes.set_axisbelow(True)
  axes.spines[['top', 'right']].set_visible(False)
  for line in axes.legend(loc='best', frameon=False).get_lines():
    line.set_markersize(_LEGEND_MARKER)


def _add_hours(axes: Any, frames: np.ndarray, hours: np.ndarray):
  """Adds a top axis with the hours of training, or minutes if it took less than two hours."""
  from matplotlib import ticker
  unit, times = ('minutes', hours * 60) if hours[-1] < 2 else ('hours', hours)
  ticks = []  # (frames, label)
  for mark in ticker.MaxNLocator(6, steps=(1, 2, 5, 10)).tick_values(0, times[-1]):
    position = np.interp(mark, times, frames)
    # No frames are played while a process starts, so marks may coincide there.
    if times[0] <= mark <= times[-1] and (not ticks or position > ticks[-1][0] + _LABEL_WIDTH * frames[-1]):
      ticks.append((position, f'{mark:g}'))
  top = axes.twiny()
  top.set_xlim(axes.get_xlim())
  top.set_xticks([position for position, _ in ticks], [label for _, label in ticks])
  top.set_xlabel(f'{unit} of training', color=_INK)
  top.spines[['right']].set_visible(False)
