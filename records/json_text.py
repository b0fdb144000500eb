"""Reads JSON text that may be damaged: whatever is wrong with it is a ValueError with one line.

Python's json module accepts Infinity and NaN, reads 1e999 as infinity, and fails with a RecursionError on text that is
nested too deeply. Files of a run have none of these: an infinite setting is written as text (see settings.to_json), and
metrics that are not finite as null.
"""

from collections.abc import Iterable
import json
import math
import re
from typing import Any

from scalable_agents.records import settings

_WANTED = {str: 'text', bool: 'true or false', int: 'a whole number', float: 'a number', dict: 'an object',
           list: 'a list'}
_LARGEST = 2 ** 63  # Whole numbers fit in 64 bits.


class JsonError(ValueError):
  """Text is not JSON that a run writes. `line` is the number of the damaged line, counted from 1; None if unknown."""

  def __init__(self, message: str, line: int | None = None):
    super().__init__(message)
    self.line = line


def parse(text: bytes) -> Any:
  """Returns the value of a JSON text in UTF-8, with finite numbers and whole numbers of 64 bits.

  Raises:
    JsonError: it is not such a text.
  """
  try:
    decoded = text.decode()
  except UnicodeDecodeError as error:
    raise JsonError('it is not UTF-8', text.count(b'\n', 0, error.start) + 1) from error

  def refuse(number: str):
    place = re.search(rf'(?<![\w.+-]){re.escape(number)}(?![\w.])', decoded)
    line = decoded.count('\n', 0, place.start()) + 1 if place else None
    raise JsonError(f'{settings.shown(number)}: want a finite number, of at most 64 bits if it is whole', line)

  def read_float(number: str) -> float:
    value = float(number)
    return value if math.isfinite(value) else refuse(number)

  def read_int(number: str) -> int:
    # int() does not accept thousands of digits.
    return value if len(number) < 25 and abs(value := int(number)) < _LARGEST else refuse(number)

  try:
    return json.loads(decoded, parse_float=read_float, parse_int=read_int, parse_constant=refuse)
  except json.JSONDecodeError as error:
    raise JsonError(f'column {error.colno}: {error.msg}', error.lineno) from error
  except RecursionError as error:
    raise JsonError('it is nested too deeply') from error


def is_a(value: Any, kind: type) -> bool:
  """Returns whether a JSON value is of a kind: str, bool, int, float, dict or list. A whole number is a float too."""
  if kind is str:
    return isinstance(value, str) and settings.is_text(value)
  return type(value) is kind or kind is float and type(value) is int


def wanted(kind: type) -> str:
  """Describes the values of a kind, for a message."""
  return _WANTED[kind]


def field(values: Any, name: str, kind: type, optional: bool = False) -> Any:
  """Returns the value of a name in a JSON object.

  Args:
    values: the object, or another JSON value if the text is damaged.
    name: the name.
    kind: str, bool, int, float, dict or list.
    optional: whether the name may be missing or null. Then None is returned.
  Raises:
    ValueError: the value is missing or not of this kind.
  """
  value = as_object(values).get(name)
  if value is None and optional:
    return None
  if not is_a(value, kind):
    raise ValueError(f'"{name}": {settings.shown(value) if name in values else "missing"}: want {_WANTED[kind]}')
  return value


def as_object(values: Any) -> dict[str, Any]:
  """Returns a JSON value that must be an object. Raises ValueError if it is not."""
  if not isinstance(values, dict):
    raise ValueError(f'{settings.shown(values)}: want an object')
  return values


def numbers(values: Any, names: Iterable[str] | None = None) -> dict[str, float]:
  """Returns some values of a JSON object, which must be numbers; without `names`, all. Raises ValueError otherwise."""
  return {name: field(values, name, float) for name in (as_object(values) if names is None else names)}
