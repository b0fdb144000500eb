"""Synchronous learners: on several devices of one machine, in processes on several machines, or a single one.

Espeholt et al. 2018 (IMPALA), section 3 and figure 1: every learner takes a batch of its own, and the gradients of all
learners are summed. So N learners with batches of B equal one learner with a batch of N B, except with prioritised
replay: R2D2 and LASER divide importance weights by the largest one of each learner's own batch. The agent's learner
does the sum (learner/learner_step.py). This module runs the learners in step.
"""

import collections
from collections.abc import Sequence
import contextlib
import json
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from scalable_agents.experience import intake
from scalable_agents.learner import learner_step
from scalable_agents.records import errors

# Errors of a collective operation when another process is gone. Later operations raise FailedPreconditionError.
_PEER_ERRORS = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.InternalError,
                tf.errors.DeadlineExceededError, tf.errors.FailedPreconditionError)
_LOST = ('a learner of this cluster is gone, so all learners end: start all of them again to continue from the last '
         'checkpoint')


class LostLearnerError(errors.UserError):
  """The learner of another process is gone, possibly during an update. The message is one line."""


class Update(NamedTuple):
  """The results of an update that all learners made together. All but `feedback` is the same for all learners."""
  metrics: tf.Tensor       # [n] float32, for learner_step.Learner.read.
  environment_frames: int  # Frames that arrived with the batches of all learners.
  episodes: intake.Episodes  # Episodes that arrived with these batches, as arrays without padding.
  feedback: list[Any]      # For each of `devices`, the feedback for its experience.
  leaving: bool            # Whether any learner has asked to end.


class LearnerGroup:
  """The learners of this process, joined to those of other processes.

  Attributes:
    devices: the device of each learner of this process.
    have_peers: whether there are learners in other processes.
  """

  def __init__(self, strategy: tf.distribute.Strategy | None, device: str):
    """Starts nothing.

    Args:
      strategy: the strategy of several learners, or None.
      device: the device of a single learner.
    """
    num_learners = strategy.num_replicas_in_sync if strategy else 1
    self._are_several = num_learners > 1
    self._strategy: Any = strategy  # Used only if there are several learners.
    self._device = device
    self.devices = list(self._strategy.extended.worker_devices) if self._are_several else [device]
    self.have_peers = num_learners > len(self.devices)

  def compare(self, settings: dict[str, Any]):
    """Checks that all processes have the same settings.

    Args:
      settings: the settings of this process that all must share. JSON can hold them.
    Raises:
      errors.UserError: they differ.
      LostLearnerError: another process is gone.
    """
    if not self.have_peers:
      return
    mine = np.frombuffer(json.dumps(settings).encode(), np.uint8).astype(np.int32)
    with self._explaining():
      gathered = self._gather(self._spread([tf.constant(mine)] * len(self.devices)))
    text, everyones = bytes(gathered.numpy().astype(np.uint8)).decode(), []
    while text:
      theirs, end = json.JSONDecoder().raw_decode(text)
      everyones.append(theirs)
      text = text[end:]
    values = {name: sorted({json.dumps(theirs.get(name, 'absent')) for theirs in everyones})
              for name in sorted(set().union(*everyones))}
    differing = [f'{name} is {" and ".join(those)}' for name, those in values.items() if len(those) > 1]
    if differing:
      raise errors.UserError(f'learners of one cluster have different configurations: {"; ".join(differing)}. Give '
                             'all processes of a cluster the same flags')

  @contextlib.contextmanager
  def scope(self):
    """Returns the context in which to make the agent and the learner. Raises LostLearnerError."""
    with self._explaining(), self._strategy.scope() if self._are_several else tf.device(self._device):
      yield

  def broadcast(self, variables: Sequence[tf.Variable]):
    """Copies the variables' values from the first process to all others. Raises LostLearnerError."""
    if self.have_peers:
      by_type = collections.defaultdict(list)
      for variable in variables:
        by_type[variable.dtype].append(variable)
      with self._explaining():
        for those in by_type.values():
          self._broadcast(those)

  def step(self, learner: learner_step.Learner, batches: Sequence[learner_step.Batch],
           arrived: Sequence[intake.Arrived], leaving: bool) -> Update:
    """Makes an update, and adds the frames that arrived to `learner.environment_frames`.

    Args:
      learner: makes the update.
      batches: a learner_step.Batch for each of `devices`.
      arrived: for each of `devices`, the intake.Arrived of its batch.
      leaving: whether this process asks all learners to end after this update.
    Raises:
      LostLearnerError: another process is gone.
    """
    if not self._are_several:
      (batch,), (arrived_with_it,) = batches, arrived
      metrics, its_feedback = learner.step(batch)
      frames, episodes = arrived_with_it.environment_frames, arrived_with_it.episodes
      learner.environment_frames.assign_add(frames)  # After the step, whose learning rate depends on the frames before.
      feedback, is_leaving = [its_feedback], leaving
    else:
      with self._explaining():
        metrics, feedback, frames, episodes, is_leaving = self._step(
            learner, self._spread(batches), self._spread(arrived), tf.constant(float(leaving)))
    episodes = intake.Episodes(*(values.numpy() for values in episodes))
    is_episode = episodes.level_ids != intake.NO_LEVEL
    return Update(metrics, int(frames),
                  intake.Episodes(*(values[is_episode] for values in episodes)), feedback, bool(is_leaving))

  def wait_for_all(self):
    """Waits until the learners of all processes have called this. Raises LostLearnerError."""
    if self.have_peers:
      with self._explaining():
        self._gather(self._spread([tf.zeros([1], tf.int32)] * len(self.devices)))

  def check(self):
    """Raises LostLearnerError if another process is gone. A learner that waits for unrolls calls this."""
    # TensorFlow's health check thread ends when it finds that a learner is lost. See learner_port.py.
    if self.have_peers and not self._strategy.extended._check_health_thread.is_alive():
      raise LostLearnerError(_LOST)

  @contextlib.contextmanager
  def _explaining(self):
    """Turns the errors of a lost process into LostLearnerError."""
    try:
      yield
    except _PEER_ERRORS as error:
      if not self.have_peers:
        raise
      # NCCL fails with an InternalError, too, and only what it says tells why.
      cause, *_ = error.message.splitlines() or ['']
      also = f'. If all are there, this is why: {cause}' if isinstance(error, tf.errors.InternalError) else ''
      raise LostLearnerError(_LOST + also) from error

  def _spread(self, values):
    """Returns the values, one for each of `devices`, as a distributed value of the strategy."""
    remaining = iter(values)
    return self._strategy.experimental_distribute_values_from_function(lambda unused_context: next(remaining))

  @tf.function(autograph=False)
  def _step(self, learner, batches, arrived, leaving):
    def step(batch, its_arrived):
      metrics, feedback = learner.step(batch)
      context = tf.distribute.get_replica_context()

      def on_device(values):
        return tf.nest.map_structure(tf.identity, values)  # A graph's arguments may be elsewhere.

      episodes = context.all_gather(on_device(list(its_arrived.episodes)), axis=0)
      # One by one: several processes cannot reduce values of different types together.
      frames, number_leaving = (context.all_reduce(tf.distribute.ReduceOp.SUM, on_device(value))
                                for value in (its_arrived.environment_frames, leaving))
      learner.environment_frames.assign_add(frames)
      return (metrics, frames, episodes, number_leaving), feedback

    same, feedback = self._strategy.run(step, (batches, arrived))
    locals_of = self._strategy.experimental_local_results
    metrics, frames, episodes, number_leaving = tf.nest.map_structure(lambda value: locals_of(value)[0], same)
    feedback = [tf.nest.map_structure(lambda value: locals_of(value)[index], feedback)  # noqa: B023  # Called at once.
                for index in range(len(self.devices))]
    return metrics, feedback, frames, episodes, number_leaving > 0

  @tf.function(autograph=False)
  def _gather(self, values):
    def gather(value):
      return tf.distribute.get_replica_context().all_gather(tf.identity(value), axis=0)

    return self._strategy.experimental_local_results(self._strategy.run(gather, (values,)))[0]

  @tf.function(autograph=False)
  def _broadcast(self, variables):
    def assign():
      context = tf.distribute.get_replica_context()
      is_first = tf.equal(context.replica_id_in_sync_group, 0)
      values = [tf.where(is_first, variable.read_value(), tf.zeros_like(variable)) for variable in variables]
      for variable, value in zip(variables, context.all_reduce(tf.distribute.ReduceOp.SUM, values), strict=True):
        tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)
    self._strategy.run(assign)

