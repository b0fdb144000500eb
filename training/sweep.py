"""Sweeps over hyper-parameters: ranges, and samples from them. Populations start their members with such samples."""

import dataclasses
import math
from typing import Mapping

import numpy as np

NO_SAMPLE = -1
_SEED = 2018  # Ours: no paper lists its samples.


@dataclasses.dataclass(frozen=True)
class LogUniform:
  """Numbers whose logarithm is uniform between those of two bounds."""
  least: float
  most: float

  def draw(self, random: np.random.RandomState) -> float:
    """A number from the range."""
    return math.exp(random.uniform(math.log(self.least), math.log(self.most)))

  def __contains__(self, value: float) -> bool:
    return self.least <= value <= self.most


@dataclasses.dataclass(frozen=True)
class Choice:
  """One of several numbers, each with the same probability."""
  values: tuple[float, ...]

  def draw(self, random: np.random.RandomState) -> float:
    """One of the numbers."""
    return float(random.choice(self.values))

  def __contains__(self, value: float) -> bool:
    return value in self.values


@dataclasses.dataclass(frozen=True)
class Sweep:
  """What an agent's sweep draws, in this order.

  Attributes:
    ranges: hyper-parameter -> where its values come from.
    num_samples: of a sweep; populations may be larger.
  """
  ranges: Mapping[str, LogUniform | Choice]
  num_samples: int

  def draw(self, index: int) -> dict[str, float]:
    """Hyper-parameter -> value of one sample, which depends on nothing but the index.

    Args:
      index: of the sample, at least 0.
    Raises:
      ValueError: the index is negative.
    """
    random = np.random.RandomState([_SEED, index])  # NumPy has promised never to change its streams.
    return {name: values.draw(random) for name, values in self.ranges.items()}
