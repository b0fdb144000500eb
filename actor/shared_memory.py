"""Layout of the memory that a worker process shares with the training process. It must match cc/environment_channel.h.

A block begins with a header of HEADER_BYTES. The header has five int64 numbers that the worker writes (`STEPPING_NS`
and those below it). After an error of the worker, it also has the error as text. One slot per environment follows. This
module does not import TensorFlow, because workers use it.
"""

import struct
from typing import NamedTuple

import numpy as np

HEADER_BYTES = 1 << 16  # Space for a long traceback. Pages that are not written take no memory.
_ERROR_OFFSET = 64
_MAXIMUM_HEADLINE_CHARACTERS = 300
_ALIGNMENT = 64

# The header's numbers, as indices of `numbers`.
STEPPING_NS = 0  # Total time of stepping environments.
AT_WORK = 1      # 1 + the slot whose environment is being made, reset or stepped. 0 between two requests.
LONG_WORK = 2    # 1 while this work may take many minutes, such as compiling a map. Else 0.
REQUEST_NS = 3   # Time of the last request to step (time.monotonic_ns). 0 before the first request.
PROCESS_ID = 4   # Of the worker.
_NUMBER = struct.Struct('<q')
_NUMBERS_BYTES = 5 * _NUMBER.size

# The scalars at the start of a slot. The training process writes the action, the worker writes the result.
ACTION = struct.Struct('<i')
RESULT = struct.Struct('<fffi?')  # reward, discount, episode_return, episode_length, done.
RESULT_OFFSET = ACTION.size


class Field(NamedTuple):
  """One field of a row in a slot."""
  name: str
  dtype: np.dtype
  shape: tuple
  offset: int  # Bytes from the slot's start.


class SlotLayout(NamedTuple):
  """The layout of a slot. `scalars` and `observation` are in the order of EnvironmentOutput's fields."""
  scalars: tuple      # Fields reward, discount, done, episode_return, episode_length.
  observation: tuple  # Fields, sorted by name.
  slot_bytes: int


def slot_layout(observation_spec) -> SlotLayout:
  """Returns the layout of a slot.

  Args:
    observation_spec: dict of name -> (dtype, shape).
  """
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
  """Returns the size of a block with `slots` environments."""
  return HEADER_BYTES + slots * layout.slot_bytes


def numbers(memory) -> memoryview:
  """Returns a view of the header's numbers. `memory` is a writable buffer; writing to the view changes the header."""
  return memoryview(memory)[:_NUMBERS_BYTES].cast('q')


def read_number(memory, place: int) -> int:
  """Returns one of the header's numbers. `place` is its index. Keeps no reference to `memory`."""
  return _NUMBER.unpack_from(memory, place * _NUMBER.size)[0]


def write_error(memory, headline: str, traceback: str):
  """Writes the worker's error to the header.

  Args:
    memory: the header, a writable buffer.
    headline: the exception and its message. They are joined to one line. If it is too long, its beginning is kept.
    traceback: lines for the log. If they are too long, their end is kept.
  """
  first = ' '.join(headline.split())
  if len(first) > _MAXIMUM_HEADLINE_CHARACTERS:
    first = first[:_MAXIMUM_HEADLINE_CHARACTERS] + ' …'
  line = (first + '\n').encode('utf-8', 'replace')
  encoded = line + traceback.encode('utf-8', 'replace')[-(HEADER_BYTES - _ERROR_OFFSET - 1 - len(line)):]
  memory[_ERROR_OFFSET:_ERROR_OFFSET + len(encoded)] = encoded


def read_error(memory) -> tuple[str, str]:
  """Returns the headline and the traceback from write_error. Both are '' if there was no error."""
  text = bytes(memory[_ERROR_OFFSET:HEADER_BYTES]).split(b'\0', 1)[0].decode('utf-8', 'replace')
  headline, _, traceback = text.partition('\n')
  return headline, traceback


def _aligned(offset):
  return -(-offset // _ALIGNMENT) * _ALIGNMENT
