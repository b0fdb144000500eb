"""The parameters that inference reads: a snapshot that is replaced as a whole.

If inference read the learner's variables one by one during an update, it could get a mixture of two versions. Here the
learner publishes a vector of tensors in one step, and a reader gets a vector in one step.
"""

from collections.abc import Sequence

import tensorflow as tf

from scalable_agents.ops import ops


def sent_specs(specs: Sequence[tf.TensorSpec], precision: str) -> list[tf.TensorSpec]:
  """Returns the specs in which parameters travel to another process.

  Weights are the float32 parameters with two dimensions or more. They are nearly all of the bytes. The others, such as
  biases, stay as they are.

  Args:
    specs: a tf.TensorSpec for each parameter.
    precision: the data type of weights, float32 or bfloat16.
  """
  return [tf.TensorSpec(spec.shape, precision if spec.dtype == tf.float32 and spec.shape.rank > 1 else spec.dtype)
          for spec in specs]


@tf.function(autograph=False)
def cast(parameters: list[tf.Tensor], types: tuple[tf.DType, ...]) -> list[tf.Tensor]:
  """Casts each parameter to its type."""
  return [tf.cast(parameter, type) for parameter, type in zip(parameters, types, strict=True)]


class ParameterSnapshot:
  """The latest published parameters, in the order of Agent.acting_variables, and their version. Thread-safe."""

  def __init__(self, specs, device: str = '/CPU:0', shared_name: str = ''):
    """Publishes nothing yet.

    Args:
      specs: a tf.TensorSpec for each parameter, in the order of publication.
      device: where the parameters are kept. If the actors are there too, reading copies nothing.
      shared_name: the name under which other processes find the snapshot, if this process has opened a port. '': the
        snapshot is not shared.
    """
    self._specs = list(specs)
    self._device = device
    with tf.device(device):
      self._handle = ops.parameter_snapshot(shared_name=shared_name or ops.unique_name('parameters'))
    ops.delete_with(self, self._handle)

  def publish(self, version, parameters):
    """Replaces the published parameters.

    Args:
      version: [] int64, number of learner updates so far, skipped ones included.
      parameters: one tensor per spec.
    """
    with tf.device('/CPU:0'):  # On a GPU too, the op takes the version from the host.
      version = tf.cast(version, tf.int64)
    with tf.device(self._device):
      ops.parameter_snapshot_publish(self._handle, version, list(parameters))

  def latest(self) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Returns the version, int64 [], and the list of parameters that were published last. They belong together.

    Raises:
      tf.errors.FailedPreconditionError: nothing has been published yet.
    """
    return self._give(ops.parameter_snapshot_latest)

  def hold(self, holders) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Returns the version and the parameters that the holders hold.

    A holder, such as a worker of A3C, keeps one version of the parameters while the learner publishes newer ones. A
    holder that holds nothing takes the latest version.

    Args:
      holders: [n] int32, n >= 1, numbers of holders.
    Raises:
      tf.errors.FailedPreconditionError: nothing has been published yet.
      tf.errors.InvalidArgumentError: the holders hold different versions.
    """
    return self._give(ops.parameter_snapshot_hold, holders)

  def let_go(self, holders) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """As `hold`, but the holders hold nothing afterwards."""
    return self._give(ops.parameter_snapshot_let_go, holders)

  def _give(self, op, *arguments):
    with tf.device(self._device):
      version, parameters = op(self._handle, *arguments, types=[spec.dtype for spec in self._specs])
    for parameter, spec in zip(parameters, self._specs, strict=True):
      parameter.set_shape(spec.shape)
    version.set_shape([])
    return version, parameters
