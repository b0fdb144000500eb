"""The run directory: what a training run leaves behind, and the interface to every tool that looks at runs.

  config.json          every setting after overrides, package versions, command line
  metrics.jsonl        one JSON object per log interval
  episodes.csv         one row per finished training episode
  evaluation.json      what --mode=test measured; evaluation.unfinished.json while levels are missing
  checkpoints/         see checkpoint.py
  learning_curve.png   see learning_curve.py; TensorBoard's event files hold the same figures as metrics.jsonl
  tensorflow.log       what TensorFlow and other libraries had to say
  .lock                held by the process that trains here; .evaluation_lock by the one that evaluates
  fitness.json, evolution.jsonl, population/   of a member of a population, see population_directory.py

A directory is bound to the settings it was started with. One process at a time trains in it, one evaluates it, and any
number may read. A process that trains or evaluates uses the directory that it has opened. If the directory is moved or
removed, the process ends; it never reads or writes another directory that has taken its place.
This module imports no TensorFlow, so that tools start quickly.
"""

import contextlib
import errno
import fcntl
import importlib.metadata
import json
import math
import os
import platform
import re
import shutil
import socket
import sys
from typing import Any, Collection, Iterable, Iterator
import unicodedata

from scalable_agents.records import errors

CONFIG = 'config.json'
METRICS = 'metrics.jsonl'
EPISODES = 'episodes.csv'
EVALUATION = 'evaluation.json'
EVALUATION_UNFINISHED = 'evaluation.unfinished.json'
CHECKPOINTS = 'checkpoints'
LEARNING_CURVE = 'learning_curve.png'
EVENTS = 'events.out.tfevents.'  # How the names of TensorBoard's files begin.
LIBRARY_LOG = 'tensorflow.log'
_LOCK = '.lock'
_EVALUATION_LOCK = '.evaluation_lock'
_INFINITE = ('inf', '-inf')  # As config.json has them.

# What may lie in a directory in which no run has been started: left by a run that was killed before its config.
_BEFORE_CONFIG = frozenset({_LOCK, _EVALUATION_LOCK, LIBRARY_LOG, CONFIG + '.new'})
# What a run has written when it makes its first update, beside TensorBoard's files.
_BEFORE_LEARNING = _BEFORE_CONFIG | {CONFIG, METRICS, EPISODES, CHECKPOINTS}

_MAX_NAME_BYTES = 255    # The longest name of a file on common file systems.
_MAX_PATH_BYTES = 3_800  # Linux takes paths of 4,095 bytes; this leaves room for the files in the directory.
_UNFIT_CATEGORIES = frozenset({'Cc', 'Cs', 'Zl', 'Zp'})  # Control characters, line breaks, bytes that are not UTF-8.
_OPEN_DIRECTORY = re.compile(r'/proc/\d+/fd/\d+')

# The packages whose versions can change a result.
_PACKAGES = ('ale-py', 'dm-env', 'dm-sonnet', 'gymnasium', 'numpy', 'opencv-python-headless', 'tensorflow')


class RunDirectoryError(errors.UserError):
  """A run directory cannot be used. The message is one line: what, where, what to do."""

  def __init__(self, message: str):
    """Where the message has the `path` of a Run, the exception's text has the directory's name instead."""
    super().__init__(_OPEN_DIRECTORY.sub(lambda match: os.path.realpath(match[0]), message))


class Run:
  """A run directory that this process has opened, until `close` or the end of the process, however it ends.

  As a context manager, the Run of a training leaves nothing behind where an exception comes before it `has_begun`: the
  directory is as it was before, or gone if it was made for the run.

  Attributes:
    logdir: the path that the directory was opened by. It is for messages: another directory may be there now.
    path: a path of the directory itself, wherever it is moved, until it is closed; child processes can use it too. It
      has no character that a library could take for a pattern or an address, whatever the directory's name is.
    has_begun: whether there is something to go on from. Of a new run, whoever trains says so after the first update.
  """

  def __init__(self, logdir: str):
    self.logdir = logdir
    self._directory = os.open(logdir, os.O_RDONLY | os.O_DIRECTORY)
    self.path = _path_of(self._directory)
    self._lock, self._lock_name = None, None
    self.has_begun = True
    self._kept, self._made = frozenset(), ()  # What `undo` keeps, and the folders that it removes.

  def lock(self, name: str, use: str):
    """Takes a lock, which the kernel releases when the process ends, even by kill -9. No child process inherits it.

    Args:
      name: of the file that is the lock.
      use: what the holder of the lock does, and what a user can do whom it refuses.
    Raises:
      OSError: the directory cannot be written to.
      RunDirectoryError: another process holds the lock, or the directory has been moved or removed.
    """
    if not os.access(self.path, os.W_OK | os.X_OK, effective_ids=True):
      raise PermissionError(errno.EACCES, 'no permission to write', self.logdir)
    self._lock, self._lock_name = os.open(path(self.path, name), os.O_RDWR | os.O_CREAT, 0o666), name
    try:
      fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
      raise RunDirectoryError(f'{self.logdir} is in use: {_holder(self._lock)} {use}') from error
    os.truncate(self._lock, 0)
    os.pwrite(self._lock, _this_process().encode(), 0)
    self.check_in_place()

  def check_in_place(self):
    """Checks that `logdir` is still the directory that was opened, with the lock in it.

    Raises:
      RunDirectoryError: it is not.
    """
    with one_line_errors(self.logdir), contextlib.suppress(FileNotFoundError, NotADirectoryError):
      if os.path.samestat(os.stat(path(self.logdir, self._lock_name)), os.fstat(self._lock)):
        return
    raise RunDirectoryError(f'{self.logdir} was moved or removed, or {self._lock_name} in it, while this process used '
                            'it: nothing more is written. Start again with the present place of the run as --logdir')

  def close(self):
    for descriptor in (self._lock, self._directory):
      if descriptor is not None:
        os.close(descriptor)
    self._lock = self._directory = None

  def __enter__(self) -> 'Run':
    return self

  def may_come_to_nothing(self, names: Collection[str], made: Collection[str]):
    """Prepares `undo`, with the lock taken.

    Args:
      names: what is in the directory and not of this process.
      made: the folders that were made for the run, deepest first.
    """
    self.has_begun = bool(names - _BEFORE_CONFIG - {CONFIG})
    self._kept, self._made = names, made

  def undo(self):
    """Removes what a run writes before its first update, and the folders made for it; closes."""
    written = {name for name in os.listdir(self.path) if name in _BEFORE_LEARNING or name.startswith(EVENTS)}
    for name in written - self._kept:
      with contextlib.suppress(OSError):
        if name == CHECKPOINTS:
          shutil.rmtree(path(self.path, name))
        else:
          os.remove(path(self.path, name))
    self.close()
    _remove_folders(self._made)

  def __exit__(self, error, *unused):
    if error and not self.has_begun:
      self._kept -= {CONFIG}  # Also one of a process that was killed: the directory is free for other settings.
      self.undo()
    self.close()


@contextlib.contextmanager
def opened(directory: str) -> Iterator[str]:
  """Gives a path of a directory like Run.path, valid inside the block. Raises OSError where it cannot be opened."""
  descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
  try:
    yield _path_of(descriptor)
  finally:
    os.close(descriptor)


def path(logdir: str, name: str) -> str:
  return os.path.join(logdir, name)


def check_name(logdir: str):
  """Checks that a path can be the name of a run directory. Any name can that is one line of text, of a usual length.

  Raises:
    RunDirectoryError: it cannot.
  """
  if any(unicodedata.category(character) in _UNFIT_CATEGORIES for character in logdir):
    raise RunDirectoryError(f'{logdir!r}: a path with a line break, another control character, or a byte that is not '
                            'UTF-8: choose another name')
  encoded = os.fsencode(logdir)
  if len(encoded) > _MAX_PATH_BYTES or max(map(len, encoded.split(b'/'))) > _MAX_NAME_BYTES:
    raise RunDirectoryError(f'{logdir}: the path is too long: want at most {_MAX_PATH_BYTES:,} bytes, and at most '
                            f'{_MAX_NAME_BYTES} in each name: choose another name')


def open_run(logdir: str, config: dict[str, Any], free: Collection[str]) -> Run:
  """Starts or resumes a run: takes the directory for this process and binds it to `config`.

  Args:
    logdir: directory, made where it is missing.
    config: every setting after overrides, name -> a value that JSON can hold, or an infinite number (kept as 'inf').
    free: names of settings which may differ when the run is resumed.
  Returns:
    A Run, which holds the directory until it is closed.
  Raises:
    RunDirectoryError: the directory cannot be made or written to, holds something else, belongs to another
      configuration, is in use, or its config.json is damaged. Nothing in it was changed.
  """
  check_name(logdir)
  with one_line_errors(logdir), contextlib.ExitStack() as on_error:
    made = _missing_folders(logdir)
    on_error.callback(_remove_folders, made)
    os.makedirs(logdir, exist_ok=True)
    run = Run(logdir)
    on_error.callback(run.close)
    names = set(os.listdir(run.path))
    if CONFIG not in names and names - _BEFORE_CONFIG:
      raise RunDirectoryError(f'{logdir} holds other files ({min(names - _BEFORE_CONFIG)}) and no {CONFIG}, so it is '
                              'no run directory: choose another --logdir')
    run.lock(_LOCK, 'trains there. Stop it or choose another --logdir')
    run.may_come_to_nothing(set(os.listdir(run.path)) - ({_LOCK} - names), made)
    on_error.callback(run.undo)
    if os.path.exists(path(run.path, CONFIG)):
      check_same(run.path, config, free)
    else:
      write_json(path(run.path, CONFIG),
                 {'flags': _strict(config), 'versions': _versions(), 'command_line': sys.orig_argv})
    on_error.pop_all()
  return run


def open_evaluation(logdir: str, config: dict[str, Any], free: Collection[str]) -> Run:
  """Opens the directory of a run to evaluate it, perhaps beside a process that trains in it.

  One evaluation at a time: two would play the same episodes and write the same files.

  Args:
    logdir, config, free: as in open_run.
  Raises:
    RunDirectoryError: the directory belongs to another configuration, cannot be written to, or is being evaluated by
      another process. Nothing in it was changed.
  """
  with one_line_errors(logdir), contextlib.ExitStack() as on_error:
    run = Run(logdir)
    on_error.callback(run.close)
    check_same(run.path, config, free)
    run.lock(_EVALUATION_LOCK, 'evaluates the run. Wait until it has finished, or stop it')
    on_error.pop_all()
  return run


def trainer(logdir: str) -> str | None:
  """Another process that trains in a run directory, 'process 1 on host'; None if there is none.

  A run that is started at this very moment may be refused, so this is for use after something has gone wrong.
  """
  with contextlib.suppress(OSError):
    lock = os.open(path(logdir, _LOCK), os.O_RDONLY)
    try:
      fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
      holder = _holder(lock)
      return holder if holder != _this_process() else None
    finally:
      os.close(lock)
  return None


def read_config(logdir: str) -> dict[str, Any]:
  """Returns what config.json holds: a dict with `flags` as open_run was given them, `versions` and `command_line`.

  Raises:
    RunDirectoryError: there is no such file, or it cannot be read.
  """
  file = path(logdir, CONFIG)
  with one_line_errors(file):
    try:
      with open(file, encoding='utf-8') as stream:
        config = json.load(stream)
    except FileNotFoundError as error:
      raise RunDirectoryError(f'{logdir}: no run has been started there (it has no {CONFIG}): give the --logdir of a '
                              'run') from error
    except (ValueError, RecursionError) as error:  # It is no JSON, or too deep.
      raise RunDirectoryError(damaged(file, error)) from error
  if not isinstance(config, dict) or not isinstance(config.get('flags'), dict):
    raise RunDirectoryError(damaged(file, 'no "flags" in it'))
  flags = {name: float(value) if value in _INFINITE else value for name, value in config['flags'].items()}
  return config | {'flags': flags}


def check_same(logdir: str, config: dict[str, Any], free: Collection[str]):
  """Compares settings with those the directory is bound to, `free` ones apart.

  Raises:
    RunDirectoryError: naming each setting that differs, with both values; or config.json cannot be read.
  """
  there = {name: json.dumps(value) for name, value in read_config(logdir)['flags'].items()}
  here = {name: json.dumps(value) for name, value in config.items()}
  differing = [f'--{name} was {there.get(name, "absent")} and is {here.get(name, "absent")} now'
               for name in sorted((there.keys() | here.keys()) - set(free)) if there.get(name) != here.get(name)]
  if differing:
    raise RunDirectoryError(f'{logdir} belongs to another configuration: {"; ".join(differing)}. '
                            'Use the same flags or another --logdir')


def write_json(file: str, value: Any):
  """Writes a JSON file in one go: a reader, or whoever comes after a kill, sees all of it or nothing.

  Raises:
    RunDirectoryError: the file cannot be written.
  """
  with replaced(file) as new, open(new, 'w', encoding='utf-8') as stream:
    json.dump(value, stream, indent=2)
    stream.write('\n')


@contextlib.contextmanager
def one_line_errors(where: str) -> Iterator[None]:
  """Turns what the operating system refuses inside the block into a RunDirectoryError that names the file."""
  try:
    yield
  except OSError as error:
    raise RunDirectoryError(f'{error.filename or where}: {error.strerror}: mend this or choose another '
                            '--logdir') from error


@contextlib.contextmanager
def replaced(file: str) -> Iterator[str]:
  """Gives a name to write to; the file written there takes the place of `file` in one step, if nothing fails.

  Raises:
    RunDirectoryError: the file cannot be written.
  """
  with one_line_errors(file):
    new = file + '.new'
    yield new
    os.replace(new, file)


def _strict(config: dict[str, Any]) -> dict[str, Any]:
  """Infinite numbers as text: JSON has none, and other programs read config.json too."""
  return {name: str(value) if value in (math.inf, -math.inf) else value for name, value in config.items()}


def damaged(where: str, why: Any) -> str:
  """What to say of a file that cannot be read."""
  reason = ' '.join(str(why).split())
  return f'{where} is damaged ({reason}): put the file back, or choose another --logdir'


def _missing_folders(logdir: str) -> list[str]:
  """The directory and those above it, as far as they are missing, deepest first."""
  missing, folder = [], os.path.abspath(logdir)
  while not os.path.lexists(folder):
    missing.append(folder)
    folder = os.path.dirname(folder)
  return missing


def _remove_folders(folders: Iterable[str]):
  """Removes those that are empty, up to the first that is not."""
  with contextlib.suppress(OSError):
    for folder in folders:
      os.rmdir(folder)


def _path_of(descriptor: int) -> str:
  """The path of what a descriptor of this process refers to."""
  return f'{os.path.realpath("/proc/self")}/fd/{descriptor}'


def _this_process() -> str:
  return f'process {os.getpid()} on {socket.gethostname()}'


def _holder(lock: int) -> str:
  """The process that has taken a lock, in the words of _this_process."""
  return os.pread(lock, 256, 0).decode(errors='replace').strip() or 'another process'


def _versions() -> dict[str, str | None]:
  """Package -> version; None where it is not installed."""
  versions = {'python': platform.python_version()}
  for package in _PACKAGES:
    try:
      versions[package] = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
      versions[package] = None
  return versions
