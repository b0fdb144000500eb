"""A replay of unrolls: it draws single unrolls as actors made them, with the recurrent states that actors had.

Espeholt et al. 2018 (IMPALA), section 5.2.2 and table D.3: unrolls are drawn uniformly, and the oldest one leaves the
replay first. Schmitt et al. 2020 (LASER), Algorithm 1 and appendix A.2, where priorities are studied as well.
"""

from collections.abc import Mapping
import contextlib
from typing import Any, NamedTuple

import tensorflow as tf

from scalable_agents.actor import unroll as unroll_lib
from scalable_agents.experience import memory
from scalable_agents.experience import stored_unrolls
from scalable_agents.replay import sequence_replay as replay_lib

_LARGEST = '.largest_priority'  # Ends the name of a file beside that of the replay.


class Drawn(NamedTuple):
  """B unrolls from a replay."""
  unroll: unroll_lib.Unroll  # Of [T+1, B, ...]. Level and actor are those of each row.
  probability: tf.Tensor  # [B] float32, with which a draw gives this unroll; 1 from replayers.
  key: tf.Tensor          # [B] int64, for new priorities. -1: nothing was drawn, and the rows are zeros.


class Replay:
  """Stores unrolls and draws some of them again: UnrollReplay, and replayers.Replayers."""
  _replay: Any  # Has `save` and `restore`.

  def insert(self, unroll: unroll_lib.Unroll) -> None:
    """Stores unrolls, an Unroll of [T+1, B, ...]. Runs in a graph."""
    raise NotImplementedError

  def draw(self, number: int, seed: tf.Tensor) -> Drawn:
    """Draws unrolls, in a graph. `seed` is [] int64."""
    raise NotImplementedError

  def update(self, key: tf.Tensor, priority: tf.Tensor) -> None:
    """Sets new priorities, [B] float32, of the unrolls with these keys, if there are priorities."""

  def is_ready(self) -> bool:
    """Whether unrolls can be drawn. Otherwise, more must be inserted first."""
    raise NotImplementedError

  def metrics(self) -> dict[str, Any]:
    """Returns metrics for a row of metrics.jsonl."""
    raise NotImplementedError

  def warnings(self) -> list[str]:
    """Returns messages for the user about faults since the last call, one line each."""
    return []

  def save(self, path: str) -> None:
    """Writes the contents to a file. Raises OSError."""
    self._replay.save(path)

  def restore(self, path: str) -> None:
    """Restores what `save` wrote. Raises OSError, ValueError."""
    self._replay.restore(path)

  def close(self) -> None:
    """Ends every wait."""


class UnrollReplay(Replay):
  """Draws unrolls uniformly or in proportion to priorities. An unroll can be drawn after its successor was inserted."""

  def __init__(self, unroll_spec: unroll_lib.Unroll, frame_stacks: Mapping[str, int], capacity: int, batch_size: int,
               minimum_size: int, priority_exponent: float = 0.):
    """Makes an empty replay.

    Args:
      unroll_spec: Unroll of tf.TensorSpec.
      frame_stacks: name -> k for each observation that is a stack of k frames.
      capacity: agent steps.
      batch_size: unrolls of a batch, for the check of the memory.
      minimum_size: agent steps that it must have before the first unroll is drawn.
      priority_exponent: see sequence_replay.SequenceReplay.
    Raises:
      errors.UserError: the machine has too little memory for a full replay.
    """
    self._frame_stacks = frame_stacks
    self._minimum_size = minimum_size
    self._priority_exponent = priority_exponent
    self._length = unroll_spec.parameter_version.shape[0] - 1
    row, stacks = stored_unrolls.spec_and_stacks(stored_unrolls.of_unroll(unroll_spec), frame_stacks)
    geometry = replay_lib.Geometry(burn_in=0, length=self._length, period=self._length, cross_episodes=True)
    self._state_spec = unroll_spec.agent_state
    number = max(capacity // self._length, 1)
    memory.check_replay(replay_lib.memory_bytes(row, self._state_spec, geometry, number), capacity, 'agent steps',
                        replay_lib.batch_bytes(row, stacks, geometry, batch_size), batch_size)
    self._replay = replay_lib.SequenceReplay(
        row, self._state_spec, geometry, number, done=lambda rows: rows.environment_output.done, frame_stacks=stacks,
        priority_exponent=priority_exponent)
    with tf.device('/CPU:0'):
      self._largest = tf.Variable(1., trainable=False)  # The largest priority so far, at least 1; that of new unrolls.

  def insert(self, unroll: unroll_lib.Unroll) -> None:
    """See Replay."""
    rows = stored_unrolls.of_unroll(unroll)
    done = unroll.environment_output.done
    # Row 1 has the state before row 0, see SequenceReplay.insert. The other states are not used.
    states = tf.nest.map_structure(
        lambda state: tf.pad(state[tf.newaxis], [[1, self._length - 1]] + [[0, 0]] * len(state.shape)),
        unroll.agent_state)
    inserted = self._replay.insert(
        unroll.stream_id, unroll.index, unroll.index * self._length, tf.zeros_like(done), rows, states)
    if self._priority_exponent:
      self._replay.update(inserted.key, tf.fill(tf.shape(inserted.key), self._largest.read_value()))

  def draw(self, number: int, seed: tf.Tensor) -> Drawn:
    """Draws unrolls, in a graph. `seed` is [] int64.

    Raises:
      tf.errors.UnavailableError: there is none.
    """
    sample = self._replay.sample(number, seed)
    state = tf.nest.map_structure(lambda states: states[0], sample.states)
    unroll = sample.rows._replace(
        stream_id=sample.stream_id, index=sample.stream_row // self._length, agent_state=state,
        earlier_frames=stored_unrolls.earlier_frames(self._frame_stacks, sample.earlier))
    return Drawn(unroll, sample.probability, sample.key)

  def update(self, key: tf.Tensor, priority: tf.Tensor) -> None:
    """See Replay."""
    if self._priority_exponent:
      self._largest.assign(tf.maximum(self._largest, tf.reduce_max(priority)))
      self._replay.update(key, priority)

  def save(self, path: str) -> None:
    """See Replay."""
    super().save(path)
    if self._priority_exponent:
      with open(path + _LARGEST, 'w', encoding='ascii') as file:
        file.write(str(float(self._largest)))

  def restore(self, path: str) -> None:
    """See Replay."""
    super().restore(path)
    # Older versions did not write this file.
    with contextlib.suppress(FileNotFoundError), open(path + _LARGEST, encoding='ascii') as file:
      self._largest.assign(float(file.read()))

  def is_ready(self) -> bool:
    """See Replay."""
    return self._replay.statistics().size * self._length >= self._minimum_size

  def metrics(self) -> dict[str, Any]:
    """See Replay."""
    counts = self._replay.statistics()
    size = counts.size * self._length
    return {'replay_size': size, 'replay_filled': min(size / self._minimum_size, 1.),
            'replay_megabytes': counts.bytes * 1e-6, 'replay_gaps': counts.gaps,
            'replay_stale_updates': counts.stale_updates, 'unrolls_replayed': counts.sampled}
