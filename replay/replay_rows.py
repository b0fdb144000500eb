"""The rows of a replay, as its ops take and return them, its counts and its files.

Both replays use it: that of sequences (sequence_replay.py) and that of whole episodes (episode_replay.py).
"""

from collections.abc import Callable, Mapping
import contextlib
import os
import time
from typing import Any

import tensorflow as tf

from scalable_agents.ops import messages
from scalable_agents.ops import ops


class TimedOutError(Exception):
  """A call waited until its timeout. Nothing was sampled or inserted: the other side must insert or sample first."""


class Rows:
  """The components of a row.

  Attributes:
    types: list of tf.DType.
    numbers: nest of int with the structure of a row: the index of each component.
  """

  def __init__(self, row_spec, frame_stacks=None):
    """Describes rows.

    Args:
      row_spec: nest of tf.TensorSpec of one row as it is stored. Of a stack of frames, of the newest frame.
      frame_stacks: nest of int with the structure of row_spec: the number of frames to stack. None: no stacks.
    """
    self._spec = row_spec
    self._specs = tf.nest.flatten(row_spec)
    self._stacks = tf.nest.flatten(frame_stacks) if frame_stacks is not None else [1] * len(self._specs)
    self.types = [spec.dtype for spec in self._specs]
    self.numbers = tf.nest.pack_sequence_as(row_spec, list(range(len(self._specs))))

  def read_bytes(self, num_rows: int) -> int:
    """Returns the bytes of rows that are read together, with the frames before row 0."""
    return sum(ops.num_bytes(spec) * (num_rows + k - 1) for spec, k in zip(self._specs, self._stacks, strict=True))

  def attributes(self, done: Callable[[Any], Any]) -> dict[str, Any]:
    """Returns attributes of the op that makes a replay. `done` picks the component that says where episodes start."""
    return dict(row_types=self.types, row_shapes=[spec.shape for spec in self._specs], stacks=self._stacks,
                done_component=done(self.numbers))

  def flatten(self, rows) -> list[tf.Tensor]:
    """Returns the components of rows, which must have the structure of row_spec."""
    tf.nest.assert_same_structure(rows, self._spec)
    return tf.nest.flatten(rows)

  def pack(self, components, num_rows: int, batch_size):
    """Returns rows that were read: a nest of [num_rows, batch_size, ...] with these static shapes."""
    for number, component in enumerate(components):
      component.set_shape([num_rows, batch_size, *self._specs[number].shape])
    return tf.nest.pack_sequence_as(self._spec, components)

  @property
  def earlier_types(self) -> list[tf.DType]:
    """The types of the components that are stacks of frames."""
    return [spec.dtype for spec, stack in zip(self._specs, self._stacks, strict=True) if stack > 1]

  def with_earlier_shapes(self, earlier, batch_size):
    """Returns the frames before row 0 that were read, a list of [batch_size, k-1, ...], with static shapes."""
    stacks = [(spec, k) for spec, k in zip(self._specs, self._stacks, strict=True) if k > 1]
    return [tf.ensure_shape(frames, [batch_size, k - 1, *spec.shape])
            for frames, (spec, k) in zip(earlier, stacks, strict=True)]


def contents(specs, path: str = '') -> str:
  """Describes what a replay stores: the path, type and shape of each component, in the order of tf.nest.flatten.

  Args:
    specs: nest of tf.TensorSpec.
    path: where it is in a larger nest.
  """
  if isinstance(specs, tf.TensorSpec):
    return f'{path}:{specs.dtype.name}{specs.shape.as_list()}'
  if isinstance(specs, Mapping):
    named = sorted(specs.items())
  else:
    named = specs._asdict().items() if hasattr(specs, '_asdict') else enumerate(specs)
  return ' '.join(filter(None, (contents(spec, f'{path}/{name}') for name, spec in named)))


def when_available(call: Callable[[], Any], is_available: Callable[[], bool], timeout_seconds: float,
                   tick_seconds: float) -> Any:
  """Waits until is_available(), but at most for timeout_seconds, and returns call(). It asks every tick_seconds.

  If the call raises TimedOutError although it was available, another thread was faster, and the wait goes on. The
  function asks before it calls, because TensorFlow logs each error.
  """
  deadline = time.monotonic() + timeout_seconds
  while time.monotonic() < deadline:
    if is_available():
      try:
        return call()
      except TimedOutError:
        pass
    time.sleep(tick_seconds)
  return call()


class Replay:
  """What both replays have in common: their counts and their files. Subclasses set the attributes.

  Attributes:
    kind: the beginning of the names of the ops, for example 'episode_replay'.
    statistics_type: the NamedTuple of the counts. The first one is the size.
  """
  kind: str
  statistics_type: Any
  _handle: tf.Tensor

  def size(self) -> tf.Tensor:
    """The size, in the unit of the capacity: [] int64. For use in graphs."""
    return self.counts()[0]

  def statistics(self) -> Any:
    """Returns the counts of this moment, a `statistics_type`."""
    return self.statistics_type(*map(int, self.counts().numpy()))

  def counts(self) -> tf.Tensor:
    """The counts of this moment, in the order of `statistics_type`: [n] int64. For use in graphs."""
    with tf.device('/CPU:0'):
      counts = getattr(ops, f'{self.kind}_statistics')(self._handle)
    counts.set_shape([len(self.statistics_type._fields)])
    return counts

  def save(self, path: str):
    """Writes the contents to a file, while others go on to insert and read.

    Rows that belong to no sequence or no complete episode yet are not saved. After `restore`, each stream begins anew.
    The contents go to `path + '.new'` first, so that an earlier file is replaced only by a complete one.

    Raises:
      OSError: the file cannot be written, or the memory does not suffice for it. An earlier file stays.
    """
    new = path + '.new'
    try:
      self._with_file('save', new)
      os.replace(new, path)
    except BaseException:
      with contextlib.suppress(OSError):  # What was written may fill the disk.
        os.remove(new)
      raise

  def restore(self, path: str):
    """Restores what `save` wrote into this replay, which must be empty. Keys and positions in episodes stay valid.

    Raises:
      OSError: the file cannot be read, or is damaged.
      ValueError: the file belongs to a replay with other arguments. The unroll_length of an EpisodeReplay may differ.
      MemoryError: the file does not fit into memory.
    """
    self._with_file('restore', path)

  def _with_file(self, operation, path):
    try:
      with tf.device('/CPU:0'):
        getattr(ops, f'{self.kind}_{operation}')(self._handle, path)
    except tf.errors.UnavailableError as error:
      raise OSError(messages.plain_message(error.message)) from error
    except (tf.errors.InvalidArgumentError, tf.errors.ResourceExhaustedError) as error:
      lacks_memory = isinstance(error, tf.errors.ResourceExhaustedError)
      kind = ValueError if not lacks_memory else OSError if operation == 'save' else MemoryError
      raise kind(messages.plain_message(error.message)) from error
