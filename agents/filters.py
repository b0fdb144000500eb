"""Shows how much of its first convolution a trained agent uses.

  scalable-agents filters --logdir=runs/boxing

The agent plays its first level, and the program prints in which share of all places each filter of the first
convolution is on, that is, has an output above 0 before its ReLU. A filter that is off in all places gets no gradient,
so it stays off. docs/pixels.md#filters-that-are-off has an example. Only the torsos `shallow` and `dqn` have a ReLU
right after their first convolution.
"""

from scalable_agents.processes import quiet

if __name__ == '__main__':
  quiet.start()  # Before TensorFlow is imported.

import dataclasses
from typing import cast

import numpy as np
import tensorflow as tf

from scalable_agents.actor import environment_workers
from scalable_agents.agents import python_api
from scalable_agents.evaluation import lone_environment
from scalable_agents.networks import torsos
from scalable_agents.processes import run_flags
from scalable_agents.records import errors
from scalable_agents.records import settings
from scalable_agents.records.settings import setting

_TORSOS = (torsos.ShallowTorso, torsos.DqnTorso)
_EVERY = 8  # Agent steps between two observations that are looked at, because neighbours are nearly the same.


@dataclasses.dataclass(frozen=True)
class FiltersConfig:
  """The flags."""

  logdir: str = setting('', 'The run directory whose newest checkpoint plays.', required='a folder')
  agent: str = setting('', 'The module:NAME of the agent, if it is one of your own.')
  steps: int = setting(1_200, 'Agent steps to play.', at_least=1, at_most=1_000_000)
  seed: int = setting(0, 'Seed of the environment and of the actions.', at_least=0, at_most=settings.MAX_SEED)


def shares(policy: python_api.Policy, steps: int, seed: int) -> np.ndarray:
  """Plays, and returns in which share of all places each filter of the first convolution is on: [C], ascending.

  Raises:
    errors.UserError: the torso has no ReLU after its first convolution, or the environment fails.
  """
  # R2D2's agent has two torsos, of its online and of its target network, which are nearly the same.
  modules = cast(tf.Module, policy.agent).submodules
  torso = next((module for module in modules if isinstance(module, _TORSOS)), None)
  if torso is None:
    raise errors.UserError('--logdir: want a run with pixels and --torso=shallow or dqn, whose first convolution has a '
                           'ReLU')
  are_on, state = [], None
  with errors.of_user(environment_workers.WorkerError), lone_environment.start(
      policy.levels[0], seed, policy.protocol, policy.timeout_seconds) as environment:
    row = environment.advance()
    for step in range(steps):
      if step % _EVERY == 0:
        features = torso.first_layer(row.observation['pixels'][np.newaxis])
        are_on.append(np.mean(features.numpy() > 0, axis=(0, 1, 2)))
      action, state = policy.step(row.observation, state, row.reward, row.done)
      row = environment.advance(action)
  return np.sort(np.mean(are_on, axis=0))


def main():
  """Reads the flags, plays, and prints the shares."""
  config = run_flags.config_from_flags(FiltersConfig)
  policy = python_api.load(config.logdir, seed=config.seed, agent=config.agent)
  found = shares(policy, config.steps, config.seed)
  print(f'{policy.levels[0]}, after {policy.environment_frames:,} frames: filters of the first convolution, and in '
        'how many places they are on')
  print(' '.join(f'{share:.1%}' for share in found))
  print(f'{np.sum(found > 0.1)} of {len(found)} are on in more than 10 %, {np.sum(found < 0.01)} in less than 1 %')


if __name__ == '__main__':
  run_flags.define(FiltersConfig())
  run_flags.run_main(main)
