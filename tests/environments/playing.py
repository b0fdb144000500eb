"""Plays an episode with given actions, for tests of built-in tasks."""

from collections.abc import Iterable

import numpy as np

from scalable_agents.environments import base


def play(environment: base.Environment, actions: Iterable[int]) -> tuple[list[float], list[np.ndarray]]:
  """Plays one episode, which must end with the last action. Returns the rewards and the observations ('vector')."""
  time_step = environment.reset()
  rewards, observations = [], [time_step.observation['vector']]
  for action in actions:
    assert not time_step.last()
    time_step = environment.step(action)
    rewards.append(time_step.reward)
    observations.append(time_step.observation['vector'])
  assert time_step.last()
  return rewards, observations
