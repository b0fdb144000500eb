"""The training process's side of the environment workers: starts them, replaces them, ends them.

A worker is a process of its own (actor/environment_worker.py) with a socket to ring at and a block of shared memory
without a name, so that neither outlives the processes that hold them.
"""

import contextlib
import json
import mmap
import os
import socket
import subprocess
import sys
import time
from typing import Callable, NamedTuple, Optional

from scalable_agents.actor import environment_worker
from scalable_agents.actor import python_path
from scalable_agents.actor import shared_memory

_LEAVE_SECONDS = 1.
_EARLY_DEATHS = 3  # Of a worker, before it has made its environments, …
_EARLY_HANGS = 1   # … of which each takes the whole time-out.
_THREAD_COUNTS = ('OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS', 'MKL_NUM_THREADS')
_STDERR = 2  # This process's file descriptor.


class WorkerError(Exception):
  """Environments cannot be started or kept alive; the message ends with the worker's own traceback."""


class _UnexplainedError(WorkerError):
  """A worker has made no environments, and left no traceback: another life of it may, up to so many."""

  def __init__(self, message: str, lives: int):
    super().__init__(message)
    self.lives = lives


class Specification(NamedTuple):
  """What all environments of a run have in common."""
  num_actions: int
  observation: dict     # name -> (dtype name, shape).
  frames_per_step: int  # Environment frames per agent step.


class Worker(NamedTuple):
  """A running worker process and this process's ends of what it shares with it."""
  process: subprocess.Popen
  connection: socket.socket
  memory: int  # File descriptor.
  header: mmap.mmap


class EnvironmentWorkers:
  """The worker processes of a run.

  Their parent is the thread that starts them: a worker dies when that thread ends.
  """

  def __init__(self, constructor: str, environments: list, num_workers: int, timeout_seconds: float = 60.,
               report: Callable[[int], None] = lambda made: None):
    """Starts all workers at once and waits until every environment is made.

    A worker that ends meanwhile without a word, as crashes inside an emulator do, is replaced a few times.

    Args:
      constructor: 'module:function', called once per environment in a worker with the keyword arguments below.
      environments: a dict of arguments for each environment, fit for JSON, with a 'seed'. Environment i is actor i.
      num_workers: processes to spread them over, >= 1.
      timeout_seconds: how long a worker may take to make its environments.
      report: called with the number of environments that are made, whenever a worker has made its own.

    Raises:
      ValueError: not 1 to len(environments) workers.
      WorkerError: a worker could not make its environments, or no process can be started.
    """
    if not 1 <= num_workers <= len(environments):
      raise ValueError(f'num_workers: want 1 to {len(environments)}, one environment each at least, got {num_workers}')
    self._constructor = constructor
    self._environments = environments
    self._timeout_seconds = timeout_seconds
    self._lives = [0] * num_workers
    self._workers: list[Optional[Worker]] = [None] * num_workers
    self.actor_ids = [list(range(i, len(environments), num_workers)) for i in range(num_workers)]
    self.specification: Optional[Specification] = None
    self.early_deaths = 0  # Workers replaced before all were there.
    self._given_up = False
    try:
      for worker in range(num_workers):
        self._spawn(worker)
      for worker in range(num_workers):
        self._greet_or_replace(worker)
        report(sum(map(len, self.actor_ids[:worker + 1])))
    except BaseException:
      self.close()
      raise

  def __len__(self):
    return len(self._workers)

  def __getitem__(self, worker: int) -> Worker:
    return self._workers[worker]

  @property
  def layout(self) -> shared_memory.SlotLayout:
    """Where the fields of a row lie in a worker's slots."""
    return shared_memory.slot_layout(self.specification.observation)

  def replace(self, worker: int) -> Worker:
    """Ends a worker that is at fault, or dead already, and starts another with new seeds.

    Raises:
      WorkerError: the new one could not make its environments, or no process can be started.
    """
    self._end(worker, patience_seconds=0.)
    self._lives[worker] += 1
    self._spawn(worker)
    self._greet(worker)
    return self._workers[worker]

  def give_up(self):
    """Ends all workers, and with WorkerError a `replace` that waits for one in another thread."""
    self._given_up = True
    for worker in self._workers:
      if worker:
        _hang_up(worker.connection)

  def error(self, worker: int) -> str:
    """The traceback that the worker left, '' if none."""
    return shared_memory.read_error(self._workers[worker].header)

  def close(self):
    """Ends all workers. Idempotent."""
    for worker in self._workers:
      if worker:
        worker.connection.close()  # All leave at once, then are waited for one by one.
    deadline = time.monotonic() + _LEAVE_SECONDS
    for worker in range(len(self._workers)):
      self._end(worker, max(deadline - time.monotonic(), 0.))

  def _spawn(self, worker):
    self._workers[worker] = _start_process()
    connection = self._workers[worker].connection
    connection.settimeout(self._timeout_seconds)
    request = {'constructor': self._constructor,
               'environments': [self._arguments(actor, self._lives[worker]) for actor in self.actor_ids[worker]]}
    encoded = json.dumps(request).encode()
    os.pwrite(self._workers[worker].memory, encoded, shared_memory.HEADER_BYTES)
    try:
      connection.send(environment_worker.REQUEST_LENGTH.pack(len(encoded)))
    except BrokenPipeError:
      pass  # _greet tells why.

  def _arguments(self, actor_id, life):
    """An environment's arguments; a life after a fault has another seed, lest it repeats what led there."""
    arguments = self._environments[actor_id]
    return dict(arguments, seed=arguments['seed'] + life * len(self._environments))

  def _greet_or_replace(self, worker):
    """As `_greet`, but for a few ends that nothing explains."""
    while True:
      try:
        return self._greet(worker)
      except _UnexplainedError as error:
        if self._lives[worker] >= error.lives:
          raise
      self.early_deaths += 1
      self._end(worker, patience_seconds=0.)
      self._lives[worker] += 1
      self._spawn(worker)

  def _greet(self, worker):
    """Waits for the worker's specification and gives its shared memory the size for it."""
    connection = self._workers[worker].connection
    if self._given_up:  # Perhaps before there was this connection.
      _hang_up(connection)
    try:
      answer = connection.recv(environment_worker.MAXIMUM_PACKET_BYTES)
    except TimeoutError:
      raise _UnexplainedError(
          f'no environment within {self._timeout_seconds:g} s of starting its process; where all goes slowly, try a '
          'larger --environment_timeout_seconds', _EARLY_HANGS) from None
    except ConnectionResetError:
      answer = b''
    if not answer:
      self._workers[worker].process.kill()  # If it does not leave by itself: without the connection it is of no use.
      self._workers[worker].process.wait()
      failure = 'an environment could not be made:\n'
      if traceback := self.error(worker):
        raise WorkerError(failure + traceback)
      raise _UnexplainedError(
          f'{failure}its process ended with code {self._workers[worker].process.returncode}', _EARLY_DEATHS)
    specification = Specification(**json.loads(answer))
    if self.specification is None:
      self.specification = specification
    elif specification != self.specification:
      raise WorkerError(
          f'the environments of a run must be alike: got {self.specification} and {specification}')
    connection.setblocking(False)
    slots = len(self.actor_ids[worker])
    os.ftruncate(self._workers[worker].memory, shared_memory.block_bytes(self.layout, slots))

  def _end(self, worker, patience_seconds):
    ended = self._workers[worker]
    if ended is None:
      return
    ended.connection.close()
    try:
      ended.process.wait(patience_seconds)
    except subprocess.TimeoutExpired:
      ended.process.kill()
      ended.process.wait()
    ended.header.close()
    os.close(ended.memory)
    self._workers[worker] = None


def _start_process():
  """Starts a worker process, which waits for a request."""
  with contextlib.ExitStack() as undo:
    try:
      ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
      undo.callback(ours.close)
      with theirs:
        memory = os.memfd_create('environments', os.MFD_CLOEXEC)
        undo.callback(os.close, memory)
        os.ftruncate(memory, shared_memory.HEADER_BYTES)
        header = mmap.mmap(memory, shared_memory.HEADER_BYTES)
        undo.callback(header.close)
        environment = python_path.environment() | dict.fromkeys(_THREAD_COUNTS, '1')
        command = [sys.executable, '-m', environment_worker.__name__, str(theirs.fileno()), str(memory)]
        # A session of its own: the terminal's Ctrl-C is for the training process, which ends its workers itself. What
        # environments print joins the libraries' messages: the screen is the run's.
        process = subprocess.Popen(command, pass_fds=[theirs.fileno(), memory], env=environment,
                                   start_new_session=True, stdin=subprocess.DEVNULL, stdout=_STDERR)
    except OSError as error:
      raise WorkerError(f'cannot start a worker process: {error}') from error
    undo.pop_all()
  return Worker(process, ours, memory, header)


def _hang_up(connection):
  try:
    connection.shutdown(socket.SHUT_RDWR)
  except OSError:
    pass  # Another thread has closed it just now.
