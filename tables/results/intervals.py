"""Interquartile means with 95 % intervals from a bootstrap over runs, by the library rliable.

Agarwal et al. 2021, "Deep reinforcement learning at the edge of the statistical precipice". rliable leaves out whole
values, so that of six values it averages four. Here, values at the ends of the middle half count in part. Otherwise,
lines with one seed and with five could not be compared.
"""

from collections.abc import Iterator, Sequence
import contextlib
import sys
from typing import NamedTuple
import warnings

from absl import logging
import numpy as np

from scalable_agents.records import errors

_RESAMPLES = 2_000
_RLIABLE = 'rliable==1.2.0 pandas==2.3.3'  # As in requirements-plots.txt.


class Interval(NamedTuple):
  """An interquartile mean, and the ends of its 95 % interval, which are NaN for a single run."""
  middle: float
  low: float
  high: float


def middle_half(values: Sequence[float] | np.ndarray) -> float:
  """Returns the mean of the middle half of all values, of any shape. Raises errors.UserError without rliable."""
  with _rliable():
    from rliable import metrics
  return float(metrics.aggregate_iqm(np.repeat(values, 4, axis=-1)))  # A quarter of these is a whole number.


def interquartile_mean(values: Sequence[float] | np.ndarray) -> Interval:
  """Returns the mean of the middle half of all values, and its interval. Resampling keeps the tasks.

  Args:
    values: [runs] or [runs, tasks].
  Raises:
    errors.UserError: rliable is not installed, and there are several values.
  """
  of_tasks = np.array(values, np.float64)
  of_tasks = of_tasks.reshape(len(of_tasks), -1)
  if of_tasks.size == 1:
    return Interval(float(of_tasks[0, 0]), np.nan, np.nan)
  if len(of_tasks) == 1:
    return Interval(middle_half(of_tasks), np.nan, np.nan)
  with _rliable():
    from rliable import library
  logging.set_verbosity(logging.WARNING)  # rliable writes a line for each estimate.
  with warnings.catch_warnings(), _numpy_seed(0):  # rliable 1.2.0 does not use its argument random_state.
    warnings.simplefilter('ignore', FutureWarning)  # rliable calls its own library in an outdated way.
    points, intervals = library.get_interval_estimates(
        {'': of_tasks}, lambda of_runs: np.array([middle_half(of_runs)]), reps=_RESAMPLES)
  return Interval(float(points[''][0]), *map(float, intervals[''][:, 0]))


@contextlib.contextmanager
def _rliable() -> Iterator[None]:
  """In this context, a failed import of rliable is a UserError that says how to install it."""
  try:
    yield
  except ImportError as error:
    raise errors.UserError(f'the table of several runs needs rliable ({error}): {sys.executable} -m pip install '
                           f'{_RLIABLE}') from error


@contextlib.contextmanager
def _numpy_seed(seed: int) -> Iterator[None]:
  """Seeds NumPy's global generator, and gives it its old state back at the end."""
  state = np.random.get_state()
  np.random.seed(seed)
  try:
    yield
  finally:
    np.random.set_state(state)
