"""V-trace, the off-policy targets of IMPALA's actor-critic.

Espeholt et al. 2018, section 4.1. With importance weights rho_t = pi(a_t|x_t) / mu(a_t|x_t) and thresholds
rho-bar and c-bar,

  vs_t = V(x_t) + sum_{k >= t} (prod_{i = t}^{k-1} discount_i c_i) delta_k,
  delta_t = min(rho-bar, rho_t) (r_t + discount_t V(x_{t+1}) - V(x_t)),   c_i = lambda min(c-bar, rho_i),

computed backwards as vs_t - V(x_t) = delta_t + discount_t c_t (vs_{t+1} - V(x_{t+1})). Names, argument order and
defaults are those of the released code. `from_importance_weights` has four more arguments at the end: lambda (remark 2
of the paper), which `from_logits` has, too; c-bar; the trust region of LASER (Schmitt et al. 2020, equation 8), which
multiplies delta_t and c_t by 1 or 0; and the estimate q_t of the action's value in the advantage q_t - V(x_t):

  bootstrapped  r_t + discount_t vs_{t+1}      Section 4.2.
  one_step      r_t + discount_t V(x_{t+1})    Appendix E.3, where it is worse.
  target        vs_t                           Algorithm 1 of LASER.
"""

from typing import NamedTuple

import tensorflow as tf

from scalable_agents.learner import policies

ACTION_VALUES = ('bootstrapped', 'one_step', 'target')


class VTraceFromLogitsReturns(NamedTuple):
  """What `from_logits` returns. All are [T, B] float32."""
  vs: tf.Tensor                          # The value targets.
  pg_advantages: tf.Tensor               # The advantages of the policy gradient, times their importance weights.
  log_rhos: tf.Tensor                    # log(pi(a|x) / mu(a|x)).
  behaviour_action_log_probs: tf.Tensor  # log mu(a|x).
  target_action_log_probs: tf.Tensor     # log pi(a|x).


class VTraceReturns(NamedTuple):
  """What `from_importance_weights` returns. Both are [T, B, ...] float32."""
  vs: tf.Tensor             # The value targets.
  pg_advantages: tf.Tensor  # The advantages of the policy gradient, times their importance weights.


def log_probs_from_logits_and_actions(policy_logits, actions) -> tf.Tensor:
  """Returns log pi(a|x) of the actions taken.

  Args:
    policy_logits: [T, B, A] float32, un-normalised log-probabilities.
    actions: [T, B] int32.
  Returns:
    [T, B] float32.
  Raises:
    ValueError: the ranks are not 3 and 2.
  """
  policy_logits = tf.convert_to_tensor(policy_logits, tf.float32)
  actions = tf.convert_to_tensor(actions, tf.int32)
  _check_rank('policy_logits', policy_logits, 3)
  _check_rank('actions', actions, 2)
  return policies.categorical(policy_logits).log_prob(actions)


def from_logits(behaviour_policy_logits, target_policy_logits, actions, discounts, rewards, values, bootstrap_value,
                clip_rho_threshold: float | None = 1.0, clip_pg_rho_threshold: float | None = 1.0,
                name: str = 'vtrace_from_logits', lambda_: float = 1.0) -> VTraceFromLogitsReturns:
  """Computes V-trace for softmax policies.

  Args:
    behaviour_policy_logits: [T, B, A] float32, logits of mu, the policy that acted.
    target_policy_logits: [T, B, A] float32, logits of pi, the policy that learns.
    actions: [T, B] int32, sampled from mu.
    discounts, rewards, values, bootstrap_value, clip_rho_threshold, clip_pg_rho_threshold, lambda_: see
      `from_importance_weights`.
    name: name scope of the operations.
  Returns:
    VTraceFromLogitsReturns of [T, B] float32. No gradient flows through vs and pg_advantages.
  Raises:
    ValueError: the ranks are inconsistent.
  """
  with tf.name_scope(name):
    behaviour_policy_logits = tf.convert_to_tensor(behaviour_policy_logits, tf.float32)
    target_policy_logits = tf.convert_to_tensor(target_policy_logits, tf.float32)
    _check_rank('behaviour_policy_logits', behaviour_policy_logits, 3)
    _check_rank('target_policy_logits', target_policy_logits, 3)
    target_action_log_probs = log_probs_from_logits_and_actions(target_policy_logits, actions)
    behaviour_action_log_probs = log_probs_from_logits_and_actions(behaviour_policy_logits, actions)
    log_rhos = target_action_log_probs - behaviour_action_log_probs
    returns = from_importance_weights(
        log_rhos, discounts, rewards, values, bootstrap_value, clip_rho_threshold, clip_pg_rho_threshold,
        lambda_=lambda_)
    return VTraceFromLogitsReturns(
        log_rhos=log_rhos,
        behaviour_action_log_probs=behaviour_action_log_probs,
        target_action_log_probs=target_action_log_probs,
        **returns._asdict())


def from_importance_weights(log_rhos, discounts, rewards, values, bootstrap_value,
                            clip_rho_threshold: float | None = 1.0, clip_pg_rho_threshold: float | None = 1.0,
                            name: str = 'vtrace_from_importance_weights', lambda_: float = 1.0,
                            trusted: tf.Tensor | None = None, action_values: str = 'bootstrapped',
                            clip_c_threshold: float | None = 1.0) -> VTraceReturns:
  """Computes V-trace from log importance weights.

  Args:
    log_rhos: [T, B, ...] float32, log(pi(a|x) / mu(a|x)). Dimensions of size 1 are broadcast to those of the rewards.
    discounts: [T, B, ...] float32, gamma included, 0 where an episode ended. They are broadcast in the same way.
    rewards: [T, B, ...] float32.
    values: [T, B, ...] float32, V(x_t).
    bootstrap_value: [B, ...] float32, V(x_T).
    clip_rho_threshold: scalar rho-bar, or None for no clipping.
    clip_pg_rho_threshold: scalar rho-bar_pg for the weights of the policy gradient, or None for no clipping.
    name: name scope of the operations.
    lambda_: scalar in [0, 1]. 0 gives one-step targets, 1 the full sum above.
    trusted: [T, B, ...] bool, the steps that targets may use; see trust_region.py. The target of another step is its
      value, and the targets of the steps before it bootstrap from there. None: all steps.
    action_values: one of ACTION_VALUES, the estimate q_t of the action's value.
    clip_c_threshold: scalar c-bar, or None for no clipping. Without it and rho-bar, the targets have the full
      importance weights: equation 7 of LASER.
  Returns:
    VTraceReturns: vs [T, B, ...], the value targets, and pg_advantages [T, B, ...],
    min(rho-bar_pg, rho_t) (q_t - V(x_t)). No gradient flows through them.
  Raises:
    ValueError: the ranks are inconsistent, or `action_values` is unknown.
  """
  if action_values not in ACTION_VALUES:
    raise ValueError(f'action_values: want one of {", ".join(ACTION_VALUES)}, got {action_values!r}')
  with tf.name_scope(name):
    log_rhos, discounts, rewards, values, bootstrap_value = (
        tf.convert_to_tensor(x, tf.float32) for x in (log_rhos, discounts, rewards, values, bootstrap_value))
    _check_ranks(log_rhos, discounts, rewards, values, bootstrap_value)
    values_t_plus_1 = tf.concat([values[1:], bootstrap_value[tf.newaxis]], axis=0)
    deltas = importance_weights(log_rhos, clip_rho_threshold) * (rewards + discounts * values_t_plus_1 - values)
    cs = lambda_ * importance_weights(log_rhos, clip_c_threshold)
    if trusted is not None:  # Not by a product, since weights that are not clipped may be infinite.
      deltas, cs = (tf.where(trusted, terms, 0.) for terms in (deltas, cs))
    vs = values + _discounted_sums(discounts * cs, deltas)

    vs_t_plus_1 = tf.concat([vs[1:], bootstrap_value[tf.newaxis]], axis=0)
    if action_values == 'target':
      advantages = vs - values
    else:
      following = vs_t_plus_1 if action_values == 'bootstrapped' else values_t_plus_1
      advantages = rewards + discounts * following - values
    pg_advantages = importance_weights(log_rhos, clip_pg_rho_threshold) * advantages
    return VTraceReturns(tf.stop_gradient(vs), tf.stop_gradient(pg_advantages))


def importance_weights(log_rhos: tf.Tensor, threshold: float | None) -> tf.Tensor:
  """Returns min(threshold, rho) for log_rhos of any shape. With a threshold of None, rho is not clipped."""
  rhos = tf.exp(log_rhos)
  if threshold is None:
    return rhos
  threshold = tf.convert_to_tensor(threshold, tf.float32)
  _check_rank('threshold of importance weights', threshold, 0)
  return tf.minimum(threshold, rhos)


def _discounted_sums(weights, terms):
  """Returns sums_t = terms_t + weights_t sums_{t+1}, computed backwards in time over [T, B, ...]."""
  weights = tf.broadcast_to(weights, tf.shape(terms))
  return tf.scan(
      lambda following, row: row[1] + row[0] * following, (weights, terms), initializer=tf.zeros_like(terms[0]),
      reverse=True)


def _check_ranks(log_rhos, discounts, rewards, values, bootstrap_value):
  rank = log_rhos.shape.rank
  _check_rank('discounts', discounts, rank)
  _check_rank('rewards', rewards, rank)
  _check_rank('values', values, rank)
  _check_rank('bootstrap_value', bootstrap_value, None if rank is None else rank - 1)


def _check_rank(name, tensor, rank):
  if None not in (tensor.shape.rank, rank) and tensor.shape.rank != rank:
    raise ValueError(f'{name}: want rank {rank}, got shape {tensor.shape} of rank {tensor.shape.rank}')
