"""Compares runs of your own: any metric of any number of run directories in one figure, a table and a CSV file.

  scalable-agents compare_runs --runs='runs/catch_*'
  scalable-agents compare_runs --runs='runs/a,runs/b_*' --metric=loss/entropy --output=entropy

Runs with the same hyper-parameters form a group, which is named after the settings in which the groups differ. Its runs
may differ in the seed, in the settings of the run (RunConfig), and in where the processes of a cluster are; see
departures.FREE. Settings that only some of the runs have, such as those of one agent, are compared among these. In the
figure, a line is the mean of a group, and the area around it extends from its smallest to its largest value. The table
has the interquartile mean (IQM) of each group at the end of the runs, and of the best value of each run, with 95 %
intervals from a bootstrap over the runs; see intervals.py.
"""

from collections.abc import Sequence
import csv
import dataclasses
import os
import sys
import textwrap
from typing import Any, NamedTuple

import numpy as np

from scalable_agents.processes import run_flags
from scalable_agents.records import errors
from scalable_agents.records import progress
from scalable_agents.records import run_directory
from scalable_agents.records import run_rows
from scalable_agents.records.settings import setting
from scalable_agents.tables import files
from scalable_agents.tables.figures import curves
from scalable_agents.tables.figures import drawing
from scalable_agents.tables.results import departures
from scalable_agents.tables.results import intervals
from scalable_agents.tables.results import results
from scalable_agents.tables.results import runs as runs_lib

_LABEL_WIDTH = 42  # Characters. The legend has two columns.


@dataclasses.dataclass(frozen=True)
class CompareConfig:
  """The flags."""

  runs: str = setting('', 'The run directories: paths or patterns with *, separated by commas.')
  metric: str = setting('episode_return', 'The metric, a name in metrics.jsonl: episode_return, suite_score, '
                        'episode_return/LEVEL, loss/entropy, frames_per_second and others.')
  output: str = setting('results/compared', 'Folder to write to.')


class Run(NamedTuple):
  """A metric of a run."""
  logdir: str
  seed: int | str           # '' if config.json has none.
  settings: dict[str, Any]  # That runs of a group have in common. With 'agent'.
  defaults: dict[str, Any]  # Values of settings that an older run may lack.
  frames: np.ndarray        # [P] environment frames.
  values: np.ndarray        # [P].
  trained: int              # Environment frames of the last row, which may lack the metric.


def read(patterns: str, metric: str) -> list[Run]:
  """Reads the runs that have a metric, in the order of the patterns. Others, and copies of runs, are skipped and named.

  Raises:
    errors.UserError: a pattern matches no run, or all runs lack the metric or are damaged. The error is about the last
      one.
  """
  found = {}  # Real path -> path. Several patterns may match a run.
  for pattern in files.patterns(patterns):
    paths = [path for path in runs_lib.matching(pattern)
             if os.path.exists(run_directory.path(path, run_directory.CONFIG))]
    if not paths:
      raise errors.UserError(f'--runs: {pattern}: no such run directory')
    for path in paths:
      found.setdefault(os.path.realpath(path), path)
  if not found:
    raise errors.UserError(f'--runs={patterns}: want run directories')
  read_runs, runs, faults = [], [], []
  for path in found.values():
    try:
      read_runs.append(_read_run(path))
    except errors.UserError as error:
      faults.append(str(error))
  for run in runs_lib.without_copies(read_runs, faults.append):
    try:
      runs.append(_with_metric(run, metric))
    except errors.UserError as error:
      faults.append(str(error))
  for fault in faults if runs else faults[:-1]:
    print('skipped:', fault, file=sys.stderr)
  if not runs:
    raise errors.UserError(faults[-1])
  return runs


def _read_run(logdir):
  stored = run_directory.read_config(logdir)
  runs_lib.check_types(stored['flags'], {}, run_directory.path(logdir, run_directory.CONFIG))
  agent = stored.get('agent') or runs_lib.agent_in(stored.get('command_line'))  # Older runs do not name their agent.
  run = runs_lib.Run(logdir, stored['flags'], None, agent or '')
  if run.task:
    raise errors.UserError(f'{logdir}: the directory of learner {run.task} of a run: want that of learner 0')
  return run


def _with_metric(run, metric):
  logdir, last, points = run.logdir, None, []
  for last in run_rows.iterate_metrics(logdir):
    if isinstance(value := last.get(metric), int | float):
      points.append((last['environment_frames'], value))
  if not last:
    raise errors.UserError(f'{logdir}: has no metrics yet')
  if not points:
    known = sorted(name for name, value in last.items() if isinstance(value, int | float))
    raise errors.UserError(f'{logdir}: no metric {metric!r}: want one of {", ".join(known)}')
  frames, values = np.array(points, np.float64).T
  settings = departures.decisive(run) | {'agent': run.agent}
  if 'parameter_refresh' in run.flags:  # The tables of the papers accept several values.
    settings['parameter_refresh'] = run.flags['parameter_refresh']
  return Run(logdir, run.flags.get('seed', ''), settings, _defaults(run), frames, values,
             last['environment_frames'])


def _defaults(run):
  if run.agent not in runs_lib.NAMES or not isinstance(run.flags.get('level_name'), str):
    return {}
  suite = runs_lib.suite_of(run)
  return departures.papers(run.family, suite.name if suite else None)


def groups_of(runs: Sequence[Run]) -> dict[str, list[Run]]:
  """Groups runs with the same settings. The names are the settings in which the groups differ."""
  present = {(run.settings['agent'], name) for run in runs for name in run.settings}
  settings = [{name: value for name, value in run.defaults.items() if (run.settings['agent'], name) in present}
              | run.settings for run in runs]
  names = results.differing([''] * len(runs), settings, ())
  groups: dict[str, list[Run]] = {}
  for run, differing in zip(runs, names, strict=True):
    groups.setdefault(', '.join(differing) or 'all runs', []).append(run)
  return groups


def _cell(values):
  middle, low, high = intervals.interquartile_mean(values)
  interval = '' if np.isnan(low) else f' ({progress.short(low)} to {progress.short(high)})'
  return progress.short(middle) + interval


def _draw(groups, metric, file):
  picture, panels = drawing.grid(1, 1, 8, 5)
  axes = panels[0, 0]
  for number, (name, runs) in enumerate(groups.items()):
    label, style = textwrap.fill(f'{name} ({len(runs)})', _LABEL_WIDTH), drawing.line_style(number)
    frames, values = curves.on_common_frames([np.stack([run.frames, run.values], axis=1) for run in runs])
    if len(frames) and frames[0] < frames[-1]:
      drawing.mean_and_range(axes, frames, values, label, style)
    else:  # There is no such line, for example if the runs have a single row each.
      points = [np.concatenate([getattr(run, name) for run in runs]) for name in ('frames', 'values')]
      axes.plot(*points, label=label, marker='o', **style | {'linestyle': ''})
  drawing.frames_panel(axes, metric)
  drawing.title_and_legend(picture, 'Mean of the runs, and from the smallest to the largest value', [axes])
  drawing.save(picture, file)


def _write_points(groups, metric, file):
  with run_directory.replaced(file) as new, open(new, 'w', encoding='utf-8', newline='') as stream:
    writer = csv.writer(stream, lineterminator='\n')
    writer.writerow(['group', 'run', 'seed', 'environment_frames', metric])
    for name, runs in groups.items():
      for run in runs:
        for frames, value in zip(run.frames, run.values, strict=True):
          writer.writerow([name, run.logdir, run.seed, int(frames), f'{value:.15g}'])


def main():
  """Reads, writes the figure and the points, and prints the table."""
  config = run_flags.config_from_flags(CompareConfig)
  groups = groups_of(read(config.runs, config.metric))
  folder = files.make_folder(config.output)
  name = config.metric.replace('/', '_')
  points, picture = (os.path.join(folder, f'{name}.{ending}') for ending in ('csv', 'png'))
  _write_points(groups, config.metric, points)
  _draw(groups, config.metric, picture)
  print(f'wrote {points} and {picture}', flush=True)
  for run in (run for runs in groups.values() for run in runs):
    if run.trained < (wanted := run.settings.get('total_environment_frames', 0)):
      print(f'not finished: {run.logdir}: {run.trained:,} of {wanted:,} frames', file=sys.stderr)
  lines = [f'{config.metric}: interquartile mean of the runs and its 95 % interval']
  for name, runs in groups.items():
    lines.append(f'{name}\n  {len(runs)} {"run" if len(runs) == 1 else "runs"}; '
                 f'at the end {_cell([run.values[-1] for run in runs])}; '
                 f'best {_cell([run.values.max() for run in runs])}')
  print('\n'.join(lines))


if __name__ == '__main__':
  run_flags.define(CompareConfig())
  run_flags.run_main(main)
