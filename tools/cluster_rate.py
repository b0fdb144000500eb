"""Compares the speed of a cluster (a learner and several actor hosts) with the speed of a single process.

  bazel run //tools:cluster_rate

Both run on this machine, one after the other, with the same number of environments on the same cores. The last line of
the output is a JSON object with all numbers.
"""

import contextlib
import dataclasses
import json
import signal
import statistics
import subprocess
import sys

from scalable_agents.actor import parent_death
from scalable_agents.actor import python_path
from scalable_agents.records import settings
from scalable_agents.records.settings import setting
from scalable_agents.tools import training_rate
from scalable_agents.training.cluster import free_ports
from scalable_agents.training import run_flags

_PROGRAM = 'scalable_agents.agents.impala_atari57'


@dataclasses.dataclass(frozen=True)
class ClusterRateConfig:
  """The flags."""

  seconds: float = setting(40., 'Seconds for which each run is measured.', at_least=1,
                           at_most=training_rate.MAX_SECONDS)
  turns: int = setting(2, 'How often each run is measured.', at_least=1, at_most=1_000)
  actors: int = setting(2, 'Number of actor hosts.', at_least=1, at_most=settings.MAX_PROCESSES)
  environments: int = setting(64, 'Number of environments in all actor hosts together.', at_least=1,
                              at_most=settings.MAX_ENVIRONMENTS)
  flags: str = setting('--level_name=pong,--torso=shallow',
                       'Flags of //agents:impala_atari57 for all processes, with commas between them.')


def _rate(config, arguments):
  """Returns the environment frames per second and the mean policy lag in updates of a run with these flags."""
  rows = training_rate.steady_rows(
      lambda run: [_PROGRAM, *training_rate.split(config.flags), *arguments,
                   *(f'--{name}={value}' for name, value in run.items())],
      config.seconds)
  frames, seconds = (rows[-1][name] - rows[0][name] for name in ('environment_frames', 'wall_seconds'))
  return frames / seconds, statistics.mean(row['policy_lag'] for row in rows)


@contextlib.contextmanager
def _actors(config, address):
  """Runs the actor hosts."""
  number, rest = divmod(config.environments, config.actors)
  processes = []
  try:
    for task in range(config.actors):
      environments = number + (task < rest)
      processes.append(subprocess.Popen(
          [sys.executable, '-m', _PROGRAM, *training_rate.split(config.flags), '--job_name=actor', f'--task={task}',
           f'--learner_addresses={address}', f'--num_environments={environments}', '--num_environment_workers=1'],
          env=python_path.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
          preexec_fn=parent_death.leaving_with_parent(signal.SIGTERM)))
    yield
  finally:
    for process in processes:
      process.terminate()
    for process in processes:
      process.wait()


def _one_process(config):
  return _rate(config, [f'--num_environments={config.environments}'])


def _cluster(config):
  address = f'localhost:{free_ports.find(1)[0]}'
  with _actors(config, address):
    return _rate(config, ['--job_name=learner', f'--learner_addresses={address}', '--num_environments=0'])


def main():
  """Measures both runs in turns, and prints the ratio."""
  config = run_flags.config_from_flags(ClusterRateConfig)
  rates = {'one process': [], 'cluster': []}
  measures = [('one process', _one_process), ('cluster', _cluster)]
  for turn in range(config.turns):
    for name, measure in measures[::(-1) ** turn]:  # The order alternates, so that changes of speed affect both.
      rate, lag = measure(config)
      rates[name].append(rate)
      print(f'{name:<12}{rate:>10,.0f} frames/s, policy lag {lag:.1f} updates', flush=True)
  ratio = statistics.mean(rates['cluster']) / statistics.mean(rates['one process'])
  print(f'a learner and {config.actors} actor hosts reach {ratio:.1%} of one process')
  print(json.dumps(rates | {'ratio': ratio}))


if __name__ == '__main__':
  run_flags.define(ClusterRateConfig())
  run_flags.run_main(main)
