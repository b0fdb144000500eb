"""Replayers: actors without environments. They step through stored episodes to find the network's recurrent states.

Schmitt et al. 2020 (LASER), section 5.1 and appendices A.2 and B: a replayer draws an episode uniformly, goes through
it from its start with the latest parameters, and goes on with the next one, as an actor does. Only its first episode
begins with a random step (EpisodeReplay.next says why). Its rows are cut into unrolls. Each unroll starts with a state
computed by the current network: states from older or other networks are not valid for it. The behaviour policy's logits
are those that were stored. An agent without recurrent state skips the computation.
"""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from scalable_agents.actor import acting
from scalable_agents.actor import inference
from scalable_agents.actor import parameters as parameters_lib
from scalable_agents.actor import unroll as unroll_lib
from scalable_agents.experience import memory
from scalable_agents.experience import shared_replay
from scalable_agents.experience import stored_unrolls
from scalable_agents.experience import unroll_check
from scalable_agents.experience import unroll_replay
from scalable_agents.learner import frame_stacks as frame_stacks_lib
from scalable_agents.replay import episode_replay

_LONG = (f'an episode has more than {episode_replay.LONGEST_EPISODE:,} agent steps: such episodes are not replayed. '
         'Limit their length: on Atari with --max_episode_frames, for gymnasium with ?max_episode_steps=N after the '
         'id, else in your environment. Metric: replay_long_episodes')


class Replayers(unroll_replay.Replay):
  """Stores episodes, and takes unrolls from replayers, each of which goes through episodes of its own."""

  def __init__(self, unroll_spec: unroll_lib.Unroll, frame_stacks: Mapping[str, int],
               replay: episode_replay.EpisodeReplay | shared_replay.SharedReplay, number: int, agent: Any,
               parameters: parameters_lib.ParameterSnapshot, minimum_size: int, must_fill: bool = False):
    """Makes the replayers.

    Args:
      unroll_spec: Unroll of tf.TensorSpec.
      frame_stacks: name -> k for each observation that is a stack of k frames.
      replay: the replay, from `own_replay` or `join_replay`.
      number: number of replayers, which is the number of unrolls that `draw` returns.
      agent: the replayers' copy of the agent, which has `unroll` and `prepare` as impala.Agent; its acting variables
        are overwritten, and their device computes the states. None if there is no recurrent state.
      parameters: the latest parameters.
      minimum_size: agent steps that the replay must have before anything is replayed. Until then `draw` returns rows of
        zeros, so that an agent can learn from its new unrolls while the first, perhaps long, episodes go on.
      must_fill: whether `is_ready` is false until then, for an agent that learns from replayed unrolls only.
    """
    self._minimum_size = minimum_size
    self._must_fill = must_fill
    self._frame_stacks = frame_stacks
    self._replay = replay
    self._agent = agent
    self._parameters = parameters
    self._shared = replay if isinstance(replay, shared_replay.SharedReplay) else None
    self._said_long = False
    with tf.device('/CPU:0'):
      def variable(values):
        return tf.Variable(values, trainable=False)

      self._key = variable(tf.fill([number], tf.constant(-1, tf.int64)))  # The episode of each replayer; -1: none.
      self._step = variable(tf.zeros([number], tf.int64))                 # The step to go on from.
      self._state = tf.nest.map_structure(lambda spec: variable(tf.zeros([number, *spec.shape], spec.dtype)),
                                          unroll_spec.agent_state)

  def insert(self, unroll: unroll_lib.Unroll) -> None:
    """See Replay."""
    self._replay.insert(unroll.stream_id, unroll.index, stored_unrolls.of_unroll(unroll))

  def draw(self, number: int, seed: tf.Tensor) -> unroll_replay.Drawn:
    """Returns the next unroll of each replayer, in a graph. `number` is the number of replayers; `seed` is [] int64."""
    replayed = self._replay.next(self._key.read_value(), self._step.read_value(), seed, self._minimum_size)
    self._key.assign(replayed.key)
    self._step.assign(replayed.next_step)
    unroll = replayed.rows._replace(
        stream_id=replayed.stream_id, index=replayed.stream_row,
        earlier_frames=stored_unrolls.earlier_frames(self._frame_stacks, replayed.earlier))
    unroll = unroll._replace(agent_state=self._states(unroll, replayed.is_new))
    return unroll_replay.Drawn(unroll, tf.ones([number]), replayed.key)

  def _states(self, unroll, is_new):
    """Returns the recurrent states before row 0, a nest of [N, ...], and goes on to the states after row T - 1.

    Where an episode begins, `done` is true, so the network resets its state there. A new replayer, [N] bool, may begin
    inside an episode. Its state is 0 there, since the rows before are not replayed.
    """
    if not self._agent:
      return ()
    before = tf.nest.map_structure(
        lambda state: tf.where(tf.reshape(is_new, [-1] + [1] * (state.shape.rank - 1)), tf.zeros_like(state), state),
        self._state)
    _, latest = self._parameters.latest()
    device = self._agent.acting_variables[0].device
    with tf.device(device):
      inference.assign(self._agent, latest)
      inputs = acting.inputs_of(frame_stacks_lib.with_stacks(unroll, device))
      inputs = inputs._replace(observation=self._agent.prepare(inputs.observation))
      _, after = self._agent.unroll(tf.nest.map_structure(lambda values: values[:-1], inputs), before)
    for variable, state in zip(tf.nest.flatten(self._state), tf.nest.flatten(after), strict=True):
      variable.assign(state)
    return before

  def is_ready(self) -> bool:
    """Whether unrolls can be drawn. Otherwise, more must be inserted first. Waits for a shared replay.

    Raises:
      errors.UserError: the shared replay is for agents with other settings.
      tf.errors.CancelledError: this object is closed.
    """
    return bool(self._replay.size() >= self._minimum_size) or not self._must_fill

  def metrics(self) -> dict[str, Any]:
    """See Replay."""
    counts = self._replay.statistics()
    metrics = {'replay_size': counts.steps, 'replay_episodes': counts.episodes,
               'replay_megabytes': counts.bytes * 1e-6, 'replay_gaps': counts.gaps,
               'replay_long_episodes': counts.long_episodes, 'unrolls_replayed': counts.replayed_unrolls}
    if self._must_fill:
      metrics['replay_filled'] = min(counts.steps / self._minimum_size, 1.)
    if self._shared:
      metrics['replay_lead'] = self._shared.lead
      if waits_for := self._shared.waits_for:
        metrics['replay_waits_for'] = waits_for
    return metrics

  def warnings(self) -> list[str]:
    """See Replay."""
    warnings = self._shared.warnings() if self._shared else []
    if not self._said_long and self._replay.statistics().long_episodes:
      self._said_long = True
      warnings.append(_LONG)
    return warnings

  def close(self) -> None:
    """See Replay."""
    if self._shared:
      self._shared.close()


def own_replay(unroll_spec: unroll_lib.Unroll, frame_stacks: Mapping[str, int], capacity: int,
               batch_size: int) -> episode_replay.EpisodeReplay:
  """Makes an empty replay in this process.

  Args:
    unroll_spec, frame_stacks: see Replayers.
    capacity: agent steps.
    batch_size: unrolls of a batch, for the check of the memory.
  Raises:
    errors.UserError: the machine has too little memory for a full replay.
  """
  row, length, stacks = _rows(unroll_spec, frame_stacks)
  memory.check_replay(episode_replay.memory_bytes(row, capacity), capacity, 'agent steps',
                      episode_replay.batch_bytes(row, stacks, length, batch_size), batch_size)
  return episode_replay.EpisodeReplay(row, length, capacity, done=_done, observation=_observation,
                                      frame_stacks=stacks)


def join_replay(address: str, unroll_spec: unroll_lib.Unroll, frame_stacks: Mapping[str, int], capacity: int,
                settings: dict[str, Any], tolerance: int, num_levels: int, num_actions: int
                ) -> shared_replay.SharedReplay:
  """Joins a replay that agents share. The replay job checks whether it fits into its memory.

  Args:
    address, settings, tolerance: see SharedReplay.
    unroll_spec, frame_stacks: see Replayers.
    capacity: agent steps.
    num_levels, num_actions: see unroll_check.is_valid.
  """
  def check(index, rows):
    return unroll_check.is_valid(rows._replace(index=index), num_levels, num_actions)

  row, length, stacks = _rows(unroll_spec, frame_stacks)
  return shared_replay.SharedReplay(address, row, length, capacity, done=_done, observation=_observation,
                                    frame_stacks=stacks, settings=settings, tolerance=tolerance, check=check)


def _rows(unroll_spec, frame_stacks):
  """Returns the spec of a row, the length of an unroll in agent steps, and the stacks of the row's components."""
  row, stacks = stored_unrolls.spec_and_stacks(stored_unrolls.of_unroll(unroll_spec), frame_stacks)
  return row, unroll_spec.parameter_version.shape[0] - 1, stacks


def _done(rows):
  return rows.environment_output.done


def _observation(rows):
  return rows.environment_output.observation, rows.level_id
