"""The experience of an agent with a replay of sequences: unrolls go into the replay, and batches come out of it.

Kapturowski et al. 2019 (R2D2), section 2.3. Each batch waits for a fixed number of new unrolls. So the ratio of samples
to new agent steps is the same on every machine: if the actors are ahead, they wait at the queue of the intake, and if
the learner is ahead, it waits here.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from scalable_agents.actor import unroll as unroll_lib
from scalable_agents.experience import experience
from scalable_agents.experience import intake as intake_lib
from scalable_agents.experience import memory
from scalable_agents.experience import stored_unrolls
from scalable_agents.learner import learner_step
from scalable_agents.ops import ops
from scalable_agents.records import metrics
from scalable_agents.replay import sequence_replay as replay_lib


class SequenceSample(NamedTuple):
  """What the loss needs to know about a batch of sequences, besides their rows."""
  trains: tf.Tensor        # [length, B] bool, whether the trained step exists; else it is padding.
  probability: tf.Tensor   # [B] float32, with which a draw gives this sequence.
  padding: tf.Tensor       # [B] int64, rows of padding before the episode's start.
  later_states: Any        # nest of [K - 1, B, ...], the recurrent states at the state offsets after the first one.
  age: tf.Tensor           # [B] int64, batches sampled since the sequence was inserted.
  key: tf.Tensor           # [B] int64.


class SentStates(NamedTuple):
  """The recurrent states that are sent with an unroll: those that the replay needs."""
  row: Any    # [K] int32. t: the state of agent_output[t], which is the one before row t-1. 0: the place is not used.
  state: Any  # nest of [K, ...].


class ReplaySettings(NamedTuple):
  """The settings of a SequenceExperience."""
  geometry: replay_lib.Geometry
  capacity: int                         # Sequences.
  minimum_size: int                     # Sequences in the replay before the first batch.
  batch_size: int                       # Sequences per batch.
  unrolls_per_batch: int                # New unrolls before each batch.
  priority_exponent: float
  state_offsets: tuple[int, ...] = (0,)
  is_saved: bool = True                 # Whether checkpoints include the replay. Else it is filled again.


class SequenceExperience(experience.ReplayingExperience):
  """Gives batches of sequences from a replay; see Experience. Batch.sample is a SequenceSample.

  Unrolls must come from `to_send`. In batches, the fields `agent_state` and `episode_step` of agent_output are (), and
  Unroll.agent_state is the stored state before row 0. Unroll.index is the number of row 0 in its stream. A reward that
  is not finite is stored as 0, since it would be sampled again and again.
  """

  def __init__(self, intake: intake_lib.Intake, frame_stacks: Mapping[str, int], settings: ReplaySettings, seed: int,
               starts: Callable[[unroll_lib.EnvironmentOutput], tf.Tensor],
               first_priorities: Callable[[unroll_lib.Unroll, tf.Tensor], tf.Tensor]):
    """Makes an empty replay.

    Args:
      intake: the queue that actors put unrolls into.
      frame_stacks: name -> k for each observation that is a stack of k frames.
      settings: the settings.
      seed: of the samples.
      starts: takes an EnvironmentOutput of [T+1, B], and returns [T+1, B] bool: the rows in which an episode starts,
        where sequences end.
      first_priorities: returns the priorities [n] of new sequences. Its arguments are an Unroll of [length + 1, n],
        with what the trained steps led to and one more row (sequence_replay.Inserted.signals), and `trains`
        [length, n]. The Unroll has no observations.
    Raises:
      errors.UserError: the machine has too little memory for a full replay.
    """
    self._settings = settings
    self._frame_stacks = frame_stacks
    self._starts = starts
    self._first_priorities = first_priorities
    row, stacks = stored_unrolls.spec_and_stacks(_rows(intake.unroll_spec), frame_stacks)
    state = tf.nest.map_structure(
        lambda spec: tf.TensorSpec(spec.shape[1:], spec.dtype), intake.unroll_spec.agent_output.agent_state.state)
    num_rows = intake.unroll_spec.parameter_version.shape[0]  # Each gets a place for a state; see _states_of_rows.
    unroll_bytes = ops.num_bytes(intake.unroll_spec) + num_rows * ops.num_bytes(state)
    memory.check_replay(
        replay_lib.memory_bytes(row, state, settings.geometry, settings.capacity,
                                num_states=len(settings.state_offsets)), settings.capacity, 'sequences',
        replay_lib.batch_bytes(row, stacks, settings.geometry, settings.batch_size), settings.batch_size,
        settings.unrolls_per_batch * unroll_bytes,
        f'{settings.unrolls_per_batch:,} new unrolls per update (fewer with a larger --samples_per_period)')
    replay = replay_lib.SequenceReplay(
        row, state, settings.geometry, settings.capacity, done=lambda rows: rows.environment_output.done,
        frame_stacks=stacks, state_offsets=settings.state_offsets, signals=_numbers,
        priority_exponent=settings.priority_exponent)
    super().__init__(intake, settings.unrolls_per_batch, replay, settings.is_saved, seed)

  def _is_ready(self):
    return self._replay.size() >= self._settings.minimum_size

  def take_batch(self) -> tuple[learner_step.Batch, intake_lib.Arrived]:
    """See Experience."""
    with tf.device('/CPU:0'):
      _, arrived = self._take_in()
      sample = self._replay.sample(self._settings.batch_size, self._next_seed())
      return learner_step.Batch(self._unroll(sample), SequenceSample(
          sample.trains, sample.probability, sample.padding,
          tf.nest.map_structure(lambda states: states[1:], sample.states), sample.age, sample.key)), arrived

  def _take_in(self):
    unroll, arrived = self._intake.take_batch(self.unrolls_per_batch)
    first_step = tf.cast(unroll.agent_output.episode_step[1], tf.int64)  # Outputs come a row later.
    inserted = self._replay.insert(
        unroll.stream_id, unroll.index, first_step, self._starts(unroll.environment_output), _rows(unroll),
        _states_of_rows(unroll))
    priority = self._first_priorities(inserted.signals, inserted.trains)
    # Huge rewards may lead to infinity. The learner soon draws such a sequence, skips the update, and tells the user.
    self._replay.update(inserted.key, tf.where(tf.math.is_finite(priority), priority, priority.dtype.max))
    return unroll, arrived

  def _unroll(self, sample):
    """Returns the sampled sequences as unrolls."""
    always = self._settings.geometry.burn_in + 1  # This row is never padding.
    exists = tf.concat([tf.range(always, dtype=tf.int64)[:, tf.newaxis] >= sample.padding, sample.trains], axis=0)
    first_state = tf.nest.map_structure(lambda states: states[0], sample.states)
    return stored_unrolls.as_unroll(sample.rows, exists, always, sample.stream_id, sample.stream_row, first_state,
                                    stored_unrolls.earlier_frames(self._frame_stacks, sample.earlier))

  def metrics(self) -> dict[str, Any]:
    """See Experience."""
    counts = self._replay.statistics()
    return metrics.merge(super().metrics(), {
        'replay_size': counts.size, 'replay_filled': min(counts.size / self._settings.minimum_size, 1.),
        'replay_megabytes': counts.bytes * 1e-6, 'replay_gaps': counts.gaps,
        'replay_stale_updates': counts.stale_updates, 'sequences_inserted': counts.inserted,
        'sequences_sampled': counts.sampled})


def to_send(unroll: unroll_lib.Unroll, settings: ReplaySettings) -> unroll_lib.Unroll:
  """Leaves out the recurrent states that the replay does not need. Runs in a graph where the actors are.

  Args:
    unroll: an Unroll of tensors of [T+1, ...]. Two fields of its agent_output are about the row that was acted on:
      `agent_state`, the recurrent state before it; and `episode_step`, [T+1] int32, its number, counted from the start
      of its episode, or of its stream with cross_episodes.
    settings: the settings of the SequenceExperience.
  Returns:
    The unroll, with SentStates in agent_output.agent_state, and without Unroll.agent_state and without
    Unroll.earlier_frames, which the replay has in the rows before.
  """
  geometry, state_offsets = settings.geometry, settings.state_offsets
  step = unroll.agent_output.episode_step
  number = replay_lib.most_states(step.shape[0] - 1, geometry, state_offsets)
  with tf.device('/CPU:0'):
    needed = replay_lib.needs_state(step, geometry, state_offsets)
    row = 1 + tf.cast(tf.where(needed[1:])[:, 0], tf.int32)  # Row 0 was in the unroll before.
    row = tf.ensure_shape(tf.concat([row, tf.zeros([number - tf.size(row)], tf.int32)], axis=0), [number])
    states = tf.nest.map_structure(lambda values: tf.gather(values, row), unroll.agent_output.agent_state)
  return unroll._replace(agent_state=(), earlier_frames={},
                         agent_output=unroll.agent_output._replace(agent_state=SentStates(row, states)))


def _states_of_rows(unroll):
  """Returns a nest of [T+1, B, ...]: the states that were sent, and zeros elsewhere."""
  sent, (num_rows, batch) = unroll.agent_output.agent_state, unroll.parameter_version.shape
  row = tf.clip_by_value(sent.row, 0, num_rows - 1)  # Another process may send any number, and the same one twice.
  places = tf.stack([row, tf.broadcast_to(tf.range(batch), tf.shape(row))], axis=-1)
  return tf.nest.map_structure(lambda values: tf.tensor_scatter_nd_update(
      tf.zeros([num_rows, batch, *values.shape[2:]], values.dtype), places, values), sent.state)


def _rows(unroll):
  """Returns what the replay stores; see stored_unrolls.of_unroll."""
  rows = stored_unrolls.of_unroll(unroll)
  return rows._replace(agent_output=rows.agent_output._replace(agent_state=(), episode_step=()))


def _numbers(row):
  """Picks the components of a row that first priorities may need: all but observations."""
  return row._replace(environment_output=row.environment_output._replace(observation=()))
