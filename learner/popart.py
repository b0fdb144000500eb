"""PopArt: value targets are normalised adaptively, with statistics per level, and the values are preserved.

Hessel et al. 2019 (PopArt-IMPALA). The value head has an output n_i for each level i, and the value is

  v_i(x) = sigma_i n_i(x) + mu_i,   n_i(x) = w_i f(x) + b_i   (equation 10).

mu_i and sigma_i are the mean and the standard deviation of the value targets of level i. They follow the targets
(equation 6), so all levels have normalised targets of the same size. When they change, w_i and b_i are changed so that
v_i stays what it was (equation 13).

The statistics are float64. The variance is a difference of two moments, and with float32 it would have no correct digit
where the mean is a few thousand times as large as the standard deviation.
"""

from typing import NamedTuple

import tensorflow as tf

# How a rollout enters the second moment. 'literal', as the paper's text says, takes the square of the mean target.
SECOND_MOMENTS = ('literal', 'mean_of_squares')

# Hessel et al. 2019, "Implementation notes".
_MIN_SCALE = 1e-4
MAX_SCALE = 1e6


class Moments(NamedTuple):
  """The first two moments of value targets: the statistics of N levels, or the contributions of B rollouts."""
  first: tf.Tensor   # [N] or [B] float64; mu of a level.
  second: tf.Tensor  # [N] or [B] float64; nu of a level.


def initial_moments(num_levels: int) -> Moments:
  """Returns the statistics before the first target: mu = 0, nu = 1 and so sigma = 1. The paper does not state them."""
  return Moments(tf.zeros([num_levels], tf.float64), tf.ones([num_levels], tf.float64))


def scale(statistics: Moments) -> tf.Tensor:
  """Returns sigma = sqrt(nu - mu^2), clipped to [1e-4, 1e6]: [N] float64.

  The text below equation 6 has the formula, and "Implementation notes" has the limits.
  """
  # Not nu - mu^2: compilers may fuse it into one operation with another rounding. Where mu is much larger than sigma,
  # sigma would then depend on where it is computed, and the values would not be preserved.
  root, mean = tf.sqrt(statistics.second), tf.abs(statistics.first)
  variance = (root - mean) * (root + mean)
  return tf.clip_by_value(tf.sqrt(tf.maximum(variance, 0.)), _MIN_SCALE, MAX_SCALE)


def select(values: tf.Tensor, level_ids: tf.Tensor) -> tf.Tensor:
  """Selects the value of each row's own level.

  Args:
    values: [T, B, N], a value for each level; or [N], if the values are the same for all rows.
    level_ids: [B] or [T, B] int32, index of the level that each rollout, or each of its rows, comes from.
  Returns:
    [T, B]; with values [N], the shape of `level_ids`.
  """
  # Not tf.gather: its gradient is a scatter, which XLA does not fuse with other operations.
  return tf.reduce_sum(values * tf.one_hot(level_ids, values.shape[-1], dtype=values.dtype), axis=-1)


def level_means(values: tf.Tensor, counts: tf.Tensor, level_ids: tf.Tensor, num_levels: int) -> tf.Tensor:
  """Returns the mean of each level's values.

  Args:
    values: [...] float32.
    counts: bool of the same shape, the values that count.
    level_ids: int32 of the same shape.
    num_levels: N.
  Returns:
    [N] float32. NaN for levels without values.
  """
  weights = tf.cast(counts, tf.float32)
  sums, numbers = (tf.math.unsorted_segment_sum(each, level_ids, num_levels) for each in (weights * values, weights))
  return sums / numbers


def split_levels(targets: tf.Tensor, counts: tf.Tensor, level_ids: tf.Tensor,
                 num_levels: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
  """Makes a rollout for each level of each rollout, whose steps may come from several levels.

  A replayer may go on with an episode of another level. The statistics then get a rollout of each of both levels.

  Args:
    targets: [T, B] float32, value targets.
    counts: [T, B] bool, the steps that count.
    level_ids: [T, B] int32, the level of each step.
    num_levels: N.
  Returns:
    For B N rollouts, in the order of the batch: the targets and the steps that count, [T, B N], and the levels [B N].
    In each rollout, only the steps of its own level count. Most rollouts have no such step, and so no moments.
  """
  batch = targets.shape[1]
  of_level = level_ids[..., tf.newaxis] == tf.range(num_levels)  # [T, B, N].

  def flat(values):
    return tf.reshape(values, [-1, batch * num_levels])

  return (flat(tf.repeat(targets[..., tf.newaxis], num_levels, axis=-1)), flat(counts[..., tf.newaxis] & of_level),
          tf.tile(tf.range(num_levels), [batch]))


def rollout_moments(targets: tf.Tensor, second_moment: str, counts: tf.Tensor | None = None) -> Moments:
  """Averages the value targets within each rollout. "Implementation notes".

  Args:
    targets: [T, B] float32, un-normalised value targets.
    second_moment: 'literal' gives the square of the mean, as the paper's text says. 'mean_of_squares' gives the mean of
      the squares, so that sigma also has the variance within rollouts.
    counts: [T, B] bool, the steps that count. None: all steps.
  Returns:
    Moments of [B] float64. NaN for rollouts in which no step counts.
  Raises:
    ValueError: `second_moment` is not one of SECOND_MOMENTS.
  """
  if second_moment not in SECOND_MOMENTS:
    raise ValueError(f'popart_second_moment: want one of {", ".join(SECOND_MOMENTS)}, got {second_moment!r}')
  targets = tf.cast(targets, tf.float64)
  counts = tf.ones_like(targets) if counts is None else tf.cast(counts, tf.float64)
  number = tf.reduce_sum(counts, axis=0)
  mean = tf.reduce_sum(counts * targets, axis=0) / number
  if second_moment == 'literal':
    return Moments(mean, tf.square(mean))
  return Moments(mean, tf.reduce_sum(counts * tf.square(targets), axis=0) / number)


def update(statistics: Moments, rollouts: Moments, level_ids: tf.Tensor, decay: float) -> Moments:
  """Updates the statistics with one step for each rollout, in the order of the batch. Equation 6.

  A step with the target G of a rollout of level i is mu_i <- (1 - beta) mu_i + beta G, and the same for nu_i with G^2.
  After K steps of a level, the k-th of its targets has the weight beta (1 - beta)^(K - k), and the old value has
  (1 - beta)^K. This function computes these sums, without a loop over the batch.

  Args:
    statistics: Moments of [N], of all levels.
    rollouts: Moments of [B], from `rollout_moments`. A rollout with a moment that is not finite is left out.
    level_ids: [B] int32.
    decay: beta.
  Returns:
    Moments of [N].
  """
  finite = tf.math.is_finite(rollouts.first) & tf.math.is_finite(rollouts.second)
  num_levels = statistics.first.shape[0]
  steps = tf.one_hot(level_ids, num_levels, dtype=tf.float64) * tf.cast(finite, tf.float64)[:, tf.newaxis]  # [B, N].
  later_steps = tf.cumsum(steps, axis=0, exclusive=True, reverse=True)  # [B, N].
  keep = tf.constant(1. - decay, tf.float64)
  weights = decay * steps * keep ** later_steps
  kept = keep ** tf.reduce_sum(steps, axis=0)

  def weighted_sum(moments):
    return tf.reduce_sum(weights * tf.where(finite, moments, tf.zeros_like(moments))[:, tf.newaxis], axis=0)

  return Moments(kept * statistics.first + weighted_sum(rollouts.first),
                 kept * statistics.second + weighted_sum(rollouts.second))


def rescale(weights: tf.Tensor, biases: tf.Tensor, old: Moments, new: Moments) -> tuple[tf.Tensor, tf.Tensor]:
  """Rescales the value head so that the values stay the same with new statistics. Equation 13.

  w' = w sigma / sigma',   b' = (sigma b + mu - mu') / sigma'.

  In float32 the values are the same up to rounding, relative to the largest of |v|, |mu| and |mu'|.

  Args:
    weights: [D, N] float32.
    biases: [N] float32.
    old: Moments of [N], the statistics that `weights` and `biases` belong to.
    new: Moments of [N].
  Returns:
    The new weights [D, N] and biases [N], float32.
  """
  old_scale, new_scale = scale(old), scale(new)
  new_weights = tf.cast(weights, tf.float64) * (old_scale / new_scale)
  new_biases = (old_scale * tf.cast(biases, tf.float64) + old.first - new.first) / new_scale
  return tf.cast(new_weights, weights.dtype), tf.cast(new_biases, biases.dtype)
