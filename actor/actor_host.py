"""An actor host: environments, their actor pool, and the loops that act for them.

Two functions connect it to a learner in this process or in another one: `parameters.latest()` returns the learner's
parameters, and `put` takes unrolls.
"""

from collections.abc import Callable, Sequence
import contextlib
import functools
import secrets
import threading
import time
from typing import Any, Protocol, TextIO

import numpy as np
import psutil
import tensorflow as tf

from scalable_agents.actor import acting
from scalable_agents.actor import actor_frames
from scalable_agents.actor import actor_pool
from scalable_agents.actor import environment_workers
from scalable_agents.actor import inference
from scalable_agents.actor import parameters as parameters_lib
from scalable_agents.actor import starvation
from scalable_agents.actor import unroll as unroll_lib
from scalable_agents.environments import dmlab
from scalable_agents.processes import devices
from scalable_agents.processes import machine

_ENVIRONMENTS_PER_CORE = 32
_LABS_PER_CORE = 4
_START_REPORT_SECONDS = 10.
_STREAM_BITS = 24  # These bits of a stream_id number the streams of a process. The 39 bits above identify the process.
_GOLDEN_RATIO = (5**0.5 - 1) / 2  # Its multiples, modulo 1, are spread evenly over [0, 1].
_ENVIRONMENT = 'scalable_agents.environments.registry:make_from_json'


class HostSettings(Protocol):
  """The settings of an actor host. Each is a flag; see processes/run_flags.py."""

  @property
  def num_environments(self) -> int | str: ...         # Or 'auto', see `counts`.
  @property
  def num_environment_workers(self) -> int | str: ...  # Or 'auto'.
  @property
  def num_inference_threads(self) -> int | str: ...    # Or 'auto'.
  @property
  def dynamic_batching(self) -> bool: ...              # Whether a batch of inference has several environments.
  @property
  def environment_timeout_seconds(self) -> float: ...  # A worker that does not answer for this time is replaced.
  @property
  def worker_niceness(self) -> int: ...                # See environment_workers.EnvironmentWorkers.
  @property
  def inference_device(self) -> str: ...               # See devices.choose.


def counts(run: HostSettings, levels: Sequence[str]) -> tuple[int, int, int]:
  """Returns the numbers of environments, worker processes and inference loops. Replaces `auto` by a number.

  By default there are one worker and 32 environments per core, with the same number of environments for each level. A
  worker steps its environments in two groups: while inference processes one group, the worker steps the other. Groups
  of 16 make batches large enough for the network to be fast.

  A DeepMind Lab environment takes 230 to 450 MB of memory, compiles maps for seconds, and ends its process when it
  fails. So the default is four per core, each in a worker of its own.

  With 0 environments the learner still makes one, to learn the observation's shape. It is never stepped.

  Args:
    run: the settings.
    levels: names of the levels that are played.
  Returns:
    (environments, worker processes, inference loops).
  """
  if run.num_environments == 0:
    return 1, 1, 1
  labs = any(level in dmlab.LEVELS for level in levels)
  environments = run.num_environments
  if environments == 'auto':
    per_level = (_LABS_PER_CORE if labs else _ENVIRONMENTS_PER_CORE) * machine.num_cores() // len(levels)
    environments = max(1, per_level) * len(levels)
  workers = run.num_environment_workers
  if workers == 'auto':
    workers = environments if labs else machine.num_cores()
  loops = run.num_inference_threads
  if loops == 'auto':  # The batches of one loop can use all cores, if they are large.
    loops = 1 if run.dynamic_batching else min(machine.num_cores(), int(environments))
  return int(environments), min(int(workers), int(environments)), int(loops)


def places_of(level_ids: Sequence[int], first_actor_id: int, offset: float | None = None) -> np.ndarray:
  """Returns the places of a process's actors among those that play the same level; see acting.ActorInput.

  Args:
    level_ids: the level of each actor.
    first_actor_id: id of the first one.
    offset: a number from 0 to 1, by which all places are moved, in units of the distance between two places; see
      cluster_config.place_offset. None: the first process of a run has places from 0 to 1, and the offset of any other
      process is computed from its actors' ids.
  Returns:
    [N] float32 in [0, 1].
  """
  places = np.zeros(len(level_ids), np.float32)
  for level_id in set(level_ids):
    same = np.flatnonzero(np.equal(level_ids, level_id))
    if offset is None and first_actor_id == 0 and len(same) > 1:
      places[same] = np.linspace(0, 1, len(same))
    else:  # Multiples of the golden ratio spread the places of all processes evenly, for any number of processes.
      of_ids = (first_actor_id + same[0]) * _GOLDEN_RATIO % 1
      places[same] = (np.arange(len(same)) + (of_ids if offset is None else offset)) / len(same)
  return places


class ActorHost:
  """Environments in worker processes, an actor for each environment, and inference for all of them.

  Attributes:
    num_environments, num_workers, num_loops: see `counts`.
    is_idle: True with --num_environments=0. The host then makes one environment, only to learn the observation's shape.
    is_starved: whether workers wait for a core because of other programs; from `watch_cores`.
    seed: the seed of environment 0.
    level_ids: the level of each environment.
    specification: environment_workers.Specification of the environments.
    observation_spec: dict of tf.TensorSpec, the same as in `specification`.
    device: the device of inference.
    pool: from `make_pool`.
    unroll_spec: unroll.Unroll of tf.TensorSpec, an unroll as it is sent to the learner; from `make_pool`.
  """

  pool: actor_pool.ActorPool
  unroll_spec: unroll_lib.Unroll

  def __init__(self, levels: Sequence[str], protocol: dict[str, Any], run: HostSettings, seed: int,
               screen: TextIO | None = None, first_actor_id: int = 0, environment: str = _ENVIRONMENT,
               played: Sequence[int] | None = None, first_level: int = 0, place_offset: float | None = None,
               check: Callable[[environment_workers.Specification], None] = lambda specification: None):
    """Starts the worker processes.

    Args:
      levels: names of the run's levels; a level's id is its index.
      protocol: settings of the environments; see registry.make_from_json.
      run: the settings.
      seed: environment i starts with seed + i.
      screen: stream to which the number of environments made so far is printed if it takes long; None for no output.
      first_actor_id: id of environment 0's actor; see cluster_config.first_actor_id.
      environment: 'module:function' of a function that makes an environment, with the arguments of
        registry.make_from_json.
      played: ids of the levels to play; environments are assigned to them in turn. None for all levels.
      first_level: index in `played` of environment 0's level, modulo its length, so that levels are spread
        evenly over the hosts of a cluster.
      place_offset: see `places_of`.
      check: see environment_workers.EnvironmentWorkers.
    Raises:
      environment_workers.WorkerError: an environment cannot be made.
    """
    played = range(len(levels)) if played is None else played
    self.num_environments, self.num_workers, self.num_loops = counts(run, [levels[level_id] for level_id in played])
    self.is_idle = run.num_environments == 0
    self._run = run
    self.device = devices.choose(run.inference_device)
    self.seed = seed
    self._first_actor_id = first_actor_id
    self._place_offset = place_offset
    self._first_stream_id = secrets.randbits(63 - _STREAM_BITS) << _STREAM_BITS  # Differs between processes.
    self.level_ids = [played[(first_level + actor) % len(played)] for actor in range(self.num_environments)]
    arguments = [{'level_name': levels[level_id], 'seed': seed + actor, 'protocol': protocol}
                 for actor, level_id in enumerate(self.level_ids)]
    self._workers = environment_workers.EnvironmentWorkers(
        environment, arguments, self.num_workers, run.environment_timeout_seconds, self._reporter(screen),
        run.worker_niceness, check)
    self.specification = self._workers.specification
    self.observation_spec = {name: tf.TensorSpec(shape, dtype, name)
                             for name, (dtype, shape) in self.specification.observation.items()}
    self._has_pool = False
    self._refreshed_at_step = 0
    self._starvation = starvation.Starvation()
    self.is_starved = False
    self._threads: list[threading.Thread] = []
    self._error: Exception | None = None

  def _reporter(self, screen):
    """Returns a function to be called with the number of environments made so far."""
    said = time.monotonic()

    def report(made):
      nonlocal said
      if screen and time.monotonic() - said >= _START_REPORT_SECONDS:
        said = time.monotonic()
        print(f'{made:,} of {self.num_environments:,} environments made', file=screen, flush=True)
    return report

  def make_pool(self, make_agent: Callable[[], Any], unroll_length: int, completed_capacity: int,
                report: Callable[[str], None], barrier: str = 'none',
                to_send: Callable[[unroll_lib.Unroll], unroll_lib.Unroll] = lambda unroll: unroll,
                work: Callable[[Any, unroll_lib.Unroll], unroll_lib.Unroll] | None = None):
    """Makes the pool, and one agent for each loop.

    Args:
      make_agent: makes an agent.Agent.
      unroll_length: agent steps per unroll.
      completed_capacity, barrier: see actor_pool.ActorPool.
      report: called with a message for each fault. Its first line says what happened. The traceback of a worker may
        follow.
      to_send: gets an unroll and returns the part of it that is sent to the learner. Runs in a graph.
      work: for agents whose actors also learn, such as the workers of A3C: computes what is sent to the learner, in a
        graph. It gets an agent and a full unroll. The agent has the parameters with which the actor played the whole
        unroll. The actor takes the latest parameters and continues after `work` has returned. None: the actors do not
        learn, and act with the latest parameters.
    """
    if work and barrier == 'none':
      barrier = 'unroll'  # The loops of `_make_worker_loop` release each actor on its own.
    self._is_released_alone = bool(work) and barrier == 'unroll'
    if barrier == 'step':
      self.num_loops = 1  # With several loops, chance would decide which loop gets a batch.
    with tf.device(self.device):
      self._agents = [make_agent() for _ in range(self.num_loops)]
    output, state = _specs_of_one_actor(self._agents[0], self.observation_spec)
    self.pool = actor_pool.ActorPool(
        self._workers, unroll_length, output, state, self.level_ids, completed_capacity,
        self._run.environment_timeout_seconds, barrier, self._run.dynamic_batching, report)
    self._has_pool = True
    self._to_send, self._work = to_send, work
    if work:
      with tf.device(self.device):
        self._worker_agents = [make_agent() for _ in range(self.num_loops)]
    sent = tf.function(functools.partial(work, self._worker_agents[0]) if work else to_send,
                       autograph=False).get_concrete_function(self.pool.unroll_spec).structured_outputs
    self.unroll_spec = tf.nest.map_structure(lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), sent)

  @property
  def parameter_specs(self) -> list[tf.TensorSpec]:
    """The specs of the parameters that `parameters.latest()` has to return."""
    return inference.specs(self._agents[0].acting_variables)

  @property
  def held(self) -> int:
    """The number of copies of the parameters that actors hold: one for each actor with `work`, else 0."""
    return self.num_environments if self._work else 0

  @property
  def actors(self) -> inference.Actors:
    """The ids and places of the actors of this host; see acting.ActorInput."""
    ids = np.arange(self.num_environments, dtype=np.int32) + self._first_actor_id
    return inference.Actors(ids, places_of(self.level_ids, self._first_actor_id, self._place_offset))

  def start(self, parameters: parameters_lib.ParameterSnapshot, put: Callable[[unroll_lib.Unroll], Any],
            on_end: Callable[[], None], selection: acting.Selection = acting.Selection()):
    """Starts the pool and the threads of the loops.

    Args:
      parameters: where the parameters come from.
      put: called in a graph with each unroll; may wait until there is room.
      on_end: called from a thread of this host when a loop ends for any reason; `check` raises the error, if any.
      selection: how actions are selected.
    """
    if self.is_idle:
      return
    pool = self.pool
    stacks = {name: self.observation_spec[name] for name, k in self.specification.frame_stacks.items() if k > 1}
    frames = None
    if stacks and 'GPU' in self.device.upper():
      frames = actor_frames.ActorFrames(stacks, self.num_environments, self.device)

    if self._work:
      movers = [self._make_worker_loop(self._work, agent, parameters, put) for agent in self._worker_agents]
    else:
      movers = [actor_pool.endless(lambda: put(self._to_send(self._with_ids(pool.next_unroll()))))]
    loops = [inference.make_loop(pool, agent, parameters, (self.seed + number) % 2**31, self.device, self.actors,
                                 selection, frames, hold=self._work is not None)
             for number, agent in enumerate(self._agents)]
    pool.start()
    for loop in [*movers, *loops]:
      thread = threading.Thread(target=self._guard, args=[loop, on_end], name='actor loop', daemon=True)
      thread.start()
      self._threads.append(thread)

  def _make_worker_loop(self, work, agent, parameters, put):
    """Makes a loop that takes full unrolls and sends what `work` computes from them. Only this loop uses `agent`."""
    def learn():
      unroll = self.pool.next_unroll()
      _, held = parameters.let_go([unroll.actor_id])
      with tf.device(self.device):
        inference.assign(agent, held)
        sent = work(agent, self._with_ids(unroll))
      with tf.control_dependencies([put(sent)]):
        if self._is_released_alone:
          self.pool.release_one(unroll.actor_id)
    return actor_pool.endless(learn)

  def _with_ids(self, unroll):
    """Returns an unroll of the pool with ids that are unique in the run."""
    return unroll._replace(actor_id=unroll.actor_id + self._first_actor_id,
                           stream_id=unroll.stream_id + self._first_stream_id)

  def memory_megabytes(self) -> float:
    """The memory of this process, its workers and what these started, in MB: the sum of proportional set sizes."""
    this, counted = psutil.Process(), set(self._workers.process_ids())
    total = this.memory_full_info().pss
    for process in this.children(recursive=True):  # Parents first. One call, because it reads all.
      with contextlib.suppress(psutil.Error):  # A process may end at this moment.
        if process.pid in counted or process.ppid() in counted:
          counted.add(process.pid)
          total += process.memory_full_info().pss
    return total * 1e-6

  def refresh_is_due(self, steps: int) -> bool:
    """Returns whether the environments have made `steps` agent steps each, on average, since it last returned True."""
    now = self.pool.statistics().steps
    if now - self._refreshed_at_step < steps * self.num_environments:
      return False
    self._refreshed_at_step = now
    return True

  def watch_cores(self):
    """Sets `is_starved` for the time since the last call."""
    self.is_starved = self._starvation.look(self.pool.statistics().stepping_ns * 1e-9,
                                            self._workers.process_ids())

  def check(self):
    """Raises the error that ended a loop early, if there is one."""
    if self._has_pool and self.pool.failure:
      raise self.pool.failure
    if self._error:
      raise self._error

  def close(self):
    """Ends loops, pool and worker processes. Idempotent. If `put` may be waiting, end its wait first."""
    if self._has_pool:
      self.pool.close()
    for thread in self._threads:
      thread.join()
    self._workers.close()

  def _guard(self, loop, on_end):
    try:
      loop()
    except tf.errors.CancelledError:
      pass  # The pool or the queue was closed.
    except Exception as error:  # Raised by `check`.
      self._error = error
    on_end()


def _specs_of_one_actor(agent, observation_spec):
  """The specs of the behaviour output and the agent state, without the batch dimension."""
  output, state = agent.step(acting.example_input(observation_spec), agent.initial_state(1), tf.zeros([2], tf.int64))

  def spec(tensor):
    return tf.TensorSpec(tensor.shape[1:], tensor.dtype)

  return tf.nest.map_structure(spec, output), tf.nest.map_structure(spec, state)
