"""Shows the pictures of an episode while it is played: in a window, or as characters in a terminal."""

from fractions import Fraction
import importlib
import itertools
import shutil
import time
from typing import Any, TextIO

import numpy as np

from scalable_agents.records import errors

_WINDOW_SIDE = 480  # Pixels. Smaller pictures are enlarged to about this height.
_LEVELS = np.array([0, 95, 135, 175, 215, 255])  # Of red, green and blue in the colour cube of 256-colour terminals.


class Closed(Exception):
  """The user has closed the window."""


class _Clock:
  """Waits so that pictures follow each other at the level's speed."""

  def __init__(self, pictures_per_second: Fraction):
    self._interval = float(1 / pictures_per_second)
    self._due = time.monotonic()

  def wait(self):
    """Waits until the next picture is due. After a delay, later pictures are not shown faster."""
    now = time.monotonic()
    time.sleep(max(0., self._due - now))
    self._due = max(self._due, now) + self._interval


class Terminal:
  """Draws pictures as characters. Each is a half block, whose two colours, of 256, show two points."""

  def __init__(self, pictures_per_second: Fraction, title: str, stream: TextIO):
    """Draws nothing yet.

    Args:
      pictures_per_second: speed.
      title: a line of text above the picture.
      stream: the terminal.
    """
    self._clock = _Clock(pictures_per_second)
    self._title = title
    self._stream = stream
    self._lines = 0  # Number of lines that the last picture took.

  def __enter__(self) -> 'Terminal':
    return self

  def __exit__(self, *unused_exception):
    """Leaves the last picture on the screen."""

  def add(self, picture: np.ndarray):
    """Draws a picture, uint8 [H, W, 3], over the last one, as large as fits in the terminal."""
    size = shutil.get_terminal_size()
    lines = [self._title[:size.columns], *as_characters(picture, size.columns, size.lines - 2)]
    back = f'\x1b[{self._lines}A' if self._lines else ''
    self._clock.wait()
    self._stream.write(back + ''.join(f'\r{line}\x1b[K\n' for line in lines))
    self._stream.flush()
    self._lines = len(lines)


def as_characters(picture: np.ndarray, columns: int, lines: int) -> list[str]:
  """Draws a picture with ANSI escape sequences.

  Args:
    picture: uint8 [H, W, 3].
    columns, lines: the largest size of the result. A column is half as wide as a line is high.
  Returns:
    The lines, each of which ends with the terminal's own colours.
  """
  height, width, _ = picture.shape
  rows = 2 * max(1, min(lines, columns * height // (2 * width)))
  points = _resize(picture, rows, max(1, min(columns, round(rows * width / height))))
  # The nearest of the cube's six levels.
  steps = np.searchsorted((_LEVELS[1:] + _LEVELS[:-1]) / 2, points)
  colours = 16 + steps @ [36, 6, 1]
  return [''.join(f'\x1b[38;5;{upper};48;5;{lower}m' + '▀' * len(list(equal))
                  for (upper, lower), equal in itertools.groupby(zip(*pair, strict=True))) + '\x1b[0m'
          for pair in colours.reshape(rows // 2, 2, -1)]


def _resize(picture: np.ndarray, height: int, width: int) -> np.ndarray:
  """Returns the means of the areas of a picture that become one point each, float [height, width, 3]."""
  result = picture.astype(float)
  for axis, size in enumerate((height, width)):
    starts = np.linspace(0, result.shape[axis], size, endpoint=False).astype(int)
    counts = np.maximum(np.diff(starts, append=result.shape[axis]), 1)  # An area may be smaller than a pixel.
    result = np.add.reduceat(result, starts, axis) / np.expand_dims(counts, tuple({0, 1, 2} - {axis}))
  return result


class Window:
  """Shows pictures in a window, with Tk, which is part of most Pythons."""

  def __init__(self, pictures_per_second: Fraction, title: str):
    """Opens the window.

    Args:
      pictures_per_second: speed.
      title: the window's title.
    Raises:
      errors.UserError: there is no display or no Tk.
    """
    self._clock = _Clock(pictures_per_second)
    self._tk, self._window = _open()
    self._window.title(title)
    self._label = self._tk.Label(self._window)
    self._label.pack()
    self._is_closed = False
    self._window.protocol('WM_DELETE_WINDOW', self._close)

  def __enter__(self) -> 'Window':
    return self

  def __exit__(self, *unused_exception):
    self._window.destroy()

  def add(self, picture: np.ndarray):
    """Shows a picture, uint8 [H, W, 3], enlarged.

    Raises:
      Closed: the user has closed the window.
    """
    factor = max(1, round(_WINDOW_SIDE / picture.shape[0]))
    picture = picture.repeat(factor, axis=0).repeat(factor, axis=1)
    data = b'P6 %d %d 255\n' % (picture.shape[1], picture.shape[0]) + picture.tobytes()
    image = self._tk.PhotoImage(master=self._window, data=data, format='PPM')
    self._label.configure(image=image)
    self._label.image = image  # Tk itself keeps no reference.
    self._window.update()
    self._clock.wait()
    if self._is_closed:
      raise Closed

  def _close(self):
    self._is_closed = True


def has_window() -> bool:
  """Returns whether windows can be opened here."""
  try:
    _open()[1].destroy()
  except errors.UserError:
    return False
  return True


def _open() -> tuple[Any, Any]:
  """Returns Python's module for Tk, and a window. Raises errors.UserError if there can be none."""
  try:
    tk = importlib.import_module('tkinter')  # Some Pythons have none.
  except ImportError as error:
    raise errors.UserError(f'no window: this Python has no Tk ({error}); on Debian: apt-get install '
                           'python3-tk') from error
  try:
    return tk, tk.Tk()
  except tk.TclError as error:
    raise errors.UserError(f'no window: {" ".join(str(error).split())}') from error
