"""The four off-policy corrections that the IMPALA paper compares.

Espeholt et al. 2018, section 5.2.2:

  vtrace    V-trace (section 4).
  one_step  The value targets are the uncorrected n-step returns. Each advantage of the policy gradient is multiplied by
            its own importance weight, which is clipped as in V-trace.
  epsilon   There are no importance weights. 1e-6 is added to pi in the policy gradient's log pi. This bounds the
            gradient where the learner's policy assigns a probability near 0 to an action that was taken.
  none      No correction.
"""

import tensorflow as tf

from scalable_agents.learner import vtrace

CORRECTIONS = ('vtrace', 'one_step', 'epsilon', 'none')
EPSILON = 1e-6


def targets(correction: str, log_rhos: tf.Tensor, discounts: tf.Tensor, rewards: tf.Tensor, values: tf.Tensor,
            bootstrap_value: tf.Tensor, *, clip_rho_threshold: float | None = 1.0,
            clip_c_threshold: float | None = 1.0, clip_pg_rho_threshold: float | None = 1.0, lambda_: float = 1.0,
            trusted: tf.Tensor | None = None, action_values: str = 'bootstrapped') -> vtrace.VTraceReturns:
  """Computes value targets and policy gradient advantages with one of CORRECTIONS.

  Args:
    correction: one of CORRECTIONS.
    log_rhos, discounts, rewards, values: [T, B] float32, as in `vtrace.from_importance_weights`.
    bootstrap_value: [B] float32.
    clip_rho_threshold, clip_c_threshold: scalar or None, used by 'vtrace'.
    clip_pg_rho_threshold: scalar or None, used by 'vtrace' and 'one_step'.
    lambda_: scalar in [0, 1].
    trusted, action_values: as in `vtrace.from_importance_weights`.
  Returns:
    VTraceReturns of [T, B] float32. No gradient flows through them.
  Raises:
    ValueError: the correction is unknown or the ranks are inconsistent.
  """
  if correction not in CORRECTIONS:
    raise ValueError(f'off_policy_correction: want one of {", ".join(CORRECTIONS)}, got {correction!r}')
  if correction == 'vtrace':
    return vtrace.from_importance_weights(
        log_rhos, discounts, rewards, values, bootstrap_value, clip_rho_threshold, clip_pg_rho_threshold,
        lambda_=lambda_, trusted=trusted, action_values=action_values, clip_c_threshold=clip_c_threshold)
  # With weights of one, V-trace's targets are the n-step returns.
  uncorrected = vtrace.from_importance_weights(
      tf.zeros_like(log_rhos), discounts, rewards, values, bootstrap_value, lambda_=lambda_, trusted=trusted,
      action_values=action_values)
  if correction == 'one_step':
    rhos = tf.stop_gradient(vtrace.importance_weights(log_rhos, clip_pg_rho_threshold))
    return uncorrected._replace(pg_advantages=rhos * uncorrected.pg_advantages)
  return uncorrected


def log_pi(correction: str, action_log_probs: tf.Tensor) -> tf.Tensor:
  """Returns log pi(a|x) for the policy gradient: log(pi + 1e-6) for 'epsilon', else the argument. Any shape."""
  if correction == 'epsilon':
    return tf.math.log(tf.exp(action_log_probs) + EPSILON)
  return action_log_probs
