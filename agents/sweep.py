"""The paper's samples of hyper-parameters: for sweeps, and to start the members of a population with.

Espeholt et al. 2018 (IMPALA), section 5.3.1 and table D.1: each sample draws its values anew from these ranges.
"""

import math

import numpy as np

NUM_SAMPLES = 24  # Of a sweep; table D.1. Populations may be larger.
NO_SAMPLE = -1

_LEARNING_RATE = (5e-6, 5e-3)
_ENTROPY_COST = (5e-5, 1e-2)
_RMSPROP_EPSILON = (1e-1, 1e-3, 1e-5, 1e-7)
SAMPLED = ('learning_rate', 'entropy_cost', 'rmsprop_epsilon')  # What a sample draws.
_SEED = 2018  # Ours: the paper does not list its samples.


def draw(index: int) -> dict[str, float]:
  """Hyper-parameter -> value of one sample, which depends on nothing but the index.

  Learning rate and entropy cost are log-uniform, RMSProp's epsilon is one of four; table D.1.

  Args:
    index: of the sample, at least 0.
  Raises:
    ValueError: the index is negative.
  """
  random = np.random.RandomState([_SEED, index])  # NumPy has promised never to change its streams.
  return {'learning_rate': _log_uniform(random, *_LEARNING_RATE),
          'entropy_cost': _log_uniform(random, *_ENTROPY_COST),
          'rmsprop_epsilon': float(random.choice(_RMSPROP_EPSILON))}


def is_within(name: str, value: float) -> bool:
  """Whether one of SAMPLED has a value that a sample could have."""
  if name == 'rmsprop_epsilon':
    return value in _RMSPROP_EPSILON
  least, most = {'learning_rate': _LEARNING_RATE, 'entropy_cost': _ENTROPY_COST}[name]
  return least <= value <= most


def _log_uniform(random: np.random.RandomState, least: float, most: float) -> float:
  return math.exp(random.uniform(math.log(least), math.log(most)))
