"""The trust region of LASER: which steps of other policies' experience the learner learns from.

Schmitt et al. 2020, section 4. V-trace clips importance weights, so its values are not those of the target policy pi,
but of an implied policy between pi and the behaviour policy mu (proposition 1, equation 3),

  pi~(a|x) = min(rho-bar mu(a|x), pi(a|x)) / Z(x),   Z(x) = sum_b min(rho-bar mu(b|x), pi(b|x)).

Where pi~ is far from pi, the values mislead. A step is trusted if its relevance is below a threshold b (section 4.3):

  implied   KL(pi || pi~), as in the text of section 4.3.
  kl_mu     KL(pi || mu), as in Algorithm 1.

vtrace.from_importance_weights takes the mask of the trusted steps.
"""

import tensorflow as tf

from scalable_agents.learner import policies

RELEVANCES = ('implied', 'kl_mu')


def relevance(kind: str, behaviour_policy_logits: tf.Tensor, target_policy_logits: tf.Tensor,
              clip_rho_threshold: float = 1.) -> tf.Tensor:
  """Returns how far the policy that V-trace learns about is from the target policy.

  Args:
    kind: one of RELEVANCES.
    behaviour_policy_logits: [..., A] float32, logits of mu.
    target_policy_logits: [..., A] float32, logits of pi.
    clip_rho_threshold: rho-bar > 0. Not used by 'kl_mu'.
  Returns:
    [...] float32, at least 0, without gradient. It is 0 for 'implied' if pi <= rho-bar mu for every action.
  Raises:
    ValueError: the kind is unknown.
  """
  if kind not in RELEVANCES:
    raise ValueError(f'relevance: want one of {", ".join(RELEVANCES)}, got {kind!r}')
  if kind == 'kl_mu':
    mu, pi = map(policies.categorical, (behaviour_policy_logits, target_policy_logits))
    return tf.stop_gradient(tf.maximum(pi.kl_divergence(mu), 0.))  # Rounding may make it negative.
  log_mu, log_pi = (tf.nn.log_softmax(logits) for logits in (behaviour_policy_logits, target_policy_logits))
  pi = tf.exp(log_pi)
  # KL(pi || pi~) = log Z + sum_a pi_a max(0, log pi_a - log(rho-bar mu_a)). No term of the sum is a difference of large
  # numbers, unlike log pi_a - log pi~_a.
  log_bound = tf.math.log(clip_rho_threshold) + log_mu
  log_z = tf.reduce_logsumexp(tf.minimum(log_bound, log_pi), axis=-1)
  divergence = log_z + tf.reduce_sum(pi * tf.nn.relu(log_pi - log_bound), axis=-1)
  return tf.stop_gradient(tf.maximum(divergence, 0.))
