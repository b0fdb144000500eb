"""Errors that end a program with one line on the screen rather than with a traceback."""


class UserError(Exception):
  """Something that whoever started the program can mend. The message is one line: what, where, what to do."""
