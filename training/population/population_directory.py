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
from typing import NamedTuple

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
  match = re.fullmatch(r'member_(\d\d+)', os.path.basename(os.path.normpath(logdir)))
  return int(match[1]) if match else None


def members(population: str) -> dict[int, str]:
  """Returns the run directories of all members that have been started, by index and in order."""
  found = {member_index(os.path.dirname(config)): os.path.dirname(config)
           for config in glob.glob(os.path.join(glob.escape(population), 'member_*', run_directory.CONFIG))}
  return {index: found[index] for index in sorted(found.keys() - {None})}


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
  file = run_directory.path(logdir, FITNESS)
  with run_directory.one_line_errors(file):
    try:
      with open(file, encoding='utf-8') as stream:
        content = Fitness(**json.load(stream))
      return Fitness(int(content.environment_frames), float(content.fitness), dict(content.hyper_parameters))
    except FileNotFoundError:
      return None
    except (ValueError, TypeError) as error:
      raise run_directory.RunDirectoryError(run_directory.damaged(file, error)) from error


def append_evolution(logdir: str, evolution: Evolution):
  """Adds a row to evolution.jsonl.

  Raises:
    run_directory.RunDirectoryError: it cannot be written.
  """
  file = run_directory.path(logdir, EVOLUTION)
  with run_directory.one_line_errors(file), open(file, 'ab') as stream:
    stream.write(json.dumps(evolution._asdict()).encode() + b'\n')


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
  frames_of = lambda *row: _evolution(*row).environment_frames
  run_rows.cut(file, run_rows.size_up_to(file, frames_of, environment_frames))


def _evolution(file: str, row: row_file.Row) -> Evolution:
  try:
    evolution = Evolution(**json.loads(row.line))
    int(evolution.environment_frames), dict(evolution.hyper_parameters)
    return evolution
  except (ValueError, TypeError) as error:
    raise run_directory.RunDirectoryError(run_rows.damaged_row(file, row, error)) from error
