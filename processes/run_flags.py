"""Command-line flags: every field of a config is a flag of the same name.

Binaries, and what they share, use this module; agents and learners get configs:

  run_flags.define(configs.ImpalaConfig())

  def main():
    config = run_flags.config_from_flags(configs.ImpalaConfig, configs.validate_impala)
    ...

  run_flags.run_main(main)
"""

from collections.abc import Callable, Collection, Iterable
import dataclasses
import os
import re
import signal
import sys
import typing
from typing import Any, NoReturn, TypeVar, cast

from absl import app
from absl import flags

from scalable_agents.processes import quiet
from scalable_agents.processes import standard_streams
from scalable_agents.records import errors
from scalable_agents.records import run_directory
from scalable_agents.records import settings

Config = TypeVar('Config')


def define(defaults: Any, flag_values: flags.FlagValues = flags.FLAGS):
  """Defines a flag for every field of a config, with the field's name, type, help and range.

  Args:
    defaults: the config. Its values are the flags' defaults.
    flag_values: where the flags are defined.
  Raises:
    TypeError: a field's type has no kind of flag, or a field is not made by `settings.setting`.
  """
  field_types = typing.get_type_hints(type(defaults))
  for field in settings.fields(defaults):
    kind, name = field_types[field.name], field.name
    if kind not in _DEFINERS:
      raise TypeError(f'{type(defaults).__name__}.{name}: no flag can hold a {kind}')
    help_text = settings.help_text(kind, field.metadata)
    _DEFINERS[kind](name, getattr(defaults, name), help_text, flag_values=flag_values)
    flag_values.register_key_flag_for_module(sys.argv[0], flag_values[name])  # So that the program's --help shows it.


def refuse(given: Iterable[str], names: Collection[str], reason: str):
  """Raises UserError if one of the flags, as the user wrote them, has one of these names."""
  for flag in given:
    if flag.lstrip('-').partition('=')[0] in names:
      raise errors.UserError(f'{flag}: {reason}')


def config_from_flags(config_class: type[Config], validate: Callable[[Config], None] = settings.check,
                      stored: dict[str, Any] | None = None, flag_values: flags.FlagValues = flags.FLAGS) -> Config:
  """Returns the config with the values of the flags.

  Args:
    config_class: a dataclass for which `define` was called.
    validate: raises ValueError for a config with an invalid value.
    stored: the flags in a run's config.json. They are used for flags that are not on the command line, so that a run
      can be evaluated without repeating its flags.
    flag_values: where the flags are defined.
  Raises:
    UserError: a value is invalid.
  """
  values = {}
  for field in dataclasses.fields(cast(Any, config_class)):
    flag = flag_values[field.name]
    values[field.name] = stored[field.name] if stored and not flag.present and field.name in stored else flag.value
  config = config_class(**values)
  try:
    validate(config)
  except ValueError as error:
    raise errors.UserError(' '.join(str(error).split())) from error  # On one line, even if a value has several lines.
  return config


def stored_config(config_class: type[Config], stored: dict[str, Any], file: str) -> Config:
  """Returns the settings in a run's config.json. Those that an older version did not store have their defaults.

  Args:
    config_class: a dataclass of settings.
    stored: the flags in the file. Those of other classes are ignored.
    file: the path of the file.
  Raises:
    UserError: a setting has a value that its flag cannot have. The message names the file and the flag.
  """
  names = {field.name for field in dataclasses.fields(cast(Any, config_class))} & stored.keys()
  config = config_class(**{name: stored[name] for name in names})
  try:
    settings.check(config)
  except ValueError as error:
    raise errors.UserError(f'{file}: {error}: put the file back, or use another run directory') from error
  return config


def present(names: Iterable[str], flag_values: flags.FlagValues = flags.FLAGS) -> list[str]:
  """Returns the names of those flags that are on the command line."""
  return [name for name in names if flag_values[name].present]


def defaults(names: Iterable[str], flag_values: flags.FlagValues = flags.FLAGS) -> dict[str, Any]:
  """Returns the default values of flags."""
  return {name: flag_values[name].default for name in names}


def run_main(main: Callable[..., int | None], takes_others: bool = False) -> NoReturn:
  """Parses the flags, runs `main` and ends the process.

  A UserError ends the process with a one-line message and exit code 1. Its details, such as the traceback of a worker
  that caused it, are printed above the message. Other exceptions show a traceback. Output that cannot be written is
  dropped.

  Args:
    main: the function to run. It may return an exit code.
    takes_others: whether `main` gets a list of the flags that this program does not define, as they were written.
  """
  def guarded(arguments):
    others = [argument for argument in arguments[1:] if takes_others and argument.startswith('--')]
    for argument in arguments[1:]:
      if argument not in others:
        fail(f'{argument}: no such argument; flags begin with -- (--help shows them)')
    quiet.keep_small()
    # If it was ignored, nobody could tell how child processes end. quiet.start does it, too, but not all call that.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
      signal.signal(signal.SIGINT, signal.default_int_handler)  # Replaces the handler of quiet.start.
      return main(others) if takes_others else main()
    except errors.UserError as error:
      first, *details = str(error).splitlines()  # The details are a worker's traceback, for example.
      for line in details:
        print(line, file=quiet.screen())
      fail(first)
    except KeyboardInterrupt:
      sys.exit(130)  # The exit code of a shell after Ctrl-C. In training, the loop handles Ctrl-C itself.
    finally:
      _ignore_signals()  # Python takes a moment to exit, and a second Ctrl-C would change the exit code.
  standard_streams.make_unfailing()
  app.run(guarded, flags_parser=lambda arguments: _parse(arguments, takes_others))


def parse():
  """Parses the flags before `run_main` does, so that --help and errors in flags need not wait for slow imports."""
  app.define_help_flags()
  _parse(sys.argv, known_only=False)


def _parse(arguments: list[str], known_only: bool, flag_values: flags.FlagValues = flags.FLAGS) -> list[str]:
  try:
    return flag_values(arguments, known_only)
  except SystemExit:  # After --help, for which absl has the exit code of a mistake.
    sys.exit(0)
  except flags.Error as error:
    fail(f'{error} (--help shows the flags)')
  except (ValueError, OSError) as error:  # From a flag of absl. The messages of only these two do not name the flag.
    silent = [argument for argument in arguments[1:] if re.match('--?(flagfile|logger_levels)', argument)]
    fail(' '.join(silent + [str(error)]))


def _ignore_signals():
  for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)


def fail(text: str) -> NoReturn:
  """Ends the process with an error message of one line and exit code 1."""
  _ignore_signals()
  sys.stdout.flush()
  print('error:', ' '.join(text.split()), file=quiet.screen(), flush=True)
  quiet.leave(1)  # A normal exit could hang, because threads may wait in C++ code, for example for a learner.


def user_path(path: str) -> str:
  """Returns an absolute path. A relative path starts in the user's folder, also under `bazel run`, which changes it.

  Raises:
    UserError: the path is relative, and the current folder has been removed.
    run_directory.RunDirectoryError: the path is too long, or not a single line of UTF-8 text.
  """
  try:
    absolute = os.path.abspath(os.path.join(os.environ.get('BUILD_WORKING_DIRECTORY', ''), os.path.expanduser(path)))
  except FileNotFoundError as error:
    raise errors.UserError(f'{path}: the current folder has been removed: change to another folder, or give a path '
                           'that starts with /') from error
  run_directory.check_name(absolute)
  return absolute


class _CountParser(flags.ArgumentParser):
  """Reads 'auto' or a whole number."""
  syntactic_help = 'auto, or a whole number'

  def parse(self, argument: settings.Count) -> settings.Count:
    if argument == settings.AUTO:
      return argument
    if not re.fullmatch(settings.WHOLE_NUMBER, str(argument)):
      raise ValueError(f'want {self.syntactic_help}')
    return int(argument)

  def flag_type(self) -> str:
    return 'count'


def _define_count(name: str, default: settings.Count, help_text: str, flag_values: flags.FlagValues):
  flags.DEFINE(_CountParser(), name, default, help_text, flag_values=flag_values)


_DEFINERS = {bool: flags.DEFINE_boolean, int: flags.DEFINE_integer, float: flags.DEFINE_float,
             str: flags.DEFINE_string, settings.Count: _define_count}
