"""A trained agent in a small file: a manifest, and the variables that are needed to act.

The optimiser, and heads that only the learner uses, are left out. The file is an .npz archive of NumPy. The array
`manifest` is the bytes of a JSON text, see `Manifest`. Each other array is a variable, by its number and name. With
int8, a variable with two or more axes is stored as whole numbers from -127 to 127. The array `NAME scale` has a factor
for each index of the last axis, by which these numbers are multiplied.
"""

from collections.abc import Mapping, Sequence
import hashlib
import io
import json
import tokenize
from typing import Any, NamedTuple
import zipfile
import zlib

import numpy as np
import tensorflow as tf

from scalable_agents.records import errors
from scalable_agents.records import json_text
from scalable_agents.records import run_directory
from scalable_agents.records import settings

ENDING = '.npz'
PRECISIONS = ('float16', 'int8')
_MANIFEST = 'manifest'
_LARGEST_INT8 = 127
# What NumPy and zipfile raise if an archive is damaged.
_DAMAGED = (zipfile.BadZipFile, zlib.error, ValueError, KeyError, EOFError, RuntimeError, TypeError, SyntaxError,
            tokenize.TokenError)


class Manifest(NamedTuple):
  """What the file says about the agent."""
  agent: str               # The name of its Definition.
  flags: dict[str, Any]    # The hyper-parameters and the settings of the environments, see export.export_file.
  versions: dict[str, str]  # Package -> version.
  command: str             # The command that trained it, without --logdir and other settings of the machine.
  environment_frames: int  # Number of frames that the agent was trained for.
  learner_steps: int       # Number of updates.
  evaluation: dict[str, Any] | None  # Level -> mean, median, number of episodes, and actions; None: not evaluated.
  sha256: str = ''         # Of the variables as they are stored. `write` computes it.


class AgentFile(NamedTuple):
  """A file that was read."""
  path: str
  manifest: Manifest
  values: dict[str, np.ndarray]  # Name -> [...] as stored, int8 times its scale, in the order of acting_variables.


def write(path: str, manifest: Manifest, variables: Sequence[tf.Variable], precision: str) -> str:
  """Writes a file atomically. The same agent gives the same bytes.

  Args:
    path: the file.
    manifest: describes the agent. Its hash is replaced.
    variables: Agent.acting_variables.
    precision: how the weights and biases are stored, one of PRECISIONS. Variables that are not trained or have another
      type than float32, such as counters, are stored exactly.
  Returns:
    The SHA-256 of the file.
  Raises:
    errors.UserError: a variable is not finite, or too large for float16.
    run_directory.RunDirectoryError: the file cannot be written.
  """
  arrays = {}
  for name, variable in zip(_names(variables), variables, strict=True):
    value = variable.numpy()
    if np.issubdtype(value.dtype, np.floating) and not np.isfinite(value).all():
      raise errors.UserError(f'{variable.name}: its values are not finite: the training has diverged')
    if not variable.trainable or value.dtype != np.float32:
      arrays[name] = value
      continue
    if precision == 'int8' and value.ndim > 1:
      largest = np.abs(value).max(axis=tuple(range(value.ndim - 1)))
      scale = np.where(largest > 0, largest / _LARGEST_INT8, 1.).astype(np.float32)
      arrays[name], arrays[_scale_of(name)] = np.rint(value / scale).astype(np.int8), scale
      continue
    with np.errstate(over='ignore'):
      arrays[name] = value.astype(np.float16)
    if not np.isfinite(arrays[name]).all():
      raise errors.UserError(f'{variable.name}: its values are too large for float16: the training has diverged')
  text = json.dumps(manifest._replace(sha256=_digest(arrays), flags=settings.to_json(manifest.flags))._asdict())
  content = io.BytesIO()
  np.savez(content, **{_MANIFEST: np.frombuffer(text.encode(), np.uint8)}, **arrays)
  with run_directory.replaced(path) as new, open(new, 'wb') as stream:
    stream.write(content.getbuffer())
  return hashlib.sha256(content.getbuffer()).hexdigest()


def read(path: str) -> AgentFile:
  """Reads a file and checks its hash.

  Raises:
    errors.UserError: there is no such file, it is damaged, or it is not a trained agent.
  """
  try:
    with open(path, 'rb') as stream, np.load(stream) as archive:
      arrays = {name: archive[name] for name in archive.files}
    manifest = _parse(json_text.parse(arrays.pop(_MANIFEST).tobytes()))
    if manifest.sha256 != _digest(arrays):
      raise ValueError('its SHA-256 differs from the one in its manifest')
  except OSError as error:
    raise errors.UserError(
        f'{path}: {error.strerror or error}: give a file that `scalable-agents export` has made') from error
  except _DAMAGED as error:
    raise errors.UserError(f'{path} is damaged, or is not a trained agent ({settings.shown(error)}): download or '
                           'export it again') from error
  values = {name: array * arrays[_scale_of(name)] if _scale_of(name) in arrays else array
            for name, array in arrays.items() if not name.endswith(_scale_of(''))}
  return AgentFile(path, manifest, values)


def assign(file: AgentFile, variables: Sequence[tf.Variable]) -> None:
  """Sets the variables of an agent, Agent.acting_variables, to those of a file.

  Raises:
    errors.UserError: their names or shapes differ.
  """
  wanted = {name: tuple(variable.shape) for name, variable in zip(_names(variables), variables, strict=True)}
  found = {name: value.shape for name, value in file.values.items()}
  if wanted != found:
    name = next(name for name in {**wanted, **found} if wanted.get(name) != found.get(name))
    raise errors.UserError(f'{file.path} does not fit the network: {name} has shape {found.get(name, "none")}, want '
                           f'{wanted.get(name, "none")}: use the version of this project that it was made with')
  for name, variable in zip(wanted, variables, strict=True):
    variable.assign(file.values[name].astype(variable.dtype.as_numpy_dtype))


def _parse(value: Any) -> Manifest:
  """Returns the manifest of a JSON value. Raises ValueError if a field is missing or has another type."""
  kinds = {'agent': str, 'flags': dict, 'versions': dict, 'command': str, 'environment_frames': int,
           'learner_steps': int, 'sha256': str}
  fields = {name: json_text.field(value, name, kind) for name, kind in kinds.items()}
  fields['flags'] = settings.from_json(fields['flags'])
  return Manifest(**fields, evaluation=json_text.field(value, 'evaluation', dict, optional=True))


def _names(variables):
  """Returns a name for each variable. Two variables may have the same name, so each has its number, too."""
  return [f'{number:03d} {variable.name.partition(":")[0].replace("/", ".")}'
          for number, variable in enumerate(variables)]


def _scale_of(name):
  return f'{name} scale'


def _digest(arrays: Mapping[str, np.ndarray]) -> str:
  """Returns the SHA-256 of arrays with their names, types and shapes."""
  digest = hashlib.sha256()
  for name, array in arrays.items():
    digest.update(f'{name} {array.dtype.str} {array.shape}\n'.encode())
    digest.update(array.tobytes())
  return digest.hexdigest()
