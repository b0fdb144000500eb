"""Compares LASER agents that share a replay to agents with own replays, on a small built-in task.

  bazel run //tools:shared_replay -- --seeds=5
  bazel run //tools:shared_replay -- --experiment=threshold

Schmitt et al. 2020, figure 3: sharing without the trust region (naive) is worse than an own replay, and sharing with it
is better. Four agents learn `quiz`, and four others share their replay: they have such a large entropy cost that they
always guess. 7/8 of each batch are replayed, half of it from guesses.

  sharing: own replays, naive sharing and sharing with the trust region.
  threshold: sharing with different thresholds b.
  own: own replays, without and with the trust region.

The program prints a table of the mean returns of the four agents over whole runs, so that slow learning counts, and
writes EXPERIMENT.csv and EXPERIMENT.png to --output, beside the run directories. The same command continues after an
interruption.
"""

import dataclasses
import os
import signal
import subprocess
import sys
import time

import numpy as np

from scalable_agents.actor import parent_death
from scalable_agents.actor import python_path
from scalable_agents.environments import quiz
from scalable_agents.records import errors
from scalable_agents.records import settings
from scalable_agents.records.settings import setting
from scalable_agents.tables import files
from scalable_agents.tools import comparison
from scalable_agents.training import run_flags
from scalable_agents.training.cluster import free_ports

_NUM_LEARNERS = 4
_NUM_GUESSERS = 4
# They learn nothing, so small batches will do.
_GUESSER = ('--entropy_cost=500', '--batch_size=16', '--replay_share=0.5')
_OWN = 'own replays'
_SHARED = 'shared replay, '
_TICK_SECONDS = 0.1  # The time between two looks whether processes have ended.


def _line(name, threshold):
  return comparison.Line(name, 'laser_atari57', ('quiz',), (quiz.Quiz.optimal_return,),
                         (f'--trust_region_threshold={threshold}',))


def _experiment(*lines):
  return comparison.Experiment(
      tasks=('quiz',), frames=32_000, measured=1.,
      flags=('--torso=shallow', '--num_environments=8', '--num_environment_workers=1', '--unroll_length=8',
             '--batch_size=64', '--replay_share=0.875', '--replay_capacity=20_000', '--replay_minimum_size=500',
             '--learning_rate=3e-3', '--entropy_cost=0.2', '--discount=0.99', '--reward_transform=none',
             '--synchronous'),
      lines=lines)


EXPERIMENTS = {
    'sharing': _experiment(_line(f'{_OWN}, b = 0.1', 0.1), _line(f'{_SHARED}naive', 'inf'),
                           _line(f'{_SHARED}trust region, b = 0.1', 0.1)),
    'own': _experiment(_line(f'{_OWN}, no trust region', 'inf'), _line(f'{_OWN}, b = 0.1', 0.1)),
    'threshold': _experiment(*(_line(f'{_SHARED}b = {b}', b) for b in (0.01, 0.03, 0.1, 0.3))),
}


@dataclasses.dataclass(frozen=True)
class SharedReplayConfig(comparison.Config):
  """The flags."""

  experiment: str = setting('sharing', 'Experiment: ' + ', '.join(EXPERIMENTS) + '.', choices=tuple(EXPERIMENTS))
  parallel: int = setting(1, 'Number of runs at a time. A run with a shared replay has nine processes.', at_least=1,
                          at_most=settings.MAX_PROCESSES)
  output: str = setting('results/shared_replay', 'Folder to write to.')


def train(experiment: comparison.Experiment, line: comparison.Line, seed: int, frames: int, logdir: str
          ) -> comparison.Curve:
  """Trains the agents of a run, or continues, and returns the mean curve of those that learn the task.

  Raises:
    errors.UserError: a process has died. The message has the last line of its output.
  """
  folder, shares = files.make_folder(logdir), line.name.startswith(_SHARED)
  directories = [os.path.join(folder, f'agent_{index}')
                 for index in range(_NUM_LEARNERS + shares * _NUM_GUESSERS)]
  address = [f'--shared_replay=localhost:{free_ports.find(1)[0]}'] if shares else []
  commands = {}
  for index, directory in enumerate(directories):
    guesser = [] if index < _NUM_LEARNERS else _GUESSER
    command = comparison.command(experiment, line, 100 * seed + index, frames, directory)
    commands[directory] = [*command, *guesser, *address]
  if shares:
    replay = os.path.join(folder, 'replay')
    commands[replay] = [sys.executable, '-m', 'scalable_agents.agents.laser_replay', *address, f'--logdir={replay}']
  processes = {}
  try:
    for directory, command in commands.items():
      processes[directory] = _start(command, directory)
    while not all(processes[directory].poll() == 0 for directory in directories[:_NUM_LEARNERS]):
      for directory, process in processes.items():
        # Agents end when they are trained. The replay never ends by itself, and the agents would wait for it.
        alive_or_done = (None, 0) if directory in directories else (None,)
        if process.poll() not in alive_or_done:
          raise errors.UserError(f'{directory}: {_last_line(directory) or f"exit code {process.returncode}"}')
      time.sleep(_TICK_SECONDS)
  finally:
    for process in processes.values():
      process.terminate()
    for process in processes.values():
      process.wait()
  curves = [comparison.read_curve(line, frames, directory) for directory in directories[:_NUM_LEARNERS]]
  points = curves[0].frames
  return comparison.Curve(points, np.mean([comparison.at(curve, points) for curve in curves], axis=0))


def _start(command, directory):
  """Starts a process of a run. Its output goes to a file beside its directory."""
  with open(f'{directory}.txt', 'wb') as output:
    return subprocess.Popen(command, env=python_path.environment(), stdout=output, stderr=subprocess.STDOUT,
                            preexec_fn=parent_death.leaving_with_parent(signal.SIGTERM))


def _last_line(directory):
  with open(f'{directory}.txt', encoding='utf-8', errors='replace') as output:
    return (output.read().splitlines() or [''])[-1]


def main():
  """Runs the experiment."""
  config = run_flags.config_from_flags(SharedReplayConfig)
  comparison.run(EXPERIMENTS[config.experiment], config, train)


if __name__ == '__main__':
  run_flags.define(SharedReplayConfig())
  run_flags.run_main(main)
