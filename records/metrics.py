"""Writes the metrics of a run: metrics.jsonl, TensorBoard events, episodes.csv and evaluations.jsonl.

Rows are not buffered in the process, so a `kill -9` loses none. A resumed run cuts the files of rows back to the frames
of its checkpoint and appends to them. It writes TensorBoard events to a new file, which begins with an event that makes
TensorBoard ignore the later frames of earlier files. So no row is missing or doubled, provided that

  * rows are written in the order of their frames, and
  * before a checkpoint is saved, the episodes that it counts are added and a row of its frames is written.

The time to resume does not grow with the length of the run. Nothing here is called per environment step:
`add_episodes` is called once per learner update, `write` once per log interval.
"""

from collections.abc import Callable, Mapping, Sequence
import contextlib
import csv
import io
import json
import math
import os
import socket
import time
from typing import Any

import numpy as np
import tensorflow as tf

from scalable_agents.records import metric_table
from scalable_agents.records import row_file
from scalable_agents.records import run_directory
from scalable_agents.records import run_rows


def process_seconds() -> float:
  """Returns the seconds since this process was started, including the time of its imports."""
  with open('/proc/self/stat', encoding='ascii', errors='replace') as stream:
    start_ticks = int(stream.read().rpartition(')')[2].split()[19])  # Field 22 of proc(5); the name may hold spaces.
  return time.clock_gettime(time.CLOCK_BOOTTIME) - start_ticks / os.sysconf('SC_CLK_TCK')


class MetricsWriter:
  """Writes the metrics of a run. A run directory has one writer at a time (see run_directory.open_run)."""

  def __init__(self, logdir: str, environment_frames: int, seconds: Callable[[], float] = process_seconds):
    """Cuts the files back to the frames of the run's checkpoint, and opens them to append.

    Args:
      logdir: the run directory.
      environment_frames: the frame counter of the restored checkpoint; 0 if nothing was restored. Rows of later frames
        are deleted, because the run will play these frames again.
      seconds: the clock of `wall_seconds`, which continues from the last row that is kept.
    Raises:
      run_directory.RunDirectoryError: a file cannot be read or written. Damage is found only near the place where a
        file is cut.
    """
    self._seconds = seconds
    self._last_frames = {}  # File -> frames of its last row.
    metrics, episodes, self._evaluations = (run_directory.path(logdir, name) for name in (
        run_directory.METRICS, run_directory.EPISODES, run_directory.EVALUATIONS))
    sizes = {file: run_rows.size_up_to(file, frames_of, environment_frames) for file, frames_of in (
        (metrics, _row_frames), (episodes, _episode_frames), (self._evaluations, _evaluation_frames))}
    for file, size in sizes.items():  # No file is cut before all were found undamaged.
      run_rows.cut(file, size)
    self.last_row = run_rows.last_metrics(logdir) or {}  # Of earlier processes; {} in a new run.
    self._seconds_before = self.last_row.get('wall_seconds', 0.)
    with run_directory.one_line_errors(logdir):
      self._metrics = open(metrics, 'ab', buffering=0)
      self._episodes = open(episodes, 'ab', buffering=0)
    if not self._episodes.tell():
      self._append(self._episodes, environment_frames, run_rows.EPISODES_HEADER)
    self._events = _Events(logdir, environment_frames, time.time() - seconds() - self._seconds_before)

  def write(self, values: dict[str, Any]):
    """Adds a row: `values` and `wall_seconds`. Numbers that are not finite become null. TensorBoard gets numbers only.

    Args:
      values: name -> a number (Python, NumPy or an eager tensor with one element) or None. Those in metric_table.TEXTS
        are text. It must have `environment_frames`.
    Raises:
      ValueError: `environment_frames` is below that of an earlier row, or a metric is text that should be a number.
      run_directory.RunDirectoryError: the row could not be written.
    """
    row: dict[str, Any] = {name: _plain(value) for name, value in values.items()}
    if texts := [name for name, value in row.items() if isinstance(value, str) and name not in metric_table.TEXTS]:
      raise ValueError(f'{texts[0]}={row[texts[0]]!r}: want a number; metric_table.TEXTS has the metrics that are text')
    row['wall_seconds'] = round(self._seconds_before + self._seconds(), 3)
    self._append(self._metrics, row['environment_frames'], json.dumps(row, allow_nan=False).encode() + b'\n')
    self._events.write(row['environment_frames'], row['wall_seconds'], row)

  def add_episodes(self, frames: int, levels: Sequence[str], returns: np.ndarray, lengths: np.ndarray):
    """Adds a row for each finished episode that arrived with an update.

    Args:
      frames: environment frames of the run so far, including those that arrived with this update.
      levels: [N] the level's name of each episode.
      returns: [N] float32, sums of raw rewards.
      lengths: [N] int32, environment frames.
    Raises:
      ValueError: the lengths differ, or `frames` is below that of an earlier row.
      run_directory.RunDirectoryError: the rows could not be written.
    """
    if isinstance(levels, str) or not len(levels) == len(returns) == len(lengths):
      raise ValueError(f'add_episodes: want as many levels as returns and lengths, got {levels!r}, {returns!r}, '
                       f'{lengths!r}')
    text = io.StringIO()
    rows = csv.writer(text, lineterminator='\n')
    for level, episode_return, length in zip(levels, returns, lengths, strict=True):
      rows.writerow((int(frames), level, float(episode_return), int(length)))
    self._append(self._episodes, int(frames), text.getvalue().encode())

  def add_evaluation(self, row: dict[str, Any]) -> run_rows.Evaluation:
    """Adds a row to evaluations.jsonl, and the mean returns to TensorBoard as `evaluation/...`.

    Args:
      row: `environment_frames`, for which the evaluated agent was trained; `num_episodes`, `levels` and `suite`, as in
        evaluation.json; and further values, if any.
    Returns:
      The row, as readers of the file get it.
    Raises:
      ValueError: `environment_frames` is below that of an earlier row.
      run_directory.RunDirectoryError: the row could not be written.
    """
    line = json.dumps(row, allow_nan=False).encode() + b'\n'
    with run_directory.one_line_errors(self._evaluations):
      with open(self._evaluations, 'ab', buffering=0) as file:  # Opened here, so that other runs have no such file.
        self._append(file, row['environment_frames'], line)
    evaluation = run_rows.evaluation_row(self._evaluations, row_file.Row(0, line))
    self._events.write(evaluation.frames, self._seconds_before + self._seconds(), {
        'evaluation/return': evaluation.mean_return, 'evaluation/suite_score': evaluation.suite_score,
        **{f'evaluation/return/{level}': mean for level, mean in evaluation.means.items()}})
    return evaluation

  def sync(self):
    """Waits until all rows of metrics.jsonl and episodes.csv are on the disk, so that a power cut loses none of them.

    Raises:
      run_directory.RunDirectoryError: the disk has failed.
    """
    for file in (self._metrics, self._episodes):
      with run_directory.one_line_errors(file.name):
        os.fsync(file.fileno())

  def close(self):
    """Closes the files."""
    self._metrics.close()
    self._episodes.close()
    self._events.close()

  def _append(self, file: io.FileIO, frames: int, rows: bytes):
    last_frames = self._last_frames.get(file.name, 0)
    if frames < last_frames:
      raise ValueError(f'{file.name}: rows must come in the order of their frames, want >= {last_frames}, got {frames}')
    self._last_frames[file.name] = frames
    with run_directory.one_line_errors(file.name):
      size = os.fstat(file.fileno()).st_size
      try:
        while rows:
          rows = rows[file.write(rows):]
      except OSError:
        with contextlib.suppress(OSError):
          os.ftruncate(file.fileno(), size)  # A later row must not follow a part of this one.
        raise


class _Events:
  """A file of scalars for TensorBoard. tf.summary would be 200 times as slow."""

  def __init__(self, logdir: str, environment_frames: int, zero_seconds: float):
    """Creates a new file beside those of earlier processes.

    Args:
      logdir: the run directory.
      environment_frames: TensorBoard ignores later frames than these in earlier files.
      zero_seconds: the Unix time at which `wall_seconds` would have been 0.
    """
    self._zero_seconds = zero_seconds
    # TensorBoard reads the files in the order of their names.
    name = f'{run_directory.EVENTS}{time.time_ns()}.{socket.gethostname()}.{os.getpid()}'
    self._where = run_directory.path(logdir, name)
    with _one_line_op_errors(self._where):
      self._records = tf.io.TFRecordWriter(self._where)
    now = time.time()
    self._write(tf.compat.v1.Event(wall_time=now, file_version='brain.Event:2'))
    # TensorBoard drops earlier events of this step and of later ones.
    self._write(tf.compat.v1.Event(wall_time=now, step=environment_frames + 1,
                                   session_log=tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)))

  def write(self, frames: int, seconds: float, values: dict[str, Any]):
    event = tf.compat.v1.Event(wall_time=self._zero_seconds + seconds, step=int(frames))
    for name, value in values.items():
      if isinstance(value, (int, float)):
        event.summary.value.add(tag=name, simple_value=value)
    self._write(event)

  def _write(self, event: tf.compat.v1.Event):
    with _one_line_op_errors(self._where):
      self._records.write(event.SerializeToString())
      self._records.flush()

  def close(self):
    self._records.close()


@contextlib.contextmanager
def _one_line_op_errors(where: str):
  try:
    yield
  except tf.errors.OpError as error:
    raise run_directory.RunDirectoryError(f'{where}: {error.message}') from error


def _row_frames(file: str, row: row_file.Row) -> int:
  return run_rows.metrics_row(file, row)['environment_frames']


def _episode_frames(file: str, row: row_file.Row) -> int:
  return 0 if row.line == run_rows.EPISODES_HEADER else run_rows.episode_row(file, row).frames


def _evaluation_frames(file: str, row: row_file.Row) -> int:
  return run_rows.evaluation_row(file, row).frames


def _plain(value: Any) -> int | float | str | None:
  """Converts a value for JSON: scalars of NumPy and TensorFlow to Python numbers; NaN and infinity to None."""
  if value is None or isinstance(value, str):
    return value
  number = np.asarray(value).item()
  return (int(number) if isinstance(number, bool) else number) if math.isfinite(number) else None


def merge(*parts: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the metrics of several parts of the program, by name. Raises ValueError if two parts have the same name."""
  merged = {}
  for part in parts:
    if both := merged.keys() & part.keys():
      raise ValueError(f'metrics that two parts of the program give: {", ".join(sorted(both))}')
    merged |= part
  return merged
