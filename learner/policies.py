"""Policies over a number of actions: TensorFlow Probability's categorical distributions.

They have the log-probability of actions, the entropy and the divergence from another policy.
"""

from typing import TYPE_CHECKING

import tensorflow as tf

if TYPE_CHECKING:
  from tensorflow_probability.python.distributions.categorical import Categorical


def categorical(logits: tf.Tensor) -> 'Categorical':
  """Returns the policies softmax(logits): [..., A] float32, un-normalised log-probabilities."""
  import tensorflow_probability as tfp  # The import takes a second, and `--help` needs no policy.
  return tfp.distributions.Categorical(logits)
