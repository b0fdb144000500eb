"""Interquartile means with 95 % intervals from a bootstrap over runs.

Agarwal et al. 2021, "Deep reinforcement learning at the edge of the statistical precipice". The bootstrap is that of
their library rliable. Its interquartile mean leaves out whole values, so that of six values it averages four. Here,
values at the ends of the middle half count in part. Otherwise, lines with one seed and with five could not be compared.
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
  """Returns the mean of the middle half of all values, of any shape."""
  in_quarters = np.sort(np.repeat(values, 4))  # A quarter of these is a whole number.
  quarter = in_quarters.size // 4
  return float(np.mean(in_quarters[quarter:-quarter]))


def interquartile_mean(values: Sequence[float] | np.ndarray) -> Interval:
  """Returns the mean of the middle half of all values, and its interval. Resampling keeps the tasks.

  Args:
    values: [runs] or [runs, tasks].
  Raises:
    errors.UserError: rliable is not installed, and there are several runs.
  """
  of_tasks = np.array(values, np.float64)
  of_tasks = of_tasks.reshape(len(of_tasks), -1)
  if len(of_tasks) == 1:
    return Interval(middle_half(of_tasks), np.nan, np.nan)
  try:
    from rliable import library
  except ImportError as error:
    raise errors.UserError(f'the table of several runs needs rliable ({error}): {sys.executable} -m pip install '
                           f'{_RLIABLE}') from error
  logging.set_verbosity(logging.WARNING)  # rliable writes a line for each estimate.
  with warnings.catch_warnings(), _numpy_seed():  # rliable 1.2.0 does not use its argument random_state.
    warnings.simplefilter('ignore', FutureWarning)  # rliable calls its own library in an outdated way.
    points, intervals = library.get_interval_estimates(
        {'': of_tasks}, lambda of_runs: np.array([middle_half(of_runs)]), reps=_RESAMPLES)
  return Interval(float(points[''][0]), *map(float, intervals[''][:, 0]))


@contextlib.contextmanager
def _numpy_seed() -> Iterator[None]:
  """Seeds NumPy's global generator, and gives it its old state back at the end."""
  state = np.random.get_state()
  np.random.seed(0)
  try:
    yield
  finally:
    np.random.set_state(state)
