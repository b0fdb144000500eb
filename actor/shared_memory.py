"""Layout of the memory that a worker process shares with the training process; mirror of cc/environment_channel.h.

A block begins with a header of HEADER_BYTES: four numbers (int64) that the worker writes while it works, see
`STEPPING_NS` and those below it, then, if the worker had to give up, the reason as text. One record ("slot") per
environment follows. This module imports no TensorFlow, since workers use it.
"""

import struct
from typing import NamedTuple

import numpy as np

HEADER_BYTES = 1 << 16  # Room for a long traceback; pages that nobody writes to take no memory.
_ERROR_OFFSET = 64
_MAXIMUM_HEADLINE_CHARACTERS = 300
_ALIGNMENT = 64

# The header's numbers, by their places in `numbers`.
STEPPING_NS = 0  # Spent stepping so far.
AT_WORK = 1      # The slot whose environment is being made, reset or stepped, plus 1; 0 between two requests.
LONG_WORK = 2    # 1 while that work may take many minutes, such as compiling a map; else 0.
REQUEST_NS = 3   # When the last request to step came, of the clock time.monotonic_ns; 0 before the first one.
_NUMBER = struct.Struct('<q')
_NUMBERS_BYTES = 4 * _NUMBER.size

# The scalars at the start of a slot. The action goes to the environment, the rest comes back.
ACTION = struct.Struct('<i')
RESULT = struct.Struct('<fffi?')  # reward, discount, episode_return, episode_length, done.
RESULT_OFFSET = ACTION.size


class Field(NamedTuple):
  """One field of a row, as it lies in a slot."""
  name: str
  dtype: np.dtype
  shape: tuple
  offset: int  # Bytes from the slot's start.


class SlotLayout(NamedTuple):
  """Where everything lies in a slot. `scalars` and `observation` are in the order of EnvironmentOutput's fields."""
  scalars: tuple      # Fields reward, discount, done, episode_return, episode_length.
  observation: tuple  # Fields, sorted by name.
  slot_bytes: int


def slot_layout(observation_spec) -> SlotLayout:
  """The layout of a slot for observations of `observation_spec`: a dict of name -> (dtype, shape)."""
  scalars = (
      Field('reward', np.dtype(np.float32), (), RESULT_OFFSET),
      Field('discount', np.dtype(np.float32), (), RESULT_OFFSET + 4),
      Field('done', np.dtype(np.bool_), (), RESULT_OFFSET + 16),
      Field('episode_return', np.dtype(np.float32), (), RESULT_OFFSET + 8),
      Field('episode_length', np.dtype(np.int32), (), RESULT_OFFSET + 12))
  offset = _aligned(RESULT_OFFSET + RESULT.size)
  observation = []
  for name in sorted(observation_spec):
    dtype, shape = np.dtype(observation_spec[name][0]), tuple(observation_spec[name][1])
    observation.append(Field(name, dtype, shape, offset))
    offset = _aligned(offset + dtype.itemsize * int(np.prod(shape)))
  return SlotLayout(scalars, tuple(observation), offset)


def block_bytes(layout: SlotLayout, slots: int) -> int:
  """The size of a block with `slots` environments."""
  return HEADER_BYTES + slots * layout.slot_bytes


def numbers(memory) -> memoryview:
  """The header's numbers; writing to them writes to the header (a writable buffer)."""
  return memoryview(memory)[:_NUMBERS_BYTES].cast('q')


def read_number(memory, place: int) -> int:
  """One of the header's numbers, for readers that hold on to nothing."""
  return _NUMBER.unpack_from(memory, place * _NUMBER.size)[0]


def write_error(memory, headline: str, traceback: str):
  """Leaves in the header (a writable buffer) why the worker gives up.

  Args:
    memory: the header.
    headline: the exception and its message; made one line, of which the beginning is kept.
    traceback: lines for the log. The end of a text that is too long is kept.
  """
  first = ' '.join(headline.split())
  if len(first) > _MAXIMUM_HEADLINE_CHARACTERS:
    first = first[:_MAXIMUM_HEADLINE_CHARACTERS] + ' …'
  line = (first + '\n').encode('utf-8', 'replace')
  encoded = line + traceback.encode('utf-8', 'replace')[-(HEADER_BYTES - _ERROR_OFFSET - 1 - len(line)):]
  memory[_ERROR_OFFSET:_ERROR_OFFSET + len(encoded)] = encoded


def read_error(memory) -> tuple[str, str]:
  """The headline and the traceback that write_error left; both are '' if it left none."""
  text = bytes(memory[_ERROR_OFFSET:HEADER_BYTES]).split(b'\0', 1)[0].decode('utf-8', 'replace')
  headline, _, traceback = text.partition('\n')
  return headline, traceback


def _aligned(offset):
  return -(-offset // _ALIGNMENT) * _ALIGNMENT
