"""Table 1 of Espeholt et al. 2018 (IMPALA): frames per second of A3C, batched A2C and IMPALA.

tools/throughput.py measures and writes the file that `read` reads.
"""

from collections.abc import Sequence
import statistics
from typing import Any, NamedTuple

from scalable_agents.records import errors
from scalable_agents.records import json_text
from scalable_agents.tables.papers import layout
from scalable_agents.tables.results import published

NUMBER = '1'
_PREFIX = 'fps_task'  # Of the columns with numbers: fps_task1_LEVEL.
_ROWS = tuple(published.rows('impala_table_1.csv'))
TASKS = {name.removeprefix(_PREFIX).partition('_')[2]: name for name in _ROWS[0] if name.startswith(_PREFIX)}


class Architecture(NamedTuple):
  """A row of the table."""
  setting: str  # single_machine or distributed.
  name: str
  gpus: int


ARCHITECTURES = tuple(Architecture(row['setting'], row['architecture'], int(row['gpus'])) for row in _ROWS)


class Measured(NamedTuple):
  """The speeds of an architecture on a level."""
  task: str                           # The level's name, or that of the DeepMind Lab level for which it stands.
  architecture: Architecture          # `gpus` is the number of GPUs of the machine.
  level: str
  frames_per_second: Sequence[float]  # Of each repeat.
  environments: int
  batch_size: int                     # Unrolls per update.
  unroll_length: int                  # Agent steps.


def read(path: str) -> list[Measured]:
  """Reads a file of tools/throughput.py.

  Raises:
    errors.UserError: the file cannot be read.
  """
  try:
    with open(path, 'rb') as stream:
      stored: Any = json_text.parse(stream.read())
    return [Measured(one['task'], Architecture(*one['architecture']), one['level'],
                     [float(speed) for speed in one['frames_per_second']],
                     *(int(one[name]) for name in ('environments', 'batch_size', 'unroll_length')))
            for one in stored['measured']]
  except (OSError, ValueError, TypeError, KeyError) as error:
    raise errors.UserError(
        f'{path}: want throughput.json of `scalable-agents throughput`: {error}') from error


def table(measured: Sequence[Measured]) -> layout.Table:
  """Makes the table. Speeds are relative to the first row that was measured; without any, to the first row."""
  rows = []
  for task in dict.fromkeys([*TASKS, *(one.task for one in measured)]):
    of_task = {one.architecture: one for one in measured if one.task == task and one.frames_per_second}
    found = [_measured(architecture, of_task) for architecture in ARCHITECTURES]
    first = next((index for index, one in enumerate(found) if one), 0)
    paper = [float(row[TASKS[task]]) if task in TASKS and row[TASKS[task]] else None for row in _ROWS]
    of_rows = [one.frames_per_second if one else () for one in found]
    here = [statistics.fmean(speeds) if speeds else None for speeds in of_rows]
    for index, (architecture, speeds) in enumerate(zip(ARCHITECTURES, of_rows, strict=True)):
      spread = statistics.stdev(speeds) if len(speeds) > 1 else None
      rows.append([
          task, architecture.setting.replace('_', ' '), architecture.name, str(architecture.gpus),
          layout.Number(paper[index], 0), _relative(paper, index, first), layout.Number(here[index], 0),
          layout.Number(spread, 0), _relative(here, index, first), str(len(speeds))])
  columns = ['level', 'setting', 'architecture', 'GPUs', 'paper: frames/s', 'paper: relative', 'here: frames/s',
             'here: ±', 'here: relative', 'repeats']
  levels = dict.fromkeys((one.task, one.level) for one in measured if one.level != one.task)
  of_names = {one.architecture.name: one for one in measured}
  notes = ['± is the standard deviation over repeats. Relative: to the first row that was measured. The GPUs are '
           'those of the paper; throughput.json has the number of GPUs of the machine that was measured.',
           "Two distributed rows of the paper differ in the learner's optimisations (section 3.1). Here these are "
           'always in use, so "IMPALA" is not measured. The paper prints one number for both levels there.',
           *(f'Here, {one.architecture.name} has {one.environments} environments and batches of {one.batch_size} '
             f'unrolls of {one.unroll_length} agent steps.' for one in of_names.values()),
           *(f'{task} was not measured itself. In its place: {level}' for task, level in levels)]
  return layout.Table('Table 1: Throughput', columns, rows, notes)


def _measured(architecture: Architecture, found: dict[Architecture, Measured]) -> Measured | None:
  """Returns the measurement for a row. If two rows differ only in GPUs, that of a machine with, or without, GPUs."""
  alike = [one for one in ARCHITECTURES if one[:2] == architecture[:2]]
  for of_machine, one in found.items():
    if of_machine[:2] == architecture[:2] and (len(alike) == 1 or (of_machine.gpus > 0) == (architecture.gpus > 0)):
      return one
  return None


def _relative(speeds: Sequence[float | None], index: int, first: int) -> layout.Number:
  speed, reference = speeds[index], speeds[first]
  return layout.Number(speed / reference if speed and reference else None, 2)
