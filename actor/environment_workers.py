"""Starts, replaces and ends the environment workers of a training process.

A worker is a process of its own (actor/environment_worker.py). It is connected by a socket and a block of shared
memory. Neither has a name, so they disappear with the processes that use them.
"""

from collections.abc import Callable
import contextlib
import fcntl
import itertools
import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from typing import BinaryIO, NamedTuple, cast

from scalable_agents.actor import environment_worker
from scalable_agents.actor import leftovers
from scalable_agents.actor import shared_memory
from scalable_agents.actor import worker_stderr
from scalable_agents.processes import machine
from scalable_agents.processes import python_path

# Long work, such as compiling a map, may take this many times the timeout.
LONG_WORK_FACTOR = 20
# Open files of the training process: a worker's memory, its socket and the pool's copy of that, its pipe, and until its
# first answer a second view of its memory.
_FILES_PER_WORKER = 5
_SPARE_FILES = 256  # For everything else that is opened later.
_LEAVE_SECONDS = leftovers.CLOSE_SECONDS + 1.
_LAST_WORDS_SECONDS = 1.
_DEATH_SECONDS = 10.  # Time for a process to end after its connection has ended.
_LOOK_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 1.  # Between two looks. After a longer one, this process was stopped.
_EARLY_DEATHS = 3  # A worker that dies before it has made its environments is replaced this many times.
_EARLY_HANGS = 1   # A worker that hangs before that is replaced this many times. Each takes the whole timeout.
_THREAD_COUNTS = ('OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS', 'MKL_NUM_THREADS')
_STDERR = 2  # The file descriptor of stderr.
HUNG_UP = 'it closed its connection'


class WorkerError(Exception):
  """Environments cannot be started or kept alive.

  The first line of the message says what happened. A worker's traceback may follow.
  """


class _UnexplainedError(WorkerError):
  """A worker has failed to make its environments without a traceback. It may be replaced `max_restarts` times."""

  def __init__(self, message: str, max_restarts: int):
    super().__init__(message)
    self.max_restarts = max_restarts


class Specification(NamedTuple):
  """The specification that all environments of a run share."""
  num_actions: int
  observation: dict     # name -> (dtype name, shape).
  frames_per_step: int  # Environment frames per agent step.
  frame_stacks: dict    # name -> frames in a stack; see base.Environment.


class Worker(NamedTuple):
  """A running worker process, and this process's ends of the socket, the memory and the pipe."""
  process: subprocess.Popen
  connection: socket.socket
  memory: int  # File descriptor.
  stderr: worker_stderr.WorkerStderr


class EnvironmentWorkers:
  """The worker processes of a run. They end with this process, and programs that they have started end with them.

  Attributes:
    actor_ids: for each worker, the ids of its actors. Environment i belongs to actor i.
    early_deaths: number of workers that were replaced before all workers were started.
  """

  def __init__(self, constructor: str, environments: list, num_workers: int, timeout_seconds: float = 60.,
               report: Callable[[int], None] = lambda made: None, niceness: int = 0,
               check: Callable[[Specification], None] = lambda specification: None):
    """Starts all workers at once and waits until every environment is made.

    A worker that ends meanwhile without an error message, as after a crash inside an emulator, is replaced a few times.

    Args:
      constructor: 'module:function'. A worker calls it once per environment with the arguments below.
      environments: for each environment, a dict of keyword arguments that can be written as JSON. It must have a
        'seed'. Messages show its 'level_name', if it has one.
      num_workers: number of processes, >= 1.
      timeout_seconds: time for a worker to make its environments; see `receive`.
      report: called with the number of environments made so far, each time a worker has made its environments.
      niceness: added to a worker's niceness after it has made its environments, unless this process has a niceness
        above 0.
      check: called once, with the specification, when the first worker has made its environments. What it raises ends
        all workers.

    Raises:
      ValueError: num_workers is not in [1, len(environments)].
      WorkerError: a worker could not make its environments, no process can be started, or this process may not open
        enough files.
    """
    if not 1 <= num_workers <= len(environments):
      raise ValueError(f'num_workers: want 1 to {len(environments)}, the number of environments, got {num_workers}')
    self._constructor = constructor
    self._check = check
    self._environments = environments
    self._timeout_seconds = timeout_seconds
    self._niceness = niceness
    self._restarts, self._tries_again = [0] * num_workers, [False] * num_workers
    self._workers: list[Worker | None] = [None] * num_workers
    self.actor_ids = [list(range(i, len(environments), num_workers)) for i in range(num_workers)]
    self._specification: Specification | None = None
    self.early_deaths = 0
    self._given_up = False
    self._mark = f'{secrets.token_hex(8)}.'
    _allow_open_files(num_workers)
    self._watchdog = _start_watchdog(self._mark)
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
    running = self._workers[worker]
    if running is None:
      raise WorkerError(f'environment worker {worker} is not running')
    return running

  def process_ids(self) -> list[int]:
    """Returns the process ids of the workers that are running."""
    return [worker.process.pid for worker in self._workers if worker]

  @property
  def specification(self) -> Specification:
    """The environments' specification. Raises WorkerError if no environment has been made."""
    if self._specification is None:
      raise WorkerError('no environment has been made')
    return self._specification

  @property
  def layout(self) -> shared_memory.SlotLayout:
    """The layout of a worker's slots."""
    return shared_memory.slot_layout(self.specification.observation)

  def replace(self, worker: int) -> Worker:
    """Ends a worker that has failed or died, and starts another one with new seeds.

    If the worker was at long work, the new worker has the same seeds. Finished work may be in a cache, so the new
    worker needs less time.

    Raises:
      WorkerError: the new worker could not make its environments, or no process can be started.
    """
    self._discard(worker)
    self._spawn(worker)
    self._greet(worker)
    return self[worker]

  def give_up(self):
    """Ends all workers. A `replace` that waits in another thread raises WorkerError."""
    self._given_up = True
    for worker in self._workers:
      if worker:
        _hang_up(worker.connection)

  def explain(self, worker: int, event: str, fault: str) -> str:
    """Explains what happened to a worker.

    Args:
      worker: the worker's number.
      event: what happened to its environment: 'failed' or 'could not be made'.
      fault: the reason if the worker has neither written an error nor ended, for example a timeout.

    Returns:
      A line with the environment that the worker was making or stepping, and the reason: the error that it wrote, how
      its process ended, or `fault`. The line also has the worker's output on stderr since the last request. The error's
      traceback follows on further lines.
    """
    running = self[worker]
    end = _how_it_ended(running)
    if end:
      running.stderr.wait(_LAST_WORDS_SECONDS)
    header = self._header(worker)
    headline, traceback = shared_memory.read_error(header)
    line = f'{self._name_of_environment(worker)} {event}: {headline or end or fault}'
    if said := running.stderr.last_words(shared_memory.read_number(header, shared_memory.REQUEST_NS)):
      line += f'; on stderr: {said}'
    return f'{line}\n{traceback}' if traceback else line

  def receive(self, worker: int, timeout_seconds: float) -> bytes:
    """Waits for a packet from a worker. Returns b'' if the worker has ended.

    During long work, the worker has LONG_WORK_FACTOR times as long. The time restarts when the long work ends. On a
    busy machine, the time in which the worker waits for a processor does not count. Nor does that in which this process
    is stopped, because the worker may be stopped, too.

    Raises:
      TimeoutError: the worker has not answered in time. The message says how long it took.
    """
    running = self[worker]
    poll = select.poll()
    poll.register(running.connection, select.POLLIN)

    looked = time.monotonic()
    began = waits_since = looked - machine.processor_wait_seconds(running.process.pid)
    while not poll.poll(1000 * min(_LOOK_SECONDS, timeout_seconds)):
      last, looked = looked, time.monotonic()
      stopped = max(looked - last - _LONGEST_PAUSE_SECONDS, 0.)
      began, waits_since = began + stopped, waits_since + stopped
      now = looked - machine.processor_wait_seconds(running.process.pid)
      if self._is_at_long_work(worker):
        waits_since = now
        if now - began > LONG_WORK_FACTOR * timeout_seconds:
          raise TimeoutError(f'no answer for {LONG_WORK_FACTOR * timeout_seconds:g} s (long work, {LONG_WORK_FACTOR} '
                             'times --environment_timeout_seconds)')
      elif now - waits_since > timeout_seconds:
        raise TimeoutError(f'no answer for {timeout_seconds:g} s (--environment_timeout_seconds)')
    try:
      return running.connection.recv(environment_worker.MAXIMUM_PACKET_BYTES)
    except ConnectionResetError:
      return b''

  def close(self):
    """Ends all workers. Idempotent."""
    for worker in self._workers:
      if worker:
        worker.connection.close()  # All workers exit at the same time. They are waited for below.
    deadline = time.monotonic() + _LEAVE_SECONDS
    pipes = [worker.stderr for worker in self._workers if worker]
    groups = [worker.process.pid for worker in self._workers if worker]
    for worker in range(len(self._workers)):
      self._end(worker, max(deadline - time.monotonic(), 0.))
    if self._watchdog is not None:
      leftovers.kill(self._mark, groups)
      os.close(self._watchdog)
      self._watchdog = None
    deadline = time.monotonic() + _LAST_WORDS_SECONDS
    for pipe in pipes:
      pipe.wait(max(deadline - time.monotonic(), 0.))

  def _spawn(self, worker):
    running = self._workers[worker] = _start_process(f'{self._mark}{worker}.')
    request = {'constructor': self._constructor, 'niceness': self._niceness,
               'environments': [self._arguments(actor, self._restarts[worker]) for actor in self.actor_ids[worker]]}
    encoded = json.dumps(request).encode()
    os.pwrite(running.memory, encoded, shared_memory.HEADER_BYTES)
    with contextlib.suppress(BrokenPipeError):  # _greet reports the reason.
      running.connection.send(environment_worker.REQUEST_LENGTH.pack(len(encoded)))

  def _arguments(self, actor_id, restarts):
    """Returns an environment's arguments. After a failure the seed changes, so that the failure is not repeated."""
    arguments = self._environments[actor_id]
    return dict(arguments, seed=arguments['seed'] + restarts * len(self._environments))

  def _header(self, worker):
    """Returns a copy of the header of the worker's memory."""
    return os.pread(self[worker].memory, shared_memory.HEADER_BYTES, 0)

  def _is_at_long_work(self, worker):
    return bool(shared_memory.read_number(self._header(worker), shared_memory.LONG_WORK))

  def _name_of_environment(self, worker):
    """Returns a name for the environment that a worker is working on: its number and its level, if it has one."""
    actors = self.actor_ids[worker]
    at_work = shared_memory.read_number(self._header(worker), shared_memory.AT_WORK)
    if len(actors) == 1:
      at_work = 1
    if not 0 < at_work <= len(actors):  # A worker that crashes may have written any number.
      return 'an environment'
    return self._title(actors[at_work - 1])

  def _title(self, actor):
    level = self._environments[actor].get('level_name')
    return f'environment {actor} ({level})' if level else f'environment {actor}'

  def _greet_or_replace(self, worker):
    """Like `_greet`, but replaces the worker a few times if it fails without an explanation."""
    for restarts in itertools.count():
      try:
        return self._greet(worker)
      except _UnexplainedError as error:
        if restarts >= error.max_restarts:
          raise
      self.early_deaths += 1
      self._discard(worker)
      self._spawn(worker)

  def _greet(self, worker):
    """Waits for the worker's specification, and enlarges its shared memory accordingly."""
    connection, memory = self[worker].connection, self[worker].memory
    if self._given_up:  # `give_up` may have been called before this connection was made.
      _hang_up(connection)
    try:
      answer = self.receive(worker, self._timeout_seconds)
    except TimeoutError as error:
      reason = f'{error}; a slow machine may need more'
      raise _UnexplainedError(self.explain(worker, 'could not be made', reason), _EARLY_HANGS) from None
    if not answer:
      if self._given_up:
        raise WorkerError('the environments were closed')
      failure = self.explain(worker, 'could not be made', HUNG_UP)
      if shared_memory.read_error(self._header(worker))[0]:
        raise WorkerError(failure)
      raise _UnexplainedError(failure, _EARLY_DEATHS)
    specification = Specification(**json.loads(answer))
    if self._specification is None:
      self._check(specification)
      self._specification = specification  # Of actor 0: workers are greeted in order.
    elif specification != self.specification:
      raise WorkerError(
          f'the environments of a run must have the same specification: got {self.specification} for '
          f'{self._title(0)} and {specification} for {self._title(self.actor_ids[worker][0])}')
    connection.setblocking(False)
    os.ftruncate(memory, shared_memory.block_bytes(self.layout, len(self.actor_ids[worker])))
    # A process that accesses memory after the end of the file is killed. The seal keeps a worker from shrinking the
    # file.
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)

  def _discard(self, worker):
    """Ends a worker that will be replaced."""
    discarded = self._workers[worker]
    if discarded is None:
      return  # The process could not be started.
    is_slow = self._is_at_long_work(worker) and discarded.process.poll() is None
    self._end(worker, patience_seconds=0.)
    leftovers.kill(f'{self._mark}{worker}.', [discarded.process.pid])  # Its process id is also its group's id.
    discarded.stderr.wait(_LAST_WORDS_SECONDS)
    # Long work gets a second try with the same seeds. If that takes as long, the seeds may be at fault.
    self._tries_again[worker] = is_slow and not self._tries_again[worker]
    if not self._tries_again[worker]:
      self._restarts[worker] += 1

  def _end(self, worker, patience_seconds):
    ended = self._workers[worker]
    if ended is None:
      return
    ended.connection.close()
    try:
      ended.process.wait(patience_seconds)
    except subprocess.TimeoutExpired:
      ended.process.kill()
      with contextlib.suppress(subprocess.TimeoutExpired):  # Perhaps the kernel cannot end it yet.
        ended.process.wait(_DEATH_SECONDS)
    os.close(ended.memory)
    self._workers[worker] = None


def _allow_open_files(num_workers):
  """Raises this process's limit of open files to what the workers need, as far as it may."""
  used = len(os.listdir('/proc/self/fd'))
  needed = used + _FILES_PER_WORKER * num_workers
  if (allowed := machine.allow_open_files(needed + _SPARE_FILES)) < needed:
    raise WorkerError(f'{num_workers} environment workers need {needed} open files, and this process may have '
                      f'{allowed} (ulimit -Hn): raise this limit, or choose a smaller --num_environment_workers')


def _start_watchdog(mark):
  """Starts the program in leftovers.py. Returns a descriptor; the program waits until all its copies are closed."""
  waits, alive = os.pipe()
  command = [sys.executable, '-I', '-S', leftovers.__file__, mark]
  try:
    subprocess.run(command, stdin=waits, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
  except (OSError, subprocess.CalledProcessError) as error:
    os.close(alive)
    raise WorkerError(f'cannot start a worker process: {error}') from error
  finally:
    os.close(waits)
  return alive


def _start_process(mark):
  """Starts a worker process, which waits for a request. leftovers.py finds its descendants by the mark."""
  with contextlib.ExitStack() as undo:
    try:
      ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
      undo.callback(ours.close)
      with theirs:
        memory = os.memfd_create('environments', os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        undo.callback(os.close, memory)
        os.ftruncate(memory, shared_memory.HEADER_BYTES)
        environment = python_path.environment() | dict.fromkeys(_THREAD_COUNTS, '1') | {leftovers.VARIABLE: mark}
        command = [sys.executable, '-m', environment_worker.__name__, str(theirs.fileno()), str(memory)]
        # The worker has a process group of its own, so that only the training process gets the terminal's Ctrl-C. It
        # stays in the session, because Linux may divide the processors between sessions (sched(7), autogroup). A
        # worker's niceness then counts against the training process, but not against other programs. Its stdout goes
        # where libraries' messages go, because the screen is for the progress of the run.
        process = subprocess.Popen(command, pass_fds=[theirs.fileno(), memory], env=environment, process_group=0,
                                   stdin=subprocess.DEVNULL, stdout=_STDERR, stderr=subprocess.PIPE)
        undo.push(process)  # Closes its pipe and waits for its end.
        undo.callback(process.kill)
      worker = Worker(process, ours, memory, worker_stderr.WorkerStderr(cast(BinaryIO, process.stderr)))
    except (OSError, RuntimeError) as error:  # RuntimeError: no thread can be started.
      raise WorkerError(f'cannot start a worker process: {error}') from error
    undo.pop_all()
    return worker


def _how_it_ended(worker: Worker) -> str:
  """Returns how the process of a worker has ended, or '' if it still runs."""
  poll = select.poll()
  poll.register(worker.connection, select.POLLRDHUP)
  # A process that an environment has forked may keep the connection open after the worker's end.
  if not poll.poll(0) and worker.process.poll() is None:
    return ''
  try:
    code = worker.process.wait(_DEATH_SECONDS)
  except subprocess.TimeoutExpired:
    return ''
  if code >= 0:
    return f'its process ended with exit code {code}'
  name = {number.value: number.name for number in signal.Signals}.get(-code, f'signal {-code}')
  hint = ', perhaps out of memory' if -code == signal.SIGKILL else ''
  return f'its process was ended by {name}{hint}'


def _hang_up(connection):
  with contextlib.suppress(OSError):  # Another thread has closed it meanwhile.
    connection.shutdown(socket.SHUT_RDWR)
