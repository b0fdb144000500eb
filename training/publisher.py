"""Publishes the parameters that actors act with."""

import collections
from collections.abc import Callable

import tensorflow as tf

from scalable_agents.actor import inference
from scalable_agents.actor import parameters as parameters_lib
from scalable_agents.learner import learner_step


class Publisher:
  """Publishes the learner's parameters as snapshots.

  Attributes:
    parameters: the snapshot for this process, on the device where it acts. If the learner is there too, publishing
      and reading copy nothing.
    version: the version of the learner's parameters, Learner.version. It is counted here too, because reading the
      learner's own count would wait for its update.
  """

  def __init__(self, learner: learner_step.Learner, policy_lag: int, device: str, shared_name: str = '',
               precision: str = 'float32', is_due: Callable[[], bool] = lambda: True):
    """Makes the snapshots. Nothing is published yet.

    Args:
      learner: has the agent, whose acting variables are published.
      policy_lag: actors get the parameters of this many updates ago. Until a process has made that many updates, they
        get the oldest parameters of this process.
      device: where this process acts.
      shared_name: the name of a further snapshot, for other processes; see ParameterSnapshot. '': there is none.
      precision: the data type of weights in that snapshot; see parameters.sent_specs.
      is_due: called after each update. This process's actors get new parameters if it returns True.
    """
    self._learner = learner
    self._variables = list(learner.agent.acting_variables)
    specs = inference.specs(self._variables)
    self.parameters = parameters_lib.ParameterSnapshot(specs, device)
    sent = parameters_lib.sent_specs(specs, precision)
    self._shared = parameters_lib.ParameterSnapshot(sent, shared_name=shared_name) if shared_name else None
    self._sent_types = tuple(spec.dtype for spec in sent)
    self._is_due = is_due
    self._recent = collections.deque(maxlen=policy_lag + 1)
    self.version = 0

  def begin(self):
    """Publishes the first parameters. Call it after the checkpoint, if there is one, has been restored."""
    self.version = int(self._learner.version())
    self._publish(is_due=True)

  def publish(self):
    """Publishes the parameters. Call it after each update."""
    self.version += 1
    self._publish(self._is_due())

  def _publish(self, is_due):
    with tf.device(self._variables[0].device):  # Otherwise the function would return what it reads on the host.
      parameters = self._read()
      self._recent.append((self.version, parameters))
      version, oldest = self._recent[0]
      sent = parameters_lib.cast(oldest, self._sent_types) if self._shared else []  # Once for all actor hosts.
    if is_due:
      self.parameters.publish(version, oldest)
    if self._shared:
      self._shared.publish(version, sent)

  @tf.function(autograph=False)
  def _read(self):
    # This copies nothing: if a variable has been read, an update writes its new value to other memory.
    return [tf.identity(variable) for variable in self._variables]
