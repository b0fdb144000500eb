"""Everything a run needs to go on, saved so that a kill at any time leaves the last complete checkpoint in force.

TensorFlow writes a checkpoint's data first and its index last, each under another name until it is whole. Then the file
`checkpoint`, which names the latest one, is replaced in one step. TensorFlow's own tools can read all of them.

TensorFlow takes a path for a pattern in places: to delete `seed[1]/ckpt-1` it deletes `seed1/ckpt-1`. So it never sees
the path of a run here. It writes through a path of the open directory, and reads from a copy in memory, which also
stays whole when another process deletes the files.
"""

import contextlib
import itertools
import os
import re
from typing import Any, Iterator, NamedTuple

from google.protobuf import message
import tensorflow as tf

from scalable_agents.records import run_directory

_STATE = 'checkpoint'
_STATE_LATEST = re.compile(rb'^model_checkpoint_path: "(?:[^"\n]*/)?ckpt-(\d+)"$', re.MULTILINE)
_STATE_KEPT = re.compile(rb'^all_model_checkpoint_paths: "(?:[^"\n]*/)?ckpt-(\d+)"$', re.MULTILINE)

_numbers_in_memory = itertools.count()

# What reading damaged files raises, and what objects raise that find no value, or one of another shape.
_DAMAGED = (tf.errors.OpError, IndexError, message.DecodeError)
_OTHER_OBJECTS = (ValueError, AssertionError)


class CheckpointError(run_directory.RunDirectoryError):
  """A checkpoint cannot be read or written. The message is one line: what, where, what to do."""


class Loaded(NamedTuple):
  """A checkpoint in memory."""
  path: str                # Of its files, without suffix.
  files: dict[str, bytes]  # Suffix -> content.


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

  def restore(self, loaded: Loaded | None = None, partial: bool = False) -> str | None:
    """Gives all objects the values of a checkpoint, bit for bit and at once.

    Every variable, optimiser slots included, must have been created before.

    Args:
      loaded: the checkpoint; default: the latest one in the directory.
      partial: the checkpoint may hold more than the objects here, as when only the network is wanted.
    Returns:
      The checkpoint's path; None where there is none.
    Raises:
      CheckpointError: it is damaged or does not fit. No file was changed; some variables may have been.
    """
    loaded = loaded or load(self._directory)
    if loaded is None:
      return None
    path = loaded.path
    try:
      with _for_tensorflow(loaded) as prefix:
        status = self._checkpoint.restore(prefix)
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
    self._checkpoint.save_counter.assign_add(1)
    name = f'ckpt-{self._checkpoint.save_counter.numpy() if number is None else number}'
    here = self._directory
    try:
      os.makedirs(self._directory, exist_ok=True)
      with run_directory.opened(self._directory) as here:
        self._checkpoint.write(os.path.join(here, name))
        self._record(here, name)
    except (tf.errors.OpError, OSError) as error:
      reason = error.strerror if isinstance(error, OSError) else error.message.replace(here, self._directory)
      raise CheckpointError(f'{self._directory}: no checkpoint could be written ({reason}): make room or mend its '
                            'permissions, and start again to go on from the checkpoint before') from error
    return os.path.join(self._directory, name)

  def _record(self, directory: str, name: str):
    """Makes a checkpoint the latest one, and deletes those beyond `keep`, in the order in which they were saved."""
    state = _read_state(directory)
    numbers = _numbers(os.listdir(directory)) if state is None else map(int, _STATE_KEPT.findall(state))
    names = [*(earlier for number in numbers if (earlier := f'ckpt-{number}') != name), name]
    kept = names[-self._keep:]
    with run_directory.replaced(os.path.join(directory, _STATE)) as new, open(new, 'w', encoding='utf-8') as stream:
      stream.write(f'model_checkpoint_path: "{name}"\n')
      stream.writelines(f'all_model_checkpoint_paths: "{other}"\n' for other in kept)
    # A file's index goes first, so that what a kill leaves of it is no complete checkpoint.
    for file in sorted(os.listdir(directory), reverse=True):
      if file.partition('.')[0] in names[:-self._keep]:
        os.remove(os.path.join(directory, file))

  def _advice(self, damaged: str) -> str:
    """What to do about a checkpoint that cannot be restored."""
    if trainer := run_directory.trainer(os.path.dirname(self._directory)):
      return _wait_for(trainer)
    others = [number for number in _numbers(os.listdir(self._directory))
              if os.path.basename(damaged) != f'ckpt-{number}']
    if others:
      return (f'delete {damaged}.* and {os.path.join(self._directory, _STATE)} to go on from ckpt-{others[-1]}, or '
              'choose another --logdir')
    return 'choose another --logdir'


def load(directory: str) -> Loaded | None:
  """Reads the latest checkpoint into memory, whole also where a process that trains saves others and deletes old ones.

  Returns:
    The checkpoint; None where no save has ever been completed.
  Raises:
    CheckpointError: what tells which one it is is damaged.
    run_directory.RunDirectoryError: the files cannot be read.
  """
  while path := latest(directory):
    files = {}
    with run_directory.one_line_errors(directory):
      for file in os.listdir(directory):
        name, _, suffix = file.partition('.')
        if name == os.path.basename(path):
          with contextlib.suppress(FileNotFoundError), open(os.path.join(directory, file), 'rb') as stream:
            files[suffix] = stream.read()
    if latest(directory) == path:  # Else there may have been a file that was deleted before it could be read.
      return Loaded(path, files)
  return None


def latest(directory: str) -> str | None:
  """The path without suffix of the checkpoint to restore; None where no save has ever been completed.

  Raises:
    CheckpointError: what tells which one it is is damaged.
  """
  with run_directory.one_line_errors(directory):
    state = _read_state(directory)
    if state is None:
      # There is no directory yet; or the first save was killed before its last step, or a user has removed a damaged
      # checkpoint and this file.
      numbers = _numbers(os.listdir(directory)) if os.path.isdir(directory) else []
      return os.path.join(directory, f'ckpt-{numbers[-1]}') if numbers else None
  if match := _STATE_LATEST.search(state):
    return os.path.join(directory, f'ckpt-{int(match[1])}')
  trainer = run_directory.trainer(os.path.dirname(os.path.abspath(directory)))
  advice = _wait_for(trainer) if trainer else 'delete this file to go on from the latest checkpoint beside it'
  raise CheckpointError(f'{os.path.join(directory, _STATE)} is damaged: {advice}')


def number_of(path: str) -> int:
  """The number in the name of a checkpoint."""
  return int(path.rpartition('-')[2])


def _read_state(directory: str) -> bytes | None:
  """The content of the file that names the latest checkpoint; None where there is no such file."""
  with contextlib.suppress(FileNotFoundError, NotADirectoryError):
    with open(os.path.join(directory, _STATE), 'rb') as stream:
      return stream.read()
  return None


@contextlib.contextmanager
def _for_tensorflow(loaded: Loaded) -> Iterator[str]:
  """Gives TensorFlow's path of a checkpoint in memory, without suffix, valid inside the block."""
  prefix = f'ram://checkpoint-{next(_numbers_in_memory)}'
  try:
    for suffix, content in loaded.files.items():
      with tf.io.gfile.GFile(f'{prefix}.{suffix}', 'wb') as stream:
        stream.write(content)
    yield prefix
  finally:
    for suffix in loaded.files:
      tf.io.gfile.remove(f'{prefix}.{suffix}')


def _wait_for(trainer: str) -> str:
  """What to do about a damaged file of a run that a process trains."""
  return f'{trainer} trains there: leave its files alone, and try again after its next checkpoint'


def _numbers(names: list[str]) -> list[int]:
  """The numbers of complete checkpoints, in order: TensorFlow writes the index last."""
  matches = (re.fullmatch(r'ckpt-(\d+)\.index', name) for name in names)
  return sorted(int(match[1]) for match in matches if match)


def _one_line(error: Exception) -> str:
  return ' '.join(str(error).split())[:300]
