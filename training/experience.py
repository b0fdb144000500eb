"""The experience: what stands between the unrolls that actors send and the batches that a learner learns from.

Each agent's module says which implementation it wants (`make_experience`, agent_interface.py). IMPALA learns from each
unroll once, in the order of arrival: QueueExperience. Agents with a replay have their own.

Environment frames and episodes are counted once: where an unroll leaves the queue for the first time (intake.py), and
not where it is learned from. An experience hands these counts on with the batches.
"""

from typing import Any, NamedTuple, Protocol

from scalable_agents.training import intake as intake_lib


class Batch(NamedTuple):
  """What an update learns from."""
  unroll: Any       # unroll.Unroll of time-major tensors: [T+1, B, ...], or [B, ...] for what has no time.
  sample: Any = ()  # What the experience says of the unrolls, a nest of [B, ...]: keys and probabilities, say.


class Experience(Protocol):
  """Takes unrolls in and gives batches out.

  `put` runs in graphs that move unrolls from the actors. `take_batch`, and nothing else, runs in the thread that
  collects the next batch; `update` in the learner's thread; `save` in the thread that writes checkpoints; the others
  in any thread.

  Attributes:
    unrolls_per_batch: how many new unrolls `take_batch` waits for. A synchronous run lets the actors play for so many.
  """
  unrolls_per_batch: int

  def put(self, unroll) -> None:
    """Takes an unroll, in a graph; waits for room.

    Raises:
      tf.errors.CancelledError: the experience is closed.
    """

  def take_batch(self) -> tuple[Batch, intake_lib.Arrived]:
    """Waits for the next batch, in a graph.

    Returns:
      The batch, and what has arrived for the first time since the batch before.
    Raises:
      tf.errors.OutOfRangeError, tf.errors.CancelledError: the experience is closed.
    """

  def update(self, sample: Any, feedback: Any) -> None:
    """Hears what an update says of its batch.

    Args:
      sample: Batch.sample.
      feedback: learner_step.Loss.feedback of that batch: new priorities, say.
    """

  def metrics(self) -> dict[str, float]:
    """What a row of metrics.jsonl says of the experience."""

  def complaints(self) -> list[str]:
    """Lines for the user about what has gone wrong since the last call."""

  def save(self, folder: str) -> None:
    """Writes what a resumed run needs into a folder beside the checkpoint; nothing where it needs nothing."""

  def restore(self, folder: str) -> None:
    """Reads what `save` has written."""

  def close(self) -> None:
    """Ends every wait."""


class QueueExperience:
  """Every unroll is learned from once, in the order of arrival. Espeholt et al. 2018 (IMPALA), section 3."""

  def __init__(self, intake: intake_lib.Intake, batch_size: int):
    """Args: where unrolls come in; and how many make a batch."""
    self.unrolls_per_batch = batch_size
    self._intake = intake
    self.put, self.complaints, self.close = intake.put, intake.complaints, intake.close

  def take_batch(self) -> tuple[Batch, intake_lib.Arrived]:
    """See Experience."""
    unroll, arrived = self._intake.take_batch(self.unrolls_per_batch)
    return Batch(unroll), arrived

  def update(self, sample: Any, feedback: Any) -> None:
    """An unroll that has been learned from is gone."""

  def metrics(self) -> dict[str, float]:
    """See Experience."""
    return self._intake.metrics()

  def save(self, folder: str) -> None:
    """What is in the queue at the end of a process is lost: it is one batch."""

  def restore(self, folder: str) -> None:
    """Nothing was saved."""
