"""Turns the observations of users' environments into those of `base.Environment`: one image or one vector.

  uint8 [H, W, C], [C, H, W] or [H, W]   'pixels' uint8 [H, W, C], with C = 1 for [H, W]. The channels are the first
                                         dimension if it is smaller than both others, as when gymnasium stacks frames.
  a bounded integer                      'vector' float32 [N], one-hot.
  other numbers, of <= 2 dimensions      'vector' float32 [N], flattened.
  a dict                                 its only image, or, without an image, its only array of numbers. Other
                                         entries are left out, for example the direction and the text of MiniGrid.

An observation that contradicts its spec raises a ValueError: a cast or a reshape would make another observation of it.
"""

from collections.abc import Callable, Mapping
from typing import Any

from dm_env import specs
import numpy as np

from scalable_agents.environments import base

_MAX_ONE_HOT = 2**20  # Numbers of a one-hot vector: more would only fill the memory.

Convert = Callable[[Any], dict[str, np.ndarray]]


def convert_spec(spec: Any) -> tuple[dict[str, specs.Array], Convert]:
  """Returns the specs of the observations by name, and a function that turns an observation into arrays by name.

  Args:
    spec: a dm_env spec or a dict of them. Entries of the dict that are no `specs.Array` are left out.

  Raises:
    ValueError: there is not exactly one image or vector.
  """
  if isinstance(spec, Mapping):
    images = [name for name, entry in spec.items() if _is_image(entry)]
    numbers = [name for name, entry in spec.items() if _is_numeric(entry) and entry.shape]
    chosen = images or numbers
    if len(chosen) != 1:
      raise ValueError('want a dict of observations with one image (uint8) or one vector, got '
                       + (f'{len(chosen)} of them: {", ".join(map(str, chosen))}' if chosen else 'neither')
                       + ': flatten it in a wrapper')
    name = chosen[0]
    new_spec, convert = convert_spec(spec[name])
    return new_spec, lambda observation: convert(observation[name])
  if not _is_numeric(spec):
    raise ValueError(f'want an array of numbers or a dict with one, got {base.one_line(spec)}')
  if _is_image(spec):
    return _image(spec)
  if len(spec.shape) > 2:
    raise ValueError(f'want images as uint8 of two or three dimensions, got {spec.dtype} {list(spec.shape)}')
  if not spec.shape and isinstance(spec, specs.BoundedArray) and np.issubdtype(spec.dtype, np.integer):
    return _one_hot(int(spec.minimum), int(spec.maximum))
  size = int(np.prod(spec.shape))
  return ({'vector': specs.Array((size,), np.float32, name='vector')},
          lambda observation: {'vector': _copy(observation, spec.shape, np.float32).reshape(size)})


def _is_numeric(spec):
  return isinstance(spec, specs.Array) and (spec.dtype.kind in 'biuf')


def _is_image(spec):
  return _is_numeric(spec) and spec.dtype == np.uint8 and len(spec.shape) in (2, 3)


def _image(spec):
  channels_first = len(spec.shape) == 3 and spec.shape[0] < min(spec.shape[1:])
  shape = (*spec.shape[1:], spec.shape[0]) if channels_first else (*spec.shape, 1)[:3]

  def convert(observation):
    pixels = _copy(observation, spec.shape, np.uint8)
    return {'pixels': np.moveaxis(pixels, 0, -1) if channels_first else pixels.reshape(shape)}

  pixels: dict[str, specs.Array] = {'pixels': specs.BoundedArray(shape, np.uint8, 0, 255, name='pixels')}
  return pixels, convert


def _one_hot(minimum, maximum):
  size = maximum - minimum + 1
  if size > _MAX_ONE_HOT:
    raise ValueError(f'want an integer with at most {_MAX_ONE_HOT:,} values, got one with {size:,}')

  def convert(observation):
    if np.shape(observation) or not minimum <= observation <= maximum or int(observation) != observation:
      raise ValueError(f'observation: want an integer from {minimum} to {maximum}, got {observation}')
    vector = np.zeros([size], np.float32)
    vector[int(observation) - minimum] = 1.
    return {'vector': vector}

  vector: dict[str, specs.Array] = {'vector': specs.BoundedArray((size,), np.float32, 0.0, 1.0, name='vector')}
  return vector, convert


def _copy(observation, shape, dtype):
  """Returns a copy, because the environment may write the next observation into the same array."""
  given = np.asarray(observation)
  if given.shape != shape:
    raise ValueError(f'observation: want the shape {shape} of its spec, got {given.shape}')
  with np.errstate(invalid='ignore'):
    copy = np.array(given, dtype)
  if dtype == np.uint8 and given.dtype != np.uint8 and not np.array_equal(copy, given):
    raise ValueError(f'observation: want whole numbers from 0 to 255 (uint8), got {given.dtype} with other values')
  return copy
