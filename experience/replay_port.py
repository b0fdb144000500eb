"""The replay job: a process with a replay of episodes that the agents of a sweep share.

Schmitt et al. 2020 (LASER), section 5.1. TensorFlow's own server runs inside the eager runtime of this process. A
session in an agent's process finds the replay by its name; it inserts unrolls and takes replayed ones, and no Python of
this process takes part. The agents' side is shared_replay.py.

The first agent that connects says what a row of the replay looks like. This description is called the contract
(`make_replay`). It is saved, and so are the contents at intervals. A replay job that is started again continues with
them.

The port opens on all network interfaces and has no authentication. Anyone who reaches it can run any graph in this
process.
"""

from collections.abc import Callable
import contextlib
import json
import os
import socket
import threading
import time
from typing import Any, NamedTuple
import uuid

import tensorflow as tf

from scalable_agents.experience import memory
from scalable_agents.experience import pace as pace_lib
from scalable_agents.ops import messages
from scalable_agents.processes import ports
from scalable_agents.processes import sessions
from scalable_agents.records import errors
from scalable_agents.records import folders
from scalable_agents.records import run_directory
from scalable_agents.records import settings
from scalable_agents.replay import episode_replay

JOB = 'replay'
TASK = f'/job:{JOB}/replica:0/task:0'
REPLAY, REPORTS, GREETING = 'replay', 'reports', 'greeting'  # Names of the resources.
FORGOTTEN_SECONDS = 4 * ports.BEAT_SECONDS  # An agent without a report for this long counts as gone.

_CONTRACT, _CONTENTS, _LOCK = 'replay.json', 'replay', '.lock'  # Files in the folder.
_LONGEST_REPORT = 1 << 16  # Bytes.
_TICK_SECONDS = 0.1


class _Report(NamedTuple):
  """What an agent sends every few seconds, and after each insert."""
  agent: str             # A random id of the process.
  steps: int             # Agent steps that it has inserted.
  leaving: bool          # Whether this is its last report.
  contract: dict | None  # See make_replay. An agent's first report to a replay job has it.


def make_replay(contract: dict[str, Any], shared_name: str) -> episode_replay.EpisodeReplay:
  """Makes the replay that a contract describes. In a graph, it is that of the process that runs the graph.

  Args:
    contract: what all agents have in common, for JSON: 'rows' (type and shape of each component), 'stacks' (frames of
      each component), 'done' (index of that component), 'observation' (indices of its components), 'unroll_length' and
      'replay_capacity' (agent steps), and more.
    shared_name: see EpisodeReplay.
  """
  return episode_replay.EpisodeReplay(
      row_spec(contract), contract['unroll_length'], contract['replay_capacity'],
      done=lambda rows: rows[contract['done']],
      observation=lambda rows: [rows[number] for number in contract['observation']], frame_stacks=contract['stacks'],
      shared_name=shared_name)


def row_spec(contract: dict[str, Any]) -> list[tf.TensorSpec]:
  """Returns the components of a row of the replay that a contract describes."""
  return [tf.TensorSpec(shape, dtype) for dtype, shape in contract['rows']]


class ReplayPort:
  """The port of the replay job. It stays open until the process ends. There is one per process."""

  def __init__(self, address: str, folder: str, say: Callable[[str], None]):
    """Opens the port, and restores the contents that were saved, if any.

    Args:
      address: HOST:PORT. HOST must be a name or an address of this machine. The port opens on all of its network
        interfaces.
      folder: where the contents are saved.
      say: called with a line for the user.
    Raises:
      errors.UserError: the address is not of this machine, the port or the folder cannot be used, or the contents
        cannot be restored. It leaves no files then.
    """
    self._say = say
    self._contract = None
    self._replay = None
    self._saved: episode_replay.Statistics | None = None  # The counts of the contents that were saved or restored last.
    _check_is_here(address)
    with contextlib.ExitStack() as on_error:
      self._open_folder(folder)
      on_error.callback(self._directory.undo)
      self._open(address)
      on_error.pop_all()
    self._listener = threading.Thread(target=self._listen, name='reports', daemon=True)
    self._listener.start()

  def _open_folder(self, folder):
    """Opens the folder for this process. Raises run_directory.RunDirectoryError."""
    with run_directory.one_line_errors(folder):
      made = folders.missing(folder)
      os.makedirs(folder, exist_ok=True)
      self._directory = run_directory.Run(folder)
      names = set(os.listdir(folder))
      self._directory.lock(_LOCK, 'serves the replay there. Stop it or choose another --logdir')
      self._directory.prepare_undo(names, made)

  def _open(self, address):
    """Opens the port and restores what was saved. Raises errors.UserError."""
    tf.config.set_visible_devices([], 'GPU')  # The memory of GPUs is for the agents.
    self._lock = sessions.open_port(JOB, address, 'replay', 'shared_replay')
    with tf.device('/CPU:0'):
      self._greeting = sessions.shared_text(GREETING)
      self._queue = sessions.shared_queue(REPORTS)
    self._pace = pace_lib.Pace(FORGOTTEN_SECONDS)
    self._agents = set()  # The ids of agents that have agreed to the contract. The others wait for these only.
    self._incarnation = uuid.uuid4().hex
    self._stop = threading.Event()
    self._error = None
    self._restore()
    self._greet()

  def serve(self, is_over: Callable[[], bool], checkpoint_interval_seconds: float):
    """Serves, and saves the contents at intervals and at the end. If no agent has come, it leaves no files.

    Args:
      is_over: returns whether to end. It is called often.
      checkpoint_interval_seconds: time between two saves.
    Raises:
      errors.UserError: the contents cannot be saved, or there is too little memory for a full replay.
    """
    saved = time.monotonic()
    while not is_over() and not self._stop.wait(_TICK_SECONDS):
      if time.monotonic() - saved >= checkpoint_interval_seconds:
        self.save()
        saved = time.monotonic()
    self.save()
    self._stop.set()
    with tf.device('/CPU:0'):
      tf.raw_ops.QueueCloseV2(handle=self._queue)
    self._listener.join()
    if not self._contract:
      self._directory.undo()
    if self._error:
      raise self._error

  def statistics(self) -> episode_replay.Statistics | None:
    """Returns the counts of the replay; None before the first agent has come."""
    return self._replay.statistics() if self._replay else None

  @property
  def num_agents(self) -> int:
    """The number of agents that are present."""
    return len(self._pace.even(time.monotonic()))

  def save(self):
    """Saves the contents, unless nothing has changed since the last time. Raises errors.UserError if this fails."""
    if not self._replay:
      return
    statistics = self._replay.statistics()
    if not statistics.episodes or statistics == self._saved:
      return
    try:
      self._replay.save(run_directory.path(self._directory.path, _CONTENTS))
    except OSError as error:
      raise run_directory.RunDirectoryError(f'{self._directory.logdir}: the replay cannot be saved: {error}') from error
    self._saved = statistics  # From before the save, because agents may insert meanwhile.

  def _restore(self):
    """Restores what was saved."""
    file, contents = (run_directory.path(self._directory.path, name) for name in (_CONTRACT, _CONTENTS))
    if not os.path.exists(file) and not os.path.exists(contents):
      return
    try:
      with open(file, encoding='utf-8') as stream:
        replay = self._make(json.load(stream))
      if os.path.exists(contents):
        replay.restore(contents)
        self._saved = restored = replay.statistics()
        self._say(f'{restored.steps:,} agent steps restored from {self._directory.logdir}')
    except (OSError, ValueError, RecursionError, MemoryError) as error:
      raise run_directory.RunDirectoryError(
          f'{self._directory.logdir}: the replay cannot be restored ({error}): remove {_CONTENTS} and '
          f'{_CONTRACT} there to begin with an empty replay, or choose another --logdir') from error

  def _make(self, contract):
    """Returns the replay of a contract. Raises ValueError if it describes none, UserError if memory is too small."""
    try:
      needed, capacity = episode_replay.memory_bytes(row_spec(contract), 1), int(contract['replay_capacity'])
      replay = make_replay(contract, REPLAY)
    except (LookupError, TypeError, ValueError, OverflowError, tf.errors.OpError) as error:
      reason = messages.one_line(getattr(error, 'message', str(error)))
      raise ValueError(f'its contract describes no replay: {type(error).__name__}: {reason}') from error
    try:
      memory.check_replay(needed * capacity, capacity, 'agent steps')
    except errors.UserError as error:
      raise errors.UserError(f"the agents' {error}, with another --logdir of the agents and of this replay") from error
    self._contract = contract
    self._replay = replay
    return replay

  def _listen(self):
    """Takes the agents' reports, until the queue is closed."""
    while True:
      try:
        with tf.device('/CPU:0'):
          report = tf.raw_ops.QueueDequeueV2(handle=self._queue, component_types=[tf.string])[0].numpy()
      except tf.errors.OutOfRangeError:
        return
      try:
        self._take(_read_report(report))
      except errors.UserError as error:
        self._error = error
        self._stop.set()
        return
      except ValueError as error:  # Anyone who reaches the port can send any bytes.
        self._say(f'a malformed report was ignored: {error}')

  def _take(self, report):
    """Takes a report. Raises ValueError if the sender has not agreed to the contract."""
    if self._contract is None and report.contract:
      self._make(report.contract)
      run_directory.write_json(run_directory.path(self._directory.path, _CONTRACT), self._contract)
    if report.contract:
      if report.contract != self._contract:
        raise ValueError(f'agent {settings.shown(report.agent)} has other settings')
      self._agents.add(report.agent)
    if report.agent not in self._agents:
      raise ValueError(f'agent {settings.shown(report.agent)} has not said what it expects of the replay')
    if report.leaving:
      self._pace.leave(report.agent)
    else:
      self._pace.report(report.agent, report.steps, time.monotonic())
    self._greet()

  def _greet(self):
    """Tells the agents who serves, what the replay holds, and where each of them would be level with the slowest."""
    greeting = {'incarnation': self._incarnation, 'contract': self._contract, 'even': self._pace.even(time.monotonic())}
    sessions.set_text(self._greeting, json.dumps(greeting))


def _check_is_here(address: str):
  """Checks that HOST of HOST:PORT is this machine, because the port opens here. Raises errors.UserError."""
  host, port = ports.split_address(address)
  advice = f'start the replay on the machine of that name, or give localhost:{port}, which opens on all interfaces too'
  try:
    places = socket.getaddrinfo(host.strip('[]'), None, type=socket.SOCK_STREAM)
  except (OSError, UnicodeError) as error:
    raise errors.UserError(f'--shared_replay={address}: no such host: {advice}') from error
  for family, *_, place in places:
    with contextlib.suppress(OSError), socket.socket(family) as probe:
      probe.bind((place[0], 0))
      return
  raise errors.UserError(f'--shared_replay={address}: {host} is another machine: {advice}')


def report_text(**fields) -> str:
  """Returns the text of a report. `fields` are those of _Report."""
  return json.dumps(_Report(**fields)._asdict())


def _read_report(text: bytes) -> _Report:
  """Parses a report, which anyone may have sent. Raises ValueError if it is invalid."""
  try:
    values = json.loads(text) if len(text) <= _LONGEST_REPORT else None
  except (ValueError, RecursionError):
    values = None
  if not isinstance(values, dict) or values.keys() != set(_Report._fields):
    raise ValueError('it is not a JSON object with the fields of a report, or it is too long')
  report = _Report(**values)
  if (type(report.agent) is not str or type(report.steps) is not int or report.steps < 0 or
      type(report.leaving) is not bool or not isinstance(report.contract, dict | None)):
    raise ValueError('a field has another type, or is out of range')
  return report
