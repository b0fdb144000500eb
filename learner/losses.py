"""The three terms of the actor-critic loss, and what rewards go through before they are learned from.

Espeholt et al. 2018 (IMPALA), sections 4.2 and D.1: losses are *sums* over time and batch. Figure D.1 and table G.1
for the rewards.
"""

import tensorflow as tf


def policy_gradient_loss(action_log_probs, advantages):
  """-sum log pi(a|x) advantage; [T, B] each, no gradient through the advantages -> []."""
  return -tf.reduce_sum(action_log_probs * tf.stop_gradient(advantages))


def baseline_loss(targets, values):
  """0.5 sum (vs - V(x))^2; [T, B] each, no gradient through the targets -> []."""
  return 0.5 * tf.reduce_sum(tf.square(tf.stop_gradient(targets) - values))


def entropy_loss(logits):
  """The policies' entropy, summed and negated: sum pi log pi; [T, B, A] -> []."""
  return tf.reduce_sum(tf.nn.softmax(logits) * tf.nn.log_softmax(logits))


def _abs_one(rewards):
  return tf.clip_by_value(rewards, -1.0, 1.0)


def _soft_asymmetric(rewards):
  # The released code's form, which has a tuned recipe; figure D.1 prints the other one.
  squeezed = 5.0 * tf.tanh(rewards / 5.0)
  return tf.where(rewards < 0.0, 0.3 * squeezed, squeezed)


def _optimistic_asymmetric(rewards):
  squeezed = tf.tanh(rewards)
  return 0.3 * tf.minimum(squeezed, 0.0) + 5.0 * tf.maximum(squeezed, 0.0)


REWARD_TRANSFORMS = {
    'abs_one': _abs_one,
    'soft_asymmetric': _soft_asymmetric,
    'optimistic_asymmetric': _optimistic_asymmetric,
    'none': tf.identity,
}


def transform_rewards(rewards, name):
  """Rewards as the agent learns from them.

    abs_one                r clipped to [-1, 1]  (table G.1).
    soft_asymmetric        5 tanh(r / 5), times 0.3 where r < 0  (the released code).
    optimistic_asymmetric  0.3 min(tanh r, 0) + 5 max(tanh r, 0)  (figure D.1).
    none                   r.

  Args:
    rewards: float32 of any shape.
    name: one of REWARD_TRANSFORMS.
  Returns:
    float32 of the same shape; NaN where a reward is infinite, which clipping would hide.
  Raises:
    ValueError: unknown name.
  """
  if name not in REWARD_TRANSFORMS:
    raise ValueError(f'reward_transform: want one of {", ".join(REWARD_TRANSFORMS)}, got {name!r}')
  return tf.where(tf.math.is_finite(rewards), REWARD_TRANSFORMS[name](rewards), float('nan'))
