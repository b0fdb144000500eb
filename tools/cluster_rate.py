"""Measures what a cluster costs: a learner and actors in processes of their own against one process that does it all.

  bazel run //tools:cluster_rate

All run on this machine, in turns, so that what they have is the same: as many environments, and the same cores. The
last line is a JSON object with all figures.
"""

import contextlib
import json
import signal
import statistics
import subprocess
import sys

from absl import app
from absl import flags

from scalable_agents.actor import parent_death
from scalable_agents.actor import python_path
from scalable_agents.tools import local_cluster
from scalable_agents.tools import training_rate

_SECONDS = flags.DEFINE_float('seconds', 40., 'How long each run is measured.', lower_bound=1.)
_TURNS = flags.DEFINE_integer('turns', 2, 'How often each is measured.', lower_bound=1)
_ACTORS = flags.DEFINE_integer('actors', 2, 'Actor processes.', lower_bound=1)
_ENVIRONMENTS = flags.DEFINE_integer('environments', 64, 'Environments, of all actors together.', lower_bound=1)
_FLAGS = flags.DEFINE_list('flags', ['--level_name=pong', '--torso=shallow'],
                           'Flags of //agents:impala_atari57 for all processes.')
_PROGRAM = 'scalable_agents.agents.impala_atari57'


def _rate(arguments):
  """Environment frames per second, and the mean policy lag in updates, of a run with these flags."""
  rows = training_rate.steady_rows(
      lambda run: [_PROGRAM, *_FLAGS.value, *arguments, *(f'--{name}={value}' for name, value in run.items())],
      _SECONDS.value)
  frames, seconds = (rows[-1][name] - rows[0][name] for name in ('environment_frames', 'wall_seconds'))
  return frames / seconds, statistics.mean(row['policy_lag'] for row in rows)


@contextlib.contextmanager
def _actors(address):
  """Runs the actor processes."""
  number, rest = divmod(_ENVIRONMENTS.value, _ACTORS.value)
  processes = []
  try:
    for task in range(_ACTORS.value):
      environments = number + (task < rest)
      processes.append(subprocess.Popen(
          [sys.executable, '-m', _PROGRAM, *_FLAGS.value, '--job_name=actor', f'--task={task}',
           f'--learner_addresses={address}', f'--num_environments={environments}', '--num_environment_workers=1'],
          env=python_path.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
          preexec_fn=parent_death.leaving_with_parent(signal.SIGTERM)))
    yield
  finally:
    for process in processes:
      process.terminate()
    for process in processes:
      process.wait()


def _one_process():
  return _rate([f'--num_environments={_ENVIRONMENTS.value}'])


def _cluster():
  address = f'localhost:{local_cluster.free_ports(1)[0]}'
  with _actors(address):
    return _rate(['--job_name=learner', f'--learner_addresses={address}', '--num_environments=0'])


def main(_):
  """Measures both in turns, and prints the ratio."""
  rates = {'one process': [], 'cluster': []}
  measures = [('one process', _one_process), ('cluster', _cluster)]
  for turn in range(_TURNS.value):
    for name, measure in measures[::(-1) ** turn]:  # A machine that gets slower is to harm both alike.
      rate, lag = measure()
      rates[name].append(rate)
      print(f'{name:<12}{rate:>10,.0f} frames/s, policy lag {lag:.1f} updates', flush=True)
  ratio = statistics.mean(rates['cluster']) / statistics.mean(rates['one process'])
  print(f'a learner and {_ACTORS.value} actors reach {ratio:.1%} of one process')
  print(json.dumps(rates | {'ratio': ratio}))


if __name__ == '__main__':
  app.run(main)
