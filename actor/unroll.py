"""The unroll: what one actor experienced in `unroll_length` agent steps, and the structure that holds it.

An unroll of T steps has T+1 rows. Row 0 repeats the last row of the actor's previous unroll, so the learner has
an observation before the first action and one to bootstrap from after the last. Row t holds an action and what it
led to: `agent_output[t]` was computed from row t-1, and `environment_output[t]` is the environment's answer to
`agent_output.action[t]`. The learner therefore runs its network on rows 0…T, compares its own outputs of rows 0…T-1
with actions, behaviour logits, rewards and discounts of rows 1…T, and bootstraps from row T.

An episode that a time limit truncates has one more row, which holds its last observation, so that the learner can
bootstrap from there. The environment's answer to the next action is the reset: in its row `done` is true, the reward is
0, and the discount is 1, which says that this step is not a real one. No loss counts it, though the frame counts do. In
the papers' suites and in the built-in tasks a time limit is an ordinary end of an episode, so they have no such steps.

A stream is the unrolls of one actor from the start of its environment in a worker process to the end of that process.
They are numbered from 0, and `done` is true in row 0 of the first one. A gap in the indices of a stream means that
unrolls were lost; see experience/unroll_order.py.

Where an observation is a stack of k frames, each frame is in an unroll once: rows have the newest frame, and
`earlier_frames` has the k-1 frames before row 0. learner/frame_stacks.py makes stacks of them before the loss.

Batches from a replay of episodes have unrolls in which episodes of several streams follow each other; see
experience/mixed_experience.py.

Espeholt et al. 2018 (IMPALA), section 3; the rows are those of the released agent.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

Nest = Any  # Tensors, or a nest of them with a structure that the agent decides.


class EnvironmentOutput(NamedTuple):
  """An environment's answers to actions. The shapes are those of one unroll; a batch of unrolls has [T+1, B, ...]."""
  reward: tf.Tensor          # [T+1] float32, raw (unclipped); what agent_output.action[t] earned.
  discount: tf.Tensor        # [T+1] float32, 0 at an end of episode or a lost life, else 1 (no gamma).
  done: tf.Tensor            # [T+1] bool, the environment was reset: observation[t] starts an episode.
  episode_return: tf.Tensor  # [T+1] float32, sum of raw rewards of the episode up to this row; final where done.
  episode_length: tf.Tensor  # [T+1] int32, environment frames of the episode up to this row; final where done.
  observation: Mapping[str, tf.Tensor]  # name -> [T+1, ...].


class Unroll(NamedTuple):
  """T+1 rows of one actor, in the order of time."""
  level_id: tf.Tensor           # [] int32, index into the run's levels.
  actor_id: tf.Tensor           # [] int32, number of the actor, and so of its environment, in the run.
  stream_id: tf.Tensor          # [] int64, unique within a run.
  index: tf.Tensor              # [] int64, the number of the unroll within that stream: 0, 1, 2 and so on.
  agent_state: Nest             # nest of [...], the recurrent state before row 0's observation is processed.
  earlier_frames: Mapping[str, tf.Tensor]  # name -> [k-1, H, W, C] for each observation that is a stack: the frames
                                # before row 0, the oldest one first; zeros before an episode's start.
  environment_output: EnvironmentOutput  # Of [T+1, ...]; of a stack of frames, the newest frame.
  agent_output: Nest            # the agent's own NamedTuple of [T+1, ...], with `action` and, for example, its logits.
                                # Definition.to_send may send less of it.
  parameter_version: tf.Tensor  # [T+1] int64, version of the parameters that computed agent_output[t]: the number of
                                # updates before, skipped ones included.


def batch_of(unroll: Unroll) -> Unroll:
  """Returns an unroll as a batch of one: [T+1, 1, ...], or [1, ...] for components without time."""
  return tf.nest.map_structure(lambda values, time: tf.expand_dims(values, 1 if time else 0), unroll, has_time(unroll))


class Steps(NamedTuple):
  """The T steps of unrolls: action a_tm1, chosen in state x_tm1, led to the reward r_t and to the state x_t.

  The learner's outputs for rows 0 to T-1 are those of the states x_tm1, and those for rows 1 to T are of x_t.
  """
  a_tm1: tf.Tensor       # [T, B] int32.
  behaviour_tm1: Nest    # the agent's own NamedTuple of [T, B, ...], what the behaviour policy computed in x_tm1.
  r_t: tf.Tensor         # [T, B] float32, raw.
  discount_t: tf.Tensor  # [T, B] float32, 0 at an end of episode or a lost life, else 1 (no gamma).
  done_t: tf.Tensor      # [T, B] bool, x_t starts an episode.
  real_t: tf.Tensor      # [T, B] bool, the action led to x_t. False for the reset after a truncated episode.


def steps(unroll: Unroll, start: int = 0) -> Steps:
  """Returns the steps of a batch of unrolls, [T+1, B, ...], from the state of row `start` on."""
  environment, rows = unroll.environment_output, slice(start + 1, None)
  behaviour_tm1: Any = tf.nest.map_structure(lambda values: values[rows], unroll.agent_output)
  return Steps(behaviour_tm1.action, behaviour_tm1, environment.reward[rows], environment.discount[rows],
               environment.done[rows], is_real(environment)[rows])


def is_real(environment_output: EnvironmentOutput) -> tf.Tensor:
  """Says which rows an action led to: bool, as `done`. The reset after a truncated episode is not such a row."""
  return ~environment_output.done | (environment_output.discount == 0.)


def has_time(unroll: Unroll) -> Unroll:
  """Says which components of an unroll have a time dimension: a nest of bool with the structure of `unroll`.

  In a batch of B unrolls, components with time are [T+1, B, ...], and the others are [B, ...].
  """
  without_time = ('level_id', 'actor_id', 'stream_id', 'index', 'agent_state', 'earlier_frames')

  def all_are(nest, answer):
    return tf.nest.map_structure(lambda unused: answer, nest)

  return unroll._replace(**{name: all_are(nest, name not in without_time) for name, nest in unroll._asdict().items()})
