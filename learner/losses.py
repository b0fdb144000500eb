"""The three terms of the actor-critic loss, and the transformations of rewards.

Espeholt et al. 2018 (IMPALA), section 4.2 for the losses, which are *sums* over time and batch (caption of table D.1).
Figure D.1 and table G.1 for the rewards.
"""

import tensorflow as tf


def policy_gradient_loss(action_log_probs: tf.Tensor, advantages: tf.Tensor,
                         weights: tf.Tensor | float = 1.) -> tf.Tensor:
  """Policy gradient loss: -sum log pi(a|x) advantage.

  Args:
    action_log_probs: [T, B] float32, log pi(a|x) of the actions taken.
    advantages: [T, B] float32. No gradient flows through them.
    weights: of the steps, [T, B] float32 or a number.
  Returns:
    [] float32.
  """
  return -tf.reduce_sum(weights * action_log_probs * tf.stop_gradient(advantages))


def baseline_loss(targets: tf.Tensor, values: tf.Tensor, weights: tf.Tensor | float = 1.) -> tf.Tensor:
  """Baseline loss: 0.5 sum (vs - V(x))^2.

  Args:
    targets: [T, B] float32, vs. No gradient flows through them.
    values: [T, B] float32, V(x).
    weights: of the steps, [T, B] float32 or a number.
  Returns:
    [] float32.
  """
  return 0.5 * tf.reduce_sum(weights * tf.square(tf.stop_gradient(targets) - values))


def entropy_loss(policy_logits: tf.Tensor, weights: tf.Tensor | float = 1.) -> tf.Tensor:
  """Entropy loss, the negative sum of the policies' entropies: sum pi log pi.

  Args:
    policy_logits: [T, B, A] float32, un-normalised log-probabilities.
    weights: of the steps, [T, B] float32 or a number.
  Returns:
    [] float32.
  """
  entropies = -tf.reduce_sum(tf.nn.softmax(policy_logits) * tf.nn.log_softmax(policy_logits), axis=-1)
  return -tf.reduce_sum(weights * entropies)


def _abs_one(rewards: tf.Tensor) -> tf.Tensor:
  return tf.clip_by_value(rewards, -1.0, 1.0)


def _soft_asymmetric(rewards: tf.Tensor) -> tf.Tensor:
  # The form of the released code, which has a tuned recipe for it. Figure D.1 has `_optimistic_asymmetric`.
  squeezed = 5.0 * tf.tanh(rewards / 5.0)
  return tf.where(rewards < 0.0, 0.3 * squeezed, squeezed)


def _optimistic_asymmetric(rewards: tf.Tensor) -> tf.Tensor:
  squeezed = tf.tanh(rewards)
  return 0.3 * tf.minimum(squeezed, 0.0) + 5.0 * tf.maximum(squeezed, 0.0)


REWARD_TRANSFORMS = {
    'abs_one': _abs_one,
    'soft_asymmetric': _soft_asymmetric,
    'optimistic_asymmetric': _optimistic_asymmetric,
    'none': tf.identity,
}


def transform_rewards(rewards: tf.Tensor, name: str) -> tf.Tensor:
  """Transforms raw rewards to the rewards that the agent learns from.

    abs_one                r clipped to [-1, 1]  (table G.1).
    soft_asymmetric        5 tanh(r / 5), times 0.3 where r < 0  (the released code).
    optimistic_asymmetric  0.3 min(tanh r, 0) + 5 max(tanh r, 0)  (figure D.1).
    none                   r.

  Args:
    rewards: float32 of any shape.
    name: one of REWARD_TRANSFORMS.
  Returns:
    float32 of the same shape. It is NaN where a reward is not finite, because clipping would hide an infinite reward.
  Raises:
    ValueError: the name is unknown.
  """
  if name not in REWARD_TRANSFORMS:
    raise ValueError(f'reward_transform: want one of {", ".join(REWARD_TRANSFORMS)}, got {name!r}')
  return tf.where(tf.math.is_finite(rewards), REWARD_TRANSFORMS[name](rewards), float('nan'))
