"""Checkpoints: everything that a run needs to continue. After a kill or a power cut, the newest complete one is used.

TensorFlow writes a checkpoint's data first and its index last, each under a temporary name until it is complete. Then
the file `checkpoint`, which names the latest checkpoint, is replaced in one step. All files are on the disk by then, so
that a power cut does not damage them. TensorFlow's own tools can read all these files. State that is too large for
TensorFlow's format has a folder of its own beside the checkpoint, which is complete before the index is written. The
folder has an identity, and the checkpoint has it too, so that the folder of another checkpoint, or one that was lost,
is noticed.

What a failed write, or a kill at any time, leaves behind is deleted at the latest before the next write.

In some places TensorFlow takes a path for a pattern: asked to delete `seed[1]/ckpt-1`, it deletes `seed1/ckpt-1`. So
this module never gives TensorFlow the path of a run. TensorFlow writes through a path of the open directory, and reads
from a copy in memory. That copy is also complete when another process deletes the files meanwhile.
"""

from collections.abc import Iterator, Mapping
from concurrent import futures
import contextlib
import errno
import itertools
import json
import os
import secrets
import shutil
from typing import Any, NamedTuple, Protocol

from google.protobuf import message
import tensorflow as tf

from scalable_agents.ops import messages
from scalable_agents.records import checkpoint_files
from scalable_agents.records import run_directory
from scalable_agents.records import trackable_copy

_IDENTITY = 'identity'  # A file in each folder beside a checkpoint.

_numbers_in_memory = itertools.count()

# What reading damaged files raises, and what objects raise if their value is missing or has another shape.
_DAMAGED = (tf.errors.OpError, IndexError, message.DecodeError, OSError)
_OTHER_OBJECTS = (ValueError, AssertionError)
# Of an OSError: the files may be good, and must not be deleted.
_NOT_DAMAGE = {errno.EACCES, errno.EPERM, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM}


class CheckpointError(run_directory.RunDirectoryError):
  """A checkpoint cannot be read or written. The message is one line: what, where, what to do."""


class Loaded(NamedTuple):
  """A checkpoint in memory."""
  path: str                # The path of its files, without suffix.
  files: dict[str, bytes]  # Suffix -> content.


class Beside(Protocol):
  """State that is saved beside a checkpoint in files of its own, for example because it is too large to be copied.

  Attributes:
    is_required: whether to refuse a checkpoint whose folder was lost or replaced by that of another one. If not, such
      a folder is ignored. Replays are required, unless the user gives --nosave_replay.
  """
  is_required: bool

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


class _Folders(tf.train.experimental.PythonState):
  """The folders beside a checkpoint. It is part of the checkpoint, as `folders`."""

  def __init__(self, identities: Mapping[str, str]):
    self.identities = identities  # Suffix -> identity.

  def serialize(self) -> str:
    return json.dumps(self.identities)

  def deserialize(self, string_value: str | bytes):
    self.identities = json.loads(string_value)


class Checkpointer:
  """Saves and restores trackable objects (variables, modules, optimisers, PythonState) in one directory.

  `save` writes a checkpoint before it returns. `begin_save` copies all values and has a thread write them, while the
  objects may change already. At most one checkpoint is written at a time. Not thread-safe.
  """

  def __init__(self, directory: str, beside: Mapping[str, Beside] | None = None, **trackables: Any):
    """Creates a Checkpointer. Reads and writes nothing yet.

    Args:
      directory: where the checkpoints are, or will be.
      beside: what is saved beside each checkpoint, by the suffix of its folder: 'experience' or 'intake', because
        checkpoint_files removes only folders with these.
      **trackables: what to save, by the names under which it is saved.
    """
    self._directory = os.path.abspath(directory)
    self._beside = beside or {}
    self._checkpoint = tf.train.Checkpoint(**trackables)
    self._writer = futures.ThreadPoolExecutor(1, 'checkpoint')  # Starts its thread at the first begin_save.
    self._writing = None  # The future of a checkpoint that begin_save has handed to the thread.

  def restore(self, loaded: Loaded | None = None, partial: bool = False) -> str | None:
    """Sets all objects to the values of a checkpoint, bit for bit, before it returns.

    Every variable, optimiser slots included, must have been created before. An object that is saved beside checkpoints
    stays as it is if this checkpoint has no folder for it.

    Args:
      loaded: the checkpoint; default: the latest one in the directory.
      partial: the checkpoint may hold more than the objects here, as when only the network is wanted.
    Returns:
      The checkpoint's path; None if there is no checkpoint.
    Raises:
      CheckpointError: it is damaged or does not fit, or a folder beside it that is required is missing or belongs to
        another checkpoint. No file was changed, but some objects may have been.
    """
    loaded = loaded or load(self._directory)
    if loaded is None:
      return None
    path, folders = loaded.path, None
    here = there = path  # Messages name the open folder `here`. Once it is closed, only `there` leads to it.
    try:
      with _for_tensorflow(loaded) as prefix:
        if not partial and _has_folders(prefix):
          self._checkpoint.folders = folders = _Folders({})
        status = self._checkpoint.restore(prefix)
        if partial:
          status.assert_existing_objects_matched().expect_partial()
        else:
          status.assert_consumed()
      for suffix, beside in self._beside.items():
        if self._is_to_be_restored(path, suffix, beside, folders):
          with run_directory.opened(f'{path}.{suffix}') as here:
            there = f'{path}.{suffix}'
            beside.restore(here)
    except (*_DAMAGED, *_OTHER_OBJECTS, MemoryError) as error:
      if isinstance(error, OSError) and error.errno in _NOT_DAMAGE:
        raise CheckpointError(f'checkpoint {path} cannot be read ({explain(error).replace(here, there)}): correct '
                              'this, and start again') from error
      if isinstance(error, MemoryError):
        fault, advice = 'does not fit into memory', 'free some, or use a larger machine'
      elif isinstance(error, _OTHER_OBJECTS):
        fault = 'does not fit this network, optimiser or levels'
        advice = 'use the flags and the version it was made with, or choose another --logdir'
      else:
        fault, advice = 'is damaged', self._advice(path)
      if any(there == f'{path}.{suffix}' and beside.is_required for suffix, beside in self._beside.items()):
        advice = f'add --nosave_replay to go on with an empty replay, or {advice}'
      raise CheckpointError(f'checkpoint {path} {fault} ({explain(error).replace(here, there)}): {advice}') from error
    return path

  def save(self, number: int | None = None) -> str:
    """Writes a checkpoint and then deletes all but the latest two. Returns its path without suffix.

    The objects must not change meanwhile. A checkpoint that is being written is finished first. If that has failed,
    this one is still written before the error is raised.

    Args:
      number: in its name; default: how many were saved in this run, with this one.
    Raises:
      CheckpointError: this checkpoint or the one that `begin_save` began cannot be written. The newest complete
        checkpoint then stays the latest one.
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
    values.pop('folders', None)  # Those of an earlier checkpoint.
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
        checkpoint_files.remove_others(here)
        try:
          if self._beside:
            checkpoint.folders = _Folders(self._write_beside(here, name))
          checkpoint.write(os.path.join(here, name))
          checkpoint_files.record(here, name)
        finally:  # After an error, what was written may fill the disk.
          with contextlib.suppress(OSError):  # The next write tries again.
            checkpoint_files.remove_others(here)
    except (tf.errors.OpError, OSError) as error:
      reason = explain(error).replace(here, self._directory)
      raise CheckpointError(f'{self._directory}: a checkpoint could not be written ({reason}): free disk space or '
                            'memory, or correct its permissions, and start again to continue from the latest '
                            'one') from error
    return os.path.join(self._directory, name)

  def _write_beside(self, directory: str, name: str) -> dict[str, str]:
    """Writes the folders beside a checkpoint. Returns suffix -> identity of those that did not stay empty."""
    identities = {}
    for suffix, beside in self._beside.items():
      folder = os.path.join(directory, f'{name}.{suffix}')
      with contextlib.suppress(FileNotFoundError):  # A checkpoint may be written again.
        shutil.rmtree(folder)
      os.mkdir(folder)
      beside.save(folder)
      if not os.listdir(folder):
        os.rmdir(folder)
        continue
      identities[suffix] = f'{name} {secrets.token_hex(8)}'
      with open(os.path.join(folder, _IDENTITY), 'w', encoding='ascii') as stream:
        stream.write(identities[suffix])
    return identities

  def _is_to_be_restored(self, path: str, suffix: str, beside: Beside, folders: _Folders | None) -> bool:
    """Returns whether there is a folder beside a checkpoint, and belongs to it.

    Args:
      path: of the checkpoint.
      suffix: of the folder.
      beside: what was saved in it.
      folders: from the checkpoint; None if it is so old that its folders have no identities.
    Raises:
      CheckpointError: the folder is required, and is missing or belongs to another checkpoint.
    """
    folder = f'{path}.{suffix}'
    is_there = os.path.isdir(folder)
    if folders is None:
      return is_there
    wanted, found = folders.identities.get(suffix), _identity(folder) if is_there else None
    if wanted == found or not beside.is_required:
      return is_there and wanted == found
    fault = 'belongs to another checkpoint' if is_there else 'is missing'
    others = f' ({found.split()[0]})' if found else ''
    raise CheckpointError(f'{folder} {fault}{others}: put back the one that was saved with {os.path.basename(path)}, '
                          f'add --nosave_replay to go on with an empty replay, or {self._advice(path)}')

  def _advice(self, damaged: str) -> str:
    """Says what to do about a checkpoint that cannot be restored."""
    if trainer := run_directory.trainer(os.path.dirname(self._directory)):
      return _wait_for(trainer)
    others = [number for number in checkpoint_files.complete(self._directory)
              if os.path.basename(damaged) != f'ckpt-{number}']
    if others:
      state = os.path.join(self._directory, checkpoint_files.STATE)
      return f'delete {damaged}.* and {state} to go on from ckpt-{others[-1]}, or choose another --logdir'
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
    names = checkpoint_files.read_state(directory)
    if names is None:
      # There is no directory yet; or the first save was killed before its last step; or a user has removed a damaged
      # checkpoint and this file.
      numbers = checkpoint_files.complete(directory) if os.path.isdir(directory) else []
      return os.path.join(directory, f'ckpt-{numbers[-1]}') if numbers else None
  if names:
    return os.path.join(directory, names[-1])
  trainer = run_directory.trainer(os.path.dirname(os.path.abspath(directory)))
  advice = _wait_for(trainer) if trainer else 'delete this file to go on from the latest checkpoint beside it'
  raise CheckpointError(f'{os.path.join(directory, checkpoint_files.STATE)} is damaged: {advice}')


def number_of(path: str) -> int:
  """Returns the number in a checkpoint's name."""
  return int(path.rpartition('-')[2])


def _identity(folder: str) -> str:
  """Returns the identity of a folder beside a checkpoint; '' if it has none."""
  with contextlib.suppress(FileNotFoundError), open(os.path.join(folder, _IDENTITY), encoding='ascii') as stream:
    return stream.read()
  return ''


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


def _has_folders(prefix: str) -> bool:
  """Returns whether a checkpoint has a _Folders, which those of older versions have not. Raises tf.errors.OpError."""
  return tf.compat.v1.train.NewCheckpointReader(prefix).has_tensor('folders/.ATTRIBUTES/py_state')


def _wait_for(trainer: str) -> str:
  """Says what to do about a damaged file of a run that a process trains."""
  return f'{trainer} trains there: leave its files alone, and try again after its next checkpoint'


def explain(error: Exception) -> str:
  """Says on one line why something has failed."""
  text = getattr(error, 'strerror', None) or getattr(error, 'message', None) or str(error)
  return messages.one_line(text)[:300] or type(error).__name__
