"""How settings are written down: a dataclass field with its default and its explanation."""

import dataclasses
from typing import Any


def setting(default: Any, help: str, free: bool = False) -> Any:  # pylint: disable=redefined-builtin
  """A field of a config.

  Args:
    default: its default.
    help: the help text of the command-line flag of the same name.
    free: whether it may change when a run is resumed, as it decides not what is learned, only where and how fast.
  """
  return dataclasses.field(default=default, metadata={'help': help, 'free': free})


def free_settings(config: Any) -> frozenset[str]:
  """The names of those fields of a config, or of a class of configs, that are `free`."""
  return frozenset(field.name for field in dataclasses.fields(config) if field.metadata['free'])
