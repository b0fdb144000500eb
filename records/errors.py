"""Errors that end a program with one line on the screen rather than with a traceback."""


class UserError(Exception):
  """An error that the user can correct. The first line of the message says what, where, and what to do.

  If the error is of an environment worker, further lines have the worker's traceback.
  """
