"""Measures table 1 of the IMPALA paper: the speed of A3C, of batched A2C and of IMPALA, on this machine.

  scalable-agents throughput
  scalable-agents tables --table=1 --throughput=results/throughput/throughput.json
  scalable-agents throughput --experiment=variation --output=results/variation

Espeholt et al. 2018, section 5.1. All architectures train in alternating windows: while one continues for some
seconds, the others are stopped, so that all have the same ups and downs of the machine.

The experiment `table` measures levels. Where DeepMind Lab is not installed, each of the paper's two levels is replaced
by a task with the level's pictures that takes time in the level's way, asleep (environments/step_time.py): with
episodes of a fixed length that start at once, or with episodes of varying length that start slowly. The experiment
`variation` measures such tasks, without pictures, whose steps take the same time on average and differ more and more.
It draws variation.png. The claim: architectures that wait at each step lose most, those that wait at the end of each
unroll lose less, and IMPALA loses nothing.

All architectures stay in memory. Together they have ten times as many environments as --batch_size, which is 320 by
default. 320 environments of DeepMind Lab need at least 74 GB.

The program writes throughput.json to --output after each level, and does not measure again what is there.
"""

from collections.abc import Callable, Mapping, Sequence
import contextlib
import dataclasses
import functools
import json
import os
import signal
import statistics
import tempfile
import time
from typing import Any, NamedTuple

from scalable_agents.agents import registry
from scalable_agents.benchmark import training_rate
from scalable_agents.environments import dmlab
from scalable_agents.environments import registry as levels_lib
from scalable_agents.processes import cards
from scalable_agents.processes import pausing
from scalable_agents.processes import run_flags
from scalable_agents.processes import stop_signals
from scalable_agents.records import errors
from scalable_agents.records import run_directory
from scalable_agents.records import settings
from scalable_agents.records.settings import setting
from scalable_agents.tables import files
from scalable_agents.tables.figures import drawing
from scalable_agents.tables.papers import throughput_table

_FILE = 'throughput.json'
_IGNORED_ROWS = 2  # Of metrics, after a training process continues.
_STEP_TIME = 'dm_env:scalable_agents.environments.step_time:make?mean_ms={mean_ms}&variation={variation}'
# The level of the paper -> what takes its place. The times are ours. The second level has "variable length episodes and
# slow restarts" (table 1). The first one has episodes of a minute, as in DeepMind Lab.
_STAND_INS = {
    'seekavoid_arena_01': _STEP_TIME.format(mean_ms=40, variation=0.3) + '&episode_steps=900',
    'rooms_keys_doors_puzzle': _STEP_TIME.format(mean_ms=40, variation=0.3)
                               + '&episode_steps=300&has_varying_length=true&reset_ms=600',
}
_VARIATIONS = (0., 0.5, 1.)
_STEP, _TRAJECTORY, _DYNAMIC, _ALONE, _IMPALA = (
    'Batched A2C (sync step)', 'Batched A2C (sync traj.)', 'Batched A2C (dyn. batch)', 'IMPALA 48 actors',
    'IMPALA (dyn. batch) 48 actors')


class _Row(NamedTuple):
  """How an architecture is started."""
  agent: str                # Its presets are {agent}_atari57 and {agent}_dmlab30.
  flags: Sequence[str] = ()
  actors: float = 1.        # Number of environments divided by --batch_size.
  batches: int = 1          # Size of a batch divided by --batch_size. 0: a batch has one unroll.
  setting: str = 'single_machine'

  def num_environments(self, batch_size: int) -> int:
    """Returns the number of environments with this --batch_size."""
    return round(self.actors * batch_size)

  def unrolls(self, batch_size: int) -> int:
    """Returns the unrolls per update with this --batch_size."""
    return self.batches * batch_size or 1


_ROWS = {
    'A3C 32 workers': _Row('a3c', batches=0),
    _STEP: _Row('a2c', ('--batching=sync_step',)),
    _TRAJECTORY: _Row('a2c', ('--batching=sync_trajectory',)),
    _DYNAMIC: _Row('a2c', ('--batching=dynamic_batching',)),
    _ALONE: _Row('impala', ('--nodynamic_batching',), 1.5),
    _IMPALA: _Row('impala', (), 1.5),
    'IMPALA (optimised)': _Row('impala', (), 1.5, setting='distributed'),
    'IMPALA (optimised) batch 128': _Row('impala', (), 1.5, 4, setting='distributed'),
}
# In the comparison of step times, all have as many environments.
_VARIATION_ROWS = {name: _ROWS[name]._replace(actors=1.) for name in (_STEP, _TRAJECTORY, _DYNAMIC, _IMPALA)}


@dataclasses.dataclass(frozen=True)
class ThroughputConfig:
  """The flags."""

  experiment: str = setting('table', 'What to measure: table or variation.', choices=('table', 'variation'))
  level_names: str = setting(','.join(_STAND_INS), 'With --experiment=table: the levels, separated by commas.')
  repeats: int = setting(5, 'Number of windows of each architecture.', at_least=1, at_most=1_000)
  seconds: float = setting(10., 'Seconds of each window.', at_least=0.1,
                           at_most=training_rate.MAX_SECONDS)
  batch_size: int = setting(
      32, 'Unrolls per update, and environments of A2C. IMPALA has one and a half times as many environments, as in '
      'the paper (48). Each has a process.', at_least=2, at_most=settings.MAX_PROCESSES * 2 // 3)
  unroll_length: int = setting(100, 'Agent steps per unroll. 100 as in table D.3.', at_least=1, at_most=10_000)
  mean_ms: float = setting(40., 'With --experiment=variation: mean time of a step, in milliseconds.', more_than=0,
                           at_most=10_000)
  output: str = setting('results/throughput', 'Folder to write to.', required='a folder')


class _Level(NamedTuple):
  """A level to measure."""
  task: str   # The name in the results.
  level: str  # The value of --level_name.
  preset: str


def _levels(config):
  """Returns the levels to measure. Raises errors.UserError if one of them is unknown."""
  if config.experiment == 'variation':
    names = [_STEP_TIME.format(mean_ms=config.mean_ms, variation=variation) + '&has_pixels=false'
             for variation in _VARIATIONS]
    return [_Level(f'variation {variation:g}', name, 'atari57')
            for variation, name in zip(_VARIATIONS, names, strict=True)]
  found = []
  try:
    for task in levels_lib.expand(config.level_names):
      level = task
      try:
        levels_lib.check(level)
      except ImportError:
        if task not in _STAND_INS:
          raise
        level = _STAND_INS[task]
      found.append(_Level(task, level, 'dmlab30' if level in dmlab.LEVELS else 'atari57'))
  except (ValueError, ImportError) as error:
    raise errors.UserError(f'--level_names: {error}') from error
  return found


def command(row: _Row, level: _Level, config: ThroughputConfig, run: dict[str, Any]) -> list[str]:
  """Returns the arguments after `python -m` that train. `run`: settings of RunConfig by name."""
  environments = row.num_environments(config.batch_size)
  agent = f'{row.agent}_{level.preset}'
  flags = [f'--level_name={level.level}', '--torso=shallow', f'--batch_size={row.unrolls(config.batch_size)}',
           f'--unroll_length={config.unroll_length}', f'--num_environments={environments}',
           f'--num_environment_workers={environments}', f'--log_interval_seconds={run["log_interval_seconds"]}',
           *row.flags]
  logdir = f'--logdir={run["logdir"]}'
  if row.setting == 'single_machine':
    return [*registry.command(agent)[1:], logdir, *flags]
  return ['scalable_agents.tools.local_cluster', f'--agent={agent}', '--actors=1', logdir, '--', *flags]


class _Training:
  """A training process, which is stopped most of the time. A context manager: it ends with the context."""

  def __init__(self, arguments: Callable[[dict[str, Any]], Sequence[str]], folder: str, interval: float):
    """Starts it. `arguments`: see `command`. `interval`: seconds between two rows of metrics."""
    self._metrics = os.path.join(folder, 'run', 'metrics.jsonl')
    self._screen = open(os.path.join(folder, 'screen'), 'w+', encoding='utf-8')
    self._interval = interval
    self._process = training_rate.start(
        arguments({'logdir': os.path.join(folder, 'run'), 'log_interval_seconds': interval}), self._screen)
    self._guarded = pausing.Guarded(self._process)

  def __enter__(self) -> '_Training':
    return self

  def __exit__(self, *unused_exception):
    with self._guarded:
      self.send(signal.SIGCONT)
      self._process.terminate()
      self._process.wait()
    self._screen.close()

  def send(self, number: int):
    """Sends a signal to the training process and its environments."""
    self._guarded.send(number)

  def next_rows(self, known: int, wanted: int) -> list[dict[str, Any]]:
    """Waits until there are `wanted` rows of metrics after the first `known` ones. Returns all but the known ones.

    Raises:
      errors.UserError: the training process has ended. The message has its output.
    """
    while True:
      rows = training_rate.updated_rows(self._metrics)[known:]
      if len(rows) >= wanted:
        return rows
      training_rate.check(self._process, self._screen)
      time.sleep(self._interval / 4)

  def speed(self, seconds: float) -> float:
    """Lets it train for some seconds. Returns environment frames per second, without the first rows."""
    known = len(training_rate.updated_rows(self._metrics))
    self.send(signal.SIGCONT)
    rows = self.next_rows(known, _IGNORED_ROWS + 2)[_IGNORED_ROWS:]
    while rows[-1]['wall_seconds'] - rows[0]['wall_seconds'] < seconds:
      rows = self.next_rows(known, _IGNORED_ROWS + len(rows) + 1)[_IGNORED_ROWS:]
    self.send(signal.SIGSTOP)
    return training_rate.frames_per_second(rows)


def measure(rows: Mapping[str, _Row], level: _Level, config: ThroughputConfig) -> dict[str, list[float]]:
  """Trains all architectures on a level in alternating windows. Returns the frames per second of each in each window.

  All training processes are started first. Then each in turn continues for some seconds while the others are stopped,
  so that all have the same ups and downs of the machine.
  """
  speeds = {name: [] for name in rows}
  # Stopped trainings cannot end by themselves: leaving the block continues and ends them.
  with stop_signals.leaving_on_signals(), tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
    trainings = {}
    for number, (name, row) in enumerate(rows.items()):
      os.mkdir(os.path.join(folder, str(number)))
      trainings[name] = training = stack.enter_context(_Training(
          functools.partial(command, row, level, config), os.path.join(folder, str(number)),
          min(1., config.seconds / 8)))
      training.next_rows(0, 1)
      training.send(signal.SIGSTOP)
    for repeat in range(config.repeats):
      for name, training in trainings.items():
        speeds[name].append(training.speed(config.seconds))
      print(f'{level.task}, repeat {repeat + 1}: ' + ', '.join(
          f'{name} {of_row[-1]:,.0f}' for name, of_row in speeds.items()), flush=True)
  return speeds


def _load(file, stored_settings):
  """Returns the measurements made before, as throughput_table.Measured."""
  if not os.path.exists(file):
    return []
  with errors.of_user(errors.UserError, prefix='--output: '):
    measured = throughput_table.read(file)
  with open(file, encoding='utf-8') as stream:
    if json.load(stream).get('settings') != stored_settings:
      raise errors.UserError(f'{file} was made with other settings: choose another --output')
  return measured


def _draw(measured, rows, config, file):
  """Draws speed against the variation of step times."""
  picture, panels = drawing.grid(1, 1, 7, 4.5)
  axes = panels[0, 0]
  for number, name in enumerate(rows):
    found = [one.frames_per_second for one in measured if one.architecture.name == name]
    axes.errorbar(_VARIATIONS, [statistics.fmean(each) for each in found],
                  [statistics.stdev(each) if len(each) > 1 else 0. for each in found], capsize=3,
                  label=name.removesuffix(' 48 actors'), **drawing.line_style(number))
  axes.set_xlabel("standard deviation of a step's time, divided by its mean", color=drawing.INK)
  axes.set_ylabel('agent steps per second', color=drawing.INK)  # Of the tasks of this experiment, each is a frame.
  axes.set_ylim(bottom=0)
  drawing.plain(axes, 'both')
  drawing.title_and_legend(
      picture, f'{config.batch_size} environments with steps of {config.mean_ms:g} ms on average', [axes])
  drawing.save(picture, file)


def main():
  """Measures, and writes the speeds and the table or the figure."""
  config = run_flags.config_from_flags(ThroughputConfig)
  levels, rows = _levels(config), _ROWS if config.experiment == 'table' else _VARIATION_ROWS
  folder = files.make_folder(config.output)
  file, gpus = os.path.join(folder, _FILE), len(cards.models())
  stored_settings = {name: value for name, value in dataclasses.asdict(config).items()
                     if name not in ('level_names', 'output')} | {'gpus': gpus}
  measured = _load(file, stored_settings)
  for level in levels:
    if level.task in {one.task for one in measured}:
      continue
    for name, speeds in measure(rows, level, config).items():
      row = rows[name]
      measured.append(throughput_table.Measured(
          level.task, throughput_table.Architecture(row.setting, name, gpus), level.level, speeds,
          row.num_environments(config.batch_size), row.unrolls(config.batch_size), config.unroll_length))
    run_directory.write_json(file, {'settings': stored_settings, 'measured': [one._asdict() for one in measured]})
  if config.experiment == 'variation':
    _draw(measured, rows, config, os.path.join(folder, 'variation.png'))
    print(f'wrote {folder}/variation.png')
  else:
    files.write(throughput_table.table(measured), folder, 'table_1')


if __name__ == '__main__':
  run_flags.define(ThroughputConfig())
  run_flags.run_main(main)
