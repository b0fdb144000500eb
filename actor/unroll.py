"""The unroll: what one actor lived through in `unroll_length` agent steps, and the one structure that carries it.

An unroll of T steps has T+1 rows. Row 0 repeats the last row of the actor's previous unroll, so the learner has
an observation before the first action and one to bootstrap from after the last. Row t holds an action and what it
led to: `agent_output[t]` was computed from row t-1, and `environment_output[t]` is the environment's answer to
`agent_output.action[t]`. The learner therefore runs its network on rows 0…T, compares its own outputs of rows 0…T-1
with actions, behaviour logits, rewards and discounts of rows 1…T, and bootstraps from row T.

A life of an actor begins when a worker process starts its environment and ends with that process. The unrolls of a
life follow each other: row 0 of the first one, whose index is 0, has `done`. Whoever gets unrolls of one life with an
index missing has lost those between; see training/unroll_order.py.

Espeholt et al. 2018 (IMPALA), section 3; the rows are those of the released agent.
"""

from typing import Any, NamedTuple


class EnvironmentOutput(NamedTuple):
  """What an environment answered to an action. Shapes of one unroll; a batch of unrolls is [T+1, B, ...]."""
  reward: Any          # [T+1] float32, raw (unclipped); what agent_output.action[t] earned.
  discount: Any        # [T+1] float32, 0 at an end of episode or a lost life, else 1 (no gamma).
  done: Any            # [T+1] bool, the environment was reset: observation[t] starts an episode.
  episode_return: Any  # [T+1] float32, sum of raw rewards of the episode up to this row; final where done.
  episode_length: Any  # [T+1] int32, environment frames of the episode up to this row; final where done.
  observation: Any     # dict of name -> [T+1, ...].


class Unroll(NamedTuple):
  """T+1 rows of one actor, in the order in which they happened."""
  level_id: Any            # [] int32, index into the run's levels.
  actor_id: Any            # [] int32, which environment of the run.
  life_id: Any             # [] int64, which life of the actor; no two lives of a run have the same.
  index: Any               # [] int64, the number of the unroll within that life, from 0 without a gap.
  agent_state: Any         # nest of [...], the recurrent state before row 0's observation is processed.
  environment_output: Any  # EnvironmentOutput of [T+1, ...].
  agent_output: Any        # an agent's NamedTuple of [T+1, ...]: `action`, what it was drawn by, and more.
  parameter_version: Any   # [T+1] int64, learner updates in the parameters that computed agent_output[t].
