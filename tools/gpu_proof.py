"""Shows what this project does on a card: how exactly it computes, how fast, and what the bottleneck is.

  make gpu-proof        or        scalable-agents gpu_proof

It prints a table and writes a JSON file; docs/gpu.md says how to read them. A row that fails says why in one line, and
the others go on. The program takes at most --minutes; rows for which no time is left say so. With --device=cpu, a
machine without a card runs all rows in small sizes. This shows only that the program works.
"""

from collections.abc import Callable, Sequence
from concurrent import futures
import contextlib
import dataclasses
import os
import tempfile
import threading
import time
from typing import Any

from scalable_agents.benchmark import device_parts
from scalable_agents.benchmark import measuring_process
from scalable_agents.processes import kernels
from scalable_agents.processes import machine
from scalable_agents.processes import run_flags
from scalable_agents.processes import stop_signals
from scalable_agents.records import errors
from scalable_agents.records import run_directory
from scalable_agents.records import settings
from scalable_agents.records.settings import setting
from scalable_agents.tools import card_runs
from scalable_agents.tools import proof_rows

_OK, _NOT_OK, _NOT_MEASURED = 'ok', 'not ok', 'not measured'
_CORES_OF_AN_AGENT = 4  # To compile and to compute on the CPU.
_LONGEST_START_SECONDS = 120.  # Of TensorFlow, from a slow disk.


@dataclasses.dataclass(frozen=True)
class GpuProofConfig:
  """The flags."""

  device: str = setting('gpu', 'gpu, or cpu for a small trial on the CPU.', choices=('gpu', 'cpu'))
  minutes: float = setting(8., 'The longest time that the program may take.', more_than=0, at_most=1440)
  output: str = setting('gpu_proof.json', 'The JSON file to write. It must not exist yet.')


class Proof:
  """Measures rows, prints each, and keeps the JSON file up to date, so that an interruption loses nothing."""

  def __init__(self, minutes: float, output: str):
    """Begins the time.

    Args:
      minutes: the longest time.
      output: the JSON file.
    """
    self.machine: dict[str, Any] = {}
    self.rows: list[dict[str, Any]] = []
    self._seconds, self._output = minutes * 60, output
    self._end = time.monotonic() + self._seconds
    self._lock = threading.Lock()
    self._is_over = False

  def describe(self, device: str) -> None:
    """Prints what the machine has.

    Raises:
      errors.UserError: a card is wanted, and TensorFlow uses none.
    """
    with contextlib.closing(measuring_process.MeasuringProcess()) as process:
      try:
        self.machine = process.call(
            device_parts.describe, device, deadline=min(self._end, time.monotonic() + _LONGEST_START_SECONDS))
      except (measuring_process.PartError, measuring_process.PartTimeoutError) as error:
        raise errors.UserError(f'TensorFlow does not start: {str(error) or "no time left"}') from error
    if device == 'gpu' and not self.machine['num_cards']:
      raise errors.UserError(f'no card: {self.machine["why_unused"] or "this machine has no NVIDIA card"}; '
                             '--device=cpu is a small trial on the CPU')
    self.machine |= {'device': device, 'began': time.strftime('%Y-%m-%d %H:%M:%S %z')}
    print(self.machine['line'])
    for name in ('card', 'compute_capability', 'tensorflow', 'built_for_cuda', 'built_for_cudnn', 'python',
                 'cores'):
      print(f'{name.replace("_", " ")}: {self.machine[name]}')
    if device == 'cpu':
      print('This is a small trial on the CPU. Its speeds mean nothing.')

  def measure(self, share: float, groups: Sequence[proof_rows.Group], parallel: int = 1,
              end: Callable[[], None] = lambda: None) -> None:
    """Measures groups of rows.

    Args:
      share: the largest share of the whole time that they may take.
      groups: the groups.
      parallel: how many of them to measure at the same time.
      end: called after Ctrl-C or SIGTERM. It ends what the rows wait for.
    """
    deadline = min(self._end, time.monotonic() + share * self._seconds)
    with futures.ThreadPoolExecutor(parallel) as threads:
      try:
        for done in [threads.submit(self._measure_group, group, deadline) for group in groups]:
          done.result()
      except BaseException:  # Ctrl-C, for example.
        self._is_over = True
        end()
        raise

  def _measure_group(self, group, deadline):
    with contextlib.closing(measuring_process.MeasuringProcess()) as process:
      for row in group(process):
        self._add(row, deadline)

  def _add(self, row, deadline):
    if self._is_over:
      return
    began = time.monotonic()
    result = {'name': row.name, 'wanted': row.wanted, 'status': _NOT_MEASURED, 'measured': 'no time left',
              'figures': {}}
    if began < deadline:
      result |= _result(row, min(deadline, began + row.longest_seconds))
    result['seconds'] = round(time.monotonic() - began, 2)
    if self._is_over:  # Ctrl-C has ended the process that measured.
      return
    with self._lock:
      wanted = f'  (wanted: {row.wanted})' if row.wanted else ''
      print(f'{result["status"]:<13} {row.name:<50} {result["measured"]}{wanted}', flush=True)
      self.rows.append(result)
      self.write()

  def write(self) -> None:
    """Writes the JSON file. Raises run_directory.RunDirectoryError if this is not possible."""
    run_directory.write_json(self._output, {'machine': self.machine, 'rows': self.rows})


def _result(row, deadline):
  began = time.monotonic()
  try:
    measured = row.measure(deadline)
  except measuring_process.PartTimeoutError:
    return {'measured': f'stopped after {time.monotonic() - began:.0f} s'}
  except proof_rows.NotMeasured as error:
    return {'measured': str(error)}
  except measuring_process.PartError as error:
    # Large batches do not fit on every card.
    is_out_of_memory = any(sign in str(error).lower() for sign in (
        'resourceexhausted', 'out of memory', 'dst tensor is not initialized'))
    return {'status': _NOT_MEASURED if is_out_of_memory else _NOT_OK,
            'measured': f'out of memory: {error}' if is_out_of_memory else str(error)}
  except Exception as error:  # The other rows must go on.
    return {'status': _NOT_OK, 'measured': settings.shown(f'{type(error).__name__}: {error}')}
  return {'status': _OK if measured.is_ok else _NOT_OK, 'measured': measured.text, 'figures': measured.figures}


def run(proof: Proof, device: str, plan: proof_rows.Plan, trace_folder: str) -> None:
  """Measures all rows of a plan. Raises errors.UserError if a card is wanted and there is none."""
  proof.describe(device)
  proof.write()
  rows = proof_rows.Rows(device, plan, trace_folder)
  proof.measure(0.2, rows.agreement(), max(1, min(4, machine.num_cores() // _CORES_OF_AN_AGENT)))
  _measure_run(proof, 0.3, rows.training, card_runs.pong, plan.run_flags)
  _measure_run(proof, 0.15, rows.free_environments, card_runs.free_environments, plan.free_config, plan.free_run)
  proof.measure(0.05, [rows.environments])
  proof.measure(0.07, [rows.inference])
  proof.measure(0.07, [rows.memory])
  proof.measure(1., [rows.rates])


def _measure_run(proof, share, group, make_run, *arguments):
  """Measures the group of rows of a training run, and ends the run."""
  with stop_signals.leaving_on_signals(), tempfile.TemporaryDirectory(prefix='gpu_proof_') as folder:
    training = make_run(folder, *arguments)
    try:
      proof.measure(share, [group(training)], end=training.kill)
    finally:
      training.kill()


def main():
  """Runs the program. The exit code is 1 if a row is not ok."""
  kernels.choose()  # For the processes that measure.
  config = run_flags.config_from_flags(GpuProofConfig)
  output = run_flags.user_path(config.output)
  if os.path.exists(output):  # It may be the only measurement of a card.
    raise errors.UserError(f'--output={config.output}: exists already: move it, or choose another file')
  plan = proof_rows.small_plan() if config.device == 'cpu' else proof_rows.full_plan(machine.num_cores())
  proof = Proof(config.minutes, output)
  run(proof, config.device, plan, os.path.splitext(output)[0] + '_trace')
  counts = {status: sum(row['status'] == status for row in proof.rows) for status in (_OK, _NOT_OK, _NOT_MEASURED)}
  print(', '.join(f'{count} {status}' for status, count in counts.items()) + f'; wrote {output}')
  return 1 if counts[_NOT_OK] else 0


if __name__ == '__main__':
  run_flags.define(GpuProofConfig())
  run_flags.run_main(main)
