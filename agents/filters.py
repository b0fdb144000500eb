"""Shows how much of its network a trained agent uses.

  scalable-agents filters --logdir=runs/boxing

The agent plays, and the program prints in which share of all places each filter of the first convolution is on, that
is, has an output above 0 before its ReLU. A filter that is off in all places gets no gradient, so it stays off. The
program also counts the features, the outputs of the torso, that are on in many or in few observations. And it prints
the Euclidean length of the last convolution's outputs: where they are much longer in one game than in others, an agent
for all of them may have few features for it (docs/games.md#features-that-are-off).
docs/pixels.md#filters-that-are-off has an example. Only the torsos `shallow` and `dqn` have a ReLU right after their
first convolution.
"""

from scalable_agents.processes import quiet

if __name__ == '__main__':
  quiet.start()  # Before TensorFlow is imported.

import dataclasses
from typing import NamedTuple, cast

import numpy as np
import tensorflow as tf

from scalable_agents.actor import environment_workers
from scalable_agents.agents import play
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
  level_name: str = setting('', 'The level to play. Default: the first one that the agent was trained on.')
  steps: int = setting(1_200, 'Agent steps to play.', at_least=1, at_most=1_000_000)
  seed: int = setting(0, 'Seed of the environment and of the actions.', at_least=0, at_most=settings.MAX_SEED)
  dataset_path: str = setting('', python_api.DATASET_PATH)


class Activity(NamedTuple):
  """How much the layers of a torso react."""
  filters: np.ndarray   # [C], of the first convolution: in which share of all places each is on. Ascending.
  features: np.ndarray  # [D], outputs of the torso: in which share of the observations each is on. Ascending.
  length: float         # Of the last convolution's outputs: Euclidean, mean over the observations.


def activity(policy: python_api.Policy, level: str, steps: int, seed: int) -> Activity:
  """Plays a level, and returns how much the layers react.

  Raises:
    errors.UserError: the torso has no ReLU after its first convolution, or the environment fails.
  """
  # R2D2's agent has two torsos, of its online and of its target network, which are nearly the same.
  modules = cast(tf.Module, policy.agent).submodules
  torso = next((module for module in modules if isinstance(module, _TORSOS)), None)
  if torso is None:
    raise errors.UserError('--logdir: want a run with pixels and --torso=shallow or dqn, whose first convolution has a '
                           'ReLU')
  filters, features, lengths, state = [], [], [], None
  with errors.of_user(environment_workers.WorkerError), lone_environment.start(
      level, seed, policy.protocol, policy.timeout_seconds) as environment:
    row = environment.advance()
    for step in range(steps):
      if step % _EVERY == 0:
        outputs = [layer.numpy()[0] for layer in torso.layers(row.observation['pixels'][np.newaxis])]
        filters.append(np.mean(outputs[0] > 0, axis=(0, 1)))
        features.append(outputs[-1] > 0)
        lengths.append(np.linalg.norm(outputs[-2].astype(np.float32)))
      action, state = policy.step(row.observation, state, row.reward, row.done)
      row = environment.advance(action)
  return Activity(np.sort(np.mean(filters, axis=0)), np.sort(np.mean(features, axis=0)), float(np.mean(lengths)))


def _counts(found):
  return f'{np.sum(found > 0.1)} of {len(found)} are on in more than 10 %, {np.sum(found < 0.01)} in less than 1 %'


def main():
  """Reads the flags, plays, and prints how much the layers react."""
  config = run_flags.config_from_flags(FiltersConfig)
  played = play.PlayConfig(logdir=config.logdir, agent=config.agent, level_name=config.level_name, seed=config.seed,
                           dataset_path=config.dataset_path)
  policy = play.load(played)
  level = play.level_of(played, policy)
  found = activity(policy, level, config.steps, config.seed)
  print(f'{level}, after {policy.environment_frames:,} frames: filters of the first convolution, and in '
        'how many places they are on')
  print(' '.join(f'{share:.1%}' for share in found.filters))
  print(_counts(found.filters))
  print(f'features, and in how many observations they are on\n{_counts(found.features)}')
  print(f'length of the outputs of the last convolution: {found.length:,.1f}')


if __name__ == '__main__':
  run_flags.define(FiltersConfig())
  run_flags.run_main(main)
