"""The rows of metrics.jsonl and episodes.csv: reading them, and cutting the files back when a run is resumed.

This module imports no TensorFlow, so that tools start quickly.
"""

import csv
import json
import os
from typing import Any, Callable, Iterator, NamedTuple

from scalable_agents.records import row_file
from scalable_agents.records import run_directory

EPISODES_HEADER = b'frames,level,return,length\n'


class Episode(NamedTuple):
  """A row of episodes.csv: a finished training episode."""
  frames: int            # Environment frames the run had learned from when the episode was counted.
  level: str
  episode_return: float  # Sum of raw rewards.
  length: int            # Environment frames.


def read_metrics(logdir: str, at_most: int | None = None) -> list[dict[str, Any]]:
  """Returns the complete rows of metrics.jsonl, oldest first; [] where there is none yet.

  Args:
    logdir: the run directory.
    at_most: the largest number of rows that is wanted, at least 2. Of a longer file, that many rows are read: they are
      spread evenly over it, the first and the last are among them, and no other part of the file is looked at.
  Raises:
    run_directory.RunDirectoryError: one of these rows cannot be read.
  """
  file = run_directory.path(logdir, run_directory.METRICS)
  return [metrics_row(file, row) for row in complete_rows(file, at_most)]


def last_metrics(logdir: str) -> dict[str, Any] | None:
  """Returns the last complete row of metrics.jsonl; None where there is none yet.

  Raises:
    run_directory.RunDirectoryError: the row cannot be read.
  """
  file = run_directory.path(logdir, run_directory.METRICS)
  with run_directory.one_line_errors(file):
    row = row_file.last(file)
  return metrics_row(file, row) if row else None


def metrics_row(file: str, row: row_file.Row) -> dict[str, Any]:
  """Returns a row of metrics.jsonl as a dict. Raises run_directory.RunDirectoryError where it is none."""
  try:
    values = json.loads(row.line)
    int(values['environment_frames']), float(values['wall_seconds'])
    return values
  except (ValueError, KeyError, TypeError) as error:
    raise run_directory.RunDirectoryError(damaged_row(file, row, error)) from error


def read_episodes(logdir: str, at_most: int | None = None) -> Iterator[Episode]:
  """Yields the complete rows of episodes.csv, oldest first; none where there is none yet.

  Args:
    logdir: the run directory.
    at_most: as for read_metrics; the file's header is one of the rows.
  Raises:
    run_directory.RunDirectoryError: one of these rows cannot be read.
  """
  file = run_directory.path(logdir, run_directory.EPISODES)
  for row in complete_rows(file, at_most):
    if row.position:  # The header is at 0.
      yield episode_row(file, row)


def episode_row(file: str, row: row_file.Row) -> Episode:
  """Returns a row of episodes.csv below its header. Raises run_directory.RunDirectoryError where it is no such row."""
  try:
    (frames, level, episode_return, length), = csv.reader([row.line.decode()])
    return Episode(int(frames), level, float(episode_return), int(length))
  except ValueError as error:
    raise run_directory.RunDirectoryError(damaged_row(file, row, error)) from error


def complete_rows(file: str, at_most: int | None = None) -> Iterator[row_file.Row]:
  """Yields the rows of a file that grows, or a sample of them; see row_file."""
  with run_directory.one_line_errors(file):
    yield from row_file.read(file) if at_most is None else row_file.sample(file, at_most)


def size_up_to(file: str, frames_of: Callable[[str, row_file.Row], int], environment_frames: int) -> int:
  """Returns the bytes of a file before its first row of later frames, and before a last row that a kill has torn.

  Only some rows are read, however long the file is: damage elsewhere is not found here.

  Args:
    file: with a row per line, in the order of their frames; it may be missing.
    frames_of: gives a row's frames from the file's name and the row.
    environment_frames: of the last row that counts.
  Raises:
    run_directory.RunDirectoryError: one of the rows that are read is damaged.
  """
  with run_directory.one_line_errors(file):
    return row_file.size_up_to(file, lambda row: frames_of(file, row) <= environment_frames)


def cut(file: str, size: int):
  """One system call and no copy, so there is nothing in between for a kill to leave behind."""
  with run_directory.one_line_errors(file):
    if os.path.exists(file) and os.path.getsize(file) > size:
      os.truncate(file, size)


def damaged_row(file: str, row: row_file.Row, why: Any) -> str:
  """What to say of a row that cannot be read."""
  return run_directory.damaged(f'{file}, line {row_file.line_number(file, row.position)}', why)
