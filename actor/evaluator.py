"""Evaluation: counts the episodes that a fixed policy plays, from the unrolls of an actor pool. Nothing is learned.

Environments that play side by side until a number of episodes is reached favour short episodes: the long ones are
those still under way at the end. Here the number is divided among the environments beforehand. Each has a quota, its
first episodes count whatever their length, and evaluation ends when the last environment has filled its quota. An
environment whose worker was replaced goes on with its quota; the episodes of the unroll that the fault cut off are
played anew.
"""

from typing import Callable, NamedTuple, Sequence

import numpy as np
import tensorflow as tf

from scalable_agents.actor import unroll as unroll_lib


class Episode(NamedTuple):
  """A finished episode."""
  episode_return: float  # Sum of raw rewards.
  length: int            # Environment frames.


def quotas(num_episodes: int, level_ids: Sequence[int]) -> list[int]:
  """Divides each level's episodes among its environments, as evenly as whole numbers allow.

  Args:
    num_episodes: per level, >= 1.
    level_ids: for each environment the index of its level.
  Returns:
    For each environment, how many of its episodes count.
  """
  shares = [0] * len(level_ids)
  for level in set(level_ids):
    environments = [environment for environment, its_level in enumerate(level_ids) if its_level == level]
    for rank, environment in enumerate(environments):
      shares[environment] = num_episodes // len(environments) + (rank < num_episodes % len(environments))
  return shares


class Evaluator:
  """Takes unrolls, in whatever order the environments deliver theirs, until every environment has its episodes."""

  def __init__(self, num_episodes: int, level_ids: Sequence[int], on_finished: Callable[[], None],
               on_filled: Callable[[int], None] = lambda environment: None):
    """Prepares to count.

    Args:
      num_episodes: per level, >= 1.
      level_ids: for each environment the index of its level.
      on_finished: called once, from the thread that brings the last episode.
      on_filled: called with the index of each environment that has filled its quota, from the thread that brings its
        last episode: it need not play on.
    """
    self._level_ids = list(level_ids)
    self._quotas = quotas(num_episodes, level_ids)
    self._episodes: list[list[Episode]] = [[] for _ in level_ids]
    self._missing = self.num_episodes = sum(self._quotas)
    self._on_finished, self._on_filled = on_finished, on_filled

  @property
  def num_played(self) -> int:
    """Episodes counted so far, of `num_episodes`, over all levels."""
    return self.num_episodes - self._missing

  def is_finished(self, level_id: int) -> bool:
    """Whether all of a level's episodes have been played."""
    return all(len(episodes) == quota for level, quota, episodes in zip(self._level_ids, self._quotas, self._episodes)
               if level == level_id)

  def episodes(self, level_id: int) -> list[Episode]:
    """The episodes of a level: one environment's after the other's, each in the order of play."""
    return [episode for level, episodes in zip(self._level_ids, self._episodes) if level == level_id
            for episode in episodes]

  def put(self, unroll: unroll_lib.Unroll):
    """Counts the episodes that end in an unroll of [T+1, ...] tensors. For graphs: Python runs per unroll."""
    environment_output = unroll.environment_output
    with tf.device('/CPU:0'):
      tf.numpy_function(self.add, [
          unroll.actor_id,
          environment_output.done[1:],  # Row 0 was in the unroll before, or starts an environment's life.
          environment_output.episode_return[1:],
          environment_output.episode_length[1:],
      ], [])

  def add(self, actor_id: int, done: np.ndarray, episode_return: np.ndarray, episode_length: np.ndarray):
    """Counts the episodes that end in rows 1 to T of an environment's next unroll, up to its quota.

    Args:
      actor_id: which environment.
      done: [T] bool.
      episode_return, episode_length: [T], final where done.
    """
    episodes = self._episodes[actor_id]
    for row in np.flatnonzero(done)[:self._quotas[actor_id] - len(episodes)]:
      episodes.append(Episode(float(episode_return[row]), int(episode_length[row])))
      self._missing -= 1
      if len(episodes) == self._quotas[actor_id]:
        self._on_filled(int(actor_id))
      if not self._missing:
        self._on_finished()
