"""Statistics of finished training episodes, for the progress line, metrics.jsonl and the learning curves."""

import collections
from collections.abc import Callable, Mapping, Sequence
import json

import numpy as np
import tensorflow as tf


class EpisodeStatistics(tf.train.experimental.PythonState):
  """Returns and lengths of the last `window` episodes, over all levels and per level. Part of a checkpoint.

  It also computes the score of a suite of levels as the released IMPALA code does: whenever every level has finished at
  least one episode since the last score, from each level's mean return since then.
  """

  def __init__(self, level_names: Sequence[str], window: int = 100,
               suite_score: Callable[[Mapping[str, float]], Mapping[str, float]] | None = None):
    """Creates statistics without episodes.

    Args:
      level_names: the name of each level id.
      window: the number of episodes that the means are taken over.
      suite_score: returns the scores of a suite, by name, given each level's mean return; None without a suite.
    """
    self._level_names = tuple(level_names)
    self._window = window
    self._suite_score = suite_score
    self._clear()

  def add(self, level_ids: np.ndarray, returns: np.ndarray, lengths: np.ndarray):
    """Adds finished episodes, oldest first.

    Args:
      level_ids: [N] int32, indices into the level names.
      returns: [N] float32, sums of raw rewards.
      lengths: [N] int32, environment frames.
    Raises:
      ValueError: the lengths differ, or a level id is out of range.
    """
    if not len(level_ids) == len(returns) == len(lengths):
      raise ValueError(f'EpisodeStatistics: want as many level ids as returns and lengths, got {len(level_ids)}, '
                       f'{len(returns)}, {len(lengths)}')
    if len(level_ids) and not 0 <= min(level_ids) <= max(level_ids) < len(self._level_names):
      raise ValueError(f'EpisodeStatistics: want level ids from 0 to {len(self._level_names) - 1}, got {level_ids}')
    for level_id, episode_return, length in zip(level_ids, returns, lengths, strict=True):
      self._returns.append(float(episode_return))
      self._lengths.append(int(length))
      self._level_returns[level_id].append(float(episode_return))
      if self._suite_score:
        self._unscored[level_id].append(float(episode_return))
    self._episodes += len(level_ids)
    if self._suite_score and all(self._unscored):
      self._scores = dict(self._suite_score({
          name: float(np.mean(returns)) for name, returns in zip(self._level_names, self._unscored, strict=True)}))
      self._unscored = [[] for _ in self._level_names]

  def metrics(self) -> dict[str, float | int | None]:
    """Returns the values about episodes for a row of metrics.jsonl. A mean is None without an episode."""
    values = {'episodes': self._episodes, 'episode_return': _mean(self._returns),
              'episode_length': _mean(self._lengths)}
    return values | {f'episode_return/{name}': _mean(returns)
                     for name, returns in zip(self._level_names, self._level_returns, strict=True)} | self._scores

  def serialize(self) -> str:
    """Returns the state as text, for tf.train.Checkpoint."""
    return json.dumps({'levels': self._level_names, 'episodes': self._episodes, 'returns': list(self._returns),
                       'lengths': list(self._lengths), 'level_returns': [list(x) for x in self._level_returns],
                       'unscored': self._unscored, 'scores': self._scores})

  def deserialize(self, string_value: str | bytes):
    """Restores a state that `serialize` has returned.

    Raises:
      ValueError: the state has other levels.
    """
    state = json.loads(string_value)
    if tuple(state['levels']) != self._level_names:
      raise ValueError(f'EpisodeStatistics: want levels {self._level_names}, got {tuple(state["levels"])}')
    self._clear()
    self._episodes = state['episodes']
    self._returns.extend(state['returns'])
    self._lengths.extend(state['lengths'])
    for returns, restored in zip(self._level_returns, state['level_returns'], strict=True):
      returns.extend(restored)
    self._unscored = state['unscored']
    self._scores = state['scores']

  def _clear(self):
    self._episodes = 0
    self._returns = collections.deque(maxlen=self._window)
    self._lengths = collections.deque(maxlen=self._window)
    self._level_returns = [collections.deque(maxlen=self._window) for _ in self._level_names]
    self._unscored = [[] for _ in self._level_names]  # Returns since the suite was scored.
    self._scores = {}


def _mean(values: collections.deque) -> float | None:
  return float(np.mean(values)) if values else None
