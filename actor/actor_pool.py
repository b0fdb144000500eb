"""TensorFlow's interface to the actors of this process: batches for inference, and unrolls for the learner.

The work is done in C++ (cc/actor_pool.h), so that no Python code runs per environment step or per unroll. Python starts
the worker processes and replaces those that fail.
"""

from concurrent import futures
import contextlib
import mmap
import threading
import time
from typing import NamedTuple

import tensorflow as tf

from scalable_agents.actor import environment_workers
from scalable_agents.actor import shared_memory
from scalable_agents.actor import unroll as unroll_lib
from scalable_agents.ops import ops

# A worker ends early if it fails within EARLY_END_SECONDS of its start. MAXIMUM_EARLY_ENDS early ends in a row end the
# run. The environments' timeout is added, because a worker that hangs is noticed only after it.
EARLY_END_SECONDS = 60.
MAXIMUM_EARLY_ENDS = 5
_PAUSE_SECONDS = 2.  # After a worker that could not be started. It doubles each time: memory may be short for a while.


class InferenceBatch(NamedTuple):
  """The input of inference: one item for each of n actors."""
  id: tf.Tensor           # [] int64, the batch's id for complete_batch.
  actor_id: tf.Tensor     # [n] int32, the actors' numbers in this pool, from 0; see inference.Actors.ids.
  last_action: tf.Tensor  # [n] int32, the action that led to this row.
  environment_output: unroll_lib.EnvironmentOutput  # [n, ...].
  agent_state: unroll_lib.Nest  # nest of [n, ...], the state before this row.


class PoolStatistics(NamedTuple):
  """Counts and times since the pool's start."""
  steps: int                 # Agent steps.
  batches: int               # Batches of inference.
  rows: int                  # Rows in these batches.
  inference_waiting_ns: int  # Time that inference waited for batches, summed over its threads.
  stepping_ns: int           # Time that workers stepped environments, summed over workers.
  blocked_ns: int            # Time in which at least one actor waited for its unroll to be taken.


class ActorPool:
  """Runs the environments of `workers` and collects their unrolls.

  Attributes:
    unroll_spec: unroll.Unroll of tf.TensorSpec.
    failure: the error that ended the pool, usually a WorkerError; None if there was none.
  """

  def __init__(self, workers: environment_workers.EnvironmentWorkers, unroll_length: int, agent_output_spec,
               agent_state_spec, level_ids, completed_capacity: int = 1, environment_timeout_seconds: float = 60.,
               barrier: str = 'none', dynamic_batching: bool = True, report=print):
    """Makes the pool. `start` starts it.

    Args:
      workers: started workers. The pool replaces those that fail. The caller must close them after the pool's `close`.
      unroll_length: T, agent steps.
      agent_output_spec: NamedTuple of tf.TensorSpec for one actor. The first field is the action, int32 [].
      agent_state_spec: nest of tf.TensorSpec for one actor. Initial states are zero.
      level_ids: the index of each actor's level.
      completed_capacity: number of full unrolls in the pool at which actors block. The pool may hold a few more: fewer
        than the environments that a worker steps at once.
      environment_timeout_seconds: a worker that does not answer for this time is replaced. During long work it has
        environment_workers.LONG_WORK_FACTOR times as long.
      barrier: what actors wait for. 'none': only for room for their full unrolls. 'unroll': an actor with a full unroll
        waits for `release`. 'step': in addition, all actors wait for each other at each step, and the pool takes their
        rows in the order of their ids. This makes a run repeatable.
      dynamic_batching: whether actors that need an action at the same time are in one batch of inference. Otherwise
        each batch has one actor.
      report: called with a message for each fault. Its first line says what happened. The traceback of a worker may
        follow.
    """
    self._workers = workers
    self._level_ids = list(level_ids)
    self._report = report
    self._starting = {}  # The workers that have not answered yet: number -> the header of its memory.
    self._restarts = [0] * len(workers)
    self._early_ends = [0] * len(workers)
    self._started_at = [time.monotonic()] * len(workers)
    self._early_end_seconds = EARLY_END_SECONDS + environment_timeout_seconds
    self._watcher = threading.Thread(target=self._watch, name='environment worker watcher', daemon=True)
    self.failure = None
    self._closed = threading.Event()
    layout = workers.layout
    fields = layout.scalars + layout.observation
    self._environment_spec = unroll_lib.EnvironmentOutput(
        **{field.name: _field_spec(field) for field in layout.scalars},
        observation={field.name: _field_spec(field) for field in layout.observation})
    frame_stacks = workers.specification.frame_stacks
    self._output_spec = agent_output_spec
    self._state_spec = agent_state_spec
    outputs, states = tf.nest.flatten(agent_output_spec), tf.nest.flatten(agent_state_spec)
    self.unroll_spec = _unroll_spec(
        unroll_length, self._environment_spec, frame_stacks, agent_output_spec, agent_state_spec)
    self._newest_spec = tf.nest.map_structure(
        lambda spec: tf.TensorSpec(spec.shape[1:], spec.dtype), self.unroll_spec.environment_output)
    with tf.device('/CPU:0'):
      self._handle = ops.actor_pool(
          num_environments=sum(map(len, workers.actor_ids)), unroll_length=unroll_length,
          slot_bytes=layout.slot_bytes,
          environment_types=[field.dtype for field in fields], environment_shapes=[field.shape for field in fields],
          environment_offsets=[field.offset for field in fields],
          environment_stacks=[frame_stacks.get(field.name, 1) for field in fields],
          output_types=[spec.dtype for spec in outputs], output_shapes=[spec.shape for spec in outputs],
          state_types=[spec.dtype for spec in states], state_shapes=[spec.shape for spec in states],
          completed_capacity=completed_capacity, environment_timeout_ms=int(1000 * environment_timeout_seconds),
          long_work_factor=environment_workers.LONG_WORK_FACTOR, barrier=barrier,
          dynamic_batching=dynamic_batching, shared_name=ops.unique_name('actor_pool'))
    ops.delete_with(self, self._handle)

  @property
  def restarts(self) -> int:
    """The number of workers replaced so far, including those that ended before all were started."""
    return self._workers.early_deaths + sum(self._restarts)

  def start(self):
    """Starts the environments and a thread that replaces workers that fail."""
    self._starting = dict.fromkeys(range(len(self._workers)))
    for worker in range(len(self._workers)):
      self._attach(worker)
    self._watcher.start()

  def next_batch(self, newest_frames: bool = False) -> InferenceBatch:
    """Waits for actors that need an action and returns them as a batch. For use in graphs.

    Args:
      newest_frames: whether the batch has only the newest frame of each stack of frames.
    Raises:
      tf.errors.CancelledError: the pool is closed.
    """
    with tf.device('/CPU:0'):
      batch = ops.actor_pool_next_batch(
          self._handle, newest_frames=newest_frames,
          environment_types=[spec.dtype for spec in tf.nest.flatten(self._environment_spec)],
          state_types=[spec.dtype for spec in tf.nest.flatten(self._state_spec)])
    batch.id.set_shape([])
    batch.actor_id.set_shape([None])
    batch.last_action.set_shape([None])
    return InferenceBatch(batch.id, batch.actor_id, batch.last_action,
                          _pack(self._newest_spec if newest_frames else self._environment_spec,
                                batch.environment_output, prefix=[None]),
                          _pack(self._state_spec, batch.agent_state, prefix=[None]))

  def complete_batch(self, batch_id, version, agent_output, agent_state):
    """Passes the agent's outputs for a batch to the pool.

    Args:
      batch_id: InferenceBatch.id.
      version: [] int64, the version of the parameters that computed the outputs.
      agent_output: nest of [n, ...] with the structure of agent_output_spec.
      agent_state: nest of [n, ...] with the structure of agent_state_spec.
    Returns:
      The op, in a graph.
    """
    tf.nest.assert_same_structure(agent_output, self._output_spec)
    tf.nest.assert_same_structure(agent_state, self._state_spec)
    with tf.device('/CPU:0'):
      return ops.actor_pool_complete_batch(self._handle, batch_id, version, tf.nest.flatten(agent_output),
                                           tf.nest.flatten(agent_state))

  def next_unroll(self) -> unroll_lib.Unroll:
    """Waits for a full unroll and returns the oldest one. Its ids of actor and stream count those of this pool, from 0.

    Raises:
      tf.errors.CancelledError: the pool is closed.
    """
    specs = tf.nest.flatten(self.unroll_spec)
    with tf.device('/CPU:0'):
      components = ops.actor_pool_next_unroll(self._handle, types=[spec.dtype for spec in specs])
    return _pack(self.unroll_spec, components, prefix=[])

  def release(self):
    """Lets the actors of a pool with a barrier continue for another unroll, once all of them have a full one."""
    with tf.device('/CPU:0'):
      ops.actor_pool_release(self._handle)

  def release_one(self, actor_id):
    """Lets one actor of a pool with barrier='unroll' continue, if it has a full unroll. For use in graphs.

    Args:
      actor_id: [] int32.
    """
    with tf.device('/CPU:0'):
      return ops.actor_pool_release_one(self._handle, actor_id)

  def retire(self, actor_id: int):
    """Stops stepping an actor's environment for good.

    Raises:
      tf.errors.InvalidArgumentError: the pool has a barrier.
    """
    with tf.device('/CPU:0'):
      ops.actor_pool_retire(self._handle, actor_id)

  def statistics(self) -> PoolStatistics:
    """Returns counts and times since the pool's start."""
    with tf.device('/CPU:0'):
      return PoolStatistics(*ops.actor_pool_statistics(self._handle).numpy().tolist())

  def starting(self) -> list[int]:
    """Returns the ids of the actors whose first episodes are still being prepared: engines start, maps compile.

    An actor leaves this list when its worker answers for the first time. It does not return if that worker is replaced
    later.
    """
    for worker, header in list(self._starting.items()):
      if header and shared_memory.read_number(header, shared_memory.STEPPING_NS):
        del self._starting[worker]
    return [actor for worker in list(self._starting) for actor in self._workers.actor_ids[worker]]

  def close(self, cause: str = 'the run ends'):
    """Closes the pool: ends every wait in it, stops replacing workers and makes them exit. Idempotent.

    Args:
      cause: the reason, for the messages of cancelled calls.
    """
    self._end_waits(cause)
    if self._watcher.is_alive():
      self._workers.give_up()  # New workers may be waited for.
      self._watcher.join()

  def _end_waits(self, cause):
    self._closed.set()
    with tf.device('/CPU:0'):
      ops.actor_pool_close(self._handle, cause)

  def _attach(self, worker):
    running, actor_ids = self._workers[worker], self._workers.actor_ids[worker]
    if worker in self._starting:  # The mapping is still valid when the worker has been replaced.
      self._starting[worker] = mmap.mmap(running.memory, shared_memory.HEADER_BYTES, prot=mmap.PROT_READ)
    # The environments form two groups: the worker steps one while the policy computes actions for the other.
    groups = [2 * slot // len(actor_ids) for slot in range(len(actor_ids))]
    self._started_at[worker] = time.monotonic()  # Before it can fail.
    with tf.device('/CPU:0'):
      ops.actor_pool_attach(self._handle, worker, running.connection.fileno(), running.memory, actor_ids,
                            [self._level_ids[actor] for actor in actor_ids], groups)

  def _watch(self):
    """Has workers that fail replaced, until the pool is closed. A worker that takes long does not hold up others."""
    with self._ending_after_errors(), futures.ThreadPoolExecutor(len(self._workers), 'worker replacer') as replacers:
      while True:
        with tf.device('/CPU:0'):
          worker, reason = ops.actor_pool_next_fault(self._handle)
        replacers.submit(self._replace, int(worker), reason.numpy().decode())

  @contextlib.contextmanager
  def _ending_after_errors(self):
    """An error in this context ends the pool, because a worker would not be replaced any more."""
    try:
      yield
    except Exception as error:
      # In a closed pool, its end has caused other errors.
      if not self._closed.is_set() or isinstance(error, tf.errors.ResourceExhaustedError):
        self.failure = error
        self._end_waits('an environment worker cannot be kept alive')

  def _replace(self, worker, reason):
    """Starts new processes in place of a failed worker, until one succeeds."""
    with self._ending_after_errors():
      self._try_to_replace(worker, reason)

  def _try_to_replace(self, worker, reason):
    """Does what `_replace` does. Raises environment_workers.WorkerError."""
    age_seconds = time.monotonic() - self._started_at[worker]
    reason, pause_seconds = self._workers.explain(worker, 'failed', reason), 0.
    while True:
      self._early_ends[worker] = self._early_ends[worker] + 1 if age_seconds < self._early_end_seconds else 1
      if self._early_ends[worker] >= MAXIMUM_EARLY_ENDS:
        raise environment_workers.WorkerError(
            f'environment worker {worker} failed {MAXIMUM_EARLY_ENDS} times, each within '
            f'{self._early_end_seconds:g} s of its start: {reason}')
      self._restarts[worker] += 1
      self._report(f'environment worker {worker} is replaced: {reason}')
      if self._closed.wait(pause_seconds):
        return
      try:
        self._workers.replace(worker)
        self._attach(worker)
        return
      except environment_workers.WorkerError as error:
        if self._closed.is_set():
          return
        reason, age_seconds, pause_seconds = str(error), 0., 2 * pause_seconds or _PAUSE_SECONDS


def _unroll_spec(unroll_length, environment_spec, frame_stacks, agent_output_spec, agent_state_spec):
  """Returns the specs of an unroll, given those of one row, in which frames are stacked, and of the agent's state."""
  def row(spec):
    return tf.TensorSpec([unroll_length + 1, *spec.shape], spec.dtype)

  number, large_number = tf.TensorSpec([], tf.int32), tf.TensorSpec([], tf.int64)
  newest, earlier = dict(environment_spec.observation), {}
  for name, k in frame_stacks.items():
    if k > 1:
      spec = newest[name]
      newest[name] = tf.TensorSpec([*spec.shape[:-1], spec.shape[-1] // k], spec.dtype)
      earlier[name] = tf.TensorSpec([k - 1, *newest[name].shape], spec.dtype)
  return unroll_lib.Unroll(
      level_id=number, actor_id=number, stream_id=large_number, index=large_number, agent_state=agent_state_spec,
      earlier_frames=earlier, environment_output=tf.nest.map_structure(row, environment_spec._replace(
          observation=newest)),
      agent_output=tf.nest.map_structure(row, agent_output_spec), parameter_version=row(large_number))


def _field_spec(field):
  return tf.TensorSpec(field.shape, field.dtype, field.name)


def _pack(spec, tensors, prefix):
  """Packs a flat list of tensors into the structure of `spec`, with the shapes of `prefix` followed by `spec`'s."""
  for tensor, tensor_spec in zip(tensors, tf.nest.flatten(spec), strict=True):
    tensor.set_shape([*prefix, *tensor_spec.shape])
  return tf.nest.pack_sequence_as(spec, tensors)


def endless(body):
  """Makes a function that runs `body`, in a graph, again and again. It runs on the CPU where `body` names no device.

  TensorFlow would put it on a GPU, if there is one. Each number would then wait for the learner's kernels there.
  """
  @tf.function(autograph=False)
  def loop():
    def run(count):
      body()
      return [count + 1]
    with tf.device('/CPU:0'):
      tf.while_loop(lambda count: True, run, [tf.constant(0, tf.int64)], parallel_iterations=1)
  return loop
