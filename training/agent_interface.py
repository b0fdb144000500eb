"""The interface between an agent and the runtime: what an agent provides, and which of its settings the runtime reads.

An agent is a module, such as agents/impala.py, with the members of AgentModule. The agent's binaries pass the module to
program.run. The runtime (this package and actor/) imports no agent.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import tensorflow as tf

from scalable_agents.actor import actor_host
from scalable_agents.actor import agent as agent_lib
from scalable_agents.actor import parameters as parameters_lib
from scalable_agents.actor import unroll as unroll_lib
from scalable_agents.experience import experience as experience_lib
from scalable_agents.experience import intake as intake_lib
from scalable_agents.learner import learner_step
from scalable_agents.records import runtime_config
from scalable_agents.training import sweep as sweep_lib


class Learner(Protocol):
  """Learns from batches. learner/learner_step.py has the implementation that all agents share.

  Attributes:
    agent: the Agent that learns.
    optimizer: its `variables` are what a population copies in addition to the agent's variables.
    hyper_parameters: name -> variable, for each setting that may change between two steps. A population tunes these.
    environment_frames: [] int64 variable; the number of environment frames so far, as counted by the runtime.
    update_steps, skipped_updates: [] int64 variables; the numbers of updates that were made, and of updates that were
      skipped because a number was not finite.
  """
  agent: agent_lib.Agent
  optimizer: tf.Module
  hyper_parameters: Mapping[str, tf.Variable]
  environment_frames: tf.Variable
  update_steps: tf.Variable
  skipped_updates: tf.Variable

  def step(self, batch: learner_step.Batch) -> tuple[tf.Tensor, Any]:
    """Makes one update. With several learners it is called in the replica context of their tf.distribute.Strategy.

    Returns:
      The metrics in one tensor, for `read`, which is the same for all learners; and feedback for the experience of
      this learner.
    """

  def read(self, metrics: Any) -> dict[str, Any]:
    """Returns the metrics by name: name -> float, or array [number of levels]. One of them is 'update_skipped'."""

  def culprit(self, metrics: Mapping[str, Any]) -> str | None:
    """Describes the first value of an update that was not finite; None if all were finite."""


class EnvironmentProtocol(Protocol):
  """The settings of the environments of a binary, such as atari57_protocol.Protocol: a frozen dataclass of settings."""

  def validate(self, levels: Sequence[str]) -> None:
    """Raises ValueError, with one line, if a setting is out of its range or does not fit these levels."""

  def environments(self, levels: Sequence[str], training: bool) -> dict[str, Any]:
    """Returns the `protocol` argument of registry.make_from_json.

    Args:
      levels: names of the run's levels.
      training: True for training, False for evaluation.
    """


class AgentModule(Protocol):
  """The module of an agent.

  Attributes:
    NAME: the agent's name in config.json.
    SWEEP: the ranges that sweeps, and the first members of a population, draw hyper-parameters from.
    EVALUATION_POLICIES: kinds of acting.Selection that `step` supports in evaluations; the first one is the default.
    SINGLE_FRAMES: whether unrolls have only the newest frame of each stack of frames, so that each frame travels once.
      The agent's experience must then rebuild the stacks. `step` gets whole stacks in any case.
  """
  NAME: str
  SWEEP: sweep_lib.Sweep
  EVALUATION_POLICIES: tuple[str, ...]
  SINGLE_FRAMES: bool

  def validate(self, config: runtime_config.RuntimeConfig) -> None:
    """Raises ValueError for the first setting out of range; the message is one line: flag, value, what is allowed."""

  def to_send(self, unroll: unroll_lib.Unroll, config: runtime_config.RuntimeConfig) -> unroll_lib.Unroll:
    """Returns what actors send of an unroll, in a graph. Most agents send all of it: see `send_all`.

    Args:
      unroll: as the actor pool gives it: tensors of [T+1, ...] or, for fields without time, [...].
      config: the agent's hyper-parameters.
    Returns:
      An Unroll, which is what comes out of the intake. Only the fields agent_state and agent_output may differ. In
      batches, the components of agent_output have an axis B after their first one, which need not be that of the rows.
    """

  def replay_steps(self, config: runtime_config.RuntimeConfig) -> int:
    """Returns how many agent steps a full replay in this process has, or 0 without one.

    An agent with a replay has the setting `replay_capacity`. So the runtime can refuse a replay that does not fit into
    memory when the first environment is made.
    """

  def make_learner(self, agent: agent_lib.Agent, config: runtime_config.RuntimeConfig, xla: str = 'auto',
                   device: str | None = None) -> Learner:
    """Makes the learner with all its variables. For `xla` and `device` see learner_step.Learner."""

  def make_experience(self, intake: intake_lib.Intake, spec: agent_lib.EnvironmentSpec,
                      config: runtime_config.RuntimeConfig, seed: int,
                      parameters: parameters_lib.Parameters) -> experience_lib.Experience:
    """Makes the experience, which takes unrolls in and gives batches to `Learner.step`.

    Args:
      intake: the queue that actors put unrolls into.
      spec: describes the environments.
      config: the agent's hyper-parameters.
      seed: for the random numbers of the experience. It differs between the processes of a cluster, and between a run
        and its continuation.
      parameters: the published parameters, for a replay that computes with them. They exist when the first batch is
        taken.
    Raises:
      errors.UserError: the machine has too little memory for it (machine.memory_bytes).
    """

  # After this definition, the name `Agent` would be this method in the annotations of this class.
  def Agent(self, spec: agent_lib.EnvironmentSpec, config: runtime_config.RuntimeConfig) -> agent_lib.Agent:
    """Makes an agent. The same spec and config give the same initial values.

    Raises:
      ValueError: the agent cannot play such environments.
    """


def send_all(unroll: unroll_lib.Unroll, config: runtime_config.RuntimeConfig) -> unroll_lib.Unroll:
  """AgentModule.to_send for agents whose unrolls are sent as they are."""
  del config
  return unroll


def replay_steps(config: runtime_config.RuntimeConfig) -> int:
  """AgentModule.replay_steps for agents whose --replay_capacity counts agent steps, if --replay_share is above 0."""
  return config.replay_capacity if config.replay_share else 0


def environment_spec(host: actor_host.ActorHost, levels: Sequence[str]) -> agent_lib.EnvironmentSpec:
  """Describes the environments of a host. `levels` has the names of all levels of the run."""
  specification = host.specification
  return agent_lib.EnvironmentSpec(
      specification.num_actions, host.observation_spec, tuple(levels), specification.frame_stacks)


def agent_maker(agent_module: AgentModule, host: actor_host.ActorHost, levels: Sequence[str],
                config: runtime_config.RuntimeConfig) -> Callable[[], agent_lib.Agent]:
  """Returns a function that makes the agent for the environments of a host.

  Args:
    agent_module: the agent's module.
    host: has the environments.
    levels: names of all levels of the run.
    config: the agent's hyper-parameters.
  """
  spec = environment_spec(host, levels)
  return lambda: agent_module.Agent(spec, config)
