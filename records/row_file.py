"""Reads files with one row per line, to which a run appends for weeks, at a cost that does not grow with the file.

A row is a line with its newline. A last line without one is still being written, or a kill has cut it off, so it does
not count. `sample`, `last` and `size_up_to` find rows by their place in the file and read only a few kilobytes around
each. The functions raise OSError. A file that does not exist has no rows.
"""

from collections.abc import Callable, Iterator
import contextlib
import os
from typing import BinaryIO, NamedTuple

_BLOCK_BYTES = 1 << 12
_LARGE_BLOCK_BYTES = 1 << 20


class Row(NamedTuple):
  """A line of a file."""
  position: int  # The position of its first byte in the file.
  line: bytes    # With its newline.

  @property
  def end(self) -> int:
    """The position of the first byte after it."""
    return self.position + len(self.line)


def read(file: str) -> Iterator[Row]:
  """Yields all rows, in the file's order."""
  with contextlib.suppress(FileNotFoundError), open(file, 'rb') as stream:
    position = 0
    for line in stream:
      if line.endswith(b'\n'):
        yield Row(position, line)
      position += len(line)


def sample(file: str, at_most: int) -> Iterator[Row]:
  """Yields rows in order, spread evenly over the bytes of the file. The first and the last row are among them.

  The file is divided into pieces of equal size, and the first row that begins in each piece is read. So all rows are
  read if each is at least as long as a piece. Otherwise, long rows are not more likely to be read than short ones.

  Args:
    file: the file's name.
    at_most: the largest number of rows to read, at least 2.
  """
  with contextlib.suppress(FileNotFoundError), open(file, 'rb') as stream:
    end = _end_of_rows(stream)
    piece = -(-end // (at_most - 1))
    begin = 0
    while begin < end:
      stream.seek(begin)
      row = Row(begin, stream.readline())
      yield row
      next_piece = (row.position // piece + 1) * piece
      begin = row.end if row.end >= next_piece else _line_at(stream, min(next_piece, end) - 1).end
    if end and row.end < end:
      yield _line_at(stream, end - 1)


def last(file: str) -> Row | None:
  """Returns the last row; None if there is no row."""
  with contextlib.suppress(FileNotFoundError), open(file, 'rb') as stream:
    end = _end_of_rows(stream)
    return _line_at(stream, end - 1) if end else None


def size_up_to(file: str, counts: Callable[[Row], bool]) -> int:
  """Returns the size in bytes of the file's first rows, up to the last one that counts. Uses binary search.

  Args:
    file: the file's name.
    counts: whether a row counts. If one does not, no later one may.
  """
  with contextlib.suppress(FileNotFoundError), open(file, 'rb') as stream:
    low, high = 0, _end_of_rows(stream)
    while low < high:
      row = _line_at(stream, (low + high) // 2)
      if counts(row):
        low = row.end
      else:
        high = row.position
    return low
  return 0


def line_number(file: str, position: int) -> int:
  """Returns the number of the line, counted from 1, that begins at a position. Reads the file up to there."""
  number = 1
  with open(file, 'rb') as stream:
    while block := stream.read(min(position, _LARGE_BLOCK_BYTES)):
      number += block.count(b'\n')
      position -= len(block)
  return number


def _end_of_rows(stream: BinaryIO) -> int:
  """Returns the position after the last newline."""
  return _line_at(stream, stream.seek(0, os.SEEK_END)).position


def _line_at(stream: BinaryIO, position: int) -> Row:
  """Returns the line with the byte at this position; at the file's end, the incomplete line, which may be empty."""
  begin = position
  while begin > 0:
    block = max(0, begin - _BLOCK_BYTES)
    stream.seek(block)
    newline = stream.read(begin - block).rfind(b'\n')
    if newline >= 0:
      begin = block + newline + 1
      break
    begin = block
  stream.seek(begin)
  return Row(begin, stream.readline())
