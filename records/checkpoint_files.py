"""The files of checkpoints in their directory: which checkpoints are kept, and the removal of everything else.

The file `checkpoint` names the kept ones, in the format of tf.train.CheckpointManager. A checkpoint `ckpt-N` has the
files ckpt-N.index and ckpt-N.data-*, and perhaps the folders ckpt-N.experience and ckpt-N.intake beside it.
"""

import contextlib
import os
import re
import shutil

from scalable_agents.records import folders

STATE = 'checkpoint'
_MOST_KEPT = 2
_LATEST = re.compile(rb'^model_checkpoint_path: "(?:[^"\n]*/)?ckpt-(\d+)"$', re.MULTILINE)
_KEPT = re.compile(rb'^all_model_checkpoint_paths: "(?:[^"\n]*/)?ckpt-(\d+)"$', re.MULTILINE)
_INDEX = re.compile(r'ckpt-(\d+)\.index')
# TensorFlow writes to a folder and to files with temporary names, which end with _temp, or .tempstate and a number.
_PART = re.compile(r'(ckpt-\d+)(?:(_temp)|\.(?:index|data-\d+-of-\d+|experience|intake)(\.tempstate\d+)?)')


def read_state(directory: str) -> list[str] | None:
  """Returns the kept checkpoints, the latest one last; [] if STATE is damaged, None without it. Raises OSError."""
  with contextlib.suppress(FileNotFoundError, NotADirectoryError):
    with open(os.path.join(directory, STATE), 'rb') as stream:
      text = stream.read()
    latest = _LATEST.findall(text)[:1]
    numbers = [number for number in _KEPT.findall(text) if number not in latest] if latest else []
    return [f'ckpt-{int(number)}' for number in numbers + latest]
  return None


def complete(directory: str) -> list[int]:
  """Returns the numbers of complete checkpoints, in order. A complete one has an index, which is written last."""
  return sorted(int(match[1]) for match in map(_INDEX.fullmatch, os.listdir(directory)) if match)


def record(directory: str, name: str):
  """Makes a checkpoint the latest one, atomically, also if the power fails at any time. It and the one before stay.

  Args:
    directory: of the checkpoints. All files of the checkpoint are complete.
    name: of the checkpoint.
  Raises:
    OSError: a file cannot be written.
  """
  names = [*(earlier for earlier in _in_force(directory) if earlier != name), name][-_MOST_KEPT:]
  state = os.path.join(directory, STATE)
  with open(state + '.new', 'w', encoding='utf-8') as stream:
    stream.write(f'model_checkpoint_path: "{name}"\n')
    stream.writelines(f'all_model_checkpoint_paths: "{other}"\n' for other in names)
  folders.sync(directory)  # Before the name is in force. For the files of earlier checkpoints this takes no time.
  os.replace(state + '.new', state)


def remove_others(directory: str):
  """Removes old checkpoints, and the files of writes and removals that have failed or were killed.

  Args:
    directory: of the checkpoints. No other process writes there.
  """
  in_force = _in_force(directory)
  # The index goes first, so that the rest, if a kill leaves it behind, is not taken for a checkpoint.
  for name in sorted(os.listdir(directory), key=lambda name: not name.endswith('.index')):
    match = _PART.fullmatch(name)
    if name == STATE + '.new' or match and (match[1] not in in_force or match[2] or match[3]):
      path = os.path.join(directory, name)
      remove = shutil.rmtree if os.path.isdir(path) and not os.path.islink(path) else os.remove
      remove(path)


def _in_force(directory: str) -> list[str]:
  """Returns the names of the kept checkpoints. Without a readable STATE, these are all that are complete."""
  return read_state(directory) or [f'ckpt-{number}' for number in complete(directory)]
