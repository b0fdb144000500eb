"""Measures the speed of a training run, without its start. The training runs in a process of its own."""

from collections.abc import Callable, Mapping, Sequence
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any, TextIO

from scalable_agents.processes import parent_death
from scalable_agents.processes import python_path
from scalable_agents.processes import stop_signals
from scalable_agents.records import errors

LOG_INTERVAL_SECONDS = 1.
MAX_SECONDS = 86_400  # The longest measurement.
_LEAST_ROWS = 3  # The smallest number of rows from which a speed is computed.


def warm_up_seconds(seconds: float) -> float:
  """Returns the seconds of warm-up before a measurement of this length."""
  return min(seconds, 3.)


def split(text: str) -> list[str]:
  """Splits a text at commas. An empty text has no parts."""
  return text.split(',') if text else []


def start(arguments: Sequence[str], screen: TextIO) -> subprocess.Popen:
  """Starts a training process, which ends when this process ends, even if this process is killed.

  Args:
    arguments: the module to run, and its arguments.
    screen: the file that gets its output.
  """
  return subprocess.Popen([sys.executable, '-m', *arguments], env=python_path.environment(), stdout=screen,
                          stderr=screen, preexec_fn=parent_death.leaving_with_parent(signal.SIGTERM))


def check(training: subprocess.Popen, screen: TextIO):
  """Raises UserError, with the last line of the output and then all lines, if a process of `start` has ended."""
  if training.poll() is not None:
    screen.seek(0)
    lines = screen.read().splitlines() or ['it said nothing']
    raise errors.UserError('\n'.join([f'training ended with exit code {training.returncode}: {lines[-1]}', *lines]))


def updated_rows(file: str) -> list[dict[str, Any]]:
  """Returns the rows of a file metrics.jsonl, which need not exist yet, with an update since the row before."""
  if not os.path.exists(file):
    return []
  with open(file, encoding='utf-8') as lines:
    rows = [json.loads(line) for line in lines if line.endswith('\n')]
  updates = [0, *(row['learner_steps'] for row in rows)]
  return [row for before, row in zip(updates[:-1], rows, strict=True) if row['learner_steps'] > before]


def frames_per_second(rows: Sequence[Mapping[str, Any]]) -> float:
  """Returns the environment frames per second from the first to the last of some rows of metrics.jsonl."""
  frames, seconds = (rows[-1][name] - rows[0][name] for name in ('environment_frames', 'wall_seconds'))
  return frames / seconds


def steady_rows(arguments: Callable[[dict[str, Any]], Sequence[str]], seconds: float,
                suffice: Callable[[list[dict[str, Any]]], bool] = lambda rows: True) -> list[dict[str, Any]]:
  """Trains in a temporary run directory and returns its metrics.

  Args:
    arguments: called with settings of RunConfig by name. Returns the module to run, and its arguments.
    seconds: shortest time to measure, after the warm-up.
    suffice: called with the rows so far. Returns whether they are enough. Training continues until it returns True.
  Returns:
    The rows of metrics.jsonl after the warm-up, each with an update since the row before.
  Raises:
    errors.UserError: the training process has ended. The message has its output.
  """
  with (stop_signals.leaving_on_signals(), tempfile.TemporaryDirectory() as folder,
        open(f'{folder}/screen', 'w+', encoding='utf-8') as screen):
    interval = min(LOG_INTERVAL_SECONDS, seconds / 8)
    run = {'logdir': f'{folder}/run', 'log_interval_seconds': interval}
    training = start(arguments(run), screen)
    try:
      began, steady = None, []
      while not began or time.monotonic() < began + seconds or len(steady) < _LEAST_ROWS or not suffice(steady):
        time.sleep(interval)
        check(training, screen)
        steady = _steady(f'{folder}/run/metrics.jsonl', warm_up_seconds(seconds))
        if steady and not began:
          began = time.monotonic()
    finally:
      training.terminate()
      training.wait()
  return steady


def _steady(metrics, warm_up):
  """Returns the rows of `updated_rows` after the warm-up."""
  rows = updated_rows(metrics)
  return [row for row in rows[1:] if row['wall_seconds'] >= rows[0]['wall_seconds'] + warm_up]
