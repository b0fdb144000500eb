"""Population-based training: the decisions of a member when its fitness is known. All functions are pure.

Espeholt et al. 2018 (IMPALA), appendix F; Jaderberg et al. 2017.
"""

from collections.abc import Mapping, Sequence

import numpy as np

MARGIN = 5.0  # Absolute points of fitness. A member is copied only if it is better by more than this.
_PROBABILITY = 0.33  # The probability of perturbing a hyper-parameter.
_FACTOR = 1.2        # A perturbed hyper-parameter is multiplied or divided by this.


def partner(others: Sequence[int], random: np.random.RandomState) -> int | None:
  """Returns a random one of the other members, with which a member compares itself. None if there is none."""
  return int(random.choice(others)) if len(others) else None


def is_exploited(fitness: float, other_fitness: float) -> bool:
  """Returns whether a member copies the other one's weights and hyper-parameters, given the fitness of both."""
  return other_fitness > fitness + MARGIN


def explore(hyper_parameters: Mapping[str, float], random: np.random.RandomState) -> dict[str, float]:
  """Returns the hyper-parameters, some of them perturbed. There are no bounds, as in the paper."""
  explored = {}
  for name, value in hyper_parameters.items():
    perturbed, up = random.random_sample() < _PROBABILITY, random.random_sample() < 0.5
    explored[name] = value * (1 if not perturbed else _FACTOR if up else 1 / _FACTOR)
  return explored
