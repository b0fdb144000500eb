"""learning_curve.png: a run's mean return against the environment frames it took, drawn from its run directory."""

import gc
import math
from typing import Any

import numpy as np

from scalable_agents.records import run_directory
from scalable_agents.records import run_rows

_INK = '#3b3b3b'
_LINE = '#1f5fa8'
_MAX_ROWS = 2_000  # Of metrics.jsonl: two for each of the picture's columns.
_MAX_EPISODES = 20_000  # Of short episodes there may be millions.
_MAX_DOTS = 4000
_MAX_SPANS = 60  # The band has the quantiles of so many spans of episodes,
_EPISODES_PER_SPAN = 20  # each with at least so many.
_LABEL_WIDTH = 0.06  # Of the picture.


def draw(logdir: str):
  """Draws the run's learning curve into its directory; nothing before the first row with a finished episode.

  Line: mean return of the last 100 episodes. Dots: episodes. Band: the middle half of the episodes around there. Of a
  suite instead, whose levels have returns of all sizes: its score. Top axis: hours of training. Of a long run some rows
  and episodes are read, evenly spread, so that it takes as long after a month as after an hour. Safe in a thread: it
  shares no state with other figures.

  Raises:
    run_directory.RunDirectoryError: a file of the run is damaged, or the picture cannot be written.
  """
  rows = [row for row in run_rows.read_metrics(logdir, _MAX_ROWS) if row.get('episode_return') is not None]
  if not rows:
    return
  scored = [row for row in rows if 'suite_score' in row]
  name, label, quantity = 'episode_return', 'mean of the last 100 episodes', 'episode return'
  if scored:
    rows, name, label, quantity = scored, 'suite_score', 'all levels', 'human-normalised score, %'
  from matplotlib import figure  # Late: it takes a second to import.  pylint: disable=g-import-not-at-top
  picture = figure.Figure(figsize=(8, 5), dpi=120, layout='constrained')
  axes = picture.add_subplot()
  if not scored:
    _draw_episodes(axes, logdir)
  frames = np.array([row['environment_frames'] for row in rows])
  values = [row[name] for row in rows]
  axes.plot(frames, values, color=_LINE, linewidth=2, label=label)
  level_name = run_directory.read_config(logdir)['flags'].get('level_name', 'training')
  _label(axes, quantity, f'{level_name}: {values[-1]:.4g} after {frames[-1]:,} frames')
  _add_hours(axes, frames, np.array([row['wall_seconds'] for row in rows]) / 3600)
  with run_directory.replaced(run_directory.path(logdir, run_directory.LEARNING_CURVE)) as new:
    picture.savefig(new, format='png')
  del picture, axes
  gc.collect()  # A figure is megabytes in cycles, and a run draws one every few minutes.


def _draw_episodes(axes: Any, logdir: str):
  """Single episodes as dots, and the middle half of them as a band."""
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


def _label(axes: Any, quantity: str, title: str):
  from matplotlib import ticker  # pylint: disable=g-import-not-at-top
  axes.set_xlabel('environment frames', color=_INK)
  axes.set_ylabel(quantity, color=_INK)
  axes.set_title(title, color=_INK, loc='left', fontweight='bold')
  axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=''))
  axes.set_xlim(left=0)
  axes.grid(color='#dddddd', linewidth=0.6)
  axes.set_axisbelow(True)
  axes.spines[['top', 'right']].set_visible(False)
  axes.legend(loc='best', frameon=False, markerscale=3)


def _add_hours(axes: Any, frames: np.ndarray, hours: np.ndarray):
  """A top axis with the hours of training, in minutes where it took less than two hours."""
  from matplotlib import ticker  # pylint: disable=g-import-not-at-top
  unit, times = ('minutes', hours * 60) if hours[-1] < 2 else ('hours', hours)
  ticks = []  # (frames, label)
  for mark in ticker.MaxNLocator(6, steps=(1, 2, 5, 10)).tick_values(0, times[-1]):
    position = np.interp(mark, times, frames)
    # The start of a process takes time and no frames: marks may fall together there.
    if times[0] <= mark <= times[-1] and (not ticks or position > ticks[-1][0] + _LABEL_WIDTH * frames[-1]):
      ticks.append((position, f'{mark:g}'))
  top = axes.twiny()
  top.set_xlim(axes.get_xlim())
  top.set_xticks([position for position, _ in ticks], [label for _, label in ticks])
  top.set_xlabel(f'{unit} of training', color=_INK)
  top.spines[['right']].set_visible(False)
