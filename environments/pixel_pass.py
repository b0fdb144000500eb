"""Turns a console's screens into an observation: gray, the maximum of several screens, a new size, a stack of frames.

The C++ library of environments/cc does this in a few passes over the pixels. If it was not built, NumPy computes the
same observations, in about ten times the time.
"""

import ctypes
import functools
import os
import threading
from typing import Any
import weakref

import numpy as np

from scalable_agents.ops import sources

_LIBRARY = os.path.join(os.path.dirname(os.path.abspath(__file__)), '_pixels.so')


class Screens:
  """Memory for the screens of a step. The environments of a thread share it, so that it is in the processor's cache.

  Attributes:
    indices: uint8 [H, W], for the palette indices of a screen.
    pooled: uint8 [H, W], the maximum of the step's screens so far, as grays.
    addresses: the memory addresses of both arrays. Asking an array for its address takes longer than adding its pixels.
  """

  def __init__(self, size: tuple[int, int]):
    """Makes the memory for screens of this height and width."""
    self.indices, self.pooled = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
    self.addresses = self.indices.ctypes.data, self.pooled.ctypes.data


class _OfThread(threading.local):
  """Each thread's Screens by size."""

  def __init__(self):
    self.screens: dict[tuple[int, int], Screens] = {}


_of_thread = _OfThread()


def screens(size: tuple[int, int]) -> Screens:
  """Returns this thread's memory for screens of this height and width. Its content is valid until the step's end."""
  by_size = _of_thread.screens
  if size not in by_size:
    by_size[size] = Screens(size)
  return by_size[size]


def make(screen: tuple[int, int], observation: tuple[int, int], stack: int) -> 'NativePixelPass | NumpyPixelPass':
  """Makes the pixel pass of an environment: in C++, or in NumPy if the library was not built.

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


class _PixelPass:
  """Turns the screens of one environment into observations.

  Attributes:
    stack: uint8 [height, width, k], the newest k frames, the newest one last. `clear` and `observe` change it.
  """

  stack: np.ndarray

  def __init__(self, observation: tuple[int, int], stack: int):
    """Makes the stack. See `make`."""
    self.keep_stack_in(np.zeros([*observation, stack], np.uint8))

  def keep_stack_in(self, array: np.ndarray) -> None:
    """Uses an array as the stack: uint8 [height, width, k], C-contiguous. Does not change its content."""
    self.stack, self._stack_address = array, array.ctypes.data

  def clear(self) -> None:
    """Makes all frames of the stack zeros."""
    self.stack[:] = 0


class NativePixelPass(_PixelPass):
  """The pixel pass of one environment, in C++."""

  def __init__(self, library: ctypes.CDLL, screen: tuple[int, int], observation: tuple[int, int], stack: int,
               instructions: int | None = None):
    """Makes the pixel pass; see `make`. `instructions`: an Instructions of pixel_pass.h; None: the processor's best."""
    super().__init__(observation, stack)
    best = library.scalable_agents_best_instructions()
    self._library = library
    self._pass = library.scalable_agents_pixels_new(
        *screen, *observation, stack, best if instructions is None else instructions)
    weakref.finalize(self, library.scalable_agents_pixels_delete, self._pass)

  def add(self, shown: Screens, is_first: bool) -> bool:
    """Adds a screen to the maximum of the step's screens. The first one begins a new maximum.

    Args:
      shown: the memory with the palette indices of the screen.
      is_first: whether it is the first screen of the step.
    Returns:
      False if the screen has a colour whose gray is not known yet. Then `add_gray` must follow.
    """
    indices, pooled = shown.addresses
    return bool(self._library.scalable_agents_pixels_add(self._pass, indices, is_first, pooled))

  def add_gray(self, shown: Screens, gray: np.ndarray, is_first: bool) -> None:
    """Like `add`, for a screen whose gray is given, uint8 [H, W]. `add` knows the screen's colours from then on."""
    indices, pooled = shown.addresses
    self._library.scalable_agents_pixels_add_gray(self._pass, indices, gray.ctypes.data, is_first, pooled)

  def observe(self, shown: Screens) -> None:
    """Resizes the maximum and adds it to the stack as the newest frame."""
    self._library.scalable_agents_pixels_observe(self._pass, shown.addresses[1], self._stack_address)


class NumpyPixelPass(_PixelPass):
  """The pixel pass of one environment, in NumPy."""

  def __init__(self, screen: tuple[int, int], observation: tuple[int, int], stack: int):
    """Makes the pixel pass; see `make`."""
    super().__init__(observation, stack)
    self._rows, columns = (area_weights(*sizes) for sizes in zip(screen, observation, strict=True))
    self._columns = columns.T
    self._total = int(self._rows[0].sum()) * int(columns[0].sum())

  def add(self, shown: Screens, is_first: bool) -> bool:
    """See NativePixelPass. Always returns False, so `add_gray` must follow."""
    del shown, is_first
    return False

  def add_gray(self, shown: Screens, gray: np.ndarray, is_first: bool) -> None:
    """See NativePixelPass."""
    np.maximum(0 if is_first else shown.pooled, gray, out=shown.pooled)

  def observe(self, shown: Screens) -> None:
    """See NativePixelPass. Whole numbers below 2^24 are exact in float32."""
    sums = (self._rows @ shown.pooled.astype(np.float32) @ self._columns).astype(np.int64)
    self.stack[..., :-1] = self.stack[..., 1:]
    self.stack[..., -1] = (2 * sums + self._total) // (2 * self._total)


@functools.cache
def _load() -> Any:
  """Returns the library; None if it was not built.

  Raises:
    ImportError: it was built from other sources. Called with other arguments, it would leave screens black.
  """
  if not os.path.exists(_LIBRARY):
    return None
  sources.check(_LIBRARY, ['environments'])
  library = ctypes.CDLL(_LIBRARY)
  pointer, number = ctypes.c_void_p, ctypes.c_int
  for name, result, arguments in (('best_instructions', number, []),
                                  ('pixels_new', pointer, [number] * 6),
                                  ('pixels_delete', None, [pointer]),
                                  ('pixels_add', number, [pointer, pointer, number, pointer]),
                                  ('pixels_add_gray', None, [pointer, pointer, pointer, number, pointer]),
                                  ('pixels_observe', None, [pointer, pointer, pointer])):
    function = getattr(library, f'scalable_agents_{name}')
    function.restype, function.argtypes = result, arguments
  return library
