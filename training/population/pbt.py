"""Population-based training: what a member decides when its fitness is known. Pure functions.

Espeholt et al. 2018 (IMPALA), appendix F; Jaderberg et al. 2017.
"""

from typing import Mapping, Sequence

import numpy as np

MARGIN = 5.0  # Points of fitness, absolute: another member has to be better by more.
_PROBABILITY = 0.33  # Of each hyper-parameter to be perturbed.
_FACTOR = 1.2        # It is multiplied with this or divided by it.


def partner(others: Sequence[int], random: np.random.RandomState) -> int | None:
  """One of the other members, at random, to be compared with; None where there is none."""
  return int(random.choice(others)) if len(others) else None


def is_exploited(fitness: float, other_fitness: float) -> bool:
  """Whether a member takes over the weights and hyper-parameters of the other one, by the fitness of both in points."""
  return other_fitness > fitness + MARGIN


def explore(hyper_parameters: Mapping[str, float], random: np.random.RandomState) -> dict[str, float]:
  """The hyper-parameters, each perturbed or not. There are no bounds, as in the paper."""
  explored = {}
  for name, value in hyper_parameters.items():
    perturbed, up = random.random_sample() < _PROBABILITY, random.random_sample() < 0.5
    explored[name] = value * (1 if not perturbed else _FACTOR if up else 1 / _FACTOR)
  return explored
