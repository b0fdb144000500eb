"""Compares agents on small built-in tasks: several runs of each, a table and a picture of their learning curves.

off_policy.py, reward_scales.py and memory_tasks.py have the experiments.
"""

from collections.abc import Mapping, Sequence
import concurrent.futures
import csv
import dataclasses
import os
import time
from typing import Any, NamedTuple

from matplotlib import figure
import numpy as np

from scalable_agents.agents import registry
from scalable_agents.processes import device_report
from scalable_agents.processes import forked_program
from scalable_agents.records import errors
from scalable_agents.records import run_directory
from scalable_agents.records import run_rows
from scalable_agents.records import settings
from scalable_agents.records.settings import setting
from scalable_agents.tables import files
from scalable_agents.tables.figures import drawing

_POINTS = 60  # Points of a curve.
# What the training programs import, so that all runs have the same code. Environment workers import their own.
_IMPORTED = (*(reference.partition(':')[0] for reference in registry.AGENTS.values()), 'scalable_agents.agents.train',
             'scalable_agents.launch.program', 'matplotlib.figure', 'matplotlib.ticker',
             'matplotlib.backends.backend_agg')


class Line(NamedTuple):
  """Runs that differ only in their seeds. Name and panel together differ from those of the other lines."""
  name: str
  binary: str
  levels: Sequence[str]
  optimal_returns: Sequence[float]  # Of each level.
  flags: Sequence[str] = ()
  panel: str = ''  # The title of the panel that shows the line. '': it is in the panel of each task.

  @property
  def full_name(self) -> str:
    """The name and the panel."""
    return ', '.join(filter(None, (self.name, self.panel)))


class Experiment(NamedTuple):
  """Lines to compare."""
  tasks: Sequence[str]   # The names of the levels without the factors of the rewards.
  frames: int            # Environment frames of a run.
  flags: Sequence[str]   # Of all runs.
  lines: Sequence[Line]
  measured: float = 0.1  # The table has means over this last part of each run.
  first_seed: int = 1    # The runs of a line have this seed, the next number, and so on.


@dataclasses.dataclass(frozen=True)
class Config:
  """The flags of all programs. Each has its own values of the last two."""

  seeds: int = setting(5, 'Number of runs of each variant. Their seeds are 1, 2, and so on, unless the '
                       'experiment has its own.', at_least=1, at_most=1000)
  frames: int = setting(0, "Environment frames of each agent; 0 for the experiment's own number.", at_least=0,
                        at_most=settings.MAX_FRAMES)
  parallel: int = setting(2, 'Number of runs at a time.', at_least=1, at_most=settings.MAX_PROCESSES)
  experiment: str = setting('', 'Experiment.')
  output: str = setting('', 'Folder to write to.')


class Curve(NamedTuple):
  """The training returns of a run, as shares of the optimal returns."""
  frames: np.ndarray  # [P] environment frames.
  shares: np.ndarray  # [P, tasks].


def train(experiment: Experiment, line: Line, seed: int, frames: int, logdir: str) -> Curve:
  """Trains, unless the run is complete, and returns its curve.

  A run that was interrupted is made again from its start, because one that is continued differs: its policy lag, for
  example, begins anew.

  Raises:
    errors.UserError: the program's last line, if it fails.
  """
  module = f'scalable_agents.agents.{line.binary}'
  arguments = [f'--level_name={",".join(line.levels)}', f'--logdir={logdir}', f'--seed={seed}',
               f'--total_environment_frames={frames}', *experiment.flags, *line.flags]
  made = _read_config(logdir)
  if made and made['flags'].get('total_environment_frames') == frames and not run_rows.is_complete(logdir):
    print(f'{logdir}: it was interrupted, and is made again', flush=True)
    run_directory.remove(logdir)
  elif made.get('command_line') == forked_program.command(module, arguments):  # So it is complete.
    return _read_curve(line, frames, logdir)
  code, screen = forked_program.run(_IMPORTED, module, arguments)
  if code:
    raise errors.UserError(f'{logdir}: {(screen.splitlines() or [f"exit code {code}"])[-1]}')
  return _read_curve(line, frames, logdir)


def _read_config(logdir: str) -> dict[str, Any]:
  """Returns the content of a run's config.json, or {} if there is no run."""
  return run_directory.read_config(logdir) if os.path.exists(run_directory.path(logdir, run_directory.CONFIG)) else {}


def _read_curve(line: Line, frames: int, logdir: str) -> Curve:
  """Returns the curve of a run. Raises errors.UserError if the run is not complete."""
  rows = [row for row in run_rows.read_metrics(logdir)
          if all(row.get(f'episode_return/{level}') is not None for level in line.levels)]
  if not rows or rows[-1]['environment_frames'] < frames:
    raise errors.UserError(f'{logdir}: interrupted, or too short for an episode of each task; the same command '
                           'makes it again')
  returns = np.array([[row[f'episode_return/{level}'] for level in line.levels] for row in rows])
  return Curve(np.array([row['environment_frames'] for row in rows]), returns / line.optimal_returns)


def mean_share(curve: Curve, measured: float, part: float = 1.) -> np.ndarray:
  """Returns the mean shares over the last `measured` of the first `part` of the run: [tasks]."""
  end = part * curve.frames[-1]
  return curve.shares[((1 - measured) * end <= curve.frames) & (curve.frames <= end)].mean(axis=0)


def scores(curves: Sequence[Curve], measured: float, part: float = 1.) -> list[float]:
  """Returns the score of each seed, which is the mean of `mean_share` over the tasks."""
  return [float(mean_share(curve, measured, part).mean()) for curve in curves]


def _write_curves(experiment: Experiment, curves: dict[str, list[Curve]], file: str):
  with run_directory.replaced(file) as new, open(new, 'w', encoding='utf-8', newline='') as stream:
    writer = csv.writer(stream, lineterminator='\n')
    writer.writerow(['agent', 'seed', 'environment_frames', *experiment.tasks])
    for name, of_seeds in curves.items():
      for seed, curve in enumerate(of_seeds, start=experiment.first_seed):
        points = _points(curve)
        for frames, shares in zip(points, _at(curve, points), strict=True):
          writer.writerow([name, seed, int(frames), *(f'{share:.4g}' for share in shares)])


def _points(curve: Curve) -> np.ndarray:
  """Returns evenly spaced frames, from the curve's first ones to its last ones."""
  return np.linspace(curve.frames[0], curve.frames[-1], _POINTS)


def _at(curve: Curve, frames: np.ndarray) -> np.ndarray:
  """Returns the shares at these frames [P]: [P, tasks]."""
  return np.transpose([np.interp(frames, curve.frames, shares) for shares in curve.shares.T])


def mean_curve(curves: Sequence[Curve]) -> Curve:
  """Returns the mean of several runs' curves."""
  frames = _points(curves[0])
  return Curve(frames, np.mean([_at(curve, frames) for curve in curves], axis=0))


def draw_panel(axes: Any, lines: Mapping[str, Sequence[Curve]], title: str, styles: Mapping[str, Mapping[str, str]]):
  """Draws lines in a panel: the mean over seeds, and an area from the worst seed to the best.

  Args:
    axes: the panel.
    lines: name of a line -> its curves of one task, one of each seed.
    title: the panel's title.
    styles: name of a line -> its style.
  """
  for name, of_seeds in lines.items():
    frames = _points(of_seeds[0])
    shares = np.array([_at(curve, frames)[:, 0] for curve in of_seeds])
    drawing.mean_and_range(axes, frames, shares, name, styles[name])
  axes.set_title(title, loc='left', fontsize=10)
  axes.set_xlabel('environment frames')
  drawing.frames_axis(axes)
  drawing.plain(axes, 'both')


def draw(panels: Mapping[str, Mapping[str, Sequence[Curve]]], file: str):
  """Draws panels. A line is the mean over seeds, and the area around it extends from worst to best.

  Args:
    panels: title of a panel -> name of a line -> its curves of one task, one of each seed.
    file: the picture's file.
  """
  picture = figure.Figure(figsize=(max(1 + 4 * len(panels), 7.5), 3.8), dpi=100, layout='constrained')
  grid = picture.subplots(1, len(panels), sharey=True, squeeze=False)[0]
  styles = {name: drawing.line_style(number)
            for number, name in enumerate(dict.fromkeys(name for lines in panels.values() for name in lines))}
  for axes, (title, lines) in zip(grid, panels.items(), strict=True):
    draw_panel(axes, lines, title, styles)
  grid[0].set_ylim(top=1.1)  # Of all panels. It keeps the bottom as it is, so all lines must have been drawn.
  grid[0].set_ylabel('return / optimal return')
  drawing.title_and_legend(picture, 'Mean over seeds, and from the worst seed to the best', grid)
  drawing.save(picture, file)


def _panels(experiment: Experiment, curves: Mapping[str, Sequence[Curve]]) -> dict[str, dict[str, list[Curve]]]:
  """Returns the argument of `draw`, given the curves of each line."""
  found = {}
  for line in experiment.lines:
    for number, task in enumerate(experiment.tasks):
      found.setdefault(line.panel or task, {})[line.name] = [
          Curve(curve.frames, curve.shares[:, [number]]) for curve in curves[line.full_name]]
  return found


def _print_results(experiment: Experiment, waiting: dict[str, list[concurrent.futures.Future]]
                   ) -> dict[str, list[Curve]]:
  """Prints a row for each line as soon as its runs have ended. Returns the curves."""
  head, curves = 'return / optimal return, mean (worst to best)', {}
  print(f'{head:<48}' + ''.join(f'{task:<24}' for task in experiment.tasks))
  for name, of_seeds in waiting.items():
    curves[name] = [curve.result() for curve in of_seeds]
    last = np.array([mean_share(curve, experiment.measured) for curve in curves[name]])
    cells = (f'{shares.mean():.2f} ({shares.min():.2f} to {shares.max():.2f})' for shares in last.T)
    print(f'{name:<48}' + ''.join(f'{cell:<24}' for cell in cells), flush=True)
  return curves


def run(experiment: Experiment, config: Config) -> dict[str, list[Curve]]:
  """Runs an experiment, prints the table and writes the files.

  Args:
    experiment: what to compare.
    config: the flags.
  Returns:
    Full name of a line -> its curves, one of each seed.
  Raises:
    errors.UserError: a run ended with an error, or was interrupted.
  """
  frames = config.frames or experiment.frames
  folder = files.make_folder(config.output)
  device_report.tell()
  pool = concurrent.futures.ThreadPoolExecutor(config.parallel)
  waiting = {line.full_name: [
      pool.submit(train, experiment, line, seed, frames,
                  os.path.join(folder, f'{config.experiment}_{index}_seed_{seed}'))
      for seed in range(experiment.first_seed, experiment.first_seed + config.seeds)]
             for index, line in enumerate(experiment.lines)}
  try:
    curves = _print_results(experiment, waiting)
  except BaseException:
    # At Ctrl-C, or if a run fails, nobody waits for the other runs: the same command makes them again.
    pool.shutdown(wait=False, cancel_futures=True)
    while not all(curve.done() for of_seeds in waiting.values() for curve in of_seeds):
      forked_program.stop()
      time.sleep(0.1)  # A run may begin in this moment.
    raise
  pool.shutdown()
  file = os.path.join(folder, config.experiment)
  _write_curves(experiment, curves, f'{file}.csv')
  draw(_panels(experiment, curves), f'{file}.png')
  print(f'wrote {file}.csv and {file}.png')
  return curves
