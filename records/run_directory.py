"""The run directory: everything that a training run writes, and what every tool that looks at runs reads.

  config.json          the agent, every setting after overrides, package versions, command line
  metrics.jsonl        one JSON object per log interval
  episodes.csv         one row per finished training episode
  evaluations.jsonl    one JSON object per evaluation during training (--evaluation_interval)
  evaluation.json      the results of --mode=test; evaluation.unfinished.json until all levels are evaluated
  checkpoints/         see checkpoint.py
  learning_curve.png   see learning_curve.py; TensorBoard's event files hold the same metrics as metrics.jsonl
  tensorflow.log       the messages of TensorFlow and other libraries
  .lock                held by the process that trains here; .evaluation_lock by the one that evaluates
  fitness.json, evolution.jsonl, population/   of a member of a population; see population_directory.py
  restricted_history.json   the results of `scalable-agents r2d2_history`; see r2d2_history.py

A directory is bound to the settings that the run was started with. At any time, one process may train in it, one may
evaluate it, and any number may read it. A process that trains or evaluates uses the directory that it has opened. If
that directory is moved or removed, the process ends. It never reads or writes another directory in the same place.
This module imports no TensorFlow, so that tools start quickly.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Set
import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import socket
import sys
from typing import Any, TypeVar
import unicodedata

from scalable_agents.records import errors
from scalable_agents.records import folders
from scalable_agents.records import json_text
from scalable_agents.records import package_versions
from scalable_agents.records import settings

CONFIG = 'config.json'
METRICS = 'metrics.jsonl'
EPISODES = 'episodes.csv'
EVALUATIONS = 'evaluations.jsonl'
EVALUATION = 'evaluation.json'
EVALUATION_UNFINISHED = 'evaluation.unfinished.json'
CHECKPOINTS = 'checkpoints'
LEARNING_CURVE = 'learning_curve.png'
EVENTS = 'events.out.tfevents.'  # How the names of TensorBoard's files begin.
LIBRARY_LOG = 'tensorflow.log'
RESTRICTED_HISTORY = 'restricted_history.json'
LOCK = '.lock'
EVALUATION_LOCK = '.evaluation_lock'

RETURNS_EVERY = 'returns_every'  # A name in an excerpt's config.json: the flag of `excerpt` of this name.

# Files in a directory without a run: a process that was killed before it wrote config.json may have left them.
_BEFORE_CONFIG = frozenset({LOCK, EVALUATION_LOCK, LIBRARY_LOG, CONFIG + '.new'})
# Files that a run writes before its first update, besides TensorBoard's.
_BEFORE_LEARNING = _BEFORE_CONFIG | {CONFIG, METRICS, EPISODES, CHECKPOINTS}

_MAX_NAME_BYTES = 255    # The longest name of a file on common file systems.
_MAX_PATH_BYTES = 3_800  # Linux takes paths of 4,095 bytes; this leaves room for the files in the directory.
_UNFIT_CATEGORIES = frozenset({'Cc', 'Cs', 'Zl', 'Zp'})  # Control characters, line breaks, bytes that are not UTF-8.
_OPEN_DIRECTORY = re.compile(r'/proc/\d+/fd/\d+')
_AGAIN = 'put the file back, or use another run directory'
_Content = TypeVar('_Content')


class RunDirectoryError(errors.UserError):
  """A run directory cannot be used. The message is one line: what, where, what to do."""

  def __init__(self, message: str):
    """Creates the error. The `path` of a Run in the message is replaced by the directory's present name."""
    super().__init__(_OPEN_DIRECTORY.sub(lambda match: os.path.realpath(match[0]), message))


class Run:
  """A run directory that this process holds open until `close`, or until the process ends in any way.

  As a context manager for training, it undoes everything if an exception is raised before the run `has_begun`: the
  directory is as it was before, or removed if it was made for the run.

  Attributes:
    logdir: the path with which the directory was opened. Use it in messages only: another directory may be there now.
    path: a path that leads to this directory, also after it was moved, until `close`. Child processes can use it too.
      It has no characters that a library could take for a pattern or a URL, whatever the directory's name is.
    has_begun: whether there is training to resume. In a new run it is set at the end of a training with an update.
  """

  def __init__(self, logdir: str):
    self.logdir = logdir
    self._directory = os.open(logdir, os.O_RDONLY | os.O_DIRECTORY)
    self.path = _path_of(self._directory)
    self._lock: int | None = None
    self._lock_name = ''
    self.has_begun = True
    self._kept: Set[str] = frozenset()  # The files that `undo` keeps.
    self._made: Collection[str] = ()  # The folders that it removes.

  def lock(self, name: str, use: str):
    """Takes a lock. The kernel releases it when the process ends, even by kill -9. Child processes do not inherit it.

    Args:
      name: the name of the lock file.
      use: the end of the message if the lock is held: what its holder does, and what the user can do about it.
    Raises:
      OSError: the directory cannot be written to.
      RunDirectoryError: another process holds the lock, or the directory has been moved or removed.
    """
    if not os.access(self.path, os.W_OK | os.X_OK, effective_ids=True):
      raise PermissionError(errno.EACCES, 'no permission to write', self.logdir)
    self._lock = os.open(path(self.path, name), os.O_RDWR | os.O_CREAT, 0o666)
    self._lock_name = name
    try:
      fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
      raise RunDirectoryError(f'{self.logdir} is in use: {_holder(self._lock)} {use}') from error
    os.truncate(self._lock, 0)
    os.pwrite(self._lock, _this_process().encode(), 0)
    self.check_in_place()

  def check_in_place(self):
    """Raises RunDirectoryError unless `logdir` is still the directory that was opened, with the lock in it."""
    with one_line_errors(self.logdir), contextlib.suppress(FileNotFoundError, NotADirectoryError):
      lock = path(self.logdir, self._lock_name)
      if self._lock is not None and os.path.samestat(os.stat(lock), os.fstat(self._lock)):
        return
    raise RunDirectoryError(f'{self.logdir} was moved or removed, or its {self._lock_name}, while this process used '
                            'it. Nothing more is written. Start again with the current path of the run as --logdir')

  def close(self):
    """Releases the lock and closes the directory; `path` is then no longer valid. May be called again."""
    for descriptor in (self._lock, self._directory):
      if descriptor is not None:
        os.close(descriptor)
    self._lock = self._directory = None

  def __enter__(self) -> 'Run':
    return self

  def prepare_undo(self, names: Set[str], made: Collection[str]):
    """Records what `undo` must keep and remove. Call it after taking the lock.

    Args:
      names: the files in the directory that this process has not made.
      made: the folders that were made for the run, deepest first.
    """
    self.has_begun = bool(names - _BEFORE_CONFIG - {CONFIG})
    self._kept = names
    self._made = made

  def undo(self):
    """Removes the files that a run writes before its first update and the folders made for it. Closes the directory."""
    written = {name for name in os.listdir(self.path) if name in _BEFORE_LEARNING or name.startswith(EVENTS)}
    for name in sorted(written - self._kept, key=lambda name: name == CONFIG):  # Without it, no start takes the rest.
      with contextlib.suppress(OSError):
        if name == CHECKPOINTS:
          shutil.rmtree(path(self.path, name))
        else:
          os.remove(path(self.path, name))
    self.close()
    folders.remove(self._made)

  def __exit__(self, error, *unused):
    if error and not self.has_begun:
      self._kept -= {CONFIG}  # Also remove one that a killed process has left, so that other settings can be used.
      self.undo()
    self.close()


@contextlib.contextmanager
def opened(directory: str) -> Iterator[str]:
  """Yields a path like Run.path, which is valid inside the block. Raises OSError if the directory cannot be opened."""
  descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
  try:
    yield _path_of(descriptor)
  finally:
    os.close(descriptor)


def path(logdir: str, name: str) -> str:
  """Returns the path of a file in a run directory."""
  return os.path.join(logdir, name)


def check_name(logdir: str):
  """Checks that a path can be the name of a run directory: one line of text that is not too long.

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


def open_run(logdir: str, config: Mapping[str, Any], free: Collection[str], agent: str = '',
             defaults: Mapping[str, Any] | None = None) -> Run:
  """Starts or resumes a run: takes the directory for this process and binds it to `config`.

  A run that ended with an error before its first update, and so has no training to resume, binds the directory no
  longer. One that was killed or stopped then does, because it has a checkpoint.

  Args:
    logdir: the directory. It is made if it is missing.
    config: every setting after overrides, name -> a value that JSON can hold, or an infinite number (saved as 'inf').
    free: the names of settings that may change when the run is resumed.
    agent: the name of the agent that is trained.
    defaults: the defaults of settings. A run that is older than a setting counts as one with its default.
  Returns:
    A Run, which holds the directory until it is closed.
  Raises:
    RunDirectoryError: the directory cannot be made or written to, holds something else, belongs to another
      configuration, is in use, or its config.json is damaged. Nothing in it was changed.
  """
  check_name(logdir)
  with one_line_errors(logdir), contextlib.ExitStack() as on_error:
    made = folders.missing(logdir)
    on_error.callback(folders.remove, made)
    os.makedirs(logdir, exist_ok=True)
    run = Run(logdir)
    on_error.callback(run.close)
    names = set(os.listdir(run.path))
    if CONFIG not in names and names - _BEFORE_CONFIG:
      raise RunDirectoryError(f'{logdir} holds other files ({min(names - _BEFORE_CONFIG)}) and no {CONFIG}, so it is '
                              'not a run directory: choose another --logdir')
    run.lock(LOCK, 'trains there. Stop it or choose another --logdir')
    # Listed again, because an earlier process may have ended meanwhile. A new lock file is that of this process.
    run.prepare_undo(set(os.listdir(run.path)) - ({LOCK} - names), made)
    on_error.callback(run.undo)
    if run.has_begun:
      _check_same(run.path, config, free, agent, defaults)
    else:
      write_json(path(run.path, CONFIG), {
          **({'agent': agent} if agent else {}), 'flags': settings.to_json(config),
          'versions': package_versions.installed(), 'command_line': sys.orig_argv})
    on_error.pop_all()
  return run


def remove(logdir: str):
  """Removes a run with all its files. Raises RunDirectoryError if a process trains there, or it cannot be removed."""
  with one_line_errors(logdir), contextlib.closing(Run(logdir)) as run:
    run.lock(LOCK, 'trains there. Stop it')
    shutil.rmtree(logdir)


def open_evaluation(logdir: str, config: Mapping[str, Any], free: Collection[str], agent: str = '',
                    defaults: Mapping[str, Any] | None = None) -> Run:
  """Opens the directory of a run to evaluate it. Another process may train in it at the same time.

  Only one process at a time can evaluate a run: two would play the same episodes and write the same files.

  Args:
    logdir, config, free, agent, defaults: as in open_run.
  Raises:
    RunDirectoryError: the directory belongs to another configuration, cannot be written to, or is being evaluated by
      another process. Nothing in it was changed.
  """
  with one_line_errors(logdir), contextlib.ExitStack() as on_error:
    run = Run(logdir)
    on_error.callback(run.close)
    _check_same(run.path, config, free, agent, defaults)
    run.lock(EVALUATION_LOCK, 'evaluates the run. Wait until it has finished, or stop it')
    on_error.pop_all()
  return run


def trainer(logdir: str) -> str | None:
  """Returns another process that trains in a run directory, as 'process 1 on host'; None if there is none.

  Call this only after an error: while it looks, another process cannot take the lock and would refuse to start.
  """
  with contextlib.suppress(OSError):
    lock = os.open(path(logdir, LOCK), os.O_RDONLY)
    try:
      fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
      holder = _holder(lock)
      return holder if holder != _this_process() else None
    finally:
      os.close(lock)
  return None


def read_config(logdir: str) -> dict[str, Any]:
  """Returns the content of config.json.

  This is a dict with `agent`, `flags` (the config of open_run), `versions` and `command_line`. Older runs have no
  `agent`. An excerpt with training episodes also has RETURNS_EVERY.

  Raises:
    RunDirectoryError: there is no such file, or it cannot be read.
  """
  def parse(config):
    flags = json_text.field(config, 'flags', dict)
    json_text.field(config, 'agent', str, optional=True)
    json_text.field(config, RETURNS_EVERY, int, optional=True)
    json_text.field(config, 'versions', dict, optional=True)
    json_text.field(config, 'command_line', list, optional=True)
    return config | {'flags': settings.from_json(flags)}

  config = read_json(path(logdir, CONFIG), parse)
  if config is None:
    raise RunDirectoryError(no_run(logdir))
  return config


def command_of(config: Mapping[str, Any], without: Collection[str] = ()) -> list[str]:
  """Returns the command of a run, from its config.json, without the paths of programs and of the run directory.

  Args:
    config: the content of config.json.
    without: names of further flags that are left out.
  """
  names = '|'.join(('logdir', *without))
  given = config.get('command_line') or []
  if given[:1] != ['scalable-agents']:  # An excerpt's command has no interpreter.
    given = given[1:]
  words = [word for before, word in zip(['', *given], given, strict=False)
           if not re.match(f'--?({names})(=|$)', word) and not re.fullmatch(f'--?({names})', before)]
  words[:1] = map(os.path.basename, words[:1])  # '-m', or a script.
  return words if words[:1] == ['scalable-agents'] else ['python', *words]


def no_run(logdir: str) -> str:
  """Returns the message about a directory without a run."""
  return f'{logdir}: no run has been started there (it has no {CONFIG}): give the directory of a run'


def _check_same(logdir, config, free, agent, defaults):
  """Raises RunDirectoryError if the agent or a setting that is not `free` is another one than the directory's.

  The arguments are those of `open_run`.
  """
  stored = read_config(logdir)
  check_agent(logdir, stored, agent)
  differing = settings.differences(stored['flags'], config, free, defaults or {})
  if differing:
    raise RunDirectoryError(f'{logdir} belongs to another configuration: {"; ".join(differing)}. '
                            'Use the same flags or another --logdir')


def check_agent(logdir: str, stored: Mapping[str, Any], agent: str):
  """Raises RunDirectoryError if a run, of which `stored` is the config.json, is of another agent. '' fits all runs."""
  if agent and (stored.get('agent') or agent) != agent:
    raise RunDirectoryError(f'{logdir} is a run of another agent, {settings.shown(stored["agent"])}: use its program, '
                            'or another --logdir')


def read_json(file: str, parse: Callable[[Any], _Content], again: str = _AGAIN) -> _Content | None:
  """Reads a JSON file of a run.

  Args:
    file: its path.
    parse: turns the file's content into the result. It may raise ValueError if the content is wrong.
    again: what the user can do about a damaged file.
  Returns:
    The result of `parse`, or None if there is no such file.
  Raises:
    RunDirectoryError: the file is damaged or cannot be read. The message is one line with the file and, if it is not
      JSON, the number of the line.
  """
  with one_line_errors(file):
    try:
      with open(file, 'rb') as stream:
        content = stream.read()
    except FileNotFoundError:
      return None
  try:
    return parse(json_text.parse(content))
  except json_text.JsonError as error:
    raise RunDirectoryError(damaged(f'{file}, line {error.line}' if error.line else file, error, again)) from error
  except ValueError as error:
    raise RunDirectoryError(damaged(file, error, again)) from error


def write_json(file: str, value: Any):
  """Writes a JSON file in one step: it is either complete or unchanged, for readers and after a kill or a power cut.

  Raises:
    RunDirectoryError: the file cannot be written.
  """
  with replaced(file) as new, open(new, 'w', encoding='utf-8') as stream:
    json.dump(value, stream, indent=2)
    stream.write('\n')


@contextlib.contextmanager
def one_line_errors(where: str) -> Iterator[None]:
  """Turns an OSError inside the block into a RunDirectoryError that names the file."""
  try:
    yield
  except OSError as error:
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    advice = 'free disk space, and start again' if is_full else 'correct this, or choose another folder'
    raise RunDirectoryError(f'{error.filename or where}: {error.strerror or error}: {advice}') from error


@contextlib.contextmanager
def replaced(file: str) -> Iterator[str]:
  """Yields a temporary name to write to. After the block, that file replaces `file` in one step, if nothing failed.

  Raises:
    RunDirectoryError: the file cannot be written.
  """
  with one_line_errors(file):
    new = file + '.new'
    try:
      yield new
      folders.sync(new)
      os.replace(new, file)
    except BaseException:
      with contextlib.suppress(OSError):  # What was written may fill the disk.
        os.remove(new)
      raise


def damaged(where: str, why: Any, again: str = _AGAIN) -> str:
  """Returns the message about a file that cannot be read. `again`: what the user can do about it."""
  return f'{where} is damaged ({settings.shown(why)}): {again}'


def _path_of(descriptor: int) -> str:
  """Returns a path to the open file or directory of a descriptor of this process."""
  return f'{os.path.realpath("/proc/self")}/fd/{descriptor}'


def _this_process() -> str:
  return f'process {os.getpid()} on {socket.gethostname()}'


def _holder(lock: int) -> str:
  """Returns the process that holds a lock, in the format of _this_process."""
  return os.pread(lock, 256, 0).decode(errors='replace').strip() or 'another process'
