"""The papers' optimisers, their learning-rate schedule and gradient clipping.

Espeholt et al. 2018 (IMPALA), appendices D and G. The learning rate is an argument of `apply`, so the optimisers have
no state for schedules. The slots are `tf.Variable`s, so a `tf.train.Checkpoint` of an optimiser saves them.
"""

import tensorflow as tf


class RMSProp(tf.Module):
  """RMSProp in TensorFlow 1's form, for which the papers' learning rates were chosen.

  ms <- decay ms + (1 - decay) g^2;  mom <- momentum mom + lr g / sqrt(ms + epsilon);  w <- w - mom.

  Epsilon is *inside* the root, ms starts at ones and mom at zeros. With an epsilon as large as 0.1, the steps of
  Keras's and Sonnet's forms are very different.
  """

  def __init__(self, variables, decay: float, momentum: float, epsilon: float | tf.Variable):
    """Creates the slots.

    Args:
      variables: iterable of tf.Variable to optimise.
      decay: decay of the mean squares.
      momentum: scalar, 0 for none.
      epsilon: added to the mean squares. A variable is read at each step.
    """
    super().__init__('rmsprop')
    self._variables = list(variables)
    self._decay = decay
    self._momentum = momentum
    self._epsilon = epsilon
    self.mean_squares = _slots(tf.ones_like, self._variables, 'mean_square')
    self.momenta = _slots(tf.zeros_like, self._variables, 'momentum')

  def apply(self, gradients, learning_rate: tf.Tensor) -> None:
    """Applies one update to the variables.

    Args:
      gradients: one tensor per variable, in the same order.
      learning_rate: [] float32.
    """
    for variable, ms, mom, gradient in zip(
        self._variables, self.mean_squares, self.momenta, gradients, strict=True):
      tf.raw_ops.ResourceApplyRMSProp(
          var=variable.handle, ms=ms.handle, mom=mom.handle, lr=learning_rate, rho=self._decay,
          momentum=self._momentum, epsilon=self._epsilon, grad=gradient)


class Adam(tf.Module):
  """Adam (Kingma & Ba 2015) in TensorFlow 1's form, which is the efficient form of the paper's section 2.

  m <- beta1 m + (1 - beta1) g;  v <- beta2 v + (1 - beta2) g^2;
  w <- w - lr sqrt(1 - beta2^t) / (1 - beta1^t) m / (sqrt(v) + epsilon).
  """

  def __init__(self, variables, beta1: float, beta2: float, epsilon):
    """Creates the slots.

    Args:
      variables: iterable of tf.Variable to optimise.
      beta1, beta2: decays of the first and of the second moments.
      epsilon: added to the root of the second moments; a float or a variable.
    """
    super().__init__('adam')
    self._variables = list(variables)
    self._beta1 = beta1
    self._beta2 = beta2
    self._epsilon = epsilon
    self.first_moments = _slots(tf.zeros_like, self._variables, 'first_moment')
    self.second_moments = _slots(tf.zeros_like, self._variables, 'second_moment')
    self.beta1_power = tf.Variable(beta1, trainable=False, dtype=tf.float32, name='beta1_power')
    self.beta2_power = tf.Variable(beta2, trainable=False, dtype=tf.float32, name='beta2_power')

  def apply(self, gradients, learning_rate: tf.Tensor) -> None:
    """Applies one update to the variables. The arguments are those of `RMSProp.apply`."""
    for variable, m, v, gradient in zip(
        self._variables, self.first_moments, self.second_moments, gradients, strict=True):
      tf.raw_ops.ResourceApplyAdam(
          var=variable.handle, m=m.handle, v=v.handle, beta1_power=self.beta1_power, beta2_power=self.beta2_power,
          lr=learning_rate, beta1=self._beta1, beta2=self._beta2, epsilon=self._epsilon, grad=gradient)
    for power, beta in ((self.beta1_power, self._beta1), (self.beta2_power, self._beta2)):
      # A raw op, because tf.distribute does not allow `assign` here when there are several learners.
      tf.raw_ops.AssignVariableOp(resource=power.handle, value=power * beta)


def _slots(initial_value, variables, name):
  return [tf.Variable(initial_value(v), trainable=False, name=f'{v.name.partition(":")[0]}/{name}') for v in variables]


def linear_decay(initial, environment_frames, total_environment_frames):
  """Linear decay: initial (1 - frames / total), and 0 for more frames than the total.

  Args:
    initial: scalar.
    environment_frames: [] int64, environment frames that arrived before this update's batch.
    total_environment_frames: scalar, environment frames.
  Returns:
    [] float32.
  """
  # float64, because from 16 million frames on, float32 cannot represent the frames of one update.
  fraction = tf.cast(environment_frames, tf.float64) / tf.cast(total_environment_frames, tf.float64)
  return tf.cast(tf.cast(initial, tf.float64) * tf.maximum(1.0 - fraction, 0.0), tf.float32)


def clip_by_global_norm(gradients, norm, clip_norm):
  """Scales gradients so that their global norm is at most `clip_norm`.

  Args:
    gradients: list of float32 tensors.
    norm: [] float32, their global norm.
    clip_norm: scalar > 0. Infinity disables clipping.
  Returns:
    list of float32 tensors.
  """
  scale = tf.where(norm > clip_norm, clip_norm / norm, 1.0)
  return [scale * gradient for gradient in gradients]
