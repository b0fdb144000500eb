"""Training runs for `make gpu-proof`, each in a process of its own: speed, bottleneck, and resuming after a kill."""

import collections
from collections.abc import Callable, Mapping, Sequence
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any, NamedTuple, TextIO

import numpy as np

from scalable_agents.benchmark import measuring_process
from scalable_agents.benchmark import training_rate
from scalable_agents.processes import parent_death
from scalable_agents.processes import python_path
from scalable_agents.records import checkpoint_files
from scalable_agents.records import run_directory
from scalable_agents.records import run_rows

_INTERVAL_SECONDS = 0.5  # Between two looks at the metrics.


class Card(NamedTuple):
  """What nvidia-smi says about the first card."""
  busy: float              # Share of the last moments in which the card computed something.
  used_megabytes: float    # By all programs.
  megabytes: float


def card() -> Card | None:
  """Asks nvidia-smi. Returns None if it does not answer."""
  first = os.environ.get('CUDA_VISIBLE_DEVICES', '').split(',')[0] or '0'  # nvidia-smi itself ignores the variable.
  try:
    answer = subprocess.run(
        ['nvidia-smi', f'--id={first}', '--query-gpu=utilization.gpu,memory.used,memory.total',
         '--format=csv,noheader,nounits'],
        capture_output=True, text=True, timeout=20, check=True).stdout
    busy, used, whole = map(float, answer.splitlines()[0].split(','))
  except (OSError, subprocess.SubprocessError, ValueError, IndexError):
    return None
  return Card(busy / 100, used, whole)


def start(module: str, arguments: Sequence[str], environment: dict[str, str], screen: TextIO) -> subprocess.Popen:
  """Starts a program that ends with this one.

  Args:
    module: the module to run.
    arguments: its command-line arguments.
    environment: its environment variables.
    screen: the file that gets its output.
  """
  return subprocess.Popen([sys.executable, '-m', module, *arguments], env=environment, stdin=subprocess.DEVNULL,
                          stdout=screen, stderr=screen, preexec_fn=parent_death.leaving_with_parent(signal.SIGKILL))


class Run:
  """A training run, which is started and killed several times."""

  def __init__(self, folder: str, module: str, arguments: Callable[[str], Sequence[str]]):
    """Starts nothing yet.

    Args:
      folder: where to put the run directory and the screen's text.
      module: the program.
      arguments: called with the run directory; returns the program's arguments.
    """
    self._logdir, self._screen = os.path.join(folder, 'run'), os.path.join(folder, 'screen')
    self._command = module, list(arguments(self._logdir))
    self._process: Any = None

  def start(self, with_card: bool):
    """Starts or resumes the run. Without a card, it gets a variable that hides it."""
    environment = python_path.environment() | ({} if with_card else {'CUDA_VISIBLE_DEVICES': '-1'})
    with open(self._screen, 'w', encoding='utf-8') as screen:
      self._process = start(*self._command, environment, screen)

  def wait(self, is_reached: Callable[[list[dict[str, Any]]], bool], deadline: float):
    """Waits for rows of metrics. Returns all rows that were written after an update.

    Args:
      is_reached: called with these rows.
      deadline: of time.monotonic().
    Raises:
      PartError: the run has ended.
      PartTimeoutError: the deadline has passed.
    """
    while True:
      ended = self._process.poll()
      rows = self.rows()
      if is_reached(rows):
        return rows
      if ended is not None:
        raise measuring_process.PartError(f'training ended with exit code {ended}: {self.screen()[-1]}')
      if time.monotonic() > deadline:
        raise measuring_process.PartTimeoutError
      time.sleep(_INTERVAL_SECONDS)

  def rows(self):
    """Returns the rows of metrics that were written after an update."""
    if not os.path.exists(run_directory.path(self._logdir, run_directory.METRICS)):
      return []
    return [row for row in run_rows.read_metrics(self._logdir) if row['learner_steps']]

  def has_saved(self):
    """Whether there is a checkpoint after the first one, which is saved before the first update."""
    folder = run_directory.path(self._logdir, run_directory.CHECKPOINTS)
    return os.path.exists(folder) and checkpoint_files.complete(folder)[-1:] > [1]

  def screen(self):
    """Returns the lines that the program has printed since its last start."""
    with open(self._screen, encoding='utf-8', errors='replace') as text:
      return text.read().splitlines() or ['nothing']

  def device_line(self):
    """Returns the line that says where the program learns and acts, or '' if there is none yet."""
    return next((line for line in self.screen() if line.startswith('learns')), '')

  def kill(self):
    """Sends SIGKILL, as the kernel does if the memory is full."""
    if self._process:
      self._process.kill()
      self._process.wait()


def pong(folder: str, flags: Sequence[str]) -> Run:
  """Returns a run of IMPALA on Pong with these flags."""
  return Run(folder, 'scalable_agents.agents.impala_atari57',
             lambda logdir: [*flags, '--level_name=pong', f'--logdir={logdir}'])


def free_environments(folder: str, config: Mapping[str, Any], run: Mapping[str, Any]) -> Run:
  """Returns a run of IMPALA with environments like DeepMind Lab's, with language, whose steps take almost no time.

  Args:
    folder: as for Run.
    config, run: settings of ImpalaConfig and RunConfig.
  """
  return Run(folder, 'scalable_agents.benchmark.constant_training',
             lambda logdir: [json.dumps({**config, 'level_name': 'dmlab'}), json.dumps({**run, 'logdir': logdir})])


def measure(run: Run, seconds: float, deadline: float) -> dict[str, Any]:
  """Measures a run that has been started. The run continues afterwards.

  Args:
    run: the run.
    seconds: seconds to measure. Before them, a quarter of this time passes as a warm-up, from the first row on.
    deadline: of time.monotonic().
  Returns:
    'frames_per_second'; 'bottleneck', the most frequent one; 'inference_batch_size' and 'time/...', means; 'card_busy',
    the mean share of time, or None; 'line', the line that says where the run learns and acts. At the end:
    'episode_return', None if there is none yet; 'environment_frames' and 'wall_seconds', of the whole run.
  Raises:
    PartError, PartTimeoutError: see Run.wait.
  """
  rows, busy = run.wait(bool, deadline), []
  began = rows[0]['wall_seconds'] + seconds / 4

  def is_reached(rows):
    if rows[-1]['wall_seconds'] > began and (state := card()):
      busy.append(state.busy)
    return rows[-1]['wall_seconds'] >= began + seconds and rows[-2]['wall_seconds'] >= began

  rows = [row for row in run.wait(is_reached, deadline) if row['wall_seconds'] >= began]
  bottlenecks = collections.Counter(row['bottleneck'] for row in rows)
  names = [name for name in rows[0] if name == 'inference_batch_size' or name.startswith('time/')]
  return {'frames_per_second': training_rate.frames_per_second(rows), 'bottleneck': bottlenecks.most_common(1)[0][0],
          **{name: float(np.mean([row[name] for row in rows if row[name] is not None])) for name in names},
          'card_busy': float(np.mean(busy)) if busy else None, 'line': run.device_line(),
          **{name: rows[-1].get(name) for name in ('episode_return', 'environment_frames', 'wall_seconds')}}


def resume(run: Run, with_card: bool, deadline: float) -> dict[str, Any]:
  """Kills a run and resumes it, on the card or on the CPU. The run continues afterwards.

  Returns:
    'killed_at' and 'reached': environment frames. 'seconds': until the first new row. 'line': where it learns and acts.
  Raises:
    PartError, PartTimeoutError: see Run.wait; or the run had made no update, or started from the beginning.
  """
  run.wait(lambda unused_rows: run.has_saved(), deadline)
  run.kill()
  before, began = run.rows(), time.monotonic()
  if not before:
    raise measuring_process.PartError('the run had made no update')
  run.start(with_card)
  killed_at = before[-1]['environment_frames']
  rows = run.wait(lambda rows: bool(rows) and rows[-1]['environment_frames'] > killed_at, deadline)
  if rows[0] != before[0]:
    raise measuring_process.PartError('the run started from the beginning')
  return {'killed_at': killed_at, 'reached': rows[-1]['environment_frames'], 'seconds': time.monotonic() - began,
          'line': run.device_line()}
