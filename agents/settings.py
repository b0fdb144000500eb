"""How an agent's hyper-parameters are written down: a dataclass field with its default and its explanation."""

import dataclasses
from typing import Any


def setting(default: Any, help: str) -> Any:  # pylint: disable=redefined-builtin
  """A field of an agent's config; `help` becomes the help text of the command-line flag of the same name."""
  return dataclasses.field(default=default, metadata={'help': help})
