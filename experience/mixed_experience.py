"""The experience of an actor-critic with replay: each batch has new unrolls, and unrolls from a replay.

Espeholt et al. 2018 (IMPALA), section 5.2.2; Schmitt et al. 2020 (LASER), sections 3 and 5.1. New unrolls go into the
replay. They are also learned from once, online, unless the agent learns from the replay only, or cannot learn yet
because the replay must first be filled. Each batch waits for a fixed number of new unrolls, so the ratio of replayed to
new agent steps is the same on every machine.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from scalable_agents.actor import unroll as unroll_lib
from scalable_agents.experience import experience
from scalable_agents.experience import intake as intake_lib
from scalable_agents.experience import unroll_replay
from scalable_agents.learner import learner_step
from scalable_agents.records import metrics


class MixedSample(NamedTuple):
  """What the loss needs to know about a batch, besides its unrolls. The R replayed unrolls come last."""
  probability: tf.Tensor  # [R] float32, with which a draw gives this unroll; 1 from replayers.
  key: tf.Tensor          # [R] int64, for new priorities. -1: nothing was drawn, so there is nothing to learn from.


class MixedSettings(NamedTuple):
  """The settings of a MixedExperience."""
  num_new: int              # New unrolls before each batch.
  num_replayed: int         # Replayed unrolls per batch.
  learns_new: bool = True   # Whether batches have the new unrolls. Otherwise these only go into the replay.
  is_saved: bool = True     # Whether checkpoints include the replay. Else it is filled again.


class MixedExperience(experience.ReplayingExperience):
  """Gives batches of new and replayed unrolls; see Experience. Batch.sample is a MixedSample.

  Level and actor of a batch's unrolls are [T+1, B], those of each row, because a replayer may go on with an episode of
  another level.
  """

  def __init__(self, intake: intake_lib.Intake, replay: unroll_replay.Replay, settings: MixedSettings, seed: int):
    """Makes the experience.

    Args:
      intake: the queue that actors put unrolls into.
      replay: where unrolls are stored, and drawn from.
      settings: the settings.
      seed: of the draws.
    """
    super().__init__(intake, settings.num_new, replay, settings.is_saved, seed)
    self._settings = settings

  def _is_ready(self):
    return self._replay.is_ready()

  def take_batch(self) -> tuple[learner_step.Batch, intake_lib.Arrived]:
    """See Experience."""
    with tf.device('/CPU:0'):
      # Before the new unrolls are inserted, so that none of them is also replayed.
      drawn = self._replay.draw(self._settings.num_replayed, self._next_seed())
      new, arrived = self._take_in()
      unroll = drawn.unroll
      # If nothing was drawn, the rows are zeros. With version 0, policy_lag would count them as very old.
      unroll = unroll._replace(parameter_version=tf.where(
          drawn.key >= 0, unroll.parameter_version, tf.reduce_max(new.parameter_version)))
      if self._settings.learns_new:
        has_time = unroll_lib.has_time(unroll)._replace(level_id=True, actor_id=True)
        unroll = tf.nest.map_structure(lambda time, *both: tf.concat(both, axis=1 if time else 0),
                                       has_time, _with_ids_of_rows(new), unroll)
      return learner_step.Batch(unroll, MixedSample(drawn.probability, drawn.key)), arrived

  def _take_in(self):
    unroll, arrived = self._intake.take_batch(self.unrolls_per_batch)
    self._replay.insert(unroll)
    return unroll, arrived

  def metrics(self) -> dict[str, Any]:
    """See Experience."""
    return metrics.merge(super().metrics(), self._replay.metrics())

  def warnings(self) -> list[str]:
    """See Experience."""
    return super().warnings() + self._replay.warnings()

  def close(self) -> None:
    """See Experience."""
    super().close()
    self._replay.close()


def _with_ids_of_rows(unroll):
  """Returns unrolls with the level and the actor of each row, [T+1, B], as unrolls of a replay have them."""
  def of_rows(ids):
    return tf.broadcast_to(ids, tf.shape(unroll.parameter_version))

  return unroll._replace(level_id=of_rows(unroll.level_id), actor_id=of_rows(unroll.actor_id))
