"""The interface between an agent and the runtime: what an agent provides, and which of its settings the runtime reads.

An agent is a module, such as agents/impala.py, with the members of AgentModule. The agent's binaries pass the module to
program.run. The runtime (this package and actor/) imports no agent.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from scalable_agents.actor import acting
from scalable_agents.actor import actor_host
from scalable_agents.actor import parameters as parameters_lib
from scalable_agents.actor import unroll as unroll_lib
from scalable_agents.training import experience as experience_lib
from scalable_agents.training import intake as intake_lib
from scalable_agents.training import sweep as sweep_lib


@dataclasses.dataclass(frozen=True)
class EnvironmentSpec:
  """Describes the environments of a run, for which an agent is made."""
  num_actions: int                          # A; an action is an int32 from 0 to A - 1.
  observation: Mapping[str, tf.TensorSpec]  # 'pixels' uint8 [H, W, C] or 'vector' float32 [N]; perhaps 'instruction'.
  levels: tuple[str, ...]                   # A level_id is an index into these, in training, evaluation and resume.
  # Name -> k, for each observation that is a stack of k frames; see environments/base.py.
  frame_stacks: Mapping[str, int] = dataclasses.field(default_factory=dict)
  # The settings of the protocol that experience depends on, for agents that share it. Known where a run is trained.
  protocol: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class Config(Protocol):
  """The settings of an agent that the runtime reads. Each agent's dataclass of hyper-parameters has these and more."""
  level_name: str                # Level, levels or suite, as registry.expand takes them.
  total_environment_frames: int  # The run ends after this number.
  unroll_length: int             # Agent steps per unroll.
  batch_size: int                # Unrolls per update and learner.
  queue_size: int                # Capacity, in unrolls, of the queue between actors and learner.
  policy_lag: int                # Number of updates by which the parameters of the actors are held back.
  learning_rate_decay: bool      # Must be off in a population.
  sweep_index: int               # Index of a sample of the agent's SWEEP; sweep.NO_SAMPLE for none.
  synchronous: bool              # Whether environments, inference and learning take turns.
  seed: int                      # Determines initial values, random actions and the environments' seeds.


class Agent(Protocol):
  """A network that acts: a tf.Module, so that its variables are saved.

  Attributes:
    trainable_variables: the variables that the learner's optimiser updates, always in the same order. The loss must
      depend on each. For a tf.Module these are all trainable variables, unless the agent says otherwise.
    acting_variables: the variables that `step` reads, always in the same order. They are published to the actors.
      Other variables, for example those of a target network, are saved in checkpoints but not published.
  """
  trainable_variables: Sequence[tf.Variable]
  acting_variables: Sequence[tf.Variable]

  def initial_state(self, batch_size) -> Any:
    """Returns the initial state of `batch_size` actors: a nest of zeros [batch_size, ...], or () without a state.

    This is the recurrent state. An agent may keep more, such as a count of rows.
    """

  def step(self, inputs: acting.ActorInput, agent_state: Any, seed: tf.Tensor,
           selection: acting.Selection = acting.Selection()) -> tuple[NamedTuple, Any]:
    """Selects actions.

    Args:
      inputs: ActorInput of [B, ...].
      agent_state: nest of [B, ...].
      seed: [2] int64; random numbers are a function of it.
      selection: how actions are selected; the kind is TRAINING or one of AgentModule.EVALUATION_POLICIES.
    Returns:
      First, the behaviour output: the agent's own NamedTuple of [B, ...] tensors. Its first field is `action`, int32.
      What AgentModule.to_send keeps of it is sent to the learner, so this should be only what the loss needs of the
      behaviour policy.
      Second, the new agent_state.
    """

  def prepare(self, observation: Mapping[str, tf.Tensor]) -> Any:
    """Prepares the observations of a batch, [T+1, B, ...], for the loss. It runs before the learner's compiled step.

    Most agents return the observations as they are. XLA cannot compile some operations, for example on strings.
    """


class Learner(Protocol):
  """Learns from batches. agents/learner_step.py has the implementation that all agents share.

  Attributes:
    agent: the Agent that learns.
    optimizer: its `variables` are what a population copies in addition to the agent's variables.
    hyper_parameters: name -> variable, for each setting that may change between two steps. A population tunes these.
    environment_frames: [] int64 variable; the number of environment frames so far, as counted by the runtime.
    update_steps, skipped_updates: [] int64 variables; the numbers of updates that were made, and of updates that were
      skipped because a number was not finite.
  """
  agent: Agent
  optimizer: tf.Module
  hyper_parameters: Mapping[str, tf.Variable]
  environment_frames: tf.Variable
  update_steps: tf.Variable
  skipped_updates: tf.Variable

  def step(self, batch: experience_lib.Batch) -> tuple[tf.Tensor, Any]:
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

  def validate(self, config: Config) -> None:
    """Raises ValueError for the first setting out of range; the message is one line: flag, value, what is allowed."""

  def to_send(self, unroll: unroll_lib.Unroll, config: Config) -> unroll_lib.Unroll:
    """Returns what actors send of an unroll, in a graph. Most agents send all of it: see `send_all`.

    Args:
      unroll: as the actor pool gives it: tensors of [T+1, ...] or, for fields without time, [...].
      config: the agent's hyper-parameters.
    Returns:
      An Unroll, which is what comes out of the intake. Only the fields agent_state and agent_output may differ. In
      batches, the components of agent_output have an axis B after their first one, which need not be that of the rows.
    """

  def replay_steps(self, config: Config) -> int:
    """Returns how many agent steps a full replay in this process has, or 0 without one.

    An agent with a replay has the setting `replay_capacity`. So the runtime can refuse a replay that does not fit into
    memory when the first environment is made.
    """

  def make_learner(self, agent: Agent, config: Config, xla: str = 'auto', device: str | None = None) -> Learner:
    """Makes the learner with all its variables. For `xla` and `device` see learner_step.Learner."""

  def make_experience(self, intake: intake_lib.Intake, spec: EnvironmentSpec, config: Config, seed: int,
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
  def Agent(self, spec: EnvironmentSpec, config: Config) -> Agent:
    """Makes an agent. The same spec and config give the same initial values.

    Raises:
      ValueError: the agent cannot play such environments.
    """


def send_all(unroll: unroll_lib.Unroll, config: Config) -> unroll_lib.Unroll:
  """AgentModule.to_send for agents whose unrolls are sent as they are."""
  del config
  return unroll


def replay_steps(config: Config) -> int:
  """AgentModule.replay_steps for agents whose --replay_capacity counts agent steps, if --replay_share is above 0."""
  return config.replay_capacity if config.replay_share else 0


def environment_spec(host: actor_host.ActorHost, levels: Sequence[str]) -> EnvironmentSpec:
  """Describes the environments of a host. `levels` has the names of all levels of the run."""
  specification = host.specification
  return EnvironmentSpec(specification.num_actions, host.observation_spec, tuple(levels), specification.frame_stacks)


def agent_maker(agent_module: AgentModule, host: actor_host.ActorHost, levels: Sequence[str],
                config: Config) -> Callable[[], Agent]:
  """Returns a function that makes the agent for the environments of a host.

  Args:
    agent_module: the agent's module.
    host: has the environments.
    levels: names of all levels of the run.
    config: the agent's hyper-parameters.
  """
  spec = environment_spec(host, levels)
  return lambda: agent_module.Agent(spec, config)
