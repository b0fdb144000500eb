"""The files that members of a population exchange. Each member's run directory in the population's folder has:

  population/      snapshots of agent, optimiser and hyper-parameters, see records/checkpoint.py
  fitness.json     the fitness of the agent of the latest snapshot
  evolution.jsonl  one JSON object per evolution

Members communicate only through these files. They need a shared file system, but no server, and a dead member does not
affect the others. This module does not import TensorFlow, so that tools start quickly.
"""

import glob
import json
import os
import re
from typing import Any, NamedTuple

from scalable_agents.records import json_text
from scalable_agents.records import row_file
from scalable_agents.records import run_directory
from scalable_agents.records import run_rows

SNAPSHOTS = 'population'
FITNESS = 'fitness.json'
EVOLUTION = 'evolution.jsonl'


class Fitness(NamedTuple):
  """The fitness of a member's agent."""
  environment_frames: int  # Frames of training when the fitness was measured and the snapshot was made.
  fitness: float           # Points: per cent of a human's score, or of a return of 1.
  hyper_parameters: dict[str, float]  # The agent's hyper-parameters by then.


class Evolution(NamedTuple):
  """A step of a member's evolution."""
  environment_frames: int
  fitness: float      # Fitness before the step, in points.
  parent: int | None  # The member whose weights and hyper-parameters were copied; None if none were.
  parent_environment_frames: int | None  # Frames of training of the parent's snapshot.
  hyper_parameters: dict[str, float]     # Hyper-parameters after the step.


def member_name(index: int) -> str:
  """Returns the name of a member's run directory."""
  return f'member_{index:02}'


def member_index(logdir: str) -> int | None:
  """Returns the index of the member whose run directory has this name. None if it is not a member's name."""
  name = os.path.basename(os.path.normpath(logdir))
  match = re.fullmatch(r'member_(\d+)', name)
  return int(match[1]) if match and name == member_name(int(match[1])) else None


def members(population: str) -> dict[int, str]:
  """Returns the run directories of all members that have been started, by index and in order."""
  folders = map(os.path.dirname, glob.glob(os.path.join(glob.escape(population), 'member_*', run_directory.CONFIG)))
  found = [(index, folder) for folder in folders if (index := member_index(folder)) is not None]
  return dict(sorted(found))


def write_fitness(logdir: str, fitness: Fitness):
  """Writes a member's fitness atomically.

  Raises:
    run_directory.RunDirectoryError: the file cannot be written.
  """
  run_directory.write_json(run_directory.path(logdir, FITNESS), fitness._asdict())


def read_fitness(logdir: str) -> Fitness | None:
  """Reads the fitness that a member has written last. None if there is none yet.

  Raises:
    run_directory.RunDirectoryError: the file cannot be read.
  """
  return run_directory.read_json(run_directory.path(logdir, FITNESS), lambda content: Fitness(**_common(content)))


def append_evolution(logdir: str, evolution: Evolution):
  """Adds a row to evolution.jsonl.

  Raises:
    run_directory.RunDirectoryError: it cannot be written.
  """
  file = run_directory.path(logdir, EVOLUTION)
  with run_directory.one_line_errors(file), open(file, 'ab') as stream:
    stream.write(json.dumps(evolution._asdict()).encode() + b'\n')
    stream.flush()
    os.fsync(stream.fileno())  # A checkpoint that follows has the step.


def read_evolutions(logdir: str) -> list[Evolution]:
  """Reads the complete rows of evolution.jsonl, oldest first. [] if there is no such file yet.

  Raises:
    run_directory.RunDirectoryError: a row cannot be read.
  """
  file = run_directory.path(logdir, EVOLUTION)
  return [_evolution(file, row) for row in run_rows.complete_rows(file)]


def drop_evolutions_after(logdir: str, environment_frames: int):
  """Removes the rows of evolution.jsonl after a checkpoint, because training continues from the checkpoint.

  Args:
    logdir: the member's run directory.
    environment_frames: of the checkpoint.
  Raises:
    run_directory.RunDirectoryError: a row cannot be read, or the file cannot be cut.
  """
  file = run_directory.path(logdir, EVOLUTION)

  def frames_of(*row):
    return _evolution(*row).environment_frames

  run_rows.cut(file, run_rows.size_up_to(file, frames_of, environment_frames))


def _evolution(file: str, row: row_file.Row) -> Evolution:
  try:
    content = json_text.parse(row.line)
    parent, frames = (json_text.field(content, name, int, optional=True)
                      for name in ('parent', 'parent_environment_frames'))
    if (parent is None) != (frames is None):
      raise ValueError('want both of "parent" and "parent_environment_frames", or none')
    return Evolution(**_common(content), parent=parent, parent_environment_frames=frames)
  except ValueError as error:
    raise run_directory.RunDirectoryError(run_rows.damaged_row(file, row, error)) from error


def _common(content: Any) -> dict[str, Any]:
  """Returns the fields that Fitness and Evolution have in common. Raises ValueError if one is wrong."""
  frames = json_text.field(content, 'environment_frames', int)
  run_rows.check_range('environment_frames', frames)
  hyper_parameters = json_text.numbers(json_text.field(content, 'hyper_parameters', dict))
  return {'environment_frames': frames, 'fitness': json_text.field(content, 'fitness', float),
          'hyper_parameters': hyper_parameters}
