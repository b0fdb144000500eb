"""The experience: takes unrolls from the intake, and gives the batches that a learner learns from.

Actors of this process and of others put their unrolls into the queue of the intake (intake.py), and the experience
takes them out.

Each agent's definition chooses an implementation (`make_experience`, training/definition.py). IMPALA uses
QueueExperience: it learns from each unroll once, in the order of arrival. Agents with replay have their own
implementation.

Environment frames and episodes are counted once, when an unroll leaves the queue for the first time (intake.py). They
are not counted when the unroll is learned from, and a replayed unroll does not pass through the intake again. An
experience returns these counts with the batches.
"""

import os
from typing import Any

import tensorflow as tf

from scalable_agents.experience import intake as intake_lib
from scalable_agents.learner import learner_step

_FILE = 'replay'  # In the folder beside a checkpoint.


class Experience:
  """Takes unrolls from the intake and gives batches. Subclasses implement `take_batch`, and override what they need.

  `save`, `metrics` and `warnings` may still be called after `close`.

  `fill` and `take_batch` run in the thread that collects the next batch, `update` in the learner's thread, and `save`
  in the thread that writes checkpoints. At the start and at the end of a run, when these threads do not use it, the
  main thread calls `update` and `save`. The other methods may run in any thread.

  Attributes:
    unrolls_per_batch: number of new unrolls that `take_batch` waits for. A synchronous run lets the actors play until
      there are this many.
    is_required: whether a resumed run needs what `save` has written; see checkpoint.Beside.
  """
  unrolls_per_batch: int
  is_required: bool = False

  def __init__(self, intake: intake_lib.Intake, unrolls_per_batch: int):
    """Takes `unrolls_per_batch` unrolls from the intake before each batch."""
    self.unrolls_per_batch = unrolls_per_batch
    self._intake = intake

  def fill(self) -> intake_lib.Arrived | None:
    """Takes `unrolls_per_batch` unrolls if the experience needs more before it can give a batch, else nothing.

    It is called before each `take_batch`, in the same thread, until it returns None.

    Returns:
      The counts of what has arrived; None if nothing was needed.
    Raises:
      tf.errors.OutOfRangeError, tf.errors.CancelledError: the experience is closed.
    """
    return None

  def take_batch(self) -> tuple[learner_step.Batch, intake_lib.Arrived]:
    """Waits for the next batch, in a graph.

    Returns:
      The batch, and the counts of what has arrived with it. Their shapes must be the same each time. With other shapes,
      several learners would trace their step again.
    Raises:
      tf.errors.OutOfRangeError, tf.errors.CancelledError: the experience is closed.
    """
    raise NotImplementedError

  def update(self, sample: Any, feedback: Any) -> None:
    """Takes the feedback of an update on its batch.

    Args:
      sample: Batch.sample.
      feedback: learner_step.Loss.feedback of that batch, for example new priorities. Zeros if the update was skipped.
        As priorities, zeros are the smallest, so a batch that cannot be learned from is not drawn all the time.
    """

  def metrics(self) -> dict[str, Any]:
    """Returns the experience's metrics for a row of metrics.jsonl: name -> number, or text; see metric_table.TEXTS."""
    return self._intake.metrics()

  def warnings(self) -> list[str]:
    """Returns messages for the user about faults since the last call, one line each."""
    return self._intake.warnings()

  def save(self, folder: str) -> None:
    """Writes the state that a resumed run needs to a folder beside the checkpoint. If there is none, writes nothing.

    The state may be newer than the checkpoint, by what has arrived since its variables were copied.

    Raises:
      OSError: the files cannot be written. Then the checkpoint is not saved.
    """

  def restore(self, folder: str) -> None:
    """Restores the state from the folder that `save` wrote. It is not called if `save` wrote nothing.

    Raises:
      OSError: the files cannot be read.
      ValueError: they do not fit this run.
    """

  def close(self) -> None:
    """Ends every wait, also that of the actors."""
    self._intake.close()


class QueueExperience(Experience):
  """Every unroll is learned from once, in the order of arrival. Espeholt et al. 2018 (IMPALA), section 3.

  Nothing is saved: the unrolls in the queue, about one batch, are lost when the process ends.
  """

  def take_batch(self) -> tuple[learner_step.Batch, intake_lib.Arrived]:
    """See Experience."""
    unroll, arrived = self._intake.take_batch(self.unrolls_per_batch)
    return learner_step.Batch(unroll), arrived


class ReplayingExperience(Experience):
  """Gives batches from a replay. Subclasses implement `take_batch`, `_take_in`, `_is_ready` and `metrics`."""

  def __init__(self, intake: intake_lib.Intake, unrolls_per_batch: int, replay: Any, is_saved: bool, seed: int):
    """Takes `unrolls_per_batch` unrolls for each batch. `replay` has `update`, `save` and `restore`."""
    super().__init__(intake, unrolls_per_batch)
    self.is_required = is_saved
    self._replay = replay
    self._seed = seed
    self._fill = tf.function(lambda: self._take_in()[1], autograph=False)
    with tf.device('/CPU:0'):
      self._num_batches = tf.Variable(0, dtype=tf.int64, trainable=False)

  def _take_in(self):
    """Moves `unrolls_per_batch` unrolls from the intake to the replay. Returns them and their counts."""
    raise NotImplementedError

  def _is_ready(self):
    """Returns whether the replay has enough for a batch."""
    raise NotImplementedError

  def _next_seed(self):
    number = self._num_batches.assign_add(1)
    return tf.random.stateless_uniform([], [self._seed, number], None, None, tf.int64)

  def fill(self) -> intake_lib.Arrived | None:
    """See Experience."""
    with tf.device('/CPU:0'):
      return None if self._is_ready() else self._fill()

  def update(self, sample: Any, feedback: tf.Tensor) -> None:
    """Sets new priorities of what was drawn, float32, one for each key."""
    self._replay.update(sample.key, feedback)

  def save(self, folder: str) -> None:
    """See Experience."""
    if self.is_required and self.metrics()['replay_size']:
      self._replay.save(os.path.join(folder, _FILE))

  def restore(self, folder: str) -> None:
    """See Experience."""
    if self.is_required:  # Otherwise the file is from before --nosave_replay or --shared_replay was given.
      self._replay.restore(os.path.join(folder, _FILE))
