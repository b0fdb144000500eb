"""Writes videos to .mp4 or .gif files, with the encoder that is part of imageio-ffmpeg."""

from collections.abc import Iterator
import contextlib
import errno
from fractions import Fraction
import os

import imageio_ffmpeg
import numpy as np

from scalable_agents.evaluation import viewers
from scalable_agents.records import errors

_SMALLEST_SIDE = 320  # Pixels. Smaller pictures are enlarged, because the encoder's half-resolution colours blur them.

# Every picture has a palette of its own. Its 256 colours are more than an Atari console has.
_GIF = {'codec': 'gif', 'pix_fmt_out': 'pal8', 'output_params': [
    '-filter_complex', 'split[in][copy];[copy]palettegen=stats_mode=single[palette];'
                       '[in][palette]paletteuse=new=1:dither=none']}
_MP4 = {'pix_fmt_out': 'yuv420p', 'quality': 8}  # Every player can show this format. The best quality is 10.


def check(path: str):
  """Checks that a video can be written to a path. Leaves no file behind.

  Raises:
    errors.UserError: it cannot be written.
  """
  try:
    if os.path.isdir(path):
      raise IsADirectoryError(None, 'is a directory')
    with open(_unfinished(path), 'wb'):
      pass
    os.remove(_unfinished(path))
  except OSError as error:
    raise errors.UserError(f'--video={path}: {error.strerror}: choose another file') from error


class Writer:
  """Writes pictures to a video, in a `with` block.

  The file appears, or is replaced, at the end of the block, and also if the user closes a window beside it. After
  another exception it is left as it was.
  """

  def __init__(self, path: str, pictures_per_second: Fraction):
    """Writes nothing yet.

    Args:
      path: the video's file, which ends in .mp4 or .gif.
      pictures_per_second: speed of the video.
    """
    self._path = path
    self._pictures_per_second = pictures_per_second
    self._encoder = None
    self._shape = None

  def add(self, picture: np.ndarray):
    """Adds a picture.

    Args:
      picture: uint8 [H, W, 3].
    Raises:
      ValueError: its size differs from the pictures before.
      errors.UserError: the encoder fails.
    """
    if self._encoder is None:
      self._shape = picture.shape
    if picture.shape != self._shape:
      raise ValueError(f'picture: want {self._shape}, the size of the first one, got {picture.shape}')
    picture = _fit(picture)
    with self._one_line_errors():
      if self._encoder is None:
        height, width, _ = picture.shape
        # ffmpeg gets the speed as text, so that a fraction is exact.
        self._encoder = imageio_ffmpeg.write_frames(
            _unfinished(self._path), (width, height),
            fps=self._pictures_per_second,  # pyright: ignore[reportArgumentType]
            macro_block_size=1,
            **(_GIF if self._path.endswith('.gif') else _MP4))
        self._encoder.send(None)
      self._encoder.send(picture)

  def __enter__(self) -> 'Writer':
    return self

  def __exit__(self, exception_type, *unused_exception):
    try:
      with self._one_line_errors():
        if self._encoder is not None:
          self._encoder.close()
        if exception_type is None or issubclass(exception_type, viewers.Closed) and self._encoder is not None:
          # The encoder writes the index of an .mp4 last, and imageio-ffmpeg does not say whether it could.
          imageio_ffmpeg.count_frames_and_secs(_unfinished(self._path))
          os.replace(_unfinished(self._path), self._path)
    finally:
      with contextlib.suppress(FileNotFoundError):
        os.remove(_unfinished(self._path))

  @contextlib.contextmanager
  def _one_line_errors(self) -> Iterator[None]:
    """Turns errors of imageio-ffmpeg into a UserError. They occur if there is no encoder or if it ends early."""
    try:
      yield
    except (OSError, RuntimeError) as error:
      reason = next(iter(str(error).splitlines()), type(error).__name__)
      if os.strerror(errno.EPIPE) in reason:
        reason = 'the encoder ended early: is the disk full?'
      raise errors.UserError(f'--video={self._path}: no video could be written ({reason})') from error


def _unfinished(path: str) -> str:
  """Returns the path of the unfinished video. It keeps the ending, which determines the encoder."""
  root, ending = os.path.splitext(path)
  return f'{root}.unfinished-{os.getpid()}{ending}'


def _fit(picture: np.ndarray) -> np.ndarray:
  """Enlarges a small picture by a whole factor, and repeats the edge of odd sides. Encoders need even sides."""
  factor = -(-_SMALLEST_SIDE // min(picture.shape[:2]))
  picture = picture.repeat(factor, axis=0).repeat(factor, axis=1)
  height, width, _ = picture.shape
  return np.ascontiguousarray(np.pad(picture, ((0, height % 2), (0, width % 2), (0, 0)), mode='edge'))
