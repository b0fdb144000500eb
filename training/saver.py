"""Saves the state of a run at intervals and at its end, and restores it."""

from collections.abc import Callable, Mapping
import contextlib
import time
from typing import Any

from scalable_agents.records import checkpoint
from scalable_agents.records import run_directory
from scalable_agents.records import run_rows


def has_checkpoint(directory: run_directory.Run) -> bool:
  """Whether the run has a checkpoint to resume from. Raises CheckpointError if it is damaged."""
  return checkpoint.latest(_checkpoints(directory)) is not None


class Saver:
  """The checkpoints of a run that trains."""

  def __init__(self, directory: run_directory.Run, interval_seconds: float, beside: Mapping[str, checkpoint.Beside],
               **trackables: Any):
    """Restores the latest checkpoint, or saves the first one if there is none.

    Args:
      directory: the run directory.
      interval_seconds: time between two checkpoints.
      beside, **trackables: see checkpoint.Checkpointer.
    Raises:
      run_directory.RunDirectoryError: the checkpoint is damaged or missing, or cannot be written.
    """
    self._directory = directory
    self._interval_seconds = interval_seconds
    self._checkpointer = checkpoint.Checkpointer(_checkpoints(directory), beside=beside, **trackables)
    self._last_save = time.monotonic()
    if not self._checkpointer.restore():
      if run_rows.last_metrics(directory.path):
        raise run_directory.RunDirectoryError(
            f'{directory.logdir} has metrics of a run and no checkpoint to resume it from: put '
            f'{run_directory.CHECKPOINTS} back, or choose another --logdir')
      self._checkpointer.save()

  def begin_interval(self):
    """Begins the time until the next checkpoint is due."""
    self._last_save = time.monotonic()

  def check(self):
    """Checks that checkpoints can be written: the last one was, and the run directory is where it has been.

    Raises:
      run_directory.RunDirectoryError: they cannot.
    """
    self._directory.check_in_place()
    self._checkpointer.check()

  @property
  def is_writing(self) -> bool:
    """Whether a checkpoint is being written."""
    return self._checkpointer.is_writing

  def begin_if_due(self, write_row: Callable[[], None]) -> bool:
    """Begins to save if it is time to and no checkpoint is being written.

    Args:
      write_row: called first, so that metrics.jsonl reaches as far as the checkpoint.
    Returns:
      Whether it has begun.
    Raises:
      run_directory.RunDirectoryError: a file cannot be written.
    """
    if time.monotonic() - self._last_save < self._interval_seconds or self.is_writing:
      return False
    self.begin_interval()
    self._directory.check_in_place()
    write_row()
    self._checkpointer.begin_save()
    return True

  def save(self, write_row: Callable[[], None]):
    """Saves now. The argument and errors are those of `begin_if_due`."""
    self._directory.check_in_place()
    write_row()
    self._checkpointer.save()

  def close(self):
    """Waits until no checkpoint is being written. An error that has ended the run is not raised again."""
    with contextlib.suppress(checkpoint.CheckpointError):
      self._checkpointer.close()


def _checkpoints(directory):
  return run_directory.path(directory.path, run_directory.CHECKPOINTS)
