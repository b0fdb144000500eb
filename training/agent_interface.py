"""What an agent provides, and what the runtime reads of its settings: all that the two know of each other.

An agent is a module, such as agents/impala.py, with what AgentModule lists. Its binaries hand the module to
program.run. The runtime (this package, and actor/) imports no agent.
"""

import dataclasses
from typing import Any, Callable, Mapping, NamedTuple, Protocol, Sequence

import tensorflow as tf

from scalable_agents.actor import acting
from scalable_agents.training import experience as experience_lib
from scalable_agents.training import intake as intake_lib
from scalable_agents.training import sweep as sweep_lib


@dataclasses.dataclass(frozen=True)
class EnvironmentSpec:
  """What an agent is made for: the environments of its run."""
  num_actions: int                          # A; an action is an int32 from 0 to A - 1.
  observation: Mapping[str, tf.TensorSpec]  # 'pixels' uint8 [H, W, C] or 'vector' float32 [N]; perhaps 'instruction'.
  levels: tuple[str, ...]                   # A level_id is an index into these, in training, evaluation and resume.


class Config(Protocol):
  """The settings of an agent that the runtime reads. Each agent's dataclass of hyper-parameters has them, and more."""
  level_name: str                # What registry.expand takes.
  total_environment_frames: int  # After which the run ends.
  unroll_length: int             # Agent steps.
  batch_size: int                # Unrolls per update and learner.
  queue_size: int                # Unrolls between actors and learner.
  policy_lag: int                # Updates by which actors are held back.
  learning_rate_decay: bool      # A population must have it off.
  sweep_index: int               # Which sample of the agent's SWEEP; sweep.NO_SAMPLE for none.
  synchronous: bool              # Environments, inference and learning take turns.
  seed: int


class Agent(Protocol):
  """A network that acts: a tf.Module, so that its variables are saved.

  Attributes:
    acting_variables: the variables that `step` reads, always in the same order. They are published to the actors;
      others, a target network's say, are saved and stay with the learner.
  """
  acting_variables: list[tf.Variable]

  def initial_state(self, batch_size) -> Any:
    """The recurrent state at an episode's start: a nest of [batch_size, ...]; () without one. All zeros."""

  def step(self, inputs: acting.ActorInput, agent_state: Any, seed: tf.Tensor,
           selection: acting.Selection = acting.Selection()) -> tuple[NamedTuple, Any]:
    """Acts.

    Args:
      inputs: ActorInput of [B, ...].
      agent_state: nest of [B, ...].
      seed: [2] int64; what is random is a function of it.
      selection: how actions are selected; the kind is TRAINING or one of AgentModule.EVALUATION_POLICIES.
    Returns:
      The behaviour output: the agent's own NamedTuple of [B, ...] tensors, of which the first is `action`, int32. It
      travels to the learner in the unrolls, so it has what the loss reads of the behaviour policy and nothing else.
      And the new agent_state.
    """


class Learner(Protocol):
  """Learns from batches. agents/learner_step.py has the one for all agents.

  Attributes:
    agent: the Agent that learns.
    optimizer: with the `variables` that a population copies beside the agent's.
    hyper_parameters: name -> variable of what may change between two steps; a population tunes just these.
    environment_frames: [] int64 variable; environment frames so far, as the runtime counts them.
    update_steps, skipped_updates: [] int64 variables; updates made, and those skipped as a number was not finite.
  """
  agent: Agent
  optimizer: tf.Module
  hyper_parameters: Mapping[str, tf.Variable]
  environment_frames: tf.Variable
  update_steps: tf.Variable
  skipped_updates: tf.Variable

  def step(self, batch: experience_lib.Batch) -> tuple[tf.Tensor, Any]:
    """One update. In the context of a replica, where a tf.distribute.Strategy has several learners.

    Returns:
      The metrics in one tensor, for `read`, the same for all learners; and feedback for this learner's experience.
    """

  def read(self, metrics: Any) -> dict[str, Any]:
    """Takes the metrics apart: name -> float, or array [number of levels]; 'update_skipped' is among them."""

  def culprit(self, metrics: Mapping[str, Any]) -> str | None:
    """The first number of an update that was not finite, in words; None if all were."""


class AgentModule(Protocol):
  """The module of an agent.

  Attributes:
    NAME: the agent's name in config.json.
    SWEEP: the ranges that sweeps, and the first members of a population, draw hyper-parameters from.
    EVALUATION_POLICIES: kinds of acting.Selection that `step` knows in an evaluation; the first one is the default.
  """
  NAME: str
  SWEEP: sweep_lib.Sweep
  EVALUATION_POLICIES: tuple[str, ...]

  def validate(self, config: Config) -> None:
    """Raises ValueError, one line with flag, value and what is allowed, for the first setting out of its range."""

  def Agent(self, spec: EnvironmentSpec, config: Config) -> Agent:  # pylint: disable=invalid-name
    """Makes an agent; the same spec and config give the same initial values. ValueError: it is none for this spec."""

  def make_learner(self, agent: Agent, config: Config, xla: str = 'auto', device: str | None = None) -> Learner:
    """Makes the learner, with all variables. Args: `xla` and `device` as learner_step.Learner has them."""

  def make_experience(self, intake: intake_lib.Intake, config: Config) -> experience_lib.Experience:
    """Makes what stands between the unrolls that come in and the batches of `Learner.step`."""


def agent_maker(agent: AgentModule, host, levels: Sequence[str], config: Config) -> Callable[[], Agent]:
  """A function that makes the agent for an ActorHost's environments. Args: `levels`: of the run, all of them."""
  spec = EnvironmentSpec(host.specification.num_actions, host.observation_spec, tuple(levels))
  return lambda: agent.Agent(spec, config)
