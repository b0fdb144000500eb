"""The papers' optimisers, their learning-rate schedule and gradient clipping.

Espeholt et al. 2018 (IMPALA), appendices D and G. The learning rate is an argument of each `apply`, so that
schedules need no state here; the slots are `tf.Variable`s that a `tf.train.Checkpoint`
of the optimiser saves.
"""

import tensorflow as tf


class RMSProp(tf.Module):
  """RMSProp as TensorFlow 1 has it, which the papers' step sizes presuppose.

  ms <- decay ms + (1 - decay) g^2;  mom <- momentum mom + lr g / sqrt(ms + epsilon);  w <- w - mom.
  Epsilon is *inside* the root, ms starts at ones and mom at zeros: with an epsilon as large as 0.1, Keras's and
  Sonnet's forms take quite different steps.
  """

  def __init__(self, variables, decay: float, momentum: float, epsilon: float | tf.Variable, name: str = 'rmsprop'):
    """Creates the slots. An `epsilon` that is a variable is read at each step."""
    super().__init__(name)
    self._variables = list(variables)
    self._decay, self._momentum, self._epsilon = decay, momentum, epsilon
    self.mean_squares = _slots(tf.ones_like, self._variables, 'mean_square')
    self.momenta = _slots(tf.zeros_like, self._variables, 'momentum')

  def apply(self, gradients, learning_rate: tf.Tensor) -> None:
    """Moves the variables one step.

    Args:
      gradients: one tensor per variable, same order.
      learning_rate: [] float32.
    """
    for variable, ms, mom, gradient in zip(
        self._variables, self.mean_squares, self.momenta, gradients, strict=True):
      tf.raw_ops.ResourceApplyRMSProp(
          var=variable.handle, ms=ms.handle, mom=mom.handle, lr=learning_rate, rho=self._decay,
          momentum=self._momentum, epsilon=self._epsilon, grad=gradient)


class Adam(tf.Module):
  """Adam (Kingma & Ba 2015), in the form of its section 2 that TensorFlow 1 has.

  m <- beta1 m + (1 - beta1) g;  v <- beta2 v + (1 - beta2) g^2;
  w <- w - lr sqrt(1 - beta2^t) / (1 - beta1^t) m / (sqrt(v) + epsilon).
  """

  def __init__(self, variables, beta1: float, beta2: float, epsilon: float, name: str = 'adam'):
    super().__init__(name)
    self._variables = list(variables)
    self._beta1, self._beta2, self._epsilon = beta1, beta2, epsilon
    self.first_moments = _slots(tf.zeros_like, self._variables, 'first_moment')
    self.second_moments = _slots(tf.zeros_like, self._variables, 'second_moment')
    self.beta1_power = tf.Variable(beta1, trainable=False, dtype=tf.float32, name='beta1_power')
    self.beta2_power = tf.Variable(beta2, trainable=False, dtype=tf.float32, name='beta2_power')

  def apply(self, gradients, learning_rate: tf.Tensor) -> None:
    """Moves the variables one step; arguments as in `RMSProp.apply`."""
    for variable, m, v, gradient in zip(
        self._variables, self.first_moments, self.second_moments, gradients, strict=True):
      tf.raw_ops.ResourceApplyAdam(
          var=variable.handle, m=m.handle, v=v.handle, beta1_power=self.beta1_power, beta2_power=self.beta2_power,
          lr=learning_rate, beta1=self._beta1, beta2=self._beta2, epsilon=self._epsilon, grad=gradient)
    for power, beta in ((self.beta1_power, self._beta1), (self.beta2_power, self._beta2)):
      # Not `assign`, which for one of several learners is no business of its own.
      tf.raw_ops.AssignVariableOp(resource=power.handle, value=power * beta)


def _slots(initial_value, variables, name):
  return [tf.Variable(initial_value(v), trainable=False, name=f'{v.name.partition(":")[0]}/{name}') for v in variables]


def apply_if_finite(optimizer: RMSProp | Adam, gradients, learning_rate: tf.Tensor) -> tf.Tensor:
  """Moves the variables one step, unless a variable or slot would not be finite afterwards: then all stay as they are.

  Args:
    optimizer: RMSProp or Adam; it holds the variables and the slots.
    gradients, learning_rate: as for its `apply`.
  Returns:
    [N] bool, for each of `optimizer.variables`, which include those it moves, whether its new value is finite.
  """
  before = [v.read_value() for v in optimizer.variables]
  optimizer.apply(gradients, learning_rate)
  # The sum of a variable's elements is finite only if all of them are, and takes a single pass over memory. Elements so
  # large that only their sum is infinite count as not finite, too.
  finite = tf.math.is_finite(tf.stack([tf.reduce_sum(v.read_value()) for v in optimizer.variables]))

  def restore():
    for variable, value in zip(optimizer.variables, before):
      tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)  # As in Adam.apply.

  tf.cond(tf.reduce_all(finite), lambda: None, restore)
  return finite


def linear_decay(initial, environment_frames, total_environment_frames):
  """initial (1 - frames / total), and 0 from the total on.

  Args:
    initial: scalar.
    environment_frames: [] int64, environment frames learned from *before* this update.
    total_environment_frames: scalar, environment frames.
  Returns:
    [] float32.
  """
  # In float64: float32 cannot tell the frames of one update apart once there are more than 16 million.
  share = tf.cast(environment_frames, tf.float64) / tf.cast(total_environment_frames, tf.float64)
  return tf.cast(tf.cast(initial, tf.float64) * tf.maximum(1.0 - share, 0.0), tf.float32)


def clip_by_global_norm(gradients, norm, clip_norm):
  """Gradients scaled so that their global norm is at most `clip_norm`.

  Args:
    gradients: list of float32 tensors.
    norm: [] float32, their global norm.
    clip_norm: scalar, more than 0; with infinity nothing is clipped.
  Returns:
    list of float32 tensors.
  """
  scale = tf.where(norm > clip_norm, clip_norm / norm, 1.0)
  return [scale * gradient for gradient in gradients]
