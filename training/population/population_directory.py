"""What the members of a population leave for each other: run directories side by side, and in each of them

  population/      snapshots of agent, optimiser and hyper-parameters, see checkpoint.py
  fitness.json     what the agent of the latest snapshot was worth
  evolution.jsonl  one JSON object per evolution

Members meet nowhere else. They need no server, only a file system that they share, and do not mind who is dead.
This module imports no TensorFlow, so that tools start quickly.
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
  """What a member's agent was worth."""
  environment_frames: int  # That the member had trained for, and its snapshot is of.
  fitness: float           # Points: per cent of a human, or of a return of 1.
  hyper_parameters: dict[str, float]  # That the agent was trained with.


class Evolution(NamedTuple):
  """A step of a member's evolution."""
  environment_frames: int
  fitness: float      # Before it, in points.
  parent: int | None  # The member that weights and hyper-parameters were copied from; None if its own were kept.
  parent_environment_frames: int | None  # That the parent's snapshot had been trained for.
  hyper_parameters: dict[str, float]     # After it.


def member_name(index: int) -> str:
  """The name of a member's run directory."""
  return f'member_{index:02}'


def member_index(logdir: str) -> int | None:
  """Which member a run directory is by its name; None if by none."""
  match = re.fullmatch(r'member_(\d\d+)', os.path.basename(os.path.normpath(logdir)))
  return int(match[1]) if match else None


def members(population: str) -> dict[int, str]:
  """Member -> run directory, of those that have been started, in order."""
  found = {member_index(os.path.dirname(config)): os.path.dirname(config)
           for config in glob.glob(os.path.join(glob.escape(population), 'member_*', run_directory.CONFIG))}
  return {index: found[index] for index in sorted(found.keys() - {None})}


def write_fitness(logdir: str, fitness: Fitness):
  """Makes a member's fitness known, in one go.

  Raises:
    run_directory.RunDirectoryError: the file cannot be written.
  """
  run_directory.write_json(run_directory.path(logdir, FITNESS), fitness._asdict())


def read_fitness(logdir: str) -> Fitness | None:
  """What a member has written last; None before that.

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
  """The complete rows of evolution.jsonl, oldest first; [] where there is none yet.

  Raises:
    run_directory.RunDirectoryError: a row cannot be read.
  """
  file = run_directory.path(logdir, EVOLUTION)
  return [_evolution(file, row) for row in run_rows.complete_rows(file)]


def drop_evolutions_after(logdir: str, environment_frames: int):
  """Cuts evolution.jsonl back to what a checkpoint knows of: later evolutions will be lived through again.

  Raises:
    run_directory.RunDirectoryError: a row cannot be read, or the file not be cut.
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
