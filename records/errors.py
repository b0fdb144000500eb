"""Errors that end a program with one line on the screen rather than with a traceback."""

from collections.abc import Iterator
import contextlib


class UserError(Exception):
  """An error that the user can correct. The first line of the message says what, where, and what to do.

  Further lines have details, such as an environment worker's traceback or the output of a process.
  """


@contextlib.contextmanager
def of_user(*kinds: type[Exception], prefix: str = '') -> Iterator[None]:
  """Within the block, exceptions of these kinds become a UserError with the same message, after `prefix`."""
  try:
    yield
  except kinds as error:
    raise UserError(f'{prefix}{error}') from error
