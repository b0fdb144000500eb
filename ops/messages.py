"""What TensorFlow's error messages say, without its own additions. This module imports no TensorFlow."""

import re


def plain_message(message: str) -> str:
  """Returns the message of an op's error without TensorFlow's additions about the op and the function."""
  return re.sub(r'\{\{function_node [^}]*\}\} ?|(\s*\[\[.*\]\])?\s*\[Op:[^]]*\]( name: .*)?$', '', message)


def one_line(message: str) -> str:
  """Returns `plain_message` on one line."""
  return ' '.join(plain_message(message).split())


def op_message(message: str) -> str:
  """Returns what an op said, from the message of a session's error; '' if no op is named. It comes before the node."""
  said = re.search(r'^(.*)\n\s*\[\[\{\{node ', message, re.MULTILINE)
  return said[1] if said else ''
