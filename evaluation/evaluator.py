"""Evaluation: counts the episodes that a fixed policy plays, from the unrolls of an actor pool. Nothing is learned.

If environments played in parallel until a total number of episodes is reached, the results would favour short episodes,
because long ones are more often unfinished at the end. So the number is divided among the environments beforehand.
Each environment has a quota. Its first episodes count whatever their length, and evaluation ends when the last
environment has filled its quota. An environment whose worker was replaced keeps its quota and its count. The episode
that the fault cut off is replaced by a new one.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from scalable_agents.actor import unroll as unroll_lib


class Episode(NamedTuple):
  """A finished episode."""
  episode_return: float  # Sum of raw rewards.
  length: int            # Environment frames.


def quotas(num_episodes: int, level_ids: Sequence[int]) -> list[int]:
  """Divides each level's episodes among its environments as evenly as possible.

  Args:
    num_episodes: per level, >= 1.
    level_ids: for each environment the index of its level.
  Returns:
    For each environment, the number of its episodes that count.
  """
  shares = [0] * len(level_ids)
  for level in set(level_ids):
    environments = [environment for environment, its_level in enumerate(level_ids) if its_level == level]
    for rank, environment in enumerate(environments):
      shares[environment] = num_episodes // len(environments) + (rank < num_episodes % len(environments))
  return shares


class Evaluator:
  """Takes unrolls until every environment has filled its quota. Unrolls of different environments come in any order."""

  def __init__(self, num_episodes: int, level_ids: Sequence[int], on_finished: Callable[[], None],
               on_filled: Callable[[int], None] = lambda environment: None):
    """Prepares to count.

    Args:
      num_episodes: per level, >= 1.
      level_ids: for each environment the index of its level.
      on_finished: called once, from the thread that adds the last episode.
      on_filled: called with the index of each environment that has filled its quota and so need not play on. It is
        called from the thread that adds the environment's last episode.
    """
    self._level_ids = list(level_ids)
    self._quotas = quotas(num_episodes, level_ids)
    self._episodes: list[list[Episode]] = [[] for _ in level_ids]
    self._missing = self.num_episodes = sum(self._quotas)
    self._on_finished = on_finished
    self._on_filled = on_filled

  @property
  def num_played(self) -> int:
    """Episodes counted so far, of `num_episodes`, over all levels."""
    return self.num_episodes - self._missing

  def is_finished(self, level_id: int) -> bool:
    """Whether all of a level's episodes have been played."""
    environments = zip(self._level_ids, self._quotas, self._episodes, strict=True)
    return all(len(episodes) == quota for level, quota, episodes in environments if level == level_id)

  def episodes(self, level_id: int) -> list[Episode]:
    """The episodes of a level, environment by environment, and within an environment in the order of play."""
    return [episode for level, episodes in zip(self._level_ids, self._episodes, strict=True) if level == level_id
            for episode in episodes]

  def put(self, unroll: unroll_lib.Unroll):
    """Counts the episodes that end in an unroll of [T+1, ...] tensors. Works in graphs; Python runs for each unroll."""
    environment_output = unroll.environment_output
    with tf.device('/CPU:0'):
      tf.numpy_function(self.add, [
          unroll.actor_id,
          environment_output.done[1:],  # Row 0 was in the previous unroll, or it is an environment's first one.
          environment_output.episode_return[1:],
          environment_output.episode_length[1:],
      ], [])

  def add(self, actor_id: int, done: np.ndarray, episode_return: np.ndarray, episode_length: np.ndarray):
    """Counts the episodes that end in rows 1 to T of an environment's next unroll, up to its quota.

    Args:
      actor_id: index of the environment.
      done: [T] bool.
      episode_return, episode_length: [T], final where `done` is true.
    """
    episodes = self._episodes[actor_id]
    for row in np.flatnonzero(done)[:self._quotas[actor_id] - len(episodes)]:
      episodes.append(Episode(float(episode_return[row]), int(episode_length[row])))
      self._missing -= 1
      if len(episodes) == self._quotas[actor_id]:
        self._on_filled(int(actor_id))
      if not self._missing:
        self._on_finished()
