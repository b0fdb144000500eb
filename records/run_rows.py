"""The rows of metrics.jsonl, episodes.csv and evaluations.jsonl: reading them, and cutting them back at a resume.

This module imports no TensorFlow, so that tools start quickly.
"""

from collections.abc import Callable, Collection, Iterator
import csv
import math
import os
from typing import Any, NamedTuple

from scalable_agents.records import json_text
from scalable_agents.records import metric_table
from scalable_agents.records import row_file
from scalable_agents.records import run_directory
from scalable_agents.records import settings

EPISODES_HEADER = b'frames,level,return,length\n'


class Episode(NamedTuple):
  """A row of episodes.csv: a finished training episode."""
  frames: int            # Environment frames of the run when the episode was counted.
  level: str
  episode_return: float  # Sum of raw rewards.
  length: int            # Environment frames.


class Evaluation(NamedTuple):
  """A row of evaluations.jsonl: an evaluation during training."""
  frames: int                # Environment frames that the evaluated agent was trained for.
  num_episodes: int          # Of each level.
  means: dict[str, float]    # Level, in its version for testing -> mean return.
  suite_score: float | None  # Human-normalised, per cent; None unless these are several levels of one suite.

  @property
  def mean_return(self) -> float:
    """The mean over the levels."""
    return sum(self.means.values()) / len(self.means)


def read_metrics(logdir: str, at_most: int | None = None) -> list[dict[str, Any]]:
  """Returns the complete rows of metrics.jsonl, oldest first; [] if there is none yet.

  Args:
    logdir: the run directory.
    at_most: the largest number of rows to return, at least 2; None for all rows. From a longer file, only a sample of
      rows is read. It is spread evenly over the file and includes the first and the last row.
  Raises:
    run_directory.RunDirectoryError: one of these rows cannot be read.
  """
  return list(iterate_metrics(logdir, at_most))


def iterate_metrics(logdir: str, at_most: int | None = None) -> Iterator[dict[str, Any]]:
  """Yields what `read_metrics` returns, row by row: all rows of a run of weeks with 57 levels would take gigabytes."""
  file = run_directory.path(logdir, run_directory.METRICS)
  for row in complete_rows(file, at_most):
    yield metrics_row(file, row)


def last_metrics(logdir: str) -> dict[str, Any] | None:
  """Returns the last complete row of metrics.jsonl; None if there is none yet.

  Raises:
    run_directory.RunDirectoryError: the row cannot be read.
  """
  file = run_directory.path(logdir, run_directory.METRICS)
  with run_directory.one_line_errors(file):
    row = row_file.last(file)
  return metrics_row(file, row) if row else None


def is_complete(logdir: str) -> bool:
  """Returns whether a run has trained for its --total_environment_frames, as far as its metrics say.

  Raises:
    run_directory.RunDirectoryError: metrics.jsonl or config.json is damaged.
  """
  row = last_metrics(logdir)
  if row is None:
    return False
  wanted = run_directory.read_config(logdir)['flags'].get('total_environment_frames')
  return isinstance(wanted, int) and row['environment_frames'] >= wanted


def metrics_row(file: str, row: row_file.Row) -> dict[str, Any]:
  """Returns a row of metrics.jsonl as a dict. Raises run_directory.RunDirectoryError if it is damaged."""
  try:
    values = json_text.parse(row.line)
    check_range('environment_frames', json_text.field(values, 'environment_frames', int))
    check_range('wall_seconds', json_text.field(values, 'wall_seconds', float))
    for name in values:
      json_text.field(values, name, str if name in metric_table.TEXTS else float, optional=True)
    return values
  except ValueError as error:
    raise run_directory.RunDirectoryError(damaged_row(file, row, error)) from error


def read_episodes(logdir: str, at_most: int | None = None,
                  levels: Collection[str] | None = None) -> Iterator[Episode]:
  """Yields the complete rows of episodes.csv, oldest first; none if there are none yet.

  An episode in which an environment gave a reward that is not finite has no return and is left out.

  Args:
    logdir: the run directory.
    at_most: as for read_metrics; the file's header counts as a row.
    levels: the levels of the run; None for any.
  Raises:
    run_directory.RunDirectoryError: one of these rows cannot be read.
  """
  file = run_directory.path(logdir, run_directory.EPISODES)
  for row in complete_rows(file, at_most):
    if row.position:  # The header is at 0.
      episode = episode_row(file, row)
      if levels is not None and episode.level not in levels:
        raise run_directory.RunDirectoryError(damaged_row(
            file, row, f'{settings.shown(episode.level)} is not a level of the run'))
      if math.isfinite(episode.episode_return):
        yield episode


def episode_row(file: str, row: row_file.Row) -> Episode:
  """Returns a row of episodes.csv, not its header. Raises run_directory.RunDirectoryError if it is damaged."""
  try:
    (frames, level, episode_return, length), = csv.reader([row.line.decode()])
    episode = Episode(int(frames), level, float(episode_return), int(length))
    check_range('frames', episode.frames)
    check_range('length', episode.length)
    return episode
  except (ValueError, csv.Error) as error:
    raise run_directory.RunDirectoryError(damaged_row(file, row, error)) from error


def read_evaluations(logdir: str, at_most: int | None = None) -> list[Evaluation]:
  """Returns the complete rows of evaluations.jsonl, oldest first; [] if there are none.

  Args:
    logdir: the run directory.
    at_most: as for read_metrics.
  Raises:
    run_directory.RunDirectoryError: one of these rows cannot be read.
  """
  file = run_directory.path(logdir, run_directory.EVALUATIONS)
  return [evaluation_row(file, row) for row in complete_rows(file, at_most)]


def last_evaluation(logdir: str) -> Evaluation | None:
  """Returns the last complete row of evaluations.jsonl; None if there is none. Raises what `read_evaluations` does."""
  file = run_directory.path(logdir, run_directory.EVALUATIONS)
  with run_directory.one_line_errors(file):
    row = row_file.last(file)
  return evaluation_row(file, row) if row else None


def evaluation_row(file: str, row: row_file.Row) -> Evaluation:
  """Returns a row of evaluations.jsonl. Raises run_directory.RunDirectoryError if it is damaged."""
  try:
    values = json_text.parse(row.line)
    frames, episodes = (json_text.field(values, name, int) for name in ('environment_frames', 'num_episodes'))
    check_range('environment_frames', frames)
    means = {level: json_text.field(result, 'mean', float)
             for level, result in json_text.field(values, 'levels', dict).items()}
    if not means:
      raise ValueError('"levels": want at least one')
    suite = json_text.field(values, 'suite', dict, optional=True)
    return Evaluation(frames, episodes, means, None if suite is None else json_text.field(suite, 'suite_score', float))
  except ValueError as error:
    raise run_directory.RunDirectoryError(damaged_row(file, row, error)) from error


def complete_rows(file: str, at_most: int | None = None) -> Iterator[row_file.Row]:
  """Yields the complete rows of a file, or a sample of at most `at_most` of them; see row_file."""
  with run_directory.one_line_errors(file):
    yield from row_file.read(file) if at_most is None else row_file.sample(file, at_most)


def size_up_to(file: str, frames_of: Callable[[str, row_file.Row], int], environment_frames: int) -> int:
  """Returns the size in bytes of the file's rows up to `environment_frames`, without a last row that is incomplete.

  Only a few rows are read, by binary search. Damage elsewhere in the file is not found here.

  Args:
    file: a file with one row per line, in the order of their frames. It may be missing.
    frames_of: returns the frames of a row, given the file's name and the row.
    environment_frames: rows of more frames than these do not count.
  Raises:
    run_directory.RunDirectoryError: one of the rows that are read is damaged.
  """
  with run_directory.one_line_errors(file):
    return row_file.size_up_to(file, lambda row: frames_of(file, row) <= environment_frames)


def cut(file: str, size: int):
  """Shortens a file to a size in bytes, if it is longer. It is one system call, so a kill leaves nothing half done."""
  with run_directory.one_line_errors(file):
    if os.path.exists(file) and os.path.getsize(file) > size:
      os.truncate(file, size)


def damaged_row(file: str, row: row_file.Row, why: Any) -> str:
  """Returns the message about a row that cannot be read."""
  return run_directory.damaged(f'{file}, line {row_file.line_number(file, row.position)}', why)


def check_range(name: str, value: float):
  """Raises ValueError if a number of frames or seconds cannot be that of a run."""
  if not 0 <= value <= settings.MAX_FRAMES:
    raise ValueError(f'{name} {value}: want 0 to {settings.MAX_FRAMES:,}')
