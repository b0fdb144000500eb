"""The parameters that inference reads: a snapshot, swapped as a whole.

A learner that updates its variables one by one while inference reads them one by one hands out mixtures of two
versions. Here the learner publishes a vector of tensors in one step and readers take one vector in one step.
"""

import tensorflow as tf

from scalable_agents.ops import ops


class ParameterSnapshot:
  """The latest published parameters and their version. Thread-safe; lives in host memory."""

  def __init__(self, specs, shared_name: str = ''):
    """Publishes nothing yet.

    Args:
      specs: a tf.TensorSpec for each parameter, in the order of publication.
      shared_name: under which other processes find it, where this one has opened a port; '' to keep it to itself.
    """
    self._specs = list(specs)
    with tf.device('/CPU:0'):
      self._handle = ops.parameter_snapshot(shared_name=shared_name or ops.unique_name('parameters'))
    ops.delete_with(self, self._handle)

  def publish(self, version, parameters):
    """Replaces what latest() gives. `version`: learner updates so far, int64."""
    with tf.device('/CPU:0'):
      ops.parameter_snapshot_publish(self._handle, tf.cast(version, tf.int64), list(parameters))

  def latest(self):
    """The version, int64 [], and the list of parameters last published, which belong together.

    Raises:
      tf.errors.FailedPreconditionError: nothing has been published yet.
    """
    with tf.device('/CPU:0'):
      version, parameters = ops.parameter_snapshot_latest(self._handle, types=[spec.dtype for spec in self._specs])
    for parameter, spec in zip(parameters, self._specs):
      parameter.set_shape(spec.shape)
    version.set_shape([])
    return version, parameters
