"""Publishes the parameters that actors act with."""

import collections

import tensorflow as tf

from scalable_agents.actor import inference
from scalable_agents.actor import parameters as parameters_lib
from scalable_agents.learner import learner_step


class Publisher:
  """Publishes the learner's parameters as a snapshot. Actors read it through the attribute `parameters`."""

  def __init__(self, learner: learner_step.Learner, policy_lag: int, shared_name: str = ''):
    """Makes the snapshot. Nothing is published yet.

    Args:
      learner: has the agent, whose acting variables are published.
      policy_lag: actors get the parameters of this many updates ago. Until a process has made that many updates, they
        get the oldest parameters of this process.
      shared_name: see ParameterSnapshot.
    """
    self._learner = learner
    self._variables = list(learner.agent.acting_variables)
    self.parameters = parameters_lib.ParameterSnapshot(inference.specs(self._variables), shared_name)
    self._snapshots = collections.deque(maxlen=policy_lag + 1)

  def publish(self):
    """Publishes the parameters. Must be called at the start and after every update."""
    self._snapshots.append((self._learner.update_steps.read_value(), self._read()))
    self.parameters.publish(*self._snapshots[0])

  @tf.function(autograph=False)
  def _read(self):
    # This copies nothing: if a variable has been read, an update writes its new value to other memory.
    return [tf.identity(variable) for variable in self._variables]
