"""Returns of training episodes from episodes.csv: their last mean before a number of frames, and means of buckets.

Schmitt et al. 2020 (LASER), appendix D and A.3.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from scalable_agents.environments import registry
from scalable_agents.records import run_rows
from scalable_agents.tables.results import runs as runs_lib

WINDOW = 100  # Episodes of a mean. Appendix D.


class Returns(NamedTuple):
  """The finished training episodes of a run."""
  frames: int                          # Environment frames that the run was trained for so far, of all levels.
  levels: int                          # Levels that the run trains on.
  of_levels: Mapping[str, np.ndarray]  # Level -> environment frames and return of each episode, [E, 2], oldest first.

  @property
  def frames_per_level(self) -> int:
    """Environment frames of each level, on average."""
    return self.frames // self.levels


class Last(NamedTuple):
  """The last episodes of a level before some number of frames."""
  mean: float
  episodes: int  # WINDOW, or fewer if there were not so many.


def read(run: runs_lib.Run) -> Returns:
  """Reads the episodes of a run. Raises run_directory.RunDirectoryError if one of its files is damaged."""
  found = {}
  levels = frozenset(registry.expand(run.flags['level_name']))
  for episode in run_rows.read_episodes(run.logdir, levels=levels):
    found.setdefault(episode.level, []).append((episode.frames, episode.episode_return))
  row = run_rows.last_metrics(run.logdir) or {}
  of_levels = {level: np.array(episodes, np.float64) for level, episodes in found.items()}
  frames = max([row.get('environment_frames', 0), *(int(episodes[-1, 0]) for episodes in of_levels.values())])
  return Returns(frames, len(levels), of_levels)


def last(episodes: np.ndarray, at_most: int) -> Last | None:
  """Returns the mean return of the last episodes up to a number of environment frames; None if there is no episode.

  Args:
    episodes: [E, 2], from Returns.
    at_most: later episodes do not count.
  """
  chosen = episodes[:np.searchsorted(episodes[:, 0], at_most, side='right'), 1][-WINDOW:]
  return Last(float(chosen.mean()), len(chosen)) if len(chosen) else None


def buckets(episodes: np.ndarray, width: int, number: int) -> np.ndarray:
  """Returns the mean return of the episodes in each bucket, [number]; NaN in a bucket without episodes.

  Between two buckets with episodes, an empty one has an interpolated value instead.

  Args:
    episodes: [E, 2], from Returns.
    width: environment frames of a bucket. Bucket k has the episodes after k * width frames, up to (k + 1) * width.
    number: buckets to return. Later episodes do not count.
  """
  places = (np.ceil(episodes[:, 0] / width) - 1).clip(0).astype(int)
  counted = places < number
  counts = np.bincount(places[counted], minlength=number)
  sums = np.bincount(places[counted], episodes[counted, 1], minlength=number)
  filled = np.flatnonzero(counts)
  if not len(filled):
    return np.full(number, np.nan)
  return np.interp(np.arange(number), filled, sums[filled] / counts[filled], left=np.nan, right=np.nan)
