"""Command-line flags: every field of an agent's config and of RunConfig is a flag of the same name.

Only binaries and what they share (training/program.py) use this module:

  run_flags.define(impala.ImpalaConfig())
  run_flags.define(run_flags.RunConfig())

  def main():
    config = run_flags.config_from_flags(impala.ImpalaConfig, impala.validate)
    run = run_flags.run_config_from_flags(default_run=config.level_name)
    ...

  run_flags.run_main(main)
"""

import dataclasses
import os
import re
import signal
import sys
import typing
from typing import Any, Callable, Iterable, NoReturn, TypeVar

from absl import app
from absl import flags

from scalable_agents.actor import standard_streams
from scalable_agents.environments import atari57
from scalable_agents.records import errors
from scalable_agents.records import run_directory
from scalable_agents.records import settings
from scalable_agents.records.settings import setting
from scalable_agents.training import quiet

# All that is defined here belongs to the binary: its --help shows it.
flags.disclaim_key_flags()

Config = TypeVar('Config')

_MAX_TEST_EPISODES = 10_000_000
MODES = ('train', 'test')
XLA_MODES = ('auto', 'always', 'never')
_MAX_LOG_INTERVAL_SECONDS = 10  # What readers of metrics.jsonl may rely on.
_MAX_INFERENCE_THREADS = 256


@dataclasses.dataclass(frozen=True)
class RunConfig:
  """The settings that may change when a run is resumed: they do not decide what is learned, only where and how fast."""

  logdir: str = setting('', 'The run directory: metrics, checkpoints, curve; the same again resumes. Default: '
                            'runs/LEVEL_NAME in the current folder.')
  mode: str = setting('train', 'train, or test to evaluate the run in --logdir: ' + ' or '.join(MODES) + '.',
                      choices=MODES)
  xla: str = setting('auto', 'Whether XLA compiles the learner: always, never, or auto, which is on a GPU but not on a '
                             'CPU, where it gains nothing.', choices=XLA_MODES)
  num_environments: settings.Count = setting(
      'auto', 'Environments stepped at the same time. A learner with actors elsewhere may have 0.', at_least=0,
      at_most=settings.MAX_ENVIRONMENTS)
  num_environment_workers: settings.Count = setting(
      'auto', 'Processes that step them.', at_least=1, at_most=settings.MAX_PROCESSES)
  num_inference_threads: settings.Count = setting(
      'auto', 'Inference loops, each with a batch of its own.', at_least=1, at_most=_MAX_INFERENCE_THREADS)
  environment_timeout_seconds: float = setting(
      60.0, 'A worker is replaced that does not answer for so long: once all its environments are made, and then each '
      'time when half of them have been stepped or reset. While it compiles a map, it has 20 times as long.',
      more_than=0, at_most=settings.MAX_SECONDS)
  # The released code has 600. Saving a deep network takes a few hundredths of a second, so a crash need cost
  # no more than a minute of training.
  checkpoint_interval_seconds: float = setting(
      60.0, 'A checkpoint is saved so often: what a crash may cost.', more_than=0, at_most=settings.MAX_SECONDS)
  log_interval_seconds: float = setting(
      5.0, 'A row of metrics.jsonl is written so often.', more_than=0, at_most=_MAX_LOG_INTERVAL_SECONDS)
  test_num_episodes: int = setting(
      atari57.SUITE.test_episodes, '--mode=test: episodes per level. Espeholt et al. 2018, sections 5.3.1 and 5.3.2.',
      at_least=1, at_most=_MAX_TEST_EPISODES)
  test_policy: str = setting(
      '', '--mode=test: how actions are selected: sampled from the policy, greedy, or epsilon, which takes a random '
      "action with probability --test_epsilon and else the greedy one. Default: the way of the agent's paper.",
      choices=('', 'sampled', 'greedy', 'epsilon'))
  test_epsilon: float = setting(
      0.001, '--test_policy=epsilon: the probability of a random action.', at_least=0, at_most=1)
  video: str = setting('', '--mode=test: record an episode to this file, .mp4 or .gif.')


FREE_FLAGS = frozenset(field.name for field in dataclasses.fields(RunConfig))


def define(defaults: Any, flag_values: flags.FlagValues = flags.FLAGS):
  """Makes a flag of every field of a config: its name, type, value, which is the flag's default, help and range.

  Raises:
    TypeError: there is no kind of flag for the type of a field.
  """
  field_types = typing.get_type_hints(type(defaults))
  for field in dataclasses.fields(defaults):
    kind, name = field_types[field.name], field.name
    if kind not in _DEFINERS:
      raise TypeError(f'{type(defaults).__name__}.{name}: no flag can hold a {kind}')
    help_text = field.metadata['help']
    if kind not in (bool, str):  # Of a text with few values the help names them.
      help_text += f' Want {settings.wanted(kind, field.metadata)}.'
    _DEFINERS[kind](name, getattr(defaults, name), help_text, flag_values=flag_values)


def config_from_flags(config_class: type[Config], validate: Callable[[Config], None] = settings.check,
                      stored: dict[str, Any] | None = None, flag_values: flags.FlagValues = flags.FLAGS) -> Config:
  """Returns the config that the command line asks for.

  Args:
    config_class: a dataclass for which `define` was called.
    validate: raises ValueError for a config with a bad value.
    stored: the flags in a run's config.json. They stand for those which are not on the command line, so that a run
      can be evaluated without repeating its flags.
    flag_values: where the flags are.
  Raises:
    UserError: a value is bad.
  """
  values = {}
  for field in dataclasses.fields(config_class):
    flag = flag_values[field.name]
    values[field.name] = stored[field.name] if stored and not flag.present and field.name in stored else flag.value
  config = config_class(**values)
  try:
    validate(config)
  except ValueError as error:
    raise errors.UserError(' '.join(str(error).split())) from error  # On one line, whatever the values hold.
  return config


def check_stored(config_class: type, stored: dict[str, Any], file: str):
  """Checks what a run's config.json says of the settings of a config.

  Args:
    config_class: a dataclass of settings.
    stored: the flags in the file, of other classes too.
    file: its path.
  Raises:
    UserError: a setting has a value that no flag could have; the message names the file and the flag.
  """
  names = {field.name for field in dataclasses.fields(config_class)} & stored.keys()
  try:
    settings.check(config_class(**{name: stored[name] for name in names}))
  except ValueError as error:
    raise errors.UserError(f'{file}: {error}: put the file back, or choose another --logdir') from error


def present(names: Iterable[str], flag_values: flags.FlagValues = flags.FLAGS) -> list[str]:
  """Those of the flags that are on the command line."""
  return [name for name in names if flag_values[name].present]


def run_config_from_flags(default_run: str, flag_values: flags.FlagValues = flags.FLAGS) -> RunConfig:
  """Returns the RunConfig that the command line asks for, with absolute paths.

  Args:
    default_run: the run directory's name under runs/, where --logdir does not say otherwise.
    flag_values: where the flags are.
  Raises:
    UserError: a value is bad.
    run_directory.RunDirectoryError: a path cannot be used or shown.
  """
  run = config_from_flags(RunConfig, _validate, flag_values=flag_values)
  logdir = run.logdir or os.path.join('runs', re.sub(r'[^\w.-]', '_', default_run))
  return dataclasses.replace(run, logdir=user_path(logdir), video=run.video and user_path(run.video))


def run_main(main: Callable[..., int | None], takes_others: bool = False) -> NoReturn:
  """Parses the flags, runs `main` and ends the process.

  What the user can mend ends it with one line on the screen, above it a worker's traceback if that is the cause, and
  exit code 1; a mistake in the program shows its own traceback. What cannot be written to the screen is dropped.

  Args:
    main: what to run; it may return an exit code.
    takes_others: whether `main` is called with the flags that are of another program, as they were written.
  """
  def guarded(arguments):
    others = [argument for argument in arguments[1:] if takes_others and argument.startswith('--')]
    for argument in arguments[1:]:
      if argument not in others:
        _fail(f'{argument}: no such argument, flags begin with -- (--help shows them)')
    quiet.keep_small()
    try:
      signal.signal(signal.SIGINT, signal.default_int_handler)  # Not quiet's any more.
      return main(*[others] * takes_others)
    except errors.UserError as error:
      first, *details = str(error).splitlines()  # Of an environment worker: its traceback.
      print(*details, sep='\n', end='\n' * bool(details), file=quiet.screen())
      _fail(first)
    except KeyboardInterrupt:
      sys.exit(130)  # As a shell reports it; in training, the loop handles Ctrl-C itself.
    finally:
      _ignore_signals()  # Python's way out takes a moment, and a second Ctrl-C would only spoil the exit code.
  standard_streams.make_unfailing()
  app.run(guarded, flags_parser=lambda arguments: _parse(arguments, takes_others))


def _parse(arguments: list[str], known_only: bool) -> list[str]:
  try:
    return flags.FLAGS(arguments, known_only)
  except flags.Error as error:
    _fail(f'{error} (--help shows the flags)')


def _ignore_signals():
  for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)


def _fail(text: str) -> NoReturn:
  _ignore_signals()
  sys.stdout.flush()
  print('error:', ' '.join(text.split()), file=quiet.screen(), flush=True)
  quiet.leave(1)  # Threads may wait in C++, for a learner elsewhere, say.


def user_path(path: str) -> str:
  """An absolute path. `bazel run` changes the folder, and says where the user was.

  Raises:
    UserError: the path starts in a current folder that has been removed.
    run_directory.RunDirectoryError: it is too long, or no line of text in UTF-8.
  """
  try:
    absolute = os.path.abspath(os.path.join(os.environ.get('BUILD_WORKING_DIRECTORY', ''), os.path.expanduser(path)))
  except FileNotFoundError as error:
    raise errors.UserError(f'{path}: the current folder has been removed: go to another one, or give a path that starts with '
                    '/') from error
  run_directory.check_name(absolute)
  return absolute


def _validate(run: RunConfig):
  settings.check(run)
  if run.video and not run.video.endswith(('.mp4', '.gif')):
    raise ValueError(f'--video={settings.shown(run.video)}: want a file that ends in .mp4 or .gif')


class _CountParser(flags.ArgumentParser):
  """Reads 'auto' or a whole number."""
  syntactic_help = 'auto, or a whole number'

  def parse(self, argument: settings.Count) -> settings.Count:
    if argument == settings.AUTO:
      return argument
    if not re.fullmatch(r'[0-9]+', str(argument)):
      raise ValueError(f'want {self.syntactic_help}')
    return int(argument)

  def flag_type(self) -> str:
    return 'count'


def _define_count(name: str, default: settings.Count, help_text: str, flag_values: flags.FlagValues):
  flags.DEFINE(_CountParser(), name, default, help_text, flag_values=flag_values)


_DEFINERS = {bool: flags.DEFINE_boolean, int: flags.DEFINE_integer, float: flags.DEFINE_float,
             str: flags.DEFINE_string, settings.Count: _define_count}
