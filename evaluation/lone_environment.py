"""One environment in a worker process, stepped from Python. For uses that need not be fast, such as a video."""

import contextlib
import mmap
from typing import Any, NamedTuple

import numpy as np

from scalable_agents.actor import environment_workers
from scalable_agents.actor import shared_memory
from scalable_agents.environments import registry
from scalable_agents.records import errors

_CONSTRUCTOR = 'scalable_agents.environments.registry:make_from_json'
_SLOT = np.zeros([1], np.uint32).tobytes()  # A packet with the number of the only environment.


def start(level: str, seed: int, protocol: dict[str, Any], timeout_seconds: float) -> 'LoneEnvironment':
  """Starts the environment of a level.

  Args:
    level, seed, protocol: see registry.make_from_json.
    timeout_seconds: see LoneEnvironment.
  Raises:
    errors.UserError: the environment cannot be made. In most cases the message is one line.
  """
  with errors.of_user(ValueError, ImportError, environment_workers.WorkerError):
    registry.check(level)  # Messages from here have no traceback of a worker.
    registry.check_settings(level, protocol)
    return LoneEnvironment(_CONSTRUCTOR, {'level_name': level, 'seed': seed, 'protocol': protocol}, timeout_seconds)


class Row(NamedTuple):
  """The result of an action, a row as in actor/unroll.py. The reward of the first row is 0."""
  reward: float
  done: bool             # The observation is the first one of an episode.
  episode_return: float  # Return of the episode to which `reward` belongs.
  episode_length: int    # Length of this episode in environment frames.
  observation: dict[str, np.ndarray]


class LoneEnvironment:
  """An environment and its worker. It is a context manager, which ends the worker."""

  def __init__(self, constructor: str, arguments: dict[str, Any], timeout_seconds: float):
    """Starts the worker.

    Args:
      constructor: as for environment_workers.EnvironmentWorkers.
      arguments: keyword arguments of the environment.
      timeout_seconds: time for the worker to make its environment, and for each step.
    Raises:
      environment_workers.WorkerError: the environment cannot be made.
    """
    self._timeout_seconds = timeout_seconds
    self._workers = environment_workers.EnvironmentWorkers(constructor, [arguments], 1, timeout_seconds)
    self.specification = self._workers.specification
    self._layout = self._workers.layout
    worker = self._workers[0]
    self._connection = worker.connection
    self._memory = mmap.mmap(worker.memory, shared_memory.block_bytes(self._layout, 1))

  def __enter__(self) -> 'LoneEnvironment':
    return self

  def __exit__(self, *unused_exception):
    self._workers.close()

  def advance(self, action: int = 0) -> Row:
    """Steps the environment. The first call starts an episode instead and ignores the action.

    Raises:
      environment_workers.WorkerError: the worker fails, ends or does not answer in time.
    """
    start = shared_memory.HEADER_BYTES
    shared_memory.ACTION.pack_into(self._memory, start, action)
    with contextlib.suppress(OSError):  # The worker has ended. `receive` notices this.
      self._connection.send(_SLOT)
    try:
      fault = '' if self._workers.receive(0, self._timeout_seconds) else environment_workers.HUNG_UP
    except TimeoutError as error:
      fault = str(error)
    if fault:
      raise environment_workers.WorkerError(self._workers.explain(0, 'failed', fault))
    reward, _, episode_return, episode_length, done = shared_memory.RESULT.unpack_from(
        self._memory, start + shared_memory.RESULT_OFFSET)
    observation = {field.name: np.ndarray(field.shape, field.dtype, self._memory, start + field.offset).copy()
                   for field in self._layout.observation}
    return Row(reward, done, episode_return, episode_length, observation)
