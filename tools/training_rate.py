"""Runs a training in a process of its own for a while, to see how fast it is once it is under way."""

import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable, Sequence

from scalable_agents.actor import parent_death
from scalable_agents.actor import python_path

LOG_INTERVAL_SECONDS = 1.
MAX_SECONDS = 86_400  # Of a measurement.
_LEAST_ROWS = 3  # To tell a speed from.


def warm_up_seconds(seconds: float) -> float:
  """How long something runs before it is measured for so many seconds."""
  return min(seconds, 3.)


def split(text: str) -> list[str]:
  """The parts of a text with commas between them; none of an empty one."""
  return text.split(',') if text else []


def steady_rows(arguments: Callable[[dict[str, Any]], Sequence[str]], seconds: float,
                suffice: Callable[[list[dict[str, Any]]], bool] = lambda rows: True) -> list[dict[str, Any]]:
  """Trains in a directory that is removed afterwards.

  Args:
    arguments: the module, and arguments with which Python runs it, for these settings of RunConfig.
    seconds: how long the speed is of interest, at least.
    suffice: whether such rows are enough; it goes on until they are.
  Returns:
    The rows of metrics.jsonl that were written after an update, from the warm-up's end on.
  Raises:
    RuntimeError: the training has ended, with what it had to say.
  """
  with tempfile.TemporaryDirectory() as folder, open(f'{folder}/screen', 'w+', encoding='utf-8') as screen:
    interval = min(LOG_INTERVAL_SECONDS, seconds / 8)
    run = {'logdir': f'{folder}/run', 'log_interval_seconds': interval}
    # Whoever kills this process does not want a training to go on.
    training = subprocess.Popen([sys.executable, '-m', *arguments(run)], env=python_path.environment(), stdout=screen,
                                stderr=screen, preexec_fn=parent_death.leaving_with_parent(signal.SIGTERM))
    try:
      began, steady = None, []
      while not began or time.monotonic() < began + seconds or len(steady) < _LEAST_ROWS or not suffice(steady):
        time.sleep(interval)
        if training.poll() is not None:
          screen.seek(0)
          raise RuntimeError(f'training ended with exit code {training.returncode}: {screen.read()}')
        steady = _steady(f'{folder}/run/metrics.jsonl', warm_up_seconds(seconds))
        if steady and not began:
          began = time.monotonic()
    finally:
      training.terminate()
      training.wait()
  return steady


def _steady(metrics, warm_up):
  """The rows so far, as dicts, that were written after an update and not before the warm-up's end."""
  if not os.path.exists(metrics):
    return []
  with open(metrics, encoding='utf-8') as file:
    rows = [json.loads(line) for line in file if line.endswith('\n')]
  rows = [row for row in rows if row['learner_steps']]
  return [row for before, row in itertools.pairwise(rows) if row['learner_steps'] > before['learner_steps']
          and row['wall_seconds'] >= rows[0]['wall_seconds'] + warm_up]
