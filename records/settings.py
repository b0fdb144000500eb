"""Settings: dataclass fields with a default, a help text and the values that are allowed."""

from collections.abc import Callable, Collection, Mapping
import ctypes
import dataclasses
import json
import math
import typing
from typing import Any, NamedTuple, TypeVar, cast

AUTO = 'auto'
Count = int | str  # A whole number, or AUTO.
WHOLE_NUMBER = r'[0-9]+(_[0-9]+)*'  # A pattern of texts that int() reads, without a sign.
Config = TypeVar('Config')
MAX_FRAMES = 10 ** 15   # Environment frames. Centuries of training; floats represent integers exactly up to here.
MAX_SEED = 2 ** 31 - 1  # TensorFlow's seeds are int32.
MAX_ACTION_REPEATS = 1_000
MAX_ENVIRONMENTS = 10_000
MAX_PROCESSES = 1_024   # Of one kind, on one machine.
MAX_SECONDS = 86_400    # The longest wait or interval: a day.

_SMALLEST_INT64, _LARGEST_INT64 = -2 ** 63, 2 ** 63 - 1
_SMALLEST_FLOAT32 = 2.0 ** -126  # The smallest normal number. TensorFlow treats smaller ones as 0.
_LONGEST_SHOWN = 200  # Characters of a value in a message.
_INFINITE = ('inf', '-inf')  # How config.json writes infinite numbers, because JSON has none.
_RENAMED = {'samples_per_insert': 'samples_per_period'}  # Names in config.json of older runs. The meaning is the same.


class Bounds(NamedTuple):
  """The range of a number; None for no bound. A float must also be finite, unless `at_most` is infinite."""
  at_least: float | None
  more_than: float | None
  at_most: float | None
  less_than: float | None

  def contain(self, number: float) -> bool:
    """Returns whether the number is in the range. NaN never is."""
    return (number == number
            and (self.at_least is None or number >= self.at_least)
            and (self.more_than is None or number > self.more_than)
            and (self.at_most is None or number <= self.at_most)
            and (self.less_than is None or number < self.less_than)
            and (self.at_most == math.inf or abs(number) != math.inf))


def setting(default: Any, help: str, free: bool = False, *, kind: Callable[[Any], str] | None = None,
            at_least: float | None = None, more_than: float | None = None, at_most: float | None = None,
            less_than: float | None = None, choices: tuple[str, ...] = (), required: str = '') -> Any:
  """Declares a field of a config.

  Args:
    default: the default value.
    help: the help text of the command-line flag of the same name.
    free: whether it may change when a run is resumed, and may differ between the processes of a cluster. Most such
      settings affect where and how fast a run learns, not what.
    kind: what must stay the same of a free setting, if anything: a function of its value, whose result is for messages.
    at_least, more_than, at_most, less_than: the range of a number. Give `at_most=math.inf` to allow an infinite float.
    choices: the allowed values of a text; () for any text.
    required: what a text names, such as 'a folder', if it may not be empty.
  """
  bounds = Bounds(at_least, more_than, at_most, less_than)
  return dataclasses.field(default=default, metadata={
      'help': help, 'free': free, 'kind': kind, 'bounds': bounds, 'choices': choices,
      'required': required})


def fields(config: Any) -> tuple[dataclasses.Field[Any], ...]:
  """Returns the fields of a config, or of a class of configs.

  Raises:
    TypeError: a field is not made by `setting`.
  """
  found = dataclasses.fields(config)
  for field in found:
    if 'help' not in field.metadata:
      name = (config if isinstance(config, type) else type(config)).__name__
      raise TypeError(f'{name}.{field.name}: want settings.setting(default, help) as its value')
  return found


def free_settings(config: Any) -> frozenset[str]:
  """Returns the names of the `free` fields of a config, or of a class of configs."""
  return frozenset(field.name for field in fields(config) if field.metadata['free'])


def portable(config: Config) -> Config:
  """Returns a config that fits any machine: its `free` settings, which belong to a machine, have their defaults.

  A setting whose `kind` differs from the default's keeps its value, because the kind belongs to the run.
  """
  defaults = {field.name: field.default for field in fields(config) if field.metadata['free']}
  of_defaults, of_config = kinds(config, defaults), kinds(config, dataclasses.asdict(cast(Any, config)))
  return dataclasses.replace(cast(Any, config), **{
      name: value for name, value in defaults.items() if of_defaults.get(name) == of_config.get(name)})


def kinds(config: Any, values: Mapping[str, Any]) -> dict[str, str]:
  """Returns the `kind` of each free setting that has one, by name.

  Args:
    config: a config, or a class of configs.
    values: the values of settings by name. A missing one counts as the default.
  """
  return {field.name: field.metadata['kind'](values.get(field.name, field.default))
          for field in fields(config) if field.metadata['kind']}


def check(config: Any) -> None:
  """Checks the type and the range of every setting of a config.

  A float must be in its range also after TensorFlow rounds it to float32: 0.99999999999 becomes 1, 1e39 infinity.

  Raises:
    ValueError: a setting is not allowed. The message is one line with the flag, its value and the allowed values.
    TypeError: a field is not made by `setting`.
  """
  field_types = typing.get_type_hints(type(config))
  for field in fields(config):
    value, field_type = getattr(config, field.name), field_types[field.name]
    if not _is_allowed(value, field_type, field.metadata):
      reason = f'want {wanted(field_type, field.metadata)}'
      if isinstance(value, (int, float)) and field.metadata['bounds'].contain(value):
        if field_type is float:
          reason += f'; in float32 this is {_float32(value):g}'  # Else 0.99999999999 would seem to be less than 1.
        elif field_type in (int, Count) and not _SMALLEST_INT64 <= value <= _LARGEST_INT64:
          reason += ', of at most 64 bits'
      raise ValueError(f'--{field.name}={shown(value)}: {reason}')


def wanted(field_type: Any, metadata: typing.Mapping[str, Any]) -> str:
  """Describes the allowed values of a field of this type with this metadata."""
  if field_type is bool:
    return 'true or false'
  if field_type is str:
    if metadata['choices']:
      return 'one of ' + ', '.join(filter(None, metadata['choices']))
    return metadata['required'] or 'text in UTF-8'
  bounds = metadata['bounds']
  finite = None if bounds.at_most == math.inf else bounds.at_most
  if bounds.at_least is not None and finite is not None:
    limits = f' from {bounds.at_least} to {finite}'
  else:
    texts = (f'{words} {bound}' for words, bound in (
        ('at least', bounds.at_least), ('more than', bounds.more_than),
        ('less than', bounds.less_than), ('at most', finite)) if bound is not None)
    limits = ' and '.join(texts)
    limits = f' of {limits}' if limits else ''
  if field_type is float:
    if bounds.at_most == math.inf:
      return f'a number{limits}, or inf'
    is_between = {None} not in ({bounds.at_least, bounds.more_than}, {bounds.less_than, bounds.at_most})
    return f'a {"" if is_between else "finite "}number{limits}'
  return f'{AUTO}, or a whole number{limits}' if field_type == Count else f'a whole number{limits}'


def help_text(field_type: Any, metadata: typing.Mapping[str, Any]) -> str:
  """Returns the help text of a field of this type with this metadata. Of a number, it ends with the range."""
  text = metadata['help']
  if field_type in (bool, str):
    return text  # A text's help names its values.
  return f'{text} Want {wanted(field_type, metadata)}.'


def shown(value: Any) -> str:
  """Formats a value for a message: on one line, at most 200 characters of it, and bytes that are not UTF-8 escaped."""
  text = ' '.join(str(value).encode('utf-8', 'backslashreplace').decode().split())
  return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + '...'


def to_json(config: Mapping[str, Any]) -> dict[str, Any]:
  """Returns settings as config.json has them: infinite numbers as text. Other programs read this file too."""
  return {name: str(value) if value in (math.inf, -math.inf) else value for name, value in config.items()}


def from_json(flags: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the settings that `to_json` was given, by the names and with the values that they have today."""
  return {_RENAMED.get(name, name): _today(name, value) for name, value in flags.items()}


def _today(name, value):
  """Returns the value of a setting of config.json, perhaps of an older run, as it is written today."""
  if name == 'centre_pixels' and isinstance(value, bool):
    return 'mean' if value else 'none'
  return float(value) if value in _INFINITE else value


def differences(stored: Mapping[str, Any], config: Mapping[str, Any], free: Collection[str],
                defaults: Mapping[str, Any]) -> list[str]:
  """Compares the settings of a run with those that it was started with.

  Args:
    stored: the settings that the run was started with, by name.
    config: its settings now.
    free: names of settings that may differ.
    defaults: the default of each setting. A run that is older than a setting counts as one with its default.
  Returns:
    A text for each setting that differs, with both values.
  """
  older = {name: json.dumps(value) for name, value in defaults.items()}
  there, here = ({name: json.dumps(value) for name, value in values.items()} for values in (stored, config))
  found = []
  for name in sorted((there.keys() | here.keys()) - set(free)):
    was, now = there.get(name, older.get(name, 'absent')), here.get(name, 'absent')
    if was != now:
      by_default = ' by default' if name in older and name not in there else ''
      found.append(f'--{name} was {was}{by_default} and is {now} now')
  return found


def is_text(value: str) -> bool:
  """Returns whether the text is valid UTF-8 without null characters. Python reads invalid bytes as surrogates."""
  try:
    value.encode()
  except UnicodeEncodeError:
    return False
  return '\0' not in value


def _is_allowed(value, field_type, metadata):
  """Returns whether a setting of this type with this metadata may have this value."""
  if field_type is str:
    if not isinstance(value, str) or not value and metadata['required']:
      return False
    return value in metadata['choices'] if metadata['choices'] else is_text(value)
  if isinstance(value, bool) or field_type is bool:
    return isinstance(value, bool) and field_type is bool
  if field_type == Count and value == AUTO:
    return True
  if field_type is float and isinstance(value, (int, float)):
    rounded = _float32(value)
    return all(map(metadata['bounds'].contain, (value, rounded))) and (value == 0 or rounded != 0)
  return (isinstance(value, int) and _SMALLEST_INT64 <= value <= _LARGEST_INT64
          and metadata['bounds'].contain(value))


def _float32(value: float) -> float:
  """Rounds a number to float32 as TensorFlow does."""
  try:
    number = ctypes.c_float(value).value
  except OverflowError:  # An integer that is too large for a float.
    return math.inf if value > 0 else -math.inf
  return 0.0 if abs(number) < _SMALLEST_FLOAT32 else number
