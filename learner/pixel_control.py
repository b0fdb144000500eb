"""Pixel control: an auxiliary task in which the agent learns how its actions would change the pixels.

Hessel et al. 2019 (PopArt-IMPALA), figure 5, use it and refer to Jaderberg et al. 2016 (UNREAL), section 3.1. The
picture is divided into cells of 4x4 pixels. The pseudo-reward of a cell is the change of its pixels. For each cell,
action values Q(x, a) are learned with n-step Q-learning. They share the network's features with the policy, and are
never used to act.

The PopArt paper gives no details. This module follows UNREAL where UNREAL states a detail. UNREAL learns from a replay.
Here, the unrolls are those of the policy's loss (LASER's are also replayed ones), without an off-policy correction.
docs/fidelity.md lists all choices that are ours.
"""

import tensorflow as tf

CELL_SIZE = 4  # Pixels. UNREAL.
# Pixels. The numbers of rows and columns of cells are even, because the head's transposed convolution (4x4, stride 2)
# turns n rows into 2 (n + 1).
_MULTIPLE = 2 * CELL_SIZE


def num_cells(height: int, width: int) -> tuple[int, int]:
  """Returns the number of rows and columns of cells, which are even, for pictures of this size in pixels.

  Height and width are cropped to multiples of 8 pixels, half of the margin on each side. So 84x84 pixels are cropped to
  80x80, as in UNREAL.

  Raises:
    ValueError: the picture is smaller than 16x16 pixels.
  """
  if min(height, width) < 2 * _MULTIPLE:
    raise ValueError(f'--use_pixel_control: want images of at least {2 * _MULTIPLE}x{2 * _MULTIPLE} pixels, got '
                     f'{height}x{width}')
  return height // _MULTIPLE * 2, width // _MULTIPLE * 2


def pseudo_rewards(pixels: tf.Tensor) -> tf.Tensor:
  """Returns the mean absolute change of the pixels of each cell, between consecutive pictures.

  Args:
    pixels: uint8 [T+1, B, H, W, C].
  Returns:
    float32 [T, B, h, w], from 0 to 1, where h and w are from `num_cells`. Row t is about the change from picture t to
    picture t+1.
  """
  num_rows, batch, height, width, channels = pixels.shape
  rows, columns = num_cells(height, width)
  top, left = (height - rows * CELL_SIZE) // 2, (width - columns * CELL_SIZE) // 2
  cropped = pixels[:, :, top:top + rows * CELL_SIZE, left:left + columns * CELL_SIZE]
  # The difference is computed in uint8, because float32 would take four times the memory.
  change = tf.maximum(cropped[1:], cropped[:-1]) - tf.minimum(cropped[1:], cropped[:-1])
  change = tf.reshape(change, [num_rows - 1, batch, rows, CELL_SIZE, columns, CELL_SIZE, channels])
  return tf.reduce_mean(tf.cast(change, tf.float32), axis=[3, 5, 6]) / 255.


def q_targets(rewards: tf.Tensor, discounts: tf.Tensor, values: tf.Tensor,
              trusted: tf.Tensor | None = None) -> tf.Tensor:
  """Returns n-step targets over the whole unroll: G_t = r_t + discount_t G_{t+1}, and G_T is the value of row T.

  A step that is not trusted ends the sums: its own target is the value of its state, as in
  `vtrace.from_importance_weights`. Schmitt et al. 2020 (LASER), section 4.3.

  Args:
    rewards: [T, B, h, w] float32.
    discounts: [T, B] float32, the discount of Q included; 0 where an episode ended.
    values: [T+1, B, h, w] float32, max_a Q(x, a).
    trusted: [T, B] bool. None: all steps.
  Returns:
    [T, B, h, w] float32.
  """
  bootstrap_value = values[-1]
  if trusted is not None:
    rewards = tf.where(trusted[..., tf.newaxis, tf.newaxis], rewards, values[:-1])
    discounts = tf.where(trusted, discounts, 0.)
  return tf.scan(lambda following, row: row[0] + row[1][:, tf.newaxis, tf.newaxis] * following,
                 (rewards, discounts), initializer=bootstrap_value, reverse=True)


def loss(action_values: tf.Tensor, actions: tf.Tensor, pixels: tf.Tensor, done: tf.Tensor,
         discount: float, weights=1., trusted: tf.Tensor | None = None) -> tf.Tensor:
  """Pixel control's loss: 0.5 (G_t - Q(x_t, a_t))^2, summed over time, batch and cells.

  Args:
    action_values: [T+1, B, h, w, A] float32, Q.
    actions: [T, B] int32; action t was taken in state t.
    pixels: uint8 [T+1, B, H, W, C].
    done: [T, B] bool, whether an episode ended with action t. Picture t+1 is then the first one of the next episode, so
      the reward is 0 (ours: the agent did not cause the change), and the target does not depend on later rows.
    discount: per agent step.
    weights: of the steps, [T, B] float32 or a number.
    trusted: [T, B] bool, the steps that targets may use; see `q_targets`. None: all steps.
  Returns:
    [] float32. No gradient flows through the targets.
  """
  continues = tf.cast(~done, tf.float32)  # [T, B].
  rewards = pseudo_rewards(pixels) * continues[..., tf.newaxis, tf.newaxis]
  targets = q_targets(rewards, discount * continues, tf.reduce_max(action_values, axis=-1), trusted)
  chosen = tf.one_hot(actions, action_values.shape[-1])[:, :, tf.newaxis, tf.newaxis]
  values = tf.reduce_sum(action_values[:-1] * chosen, axis=-1)  # [T, B, h, w].
  return 0.5 * tf.reduce_sum(weights * tf.reduce_sum(tf.square(tf.stop_gradient(targets) - values), axis=[2, 3]))
