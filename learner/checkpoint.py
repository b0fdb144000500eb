"""Everything a run needs to go on, saved so that a kill at any time leaves the last complete checkpoint in force.

TensorFlow writes a checkpoint's data first, its index last, each under another name until it is whole, and then
replaces the file `checkpoint` that names the latest one.
"""

import os
import re
from typing import Any

from google.protobuf import message
import tensorflow as tf

from scalable_agents.learner import run_directory

_STATE = 'checkpoint'

# What reading damaged files raises, and what objects raise that find no value, or one of another shape.
_DAMAGED = (tf.errors.OpError, IndexError, message.DecodeError)
_OTHER_OBJECTS = (ValueError, AssertionError)


class CheckpointError(run_directory.RunDirectoryError):
  """A checkpoint cannot be read or written. The message is one line: what, where, what to do."""


class Checkpointer:
  """Saves and restores trackable objects (variables, modules, optimisers, PythonState) in one directory."""

  def __init__(self, directory: str, keep: int = 2, **trackables: Any):
    """Reads and writes nothing yet.

    Args:
      directory: where the checkpoints are, or will be.
      keep: how many of the latest checkpoints stay.
      **trackables: what to save, by the names under which it is saved.
    """
    self._directory = os.path.abspath(directory)
    self._keep = keep
    self._checkpoint = tf.train.Checkpoint(**trackables)
    self._manager = None

  def restore(self, path: str | None = None, partial: bool = False) -> str | None:
    """Gives all objects the values of a checkpoint, bit for bit and at once.

    Every variable, optimiser slots included, must have been created before.

    Args:
      path: of the checkpoint, without suffix; default: of the latest one.
      partial: the checkpoint may hold more than the objects here, as when only the network is wanted.
    Returns:
      The checkpoint's path; None where there is none.
    Raises:
      CheckpointError: it is damaged or does not fit. No file was changed; some variables may have been.
    """
    path = path or latest(self._directory)
    if path is None:
      return None
    try:
      status = self._checkpoint.restore(path)
      if partial:
        status.assert_existing_objects_matched().expect_partial()
      else:
        status.assert_consumed()
    except _DAMAGED as error:
      raise CheckpointError(f'checkpoint {path} is damaged ({_one_line(error)}): {self._advice(path)}') from error
    except _OTHER_OBJECTS as error:
      raise CheckpointError(f'checkpoint {path} does not fit this network, optimiser or levels ({_one_line(error)}): '
                            'use the flags and the version it was made with, or choose another --logdir') from error
    return path

  def save(self, number: int | None = None) -> str:
    """Writes a checkpoint and then deletes those beyond the `keep` latest. Returns its path without suffix.

    The objects must not change meanwhile.

    Args:
      number: in its name; default: one more than that of the one before, which must have been saved or restored here.
    Raises:
      CheckpointError: it cannot be written; the one before stays in force.
    """
    if self._manager is None:  # Made late, as it looks into the directory for earlier checkpoints.
      self._manager = tf.train.CheckpointManager(self._checkpoint, self._directory, max_to_keep=self._keep)
    try:
      return self._manager.save(checkpoint_number=number)
    except tf.errors.OpError as error:
      raise CheckpointError(f'{self._directory}: no checkpoint could be written ({error.message}): make room or mend '
                            'its permissions, and start again to go on from the checkpoint before') from error

  def _advice(self, damaged: str) -> str:
    """What to do about a checkpoint that cannot be restored."""
    others = [number for number in _numbers(os.listdir(self._directory))
              if os.path.basename(damaged) != f'ckpt-{number}']
    if others:
      return (f'delete {damaged}.* and {os.path.join(self._directory, _STATE)} to go on from ckpt-{others[-1]}, or '
              'choose another --logdir')
    return 'choose another --logdir'


def latest(directory: str) -> str | None:
  """The path without suffix of the checkpoint to restore; None where no save has ever been completed.

  Raises:
    CheckpointError: what tells which one it is is damaged.
  """
  state_file = os.path.join(directory, _STATE)
  with run_directory.one_line_errors(directory):
    if not os.path.isdir(directory):
      return None
    names = os.listdir(directory)
  if _STATE not in names:
    # The first save was killed before its last step, or a user has removed a damaged checkpoint and this file.
    numbers = _numbers(names)
    return os.path.join(directory, f'ckpt-{numbers[-1]}') if numbers else None
  try:
    state = tf.train.get_checkpoint_state(directory)
  except ValueError:
    state = None
  if state is None:
    raise CheckpointError(f'{state_file} is damaged: delete this file to go on from the latest checkpoint beside it')
  return state.model_checkpoint_path


def number_of(path: str) -> int:
  """The number in the name of a checkpoint."""
  return int(path.rpartition('-')[2])


def _numbers(names: list[str]) -> list[int]:
  """The numbers of complete checkpoints, in order: TensorFlow writes the index last."""
  matches = (re.fullmatch(r'ckpt-(\d+)\.index', name) for name in names)
  return sorted(int(match[1]) for match in matches if match)


def _one_line(error: Exception) -> str:
  return ' '.join(str(error).split())[:300]
