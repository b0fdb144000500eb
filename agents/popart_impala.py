"""PopArt-IMPALA: IMPALA with a value for each level and adaptive normalisation of the value targets.

Hessel et al. 2019, "Multi-task Deep Reinforcement Learning with PopArt". This file has only what differs from IMPALA
(impala.py): value heads, the loss, and the step after each update. The policy does not see the level.

MultiHead-IMPALA, the paper's baseline with a value for each level and without normalisation, is this agent with
--value_normalization=none.
"""

import dataclasses
from typing import Any

import tensorflow as tf

from scalable_agents.actor import acting
from scalable_agents.actor import agent as agent_lib
from scalable_agents.actor import unroll as unroll_lib
from scalable_agents.agents import configs
from scalable_agents.agents import impala
from scalable_agents.learner import learner_step
from scalable_agents.learner import popart


class Agent(impala.Agent):
  """IMPALA's network with a value head per level, and the statistics of the value targets. Equation 10."""

  def __init__(self, spec: agent_lib.EnvironmentSpec, config: configs.PopArtImpalaConfig, name: str = 'agent'):
    """Creates the variables; see impala.Agent. The number of values is the number of levels in `spec`."""
    super().__init__(spec, config, num_baselines=len(spec.levels), name=name)
    self.statistics = popart.Moments(*(
        tf.Variable(moment, trainable=False, name=f'value_{field}_moment')
        for field, moment in popart.initial_moments(len(spec.levels))._asdict().items()))

  @property
  def baseline_weights(self) -> tuple[tf.Variable, tf.Variable]:
    """W [D, N] and b [N] of equation 10."""
    return self._baseline.w, self._baseline.b


def loss(agent: Agent, batch: learner_step.Batch, config: configs.PopArtImpalaConfig) -> learner_step.Loss:
  """IMPALA's loss with normalised values and advantages. Equations 11 and 12.

  Args:
    agent: the network that learns.
    batch: as for `impala.loss`.
    config: PopArtImpalaConfig; its `entropy_cost` may be a variable.
  Returns:
    learner_step.Loss. Its `means` are [N] float32: the value loss of each level, and with normalisation the statistics
    before this update. With normalisation, its `gathered` are the popart.Moments of [R] and the level ids [R] of the
    rollouts: B, or B * N if each step has a level of its own (see popart.split_levels).
  """
  output, _ = agent.unroll(acting.inputs_of(batch.unroll), batch.unroll.agent_state)
  return weighted_loss(agent, batch.unroll, output, config)


def weighted_loss(agent: Agent, unroll: unroll_lib.Unroll, output: impala.NetworkOutput,
                  config: configs.PopArtImpalaConfig, trusted: tf.Tensor | bool = True,
                  weights: tf.Tensor | float = 1., entropy_weights: tf.Tensor | float = 1.,
                  was_drawn: tf.Tensor | bool = True) -> learner_step.Loss:
  """The same loss, with weights of the steps.

  Args:
    agent, config: see `loss`.
    unroll: the unrolls, of [T+1, B, ...]. `level_id` is [B], or [T+1, B] if the levels of their rows differ.
    output: the network's outputs for the unrolls, of [T+1, B, ...].
    trusted: [T, B] bool, or True for all, the real steps that targets may use, see `vtrace.from_importance_weights`.
      Other steps do not count in the statistics.
    weights: of the steps in the loss, [T, B] float32 or a number.
    entropy_weights: of the steps in the entropy, likewise.
    was_drawn: [T, B] bool, the steps that the metrics count.
  Returns:
    See `loss`. The feedback is the mean absolute error of each unroll's values, [B] float32.
  """
  steps = unroll_lib.steps(unroll)
  weights = tf.cast(steps.real_t, tf.float32) * weights                                    # [T, B].
  trusted = steps.real_t & trusted
  level_ids = tf.broadcast_to(unroll.level_id, tf.shape(output.baseline)[:2])              # [T+1, B], of each row.
  means = tf.cast(agent.statistics.first, tf.float32)                                      # [N], mu of each level.
  scales = tf.cast(popart.scale(agent.statistics), tf.float32)                             # [N], sigma of each level.
  n, mean, scale = (popart.select(each, level_ids) for each in (output.baseline, means, scales))  # [T+1, B] each.
  v = scale * n + mean  # V-trace is computed with the un-normalised values, in the units of the rewards.
  n_tm1, mean_tm1, scale_tm1, v_tm1 = n[:-1], mean[:-1], scale[:-1], v[:-1]                # [T, B] each.
  targets, log_pi_tm1 = impala.off_policy_targets(steps, output.policy_logits, v_tm1, v[-1], trusted, config)
  # Equations 11 and 12. As n = (v - mu) / sigma, the normalised advantage, (G - mu) / sigma - n, is (G - v) / sigma.
  normalized = targets._replace(vs=(targets.vs - mean_tm1) / scale_tm1, pg_advantages=targets.pg_advantages / scale_tm1)
  result = impala.actor_critic_loss(
      agent, unroll, output, n_tm1, log_pi_tm1, normalized, config, weights, entropy_weights, trusted)

  errors = normalized.vs - tf.stop_gradient(n_tm1)
  # The loss of each step, times T. Its mean over a level's steps is then the mean loss of the level's rollouts.
  of_steps = 0.5 * errors.shape[0] * weights * tf.square(errors)
  drawn = tf.broadcast_to(was_drawn, tf.shape(errors))
  metrics = {
      'value_loss/normalized': popart.level_means(of_steps, drawn, level_ids[:-1], means.shape[0]),
      'value_loss/unnormalized': popart.level_means(scale_tm1**2 * of_steps, drawn, level_ids[:-1], means.shape[0])}
  result = result._replace(means=metrics, feedback=tf.reduce_mean(tf.abs(errors), axis=0))
  if config.value_normalization == 'none':
    return result
  returns, counts, levels = targets.vs, trusted, unroll.level_id                           # [T, B], [T, B], [B].
  if levels.shape.rank == 2:
    returns, counts, levels = popart.split_levels(returns, counts, level_ids[:-1], means.shape[0])
  rollouts = popart.rollout_moments(returns, config.popart_second_moment, counts)
  return result._replace(means=metrics | {'popart/mean': means, 'popart/scale': scales}, gathered=(rollouts, levels))


def update_statistics(agent: Agent, config: configs.PopArtImpalaConfig, gathered: Any,
                      unused_updates: tf.Tensor) -> list[tuple[tf.Variable, tf.Tensor]]:
  """Updates the statistics with the rollouts of all learners, and then the value heads. Equations 6 and 13.

  The paper applies the actor-critic update first ("Implementation notes"), and so does the learner step, which calls
  this afterwards. The optimiser's slots stay as they are.

  Args:
    agent: the agent that learns.
    config: PopArtImpalaConfig. Without normalisation the statistics stay 0 and 1, and have no effect.
    gathered: Loss.gathered, the popart.Moments of [R] and the level ids [R] of the rollouts of all learners.
    unused_updates: the number of updates.
  Returns:
    Pairs of a variable and its new value.
  """
  if config.value_normalization == 'none':
    return []
  rollouts, level_ids = gathered
  old = popart.Moments(*map(tf.convert_to_tensor, agent.statistics))
  new = popart.update(old, rollouts, level_ids, config.popart_decay)
  weights = agent.baseline_weights
  return [*zip(agent.statistics, new, strict=True), *zip(weights, popart.rescale(*weights, old, new), strict=True)]


POPART_IMPALA = dataclasses.replace(
    impala.IMPALA,
    name='popart_impala',
    config=configs.PopArtImpalaConfig,
    network=Agent,
    loss=loss,
    after_update=update_statistics,
)
