"""Layout of the memory that a worker process shares with the training process; mirror of cc/environment_channel.h.

A block begins with a header of HEADER_BYTES: the worker's nanoseconds spent stepping (int64), then, if the worker had
to give up, the reason as text. One record ("slot") per environment follows. This module imports no TensorFlow, since
workers use it.
"""

import struct
from typing import NamedTuple

import numpy as np

HEADER_BYTES = 4096
_ERROR_OFFSET = 64
_ALIGNMENT = 64

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


def write_error(memory, text: str):
  """Leaves in the header (a writable buffer) why the worker gives up; the end of a long text is kept."""
  encoded = text.encode('utf-8', 'replace')[-(HEADER_BYTES - _ERROR_OFFSET - 1):]
  memory[_ERROR_OFFSET:_ERROR_OFFSET + len(encoded)] = encoded


def read_error(memory) -> str:
  """What write_error left, '' if nothing."""
  return bytes(memory[_ERROR_OFFSET:HEADER_BYTES]).split(b'\0', 1)[0].decode('utf-8', 'replace')


def _aligned(offset):
  return -(-offset // _ALIGNMENT) * _ALIGNMENT
