"""A Definition says what an agent is; the runtime makes its parts from it. A Job says what one run does.

For example, IMPALA in agents/impala.py is a Definition. The runtime imports no agent.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
from typing import Any, ClassVar, Protocol

import tensorflow as tf

from scalable_agents.actor import acting
from scalable_agents.actor import actor_host
from scalable_agents.actor import agent as agent_lib
from scalable_agents.actor import parameters as parameters_lib
from scalable_agents.actor import unroll as unroll_lib
from scalable_agents.cluster import cluster_config
from scalable_agents.experience import experience as experience_lib
from scalable_agents.experience import intake as intake_lib
from scalable_agents.learner import learner_step
from scalable_agents.learner import optimizers
from scalable_agents.records import runtime_config
from scalable_agents.records import settings
from scalable_agents.training import run_config
from scalable_agents.training import sweep as sweep_lib


class EnvironmentProtocol(Protocol):
  """The settings of the environments of a binary, such as atari57_protocol.Protocol: a frozen dataclass of settings."""
  __dataclass_fields__: ClassVar[dict[str, Any]]

  def validate(self, levels: Sequence[str], /) -> None:
    """Raises ValueError, with one line, if a setting is out of its range or does not fit these levels."""

  def environments(self, levels: Sequence[str], /, training: bool) -> dict[str, Any]:
    """Returns the `protocol` argument of registry.make_from_json.

    Args:
      levels: names of the run's levels.
      training: True for training, False for evaluation.
    """
    ...


def queue_experience(intake: intake_lib.Intake, unused_spec: agent_lib.EnvironmentSpec,
                     config: runtime_config.RuntimeConfig, unused_seed: int,
                     unused_parameters: parameters_lib.ParameterSnapshot,
                     unused_make_agent: Callable[[], agent_lib.Agent]) -> experience_lib.Experience:
  """Makes an experience without a replay: unrolls are learned from once, in the order of arrival."""
  return experience_lib.QueueExperience(intake, config.batch_size)


def adam(variables: Sequence[tf.Variable], unused_config: runtime_config.RuntimeConfig) -> optimizers.Adam:
  """Makes Adam with the usual settings. Kingma and Ba 2015."""
  return optimizers.Adam(variables, 0.9, 0.999, 1e-8)


@dataclasses.dataclass(frozen=True)
class Definition:
  """What an agent is. `config` is an instance of the config class in all functions.

  The first four fields have no defaults; the defaults of the others suit an agent that learns from each unroll once.
  """
  # The agent's name in config.json.
  name: str
  # The dataclass of the hyper-parameters, each of which is a flag.
  config: type[runtime_config.RuntimeConfig]
  # Makes the agent of (spec, config). The same arguments give the same initial values. Raises ValueError if the agent
  # cannot play such environments.
  network: Callable[[agent_lib.EnvironmentSpec, Any], agent_lib.Agent]
  # The loss of (agent, batch, config). The observations come from Agent.prepare, and stacks of frames are whole.
  # Settings that may change between two updates are variables in this config.
  loss: Callable[[Any, learner_step.Batch, Any], learner_step.Loss]

  # Raises ValueError for the first setting out of range; the message is one line: flag, value, what is allowed.
  validate: Callable[[Any], None] = settings.check
  # Returns the settings of a training run, with those that the agent determines. Raises ValueError, with one line, if
  # they contradict a flag.
  complete_run: Callable[[Any, run_config.RunConfig], run_config.RunConfig] = lambda config, run: run
  # Makes the optimiser of (trainable variables, config), like those of learner/optimizers.py: a tf.Module with a method
  # `apply(gradients, learning_rate)`, whose slots are its variables.
  make_optimizer: Callable[[Sequence[tf.Variable], Any], Any] = adam
  # The settings that populations tune, and whether each is in use with this config.
  tuned: Callable[[Any], Mapping[str, bool]] = lambda config: {'learning_rate': True}
  # Called in the graph after each update with (agent, config, Loss.gathered of all learners, number of updates).
  # Returns pairs of a variable and its new value, for example of a target network.
  after_update: Callable[[Any, Any, Any, tf.Tensor], Sequence[tuple[tf.Variable, tf.Tensor]]] | None = None
  # Makes the Experience of (intake, spec, config, seed, parameters, make_agent), which takes unrolls in and gives
  # batches. The seed differs between the processes of a cluster, and between a run and its continuation. The parameters
  # are published when the first batch is taken. `make_agent()` makes another `network`, which may get them. Raises
  # UserError if the machine has too little memory for the experience.
  make_experience: Callable[
      [intake_lib.Intake, agent_lib.EnvironmentSpec, Any, int, parameters_lib.ParameterSnapshot,
       Callable[[], agent_lib.Agent]], experience_lib.Experience] = queue_experience
  # Returns what actors send of (unroll of [T+1, ...], config), in a graph. Only the fields agent_state, earlier_frames
  # and agent_output may differ. In batches, the components of agent_output have an axis B after their first axis. Their
  # first axis need not be that of the rows.
  to_send: Callable[[unroll_lib.Unroll, Any], unroll_lib.Unroll] = lambda unroll, config: unroll
  # Makes each actor a worker that learns, as in A3C. It is called with (agent, unroll, config) in place of `to_send`,
  # and returns what is sent. The agent has the parameters that acted. Here the observations may differ, too.
  work: Callable[[Any, unroll_lib.Unroll, Any], unroll_lib.Unroll] | None = None
  # Agent steps of each environment after which actors of the agent's paper fetch new parameters.
  steps_between_fetches: Callable[[Any], int] = lambda config: config.unroll_length
  # Whether the loss takes the parameters that acted for those that learn. Then each unroll must begin with new ones.
  is_on_policy: bool = False
  # Whether several learners may make each update together.
  can_have_several_learners: bool = True
  # Agent steps in a full replay in this process, or 0 without one. Its capacity is the setting `replay_capacity`. With
  # this number, the runtime refuses a replay that does not fit into memory as soon as the first environment is made.
  replay_steps: Callable[[Any], int] = lambda config: 0
  # Whether learning takes most of the time of a run on a CPU, so that its kernels should use all cores.
  mostly_learns: Callable[[Any], bool] = lambda config: False
  # The ranges that sweeps, and the first members of a population, draw hyper-parameters from.
  sweep: sweep_lib.Sweep = sweep_lib.Sweep({'learning_rate': sweep_lib.LogUniform(1e-5, 1e-2)}, num_samples=24)
  # Kinds of acting.Selection that Agent.step supports in evaluations; the first one is the default.
  evaluation_policies: tuple[str, ...] = (acting.GREEDY, acting.EPSILON)

  def make_learner(self, agent: agent_lib.Agent, config: runtime_config.RuntimeConfig, xla: str = 'auto',
                   device: str | None = None) -> learner_step.Learner:
    """Makes the learner with all its variables. For `xla` and `device` see learner_step.Learner."""
    after_update = self.after_update and functools.partial(self.after_update, agent, config)
    return learner_step.Learner(
        agent, self.loss, self.make_optimizer, config, self.tuned(config), xla, device, after_update)

  def sending(self, config: runtime_config.RuntimeConfig) -> dict[str, Any]:
    """Returns the arguments of ActorHost.make_pool that say what actors send."""
    if work := self.work:
      return {'work': lambda agent, unroll: work(agent, unroll, config)}
    return {'to_send': lambda unroll: self.to_send(unroll, config)}

  def maker(self, host: actor_host.ActorHost, levels: Sequence[str],
            config: runtime_config.RuntimeConfig) -> Callable[[], agent_lib.Agent]:
    """Returns a function that makes the agent for the environments of a host. `levels` are all levels of the run."""
    spec = environment_spec(host, levels)
    return lambda: self.network(spec, config)


def environment_spec(host: actor_host.ActorHost, levels: Sequence[str]) -> agent_lib.EnvironmentSpec:
  """Describes the environments of a host. `levels` has the names of all levels of the run."""
  specification = host.specification
  return agent_lib.EnvironmentSpec(
      specification.num_actions, host.observation_spec, tuple(levels), specification.frame_stacks)


@dataclasses.dataclass(frozen=True)
class Job:
  """One run of an agent, as its flags say."""
  agent: Definition                     # What the agent is.
  reference: str                        # 'module:NAME' of the definition, by which another process finds it.
  config: Any                           # Definition.config, the hyper-parameters.
  protocol: EnvironmentProtocol         # The settings of the environments.
  run: run_config.RunConfig             # What does not affect what is learned.
  levels: tuple[str, ...]               # The names of the levels. A level_id is an index into these.
  cluster: cluster_config.ClusterConfig = cluster_config.ClusterConfig()  # This process's part in a cluster.
  population: Any = None                # population_config.PopulationConfig.

  def settings(self) -> dict[str, Any]:
    """Returns all settings, by name."""
    parts = (self.config, self.protocol, self.population, self.cluster, self.run)
    return {name: value for part in parts if part for name, value in dataclasses.asdict(part).items()}

  def refresh_steps(self) -> int:
    """Returns after how many agent steps of each environment actors take new parameters. 0: for each batch."""
    papers = self.agent.steps_between_fetches(self.config)
    return cluster_config.refresh_steps(self.cluster, papers, self.config.unroll_length)

  def shared_protocol(self) -> dict[str, Any]:
    """Returns the settings of the environments that experience depends on, for agents that share it."""
    free, values = settings.free_settings(self.protocol), dataclasses.asdict(self.protocol)
    return {name: value for name, value in values.items() if name not in free} | settings.kinds(self.protocol, values)

  def kinds(self, values: Mapping[str, Any]) -> dict[str, str]:
    """Returns what must stay the same of the run's free settings if they have these values. See settings.kinds."""
    parts = (settings.kinds(part, values) for part in (self.config, self.protocol, self.cluster))
    return {name: kind for part in parts for name, kind in part.items()}

  def free_settings(self) -> frozenset[str]:
    """Returns the names of those settings that may change when the run is resumed."""
    free = (settings.free_settings(part) for part in (self.config, self.protocol, self.cluster))
    return run_config.FREE_FLAGS.union(*free)
