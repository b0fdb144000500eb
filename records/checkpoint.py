"""Checkpoints: everything that a run needs to continue. A kill at any time leaves the newest complete one in force.

TensorFlow writes a checkpoint's data first and its index last, each under a temporary name until it is complete. Then
the file `checkpoint`, which names the latest checkpoint, is replaced in one step. TensorFlow's own tools can read all
these files. State that is too large for TensorFlow's format has a folder of its own beside the checkpoint, which is
complete before the index is written.

In places TensorFlow takes a path for a pattern: to delete `seed[1]/ckpt-1` it deletes `seed1/ckpt-1`. So it never gets
the path of a run here. It writes through a path of the open directory, and it reads from a copy in memory. That copy is
also complete when another process deletes the files meanwhile.
"""

from concurrent import futures
import contextlib
import itertools
import os
import re
import shutil
from typing import Any, Iterator, Mapping, NamedTuple, Protocol

from google.protobuf import message
import tensorflow as tf

from scalable_agents.records import run_directory
from scalable_agents.records import trackable_copy

_STATE = 'checkpoint'
_STATE_LATEST = re.compile(rb'^model_checkpoint_path: "(?:[^"\n]*/)?ckpt-(\d+)"$', re.MULTILINE)
_STATE_KEPT = re.compile(rb'^all_model_checkpoint_paths: "(?:[^"\n]*/)?ckpt-(\d+)"$', re.MULTILINE)

_numbers_in_memory = itertools.count()

# What reading damaged files raises, and what objects raise if their value is missing or has another shape.
_DAMAGED = (tf.errors.OpError, IndexError, message.DecodeError, OSError)
_OTHER_OBJECTS = (ValueError, AssertionError)


class CheckpointError(run_directory.RunDirectoryError):
  """A checkpoint cannot be read or written. The message is one line: what, where, what to do."""


class Loaded(NamedTuple):
  """A checkpoint in memory."""
  path: str                # The path of its files, without suffix.
  files: dict[str, bytes]  # Suffix -> content.


class Beside(Protocol):
  """State that is saved beside a checkpoint in files of its own, for example because it is too large to be copied."""

  def save(self, folder: str):
    """Writes files to an empty folder. It may write none. Checkpointer.begin_save calls it in another thread.

    Raises:
      OSError: they cannot be written. The checkpoint is not saved then.
    """

  def restore(self, folder: str):
    """Reads the files that `save` has written to a folder.

    Raises:
      OSError: they cannot be read.
      ValueError: they do not fit this object.
    """


class Checkpointer:
  """Saves and restores trackable objects (variables, modules, optimisers, PythonState) in one directory.

  `save` writes a checkpoint before it returns. `begin_save` copies all values and has a thread write them, while the
  objects may change already. At most one checkpoint is written at a time. Not thread-safe.
  """

  def __init__(self, directory: str, keep: int = 2, beside: Mapping[str, Beside] | None = None, **trackables: Any):
    """Creates a Checkpointer. Reads and writes nothing yet.

    Args:
      directory: where the checkpoints are, or will be.
      keep: how many of the latest checkpoints stay.
      beside: what is saved beside each checkpoint, by the suffix of its folder.
      **trackables: what to save, by the names under which it is saved.
    """
    self._directory = os.path.abspath(directory)
    self._keep = keep
    self._beside = beside or {}
    self._checkpoint = tf.train.Checkpoint(**trackables)
    self._writer = futures.ThreadPoolExecutor(1, 'checkpoint')  # Starts its thread at the first begin_save.
    self._writing = None  # The future of a checkpoint that begin_save has handed to the thread.

  def restore(self, loaded: Loaded | None = None, partial: bool = False) -> str | None:
    """Sets all objects to the values of a checkpoint, bit for bit, before it returns.

    Every variable, optimiser slots included, must have been created before. What is saved beside checkpoints stays as
    it is if this checkpoint has no folder of it.

    Args:
      loaded: the checkpoint; default: the latest one in the directory.
      partial: the checkpoint may hold more than the objects here, as when only the network is wanted.
    Returns:
      The checkpoint's path; None if there is no checkpoint.
    Raises:
      CheckpointError: it is damaged or does not fit. No file was changed, but some objects may have been.
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
      for suffix, beside in self._beside.items():
        if os.path.isdir(f'{path}.{suffix}'):
          with run_directory.opened(f'{path}.{suffix}') as folder:
            beside.restore(folder)
    except _DAMAGED as error:
      raise CheckpointError(f'checkpoint {path} is damaged ({_one_line(error)}): {self._advice(path)}') from error
    except _OTHER_OBJECTS as error:
      raise CheckpointError(f'checkpoint {path} does not fit this network, optimiser or levels ({_one_line(error)}): '
                            'use the flags and the version it was made with, or choose another --logdir') from error
    return path

  def save(self, number: int | None = None) -> str:
    """Writes a checkpoint and then deletes those beyond the `keep` latest. Returns its path without suffix.

    The objects must not change meanwhile. A checkpoint that is being written is finished first; if that has failed,
    this one is written all the same before the error is raised.

    Args:
      number: in its name; default: one more than the number of the last checkpoint saved or restored here.
    Raises:
      CheckpointError: this checkpoint or the one that `begin_save` began cannot be written. The newest complete one
        stays in force.
    """
    try:
      self._finish()
    finally:
      path = self._write(self._checkpoint, self._next_name(number))
    return path

  def begin_save(self):
    """Copies all values now, and has a thread write them as `save` does, under the next number.

    See trackable_copy for what the copy costs. If a checkpoint is being written, this waits until it is finished. The
    process does not end before the thread has finished, unless it is killed.

    Raises:
      CheckpointError: the checkpoint that an earlier call began could not be written. This one is not begun.
    """
    self._finish()
    name = self._next_name()
    values = trackable_copy.copy_children(self._checkpoint)
    counter = values.pop('save_counter')  # Each tf.train.Checkpoint makes its own.
    copied = tf.train.Checkpoint(**values)
    copied.save_counter.assign(counter)
    self._writing = self._writer.submit(self._write, copied, name)

  @property
  def is_writing(self) -> bool:
    """Whether the thread is writing a checkpoint, so that `begin_save` and `save` would wait."""
    return self._writing is not None and not self._writing.done()

  def check(self):
    """Raises the error of the checkpoint that the thread has failed to write, once. Does not wait."""
    if not self.is_writing:
      self._finish()

  def close(self):
    """Waits until no checkpoint is being written, and ends the thread. Raises its error, as `check` does."""
    try:
      self._finish()
    finally:
      self._writer.shutdown()

  def _finish(self):
    """Waits for the checkpoint that is being written, and raises its error."""
    writing, self._writing = self._writing, None
    if writing:
      writing.result()

  def _next_name(self, number: int | None = None) -> str:
    """Counts a checkpoint, and returns the name of its files."""
    self._checkpoint.save_counter.assign_add(1)
    return f'ckpt-{self._checkpoint.save_counter.numpy() if number is None else number}'

  def _write(self, checkpoint: tf.train.Checkpoint, name: str) -> str:
    """Writes a checkpoint, makes it the latest one, and deletes old ones. Returns its path without suffix."""
    here = self._directory
    try:
      os.makedirs(self._directory, exist_ok=True)
      with run_directory.opened(self._directory) as here:
        _remove_remains(here, name)
        for suffix, beside in self._beside.items():
          _write_beside(beside, os.path.join(here, f'{name}.{suffix}'))
        checkpoint.write(os.path.join(here, name))
        self._record(here, name)
    except (tf.errors.OpError, OSError) as error:
      reason = _one_line(error).replace(here, self._directory)
      raise CheckpointError(f'{self._directory}: no checkpoint could be written ({reason}): free disk space or correct '
                            'its permissions, and start again to continue from the checkpoint before') from error
    return os.path.join(self._directory, name)

  def _record(self, directory: str, name: str):
    """Makes a checkpoint the latest one. Deletes the others, except those that were saved last, `keep` in all."""
    state = _read_state(directory)
    numbers = _numbers(os.listdir(directory)) if state is None else map(int, _STATE_KEPT.findall(state))
    names = [*(earlier for number in numbers if (earlier := f'ckpt-{number}') != name), name]
    kept = names[-self._keep:]
    state = os.path.join(directory, _STATE)
    with open(state + '.new', 'w', encoding='utf-8') as stream:
      stream.write(f'model_checkpoint_path: "{name}"\n')
      stream.writelines(f'all_model_checkpoint_paths: "{other}"\n' for other in kept)
    os.replace(state + '.new', state)
    # The index goes first, so that the rest, if a kill leaves it behind, is not taken for a checkpoint.
    for file in sorted(os.listdir(directory), reverse=True):
      old, *_ = file.partition('.')
      if old in names[:-self._keep]:
        path = os.path.join(directory, file)
        remove = shutil.rmtree if os.path.isdir(path) else os.remove
        remove(path)

  def _advice(self, damaged: str) -> str:
    """Says what to do about a checkpoint that cannot be restored."""
    if trainer := run_directory.trainer(os.path.dirname(self._directory)):
      return _wait_for(trainer)
    others = [number for number in _numbers(os.listdir(self._directory))
              if os.path.basename(damaged) != f'ckpt-{number}']
    if others:
      return (f'delete {damaged}.* and {os.path.join(self._directory, _STATE)} to go on from ckpt-{others[-1]}, or '
              'choose another --logdir')
    return 'choose another --logdir'


def load(directory: str) -> Loaded | None:
  """Reads the latest checkpoint into memory, without the folders beside it.

  It is complete even if a process that trains saves others and deletes old ones meanwhile.

  Returns:
    The checkpoint; None if no save has ever been completed.
  Raises:
    CheckpointError: the file that names the latest checkpoint is damaged.
    run_directory.RunDirectoryError: the files cannot be read.
  """
  while path := latest(directory):
    files = {}
    with run_directory.one_line_errors(directory):
      for file in os.listdir(directory):
        name, _, suffix = file.partition('.')
        file = os.path.join(directory, file)
        if name == os.path.basename(path):
          with contextlib.suppress(FileNotFoundError, IsADirectoryError), open(file, 'rb') as stream:
            files[suffix] = stream.read()
    if latest(directory) == path:  # Otherwise a file may have been deleted before it could be read.
      return Loaded(path, files)
  return None


def latest(directory: str) -> str | None:
  """Returns the path without suffix of the checkpoint to restore; None if no save has ever been completed.

  Raises:
    CheckpointError: the file that names the latest checkpoint is damaged.
  """
  with run_directory.one_line_errors(directory):
    state = _read_state(directory)
    if state is None:
      # There is no directory yet; or the first save was killed before its last step; or a user has removed a damaged
      # checkpoint and this file.
      numbers = _numbers(os.listdir(directory)) if os.path.isdir(directory) else []
      return os.path.join(directory, f'ckpt-{numbers[-1]}') if numbers else None
  if match := _STATE_LATEST.search(state):
    return os.path.join(directory, f'ckpt-{int(match[1])}')
  trainer = run_directory.trainer(os.path.dirname(os.path.abspath(directory)))
  advice = _wait_for(trainer) if trainer else 'delete this file to go on from the latest checkpoint beside it'
  raise CheckpointError(f'{os.path.join(directory, _STATE)} is damaged: {advice}')


def number_of(path: str) -> int:
  """Returns the number in a checkpoint's name."""
  return int(path.rpartition('-')[2])


def _read_state(directory: str) -> bytes | None:
  """Returns the content of the file that names the latest checkpoint; None if there is no such file."""
  with contextlib.suppress(FileNotFoundError, NotADirectoryError):
    with open(os.path.join(directory, _STATE), 'rb') as stream:
      return stream.read()
  return None


def _write_beside(beside: Beside, folder: str):
  """Lets `beside` write to a new folder, which is removed if it stays empty."""
  os.mkdir(folder)
  beside.save(folder)
  if not os.listdir(folder):
    os.rmdir(folder)


def _remove_remains(directory: str, name: str):
  """Removes the folders that writes leave behind when they fail or are killed. They may be large.

  Args:
    directory: of the checkpoints.
    name: of the checkpoint that is about to be written, perhaps for the second time.
  """
  complete = {f'ckpt-{number}' for number in _numbers(os.listdir(directory))} - {name}
  for folder in os.listdir(directory):
    if match := re.fullmatch(r'(ckpt-\d+)(\.\w+|_temp)', folder):  # TensorFlow's end with _temp.
      path = os.path.join(directory, folder)
      if os.path.isdir(path) and (match[2] == '_temp' or match[1] not in complete):
        shutil.rmtree(path)


@contextlib.contextmanager
def _for_tensorflow(loaded: Loaded) -> Iterator[str]:
  """Yields TensorFlow's path without suffix of a checkpoint in memory. It is valid inside the block."""
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
  """Says what to do about a damaged file of a run that a process trains."""
  return f'{trainer} trains there: leave its files alone, and try again after its next checkpoint'


def _numbers(names: list[str]) -> list[int]:
  """Returns the numbers of complete checkpoints, in order. A complete one has an index, which is written last."""
  matches = (re.fullmatch(r'ckpt-(\d+)\.index', name) for name in names)
  return sorted(int(match[1]) for match in matches if match)


def _one_line(error: Exception) -> str:
  """Says on one line why something has failed."""
  text = getattr(error, 'strerror', None) or getattr(error, 'message', None) or str(error)
  return ' '.join(text.split())[:300]
