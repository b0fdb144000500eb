"""Compares LASER agents without a replay, with their own and with a shared one, on a small built-in task.

  scalable-agents shared_replay

Schmitt et al. 2020, figure 3: naive sharing is worse than no replay, and sharing with the trust region is better. Here
the other player in a shared replay is no agent of a sweep: it always guesses and never learns. The agent learns `quiz`,
with -0.8 for a wrong answer, from 8 new unrolls of 8 steps per update and, with a replay, 16 replayed ones. All is in
lockstep, so that runs are repeatable; see lockstep.py.

Each line has the best of three learning rates. They are compared on seeds of their own, so that the seeds on which a
line is judged do not choose its rate. The program prints a table of the mean returns over whole runs, so that slow
learning counts, with the differences from no replay, paired by seed, and 95 % intervals from a bootstrap over the
seeds. --entropy_steps=all gives the entropy bonus to replayed steps, too. It writes runs.csv and sharing.png to
--output. The same command continues after an interruption. Runs in the file that were made with other settings or code
are made again.
"""

from scalable_agents.processes import quiet

if __name__ == '__main__':
  quiet.start()  # Before TensorFlow is imported.

from collections.abc import Sequence
from concurrent import futures
import contextlib
import csv
import dataclasses
import itertools
import math
import multiprocessing
import os
import signal

import numpy as np

from scalable_agents.processes import parent_death
from scalable_agents.processes import run_flags
from scalable_agents.records import errors
from scalable_agents.records import package_versions
from scalable_agents.records import run_directory
from scalable_agents.records import settings
from scalable_agents.records.settings import setting
from scalable_agents.tables import files
from scalable_agents.tools import comparison
from scalable_agents.tools import lockstep

LINES = {  # Name -> replay, and threshold b.
    'no replay': (lockstep.NO_REPLAY, math.inf), 'own replay, b = 0.1': (lockstep.OWN, 0.1),
    'shared replay, naive': (lockstep.SHARED, math.inf), 'shared replay, b = 0.1': (lockstep.SHARED, 0.1)}
_RATES = (3e-3, 1e-2, 3e-2)
_CHOOSING_SEEDS = 1, 2, 3
_FIRST_SEED = 101  # Of those that judge a line. The constants of lockstep.py were chosen with smaller ones.
_RESAMPLES = 10_000


@dataclasses.dataclass(frozen=True)
class SharedReplayConfig:
  """The flags."""

  seeds: int = setting(10, 'Number of runs of each line, besides those that choose its learning rate. Their seeds are '
                       f'{_FIRST_SEED}, {_FIRST_SEED + 1}, and so on.', at_least=2, at_most=1_000)
  frames: int = setting(32_000, 'Environment frames of each run.', at_least=1_280, at_most=settings.MAX_FRAMES)
  entropy_steps: str = setting('online', 'Which steps have the entropy bonus: online, as in section 5.1, or all.',
                               choices=('online', 'all'))
  parallel: int = setting(2, 'Number of runs at a time.', at_least=1, at_most=settings.MAX_PROCESSES)
  output: str = setting('results/shared_replay', 'Folder to write to.')


@contextlib.contextmanager
def _pool(processes):
  """A pool of processes, which end with this process. After an exception, such as Ctrl-C, it begins no other run."""
  pool = futures.ProcessPoolExecutor(processes, multiprocessing.get_context('spawn'),
                                     parent_death.signal_at_parents_end, (signal.SIGKILL,))
  try:
    yield pool
  except BaseException:
    pool.shutdown(wait=False, cancel_futures=True)
    for process in multiprocessing.active_children():
      process.kill()
    raise
  pool.shutdown()


class _Runs:
  """Runs by what is trained, and the file in which they are kept."""

  def __init__(self, file: str, parallel: int):
    self._file = file
    self._parallel = parallel
    self._curves = {}
    self._code = package_versions.installed()['scalable_agents']  # Runs of other code are made again.
    if os.path.exists(file):
      with run_directory.one_line_errors(file), errors.of_user(ValueError, prefix=f'{file}: a row is damaged: '), open(
          file, 'r+', encoding='utf-8', newline='') as stream:
        stream.truncate(stream.read().rfind('\n') + 1)  # A row that was cut off, when the disk was full.
        stream.seek(0)
        for replay, threshold, rate, seed, frames, entropy_steps, fingerprint, *curve in csv.reader(stream):
          run = lockstep.Run(replay, float(threshold), float(rate), int(seed), int(frames), entropy_steps)
          if fingerprint == self._fingerprint(run):
            self._curves[run] = [float(share) for share in curve]

  def _fingerprint(self, run):
    return f'{lockstep.fingerprint(run)} {self._code}'

  def make(self, runs: list[lockstep.Run]) -> list[list[float]]:
    """Makes those runs that the file does not have yet. Returns the curves of all."""
    missing = [run for run in runs if run not in self._curves]
    if missing:
      with _pool(self._parallel) as pool:
        waiting = {pool.submit(lockstep.train, run): run for run in missing}
        for done in futures.as_completed(waiting):
          run, curve = waiting[done], done.result()
          self._curves[run] = curve
          with run_directory.one_line_errors(self._file), open(
              self._file, 'a', encoding='utf-8', newline='') as stream:
            csv.writer(stream, lineterminator='\n').writerow(
                [*run, self._fingerprint(run), *(f'{share:.5g}' for share in curve)])
    return [self._curves[run] for run in runs]


def _run(line: str, rate: float, seed: int, config: SharedReplayConfig) -> lockstep.Run:
  return lockstep.Run(*LINES[line], rate, seed, config.frames, config.entropy_steps)


def _best_rates(runs: _Runs, lines: Sequence[str], config: SharedReplayConfig) -> dict[str, float]:
  """Returns the learning rate of each line that is best over the seeds that choose it."""
  cells = list(itertools.product(lines, _RATES, _CHOOSING_SEEDS))
  curves = runs.make([_run(line, rate, seed, config) for line, rate, seed in cells])
  means = np.mean(curves, axis=1).reshape(len(lines), len(_RATES), len(_CHOOSING_SEEDS)).mean(axis=2)
  return {line: _RATES[best] for line, best in zip(lines, means.argmax(axis=1), strict=True)}


def interval(differences: np.ndarray) -> tuple[float, float]:
  """Returns the 95 % interval of the mean of paired differences [seeds], from a bootstrap over the seeds."""
  drawn = np.random.RandomState(0).randint(len(differences), size=[_RESAMPLES, len(differences)])
  low, high = np.percentile(differences[drawn].mean(axis=1), (2.5, 97.5))
  return float(low), float(high)


def _draw(curves: dict[str, np.ndarray], frames: int, file: str):
  """Draws the lines, [seeds, P] each, whose values are means over equal parts of the runs."""
  def middles(shares):
    return (np.arange(len(shares)) + 0.5) * frames / len(shares)

  comparison.draw({'quiz': {
      name: [comparison.Curve(middles(shares), shares[:, np.newaxis]) for shares in of_seeds]
      for name, of_seeds in curves.items()}}, file)


def run(config: SharedReplayConfig, lines: Sequence[str]) -> dict[str, np.ndarray]:
  """Makes the runs of some lines, prints the table and draws the lines.

  Args:
    config: the flags.
    lines: names in LINES. 'no replay', with which the others are compared, is the first.
  Returns:
    Line -> returns of each seed as shares of the optimal return, in equal parts of the run: [seeds, P].
  """
  folder = files.make_folder(config.output)
  print('learns and acts on the CPU, which is faster with so small a network', flush=True)
  runs, curves = _Runs(os.path.join(folder, 'runs.csv'), config.parallel), {}
  rates, seeds = _best_rates(runs, lines, config), range(_FIRST_SEED, _FIRST_SEED + config.seeds)
  print('| return / optimal return | learning rate | mean | difference from no replay (95 % interval) |')
  print('|---|---|---|---|')
  for line in lines:
    curves[line] = np.array(runs.make([_run(line, rates[line], seed, config) for seed in seeds]))
    differences = curves[line].mean(axis=1) - curves[lines[0]].mean(axis=1)
    low, high = interval(differences)
    cell = f'{differences.mean():+.2f} ({low:+.2f} to {high:+.2f})' if line != lines[0] else ''
    print(f'| {line} | {rates[line]:g} | {curves[line].mean():.2f} | {cell} |', flush=True)
  file = os.path.join(folder, 'sharing.png')
  _draw(curves, config.frames, file)
  print(f'wrote {file}')
  return curves


def main():
  """Runs the comparison."""
  run(run_flags.config_from_flags(SharedReplayConfig), list(LINES))


if __name__ == '__main__':
  run_flags.define(SharedReplayConfig())
  run_flags.run_main(main)
