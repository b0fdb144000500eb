"""Errors that end a program with one line on the screen rather than with a traceback."""


class UserError(Exception):
  """An error that the user can correct. The message is one line: what, where, what to do."""
