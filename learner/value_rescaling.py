"""Value rescaling: an invertible function that makes returns of any size small enough to learn, without clipping.

Kapturowski et al. 2019 (R2D2), section 2.3, after Pohlen et al. 2018. The network's values are h(return).
"""

import tensorflow as tf

_EPSILON = 1e-3  # Table 2.


def rescale(x: tf.Tensor) -> tf.Tensor:
  """h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x, with epsilon = 1e-3. Section 2.3 and table 2.

  Args:
    x: float tensor of any shape, in the units of the rewards.
  """
  magnitude = tf.abs(x)
  # sqrt(a + 1) - 1 = a / (sqrt(a + 1) + 1): the difference of two almost equal numbers would lose digits.
  return tf.sign(x) * (magnitude / (tf.sqrt(magnitude + 1.) + 1.)) + _EPSILON * x


def unrescale(x: tf.Tensor) -> tf.Tensor:
  """The inverse of `rescale`: sign(x) (((sqrt(1 + 4 epsilon (|x| + 1 + epsilon)) - 1) / (2 epsilon))^2 - 1).

  Section 2.3 names it h^-1; this is proposition A.2 of Pohlen et al. 2018.

  Args:
    x: float tensor of any shape, in the scale of the network's values.
  """
  magnitude = tf.abs(x)
  # With the root s, s = 1 + 2 epsilon at 0. So the quotient is 1 + w with w = 2 |x| / (s + 1 + 2 epsilon), and its
  # square less 1 is w (2 + w). No difference of almost equal numbers is left.
  root = tf.sqrt(1. + 4. * _EPSILON * (magnitude + 1. + _EPSILON))
  w = 2. * magnitude / (root + 1. + 2. * _EPSILON)
  return tf.sign(x) * w * (2. + w)
