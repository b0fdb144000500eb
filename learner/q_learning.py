"""Q-learning on sequences: n-step targets, the target network, and a prioritised replay's priorities and weights.

Kapturowski et al. 2019 (R2D2), section 2.3; Schaul et al. 2016, "Prioritized experience replay".
"""

from typing import Any

import tensorflow as tf


def n_step_targets(rewards: tf.Tensor, discounts: tf.Tensor, bootstrap_values: tf.Tensor, n: int,
                   real: tf.Tensor | None = None) -> tf.Tensor:
  """The n-step returns: G_t = sum_{k<m} D_k r_{t+k} + D_m v_{t+m} with m = min(n, T - t).

  D_k is the product of the first k discounts from step t on. The last n-1 steps of a sequence have a smaller m: they
  bootstrap from the sequence's last row. The paper (section 2.3) does not say how it treats them. The steps before the
  end of a truncated episode likewise bootstrap from its last row; see actor/unroll.py.

  Args:
    rewards: [T, B] float32, what steps 0 to T-1 earned.
    discounts: [T, B] float32, with gamma; 0 where the step ended an episode.
    bootstrap_values: [T, B] float32, the values v_1 to v_T of the rows that the steps led to.
    n: largest number of steps before bootstrapping, >= 1.
    real: [T, B] bool, False for the reset after a truncated episode. None: all steps are real.
  Returns:
    [T, B] float32, without gradient. The target of a step that is not real has no meaning.
  Raises:
    ValueError: n < 1, or the shapes differ.
  """
  if n < 1:
    raise ValueError(f'n: want at least 1, got {n}')
  if not rewards.shape == discounts.shape == bootstrap_values.shape:
    raise ValueError('rewards, discounts and bootstrap_values: want the same shape, got '
                     f'{rewards.shape}, {discounts.shape} and {bootstrap_values.shape}')
  num_steps = rewards.shape[0]
  n = min(n, num_steps)
  if real is not None:
    # A step that is not real earns the value of the state before it, and ends the sum.
    values_before = tf.concat([bootstrap_values[:1], bootstrap_values[:-1]], axis=0)
    rewards, discounts = tf.where(real, rewards, values_before), tf.where(real, discounts, 0.)
  # After the last step, n - 1 more are added that earn nothing and stay in the last state.
  rewards = tf.concat([rewards, *[tf.zeros_like(rewards[:1])] * (n - 1)], axis=0)
  discounts = tf.concat([discounts, *[tf.ones_like(discounts[:1])] * (n - 1)], axis=0)
  targets = tf.concat([bootstrap_values[n - 1:], *[bootstrap_values[-1:]] * (n - 1)], axis=0)
  for k in reversed(range(n)):
    targets = rewards[k:k + num_steps] + discounts[k:k + num_steps] * targets
  return tf.stop_gradient(targets)


def update_target(agent: Any, config: Any, unused_gathered: Any,
                  updates: tf.Tensor) -> list[tuple[tf.Variable, tf.Tensor]]:
  """Copies the online network to the target network after every `target_update_interval` updates.

  It is the Definition.after_update of an agent with a target network.

  Args:
    agent: has the networks `online` and `target`, modules with the same variables.
    config: has the setting `target_update_interval`.
    unused_gathered: Loss.gathered.
    updates: [] int64, the number of updates.
  Returns:
    Pairs of a variable of the target network and its new value.
  """
  is_time = updates % config.target_update_interval == 0
  return [(target, tf.where(is_time, online, target))
          for target, online in zip(agent.target.variables, agent.online.variables, strict=True)]


def sequence_priorities(td_errors: tf.Tensor, mask: tf.Tensor, eta: float) -> tf.Tensor:
  """The priorities of sequences: p = eta max_i |delta_i| + (1 - eta) mean_i |delta_i|. Section 2.3.

  Args:
    td_errors: [T, B] float32.
    mask: [T, B] bool, the steps i that exist. A sequence without any has the priority 0.
    eta: weight of the maximum, 0 to 1.
  Returns:
    [B] float32, without gradient.
  """
  mask = tf.cast(mask, tf.float32)
  sizes = tf.abs(tf.stop_gradient(td_errors)) * mask
  means = tf.math.divide_no_nan(tf.reduce_sum(sizes, axis=0), tf.reduce_sum(mask, axis=0))
  return eta * tf.reduce_max(sizes, axis=0) + (1. - eta) * means


def importance_weights(probabilities: tf.Tensor, exponent: float) -> tf.Tensor:
  """Weights that correct for sampling by priority: (1 / (N P(i)))^beta, divided by the largest one of the batch.

  Schaul et al. 2016, section 3.4. The size N of the replay cancels.

  Args:
    probabilities: [B] float32, P(i) > 0.
    exponent: beta. 0: no correction; 1: the expected gradient is that of uniform sampling, up to a factor.
  Returns:
    [B] float32, at most 1. The batch is that of one learner: several learners divide by different weights.
  """
  return tf.pow(tf.reduce_min(probabilities) / probabilities, exponent)
