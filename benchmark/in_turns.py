"""Compares the speed of two checkouts of this project: their benchmarks run in turns, several times.

The speed of a machine changes from minute to minute, so two runs at different times say little about two versions of
the code. In turns, both have the same ups and downs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import json
import os
import signal
import subprocess
import sys
from typing import Any, NamedTuple

import numpy as np

from scalable_agents.processes import parent_death
from scalable_agents.records import errors

_RATE, _COST = 'per_second', 'cpu_seconds'
_NOT_OURS = 'environment/emulator_', 'environment/vector_env_'  # These are ale-py's.
_DERIVED = 'bound_', 'end_to_end_'                               # These follow from other figures.


class Ratio(NamedTuple):
  """How many times as fast the new checkout is in one figure."""
  figure: str   # For example 'r2d2/learner/cpu_seconds'.
  ratio: float  # The geometric mean over the turns.
  low: float    # The 95 % interval of this mean, by Student's t over the turns. NaN for a single turn.
  high: float


def checkout() -> str:
  """Returns the folder of the source code that runs, without symbolic links."""
  return os.path.dirname(os.path.dirname(os.path.realpath(__file__)))


def python_of(folder: str) -> str:
  """Returns the Python of a checkout. Raises errors.UserError if `make setup` was not run there."""
  python = os.path.join(folder, '.venv', 'bin', 'python')
  if not os.path.exists(python):
    raise errors.UserError(f'{folder}: want a checkout of the project in which `make setup` was run')
  return python


def measure(command: Sequence[str], environment: Mapping[str, str]) -> dict[str, Any]:
  """Runs a benchmark and returns its figures. Raises errors.UserError, with its last line, if there are none."""
  done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                        check=False, preexec_fn=parent_death.leaving_with_parent(signal.SIGTERM))
  last = (done.stdout.splitlines() or [''])[-1]
  try:
    figures = json.loads(last)
  except ValueError:
    figures = None
  if not isinstance(figures, dict):
    raise errors.UserError(f'{command[0]}: the benchmark ended with exit code {done.returncode}: {last}')
  return figures


def speeds(figures: Mapping[str, Any]) -> dict[str, float]:
  """Returns the figures of a benchmark that are speeds, by their place in it. Processor times become rates.

  Of a part with both, only the processor time is used, since other programs change it less. A figure is also a rate if
  the group that it is in has the name of one, as in learners/transitions_per_second/laser.
  """
  leaves = dict(_leaves(figures))
  found = {}
  for name, value in leaves.items():
    place, _, leaf = name.rpartition('/')
    if not value or name.startswith(_NOT_OURS) or leaf.startswith(_DERIVED):
      continue
    if leaf.endswith(_COST):
      found[name] = 1 / value
    elif (leaf.endswith(_RATE) or place.endswith(_RATE)) and f'{place}/{_COST}' not in leaves:
      found[name] = value
  return found


def _leaves(figures, place='') -> Iterator[tuple[str, Any]]:
  """Yields the places and values of all figures."""
  for name, value in figures.items():
    if isinstance(value, dict):
      yield from _leaves(value, f'{place}{name}/')
    else:
      yield f'{place}{name}', value


def compare(measure_old: Callable[[], Mapping[str, Any]], measure_new: Callable[[], Mapping[str, Any]], turns: int,
            report: Callable[[int], None] = lambda turn: None) -> list[Ratio]:
  """Measures both several times in turns.

  Args:
    measure_old, measure_new: return the figures of a benchmark.
    turns: number of times that each is measured. Every second time, the new one comes first.
    report: called with the number of turns made so far.
  Returns:
    A Ratio for each figure that all measurements have.
  Raises:
    errors.UserError: SciPy is not installed.
  """
  try:
    from scipy import stats  # The other parts of the benchmark do without it.
  except ImportError as error:
    raise errors.UserError(f'--compare needs SciPy ({error}): {sys.executable} -m pip install scipy') from error
  logs: dict[str, list[float]] = {}
  for turn in range(turns):
    if turn % 2:
      new = speeds(measure_new())
      old = speeds(measure_old())
    else:
      old = speeds(measure_old())
      new = speeds(measure_new())
    for name in new.keys() & old.keys():
      logs.setdefault(name, []).append(float(np.log(new[name] / old[name])))
    order = list(new)
    report(turn + 1)
  ratios = []
  for name in order:
    if len(of_turns := logs.get(name, ())) == turns:
      mean, half = np.mean(of_turns), np.nan
      if turns > 1:
        half = stats.t.ppf(0.975, turns - 1) * np.std(of_turns, ddof=1) / np.sqrt(turns)
      ratios.append(Ratio(name, *np.exp([mean, mean - half, mean + half]).tolist()))
  return ratios
