"""From a console's screens to an observation: gray, the maximum of several screens, a smaller size, a stack of frames.

The C++ library of environments/cc does it in a few passes over the pixels. Where it was not built, NumPy gives the same
observations, and takes about ten times as long.
"""

import ctypes
import functools
import os
from typing import Any
import weakref

import numpy as np

_LIBRARY = os.path.join(os.path.dirname(os.path.abspath(__file__)), '_pixels.so')


def make(screen: tuple[int, int], observation: tuple[int, int], stack: int) -> 'NativePixelPass | NumpyPixelPass':
  """Makes the pixels of an environment.

  Args:
    screen: height and width of a screen.
    observation: height and width of a frame.
    stack: the number of frames in an observation.
  """
  library = _load()
  return (NativePixelPass(library, screen, observation, stack) if library else
          NumpyPixelPass(screen, observation, stack))


def area_weights(size: int, new_size: int) -> np.ndarray:
  """Returns float32 [new_size, size]: the parts of old pixels that each new one covers, as whole numbers.

  An old pixel is new_size / gcd long, and a new one size / gcd.
  """
  divisor = np.gcd(size, new_size)
  old, new = new_size // divisor, size // divisor
  first, begin = np.arange(size) * old, np.arange(new_size)[:, np.newaxis] * new
  return np.maximum(np.minimum(first + old, begin + new) - np.maximum(first, begin), 0).astype(np.float32)


class NativePixelPass:
  """The pixels of one environment, in C++."""

  def __init__(self, library: ctypes.CDLL, screen: tuple[int, int], observation: tuple[int, int], stack: int,
               instructions: int | None = None):
    """Makes it. See `make`; `instructions` are those of the C++ code, by default the best of this processor."""
    best = library.scalable_agents_best_instructions()
    self._library = library
    self._pass = library.scalable_agents_pixels_new(
        *screen, *observation, stack, best if instructions is None else instructions)
    weakref.finalize(self, library.scalable_agents_pixels_delete, self._pass)
    self._stack = np.zeros([*observation, stack], np.uint8)
    self._stack_address = self._stack.ctypes.data
    self._indices, self._indices_address = None, 0

  def add(self, indices: np.ndarray, is_first: bool) -> bool:
    """Adds a screen to the maximum. The first one begins a new maximum.

    Args:
      indices: uint8 [H, W], palette indices; best the same array each time.
      is_first: whether it is the first one.
    Returns:
      False if the screen has a colour whose gray is not known yet. Then `add_gray` must follow.
    """
    if indices is not self._indices:  # An array's address takes longer to find than its pixels to add.
      self._indices, self._indices_address = indices, indices.ctypes.data
    return bool(self._library.scalable_agents_pixels_add(self._pass, self._indices_address, is_first))

  def add_gray(self, indices: np.ndarray, gray: np.ndarray, is_first: bool) -> None:
    """The same, given the gray of the screen, uint8 [H, W]. `add` knows its colours from now on."""
    self._library.scalable_agents_pixels_add_gray(self._pass, indices.ctypes.data, gray.ctypes.data, is_first)

  def observe(self) -> np.ndarray:
    """Resizes the maximum and adds it to the stack as the newest frame.

    Returns:
      The stack, uint8 [height, width, k], which is not written again.
    """
    self._library.scalable_agents_pixels_observe(self._pass, self._stack_address)
    return self._stack.copy()

  def clear(self) -> None:
    """Makes all frames of the stack zeros."""
    self._library.scalable_agents_pixels_clear(self._pass)


class NumpyPixelPass:
  """The same in NumPy."""

  def __init__(self, screen: tuple[int, int], observation: tuple[int, int], stack: int):
    """Makes it. See `make`."""
    self._rows, columns = (area_weights(*sizes) for sizes in zip(screen, observation, strict=True))
    self._columns = columns.T
    self._total = int(self._rows[0].sum()) * int(columns[0].sum())
    self._pooled = np.zeros(screen, np.uint8)
    self._stack = np.zeros([*observation, stack], np.uint8)

  def add(self, indices: np.ndarray, is_first: bool) -> bool:
    """See NativePixelPass. It knows no colour."""
    del indices, is_first
    return False

  def add_gray(self, indices: np.ndarray, gray: np.ndarray, is_first: bool) -> None:
    """See NativePixelPass."""
    del indices
    self._pooled = gray.copy() if is_first else np.maximum(self._pooled, gray)

  def observe(self) -> np.ndarray:
    """See NativePixelPass. Whole numbers below 2^24 are exact in float32."""
    sums = (self._rows @ self._pooled.astype(np.float32) @ self._columns).astype(np.int64)
    newest = (2 * sums + self._total) // (2 * self._total)
    self._stack = np.concatenate([self._stack[..., 1:], newest[..., np.newaxis].astype(np.uint8)], axis=-1)
    return self._stack.copy()

  def clear(self) -> None:
    """See NativePixelPass."""
    self._stack[:] = 0


@functools.cache
def _load() -> Any:
  """Returns the library; None if it was not built."""
  if not os.path.exists(_LIBRARY):
    return None
  library = ctypes.CDLL(_LIBRARY)
  pointer, number = ctypes.c_void_p, ctypes.c_int
  for name, result, arguments in (('best_instructions', number, []),
                                  ('pixels_new', pointer, [number] * 6),
                                  ('pixels_delete', None, [pointer]),
                                  ('pixels_add', number, [pointer, pointer, number]),
                                  ('pixels_add_gray', None, [pointer, pointer, pointer, number]),
                                  ('pixels_observe', None, [pointer, pointer]),
                                  ('pixels_clear', None, [pointer])):
    function = getattr(library, f'scalable_agents_{name}')
    function.restype, function.argtypes = result, arguments
  return library
