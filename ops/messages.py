"""What TensorFlow's error messages say, without its own additions. This module imports no TensorFlow."""

import re


def plain_message(message: str) -> str:
  """Returns the message of an op's error without TensorFlow's additions about the op and the function."""
  return re.sub(r'\{\{function_node [^}]*\}\} ?|(\s*\[\[.*\]\])?\s*\[Op:[^]]*\]( name: .*)?$', '', message)
