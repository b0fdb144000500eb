"""Sweeps over hyper-parameters: ranges, and random samples from them. Members of a population start with samples."""

from collections.abc import Mapping
import dataclasses
import math

import numpy as np

_SEED = 2018  # Ours: no paper lists its samples.


@dataclasses.dataclass(frozen=True)
class LogUniform:
  """A distribution over [least, most] of numbers whose logarithm is uniformly distributed."""
  least: float  # > 0.
  most: float   # >= least.

  def draw(self, random: np.random.RandomState) -> float:
    """Draws a number."""
    return math.exp(random.uniform(math.log(self.least), math.log(self.most)))

  def __contains__(self, value: float) -> bool:
    return self.least <= value <= self.most


@dataclasses.dataclass(frozen=True)
class Choice:
  """A distribution over several numbers, each with the same probability."""
  values: tuple[float, ...]  # The numbers.

  def draw(self, random: np.random.RandomState) -> float:
    """Draws one of the numbers."""
    return float(random.choice(self.values))

  def __contains__(self, value: float) -> bool:
    return value in self.values


@dataclasses.dataclass(frozen=True)
class Sweep:
  """A sweep over hyper-parameters of an agent. A sample draws them in the order of `ranges`."""
  ranges: Mapping[str, LogUniform | Choice]  # Hyper-parameter -> distribution of its values.
  num_samples: int                           # Number of samples of a sweep. A population may draw more.

  def draw(self, index: int) -> dict[str, float]:
    """Draws one sample, which depends only on the index.

    Args:
      index: the sample's number, >= 0.
    Returns:
      Hyper-parameter -> value.
    Raises:
      ValueError: the index is negative.
    """
    random = np.random.RandomState([_SEED, index])  # NumPy has promised never to change its streams.
    return {name: values.draw(random) for name, values in self.ranges.items()}
