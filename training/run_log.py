"""The log of a training run: metrics.jsonl, episodes.csv, TensorBoard events, the curve and the progress line."""

from collections.abc import Mapping, Sequence
import time
from typing import Any, TextIO

from scalable_agents.actor import actor_host
from scalable_agents.environments import scores
from scalable_agents.records import episode_statistics
from scalable_agents.records import metrics as metrics_lib
from scalable_agents.records import progress as progress_lib
from scalable_agents.records import run_directory
from scalable_agents.training import curve_process
from scalable_agents.training import metrics_row

_CURVE_INTERVAL_SECONDS = 300.
_LATE_SECONDS = 60.  # Levels on which no environment plays after this time are named.


def make_statistics(levels: Sequence[str]) -> episode_statistics.EpisodeStatistics:
  """Makes the statistics of a run's episodes, which are part of its checkpoints."""
  return episode_statistics.EpisodeStatistics(
      levels, suite_score=scores.suite_figures if scores.is_suite(levels) else None)


class RunLog:
  """Collects the metrics of updates and writes a row once per interval."""

  def __init__(self, directory: run_directory.Run, host: actor_host.ActorHost,
               statistics: episode_statistics.EpisodeStatistics, levels: Sequence[str], environment_frames: int,
               total_environment_frames: int, interval_seconds: float, stream: TextIO):
    """Removes rows that are newer than the checkpoint from the files, and shows the progress line.

    Args:
      directory: the run directory.
      host: the actor host of this process; see metrics_row.MetricsRow.
      statistics: the statistics of episodes, as restored from the checkpoint.
      levels: names of the run's levels; a level's id is its index.
      environment_frames: number of frames at the checkpoint.
      total_environment_frames: number of frames after which the run ends.
      interval_seconds: time between two rows; 0 for a row after every update.
      stream: where progress is shown.
    Raises:
      run_directory.RunDirectoryError: a file is damaged, or cannot be written.
    """
    self._levels = tuple(levels)
    self._statistics = statistics
    self._interval_seconds = interval_seconds
    self._metrics = metrics_lib.MetricsWriter(directory.path, environment_frames)
    self._progress = progress_lib.Progress(total_environment_frames, environment_frames, stream)
    self._curve = curve_process.CurveProcess(directory.path, self.say)
    self._host = host
    self._names_late_levels = True
    self._began = self._last_curve = time.monotonic()
    self._row = metrics_row.MetricsRow(host, levels, self._metrics.last_row.get('environment_restarts') or 0)
    self._is_behind = False  # Whether the last row could not be written.

  def say(self, text: str):
    """Shows the user a line."""
    self._progress.message(text)

  def report_fault(self, text: str):
    """Shows the first line of an error; the whole text goes to the libraries' log."""
    self._progress.report_fault(text)

  def begin(self, environment_frames: int):
    """Begins an interval. The host's pool must have been made.

    Args:
      environment_frames: number of frames of the run so far.
    """
    self._row.begin(environment_frames)

  def waiting(self):
    """Context manager that counts the time inside it as learner waiting time."""
    return self._row.waiting()

  def age(self) -> float:
    """Seconds since the last row."""
    return self._row.age()

  @property
  def has_unwritten_updates(self) -> bool:
    """Whether there were updates since the last row that could be written."""
    return self._row.updates > 0 or self._is_behind

  @property
  def is_due(self) -> bool:
    """Whether it is time for a row."""
    return self._row.age() >= self._interval_seconds

  def add(self, environment_frames: int, metrics: dict[str, Any], episodes):
    """Adds an update.

    Args:
      environment_frames: number of frames of the run so far, including this update's.
      metrics: the update's metrics; name -> number, or array with a number per level.
      episodes: intake.Episodes that arrived with the update's batches, as arrays of finite numbers.
    """
    level_ids, returns, lengths = episodes
    self._row.add(metrics)  # First, so that it counts even if the episodes cannot be written.
    self._statistics.add(level_ids, returns, lengths)
    self._metrics.add_episodes(environment_frames, [self._levels[i] for i in level_ids], returns, lengths)

  def write(self, environment_frames: int, *more: Mapping[str, Any], present: Mapping[str, Any] = {},
            other_restarts: int = 0):
    """Writes a row and shows it.

    Args:
      environment_frames: number of frames of the run so far.
      *more: further metrics of the row, from several parts of the program. No two of them have the same name.
      present: the current hyper-parameters. They replace the means over updates of the same names.
      other_restarts: number of environment workers that other processes have replaced.
    """
    merged = metrics_lib.merge(self._statistics.metrics(), *more)
    row = {**self._row.finish(environment_frames, merged.get('replay_waits_for', '')), **present}
    row['environment_restarts'] += other_restarts
    row = metrics_lib.merge(row, merged)
    self._is_behind = True
    self._metrics.write(row)
    self._is_behind = False
    starting = self._host.pool.starting()
    self._name_late_levels(starting)
    self._progress.update(row, f'{len(starting):,} of {self._host.num_environments:,} environments' if starting else '')

  def _name_late_levels(self, starting):
    """Names the levels on which no environment of this process plays yet, once, when most other levels are played."""
    if not starting or not self._names_late_levels or time.monotonic() - self._began < _LATE_SECONDS:
      return
    level_ids = self._host.level_ids
    late = set(level_ids) - {level_id for actor, level_id in enumerate(level_ids) if actor not in starting}
    if 0 < 2 * len(late) <= len(set(level_ids)):
      self._names_late_levels = False
      self.say(f'levels without a step so far: {", ".join(self._levels[level_id] for level_id in sorted(late))}')

  def add_evaluation(self, row: dict[str, Any]):
    """Adds the result of an evaluation during training, a row for evaluations.jsonl, and shows it."""
    evaluation = self._metrics.add_evaluation(row)
    score = (f'return {progress_lib.short(evaluation.mean_return)}' if evaluation.suite_score is None
             else f'score {evaluation.suite_score:.1f} %')
    self.say(f'evaluation after {evaluation.frames:,} frames: {score}, {evaluation.num_episodes:,} episodes per level')

  def draw_curve_if_due(self):
    """Starts to draw the learning curve again, if the last drawing is old enough."""
    if time.monotonic() - self._last_curve >= _CURVE_INTERVAL_SECONDS:
      self._last_curve = time.monotonic()
      self._curve.begin()

  def finish_curve(self):
    """Draws the curve for the last time."""
    self._curve.finish()

  def close_progress(self):
    """Ends the progress line, which stays on the screen. Idempotent."""
    self._progress.close()

  def sync(self):
    """Waits until all rows are on the disk. Raises run_directory.RunDirectoryError if the disk has failed."""
    self._metrics.sync()

  def close(self):
    """Closes the files and the progress line."""
    self._metrics.close()
    self._progress.close()
