"""IMPALA: importance weighted actor-learner architectures.

Espeholt et al. 2018. Many actors play with slightly old parameters. One learner corrects for the difference with
V-trace. This file has, in this order, the agent, its loss, and its definition (training/definition.py). configs.py has
the hyper-parameters.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import sonnet as snt
import tensorflow as tf

from scalable_agents.actor import acting
from scalable_agents.actor import agent as agent_lib
from scalable_agents.actor import parameters as parameters_lib
from scalable_agents.actor import unroll as unroll_lib
from scalable_agents.agents import configs
from scalable_agents.agents import sweeps
from scalable_agents.experience import experience
from scalable_agents.experience import intake as intake_lib
from scalable_agents.experience import mixed_experience
from scalable_agents.experience import unroll_replay
from scalable_agents.learner import learner_step
from scalable_agents.learner import losses
from scalable_agents.learner import off_policy
from scalable_agents.learner import optimizers
from scalable_agents.learner import pixel_control
from scalable_agents.learner import vtrace
from scalable_agents.networks import networks
from scalable_agents.networks import torsos
from scalable_agents.training import definition


class NetworkOutput(NamedTuple):
  """The outputs of the heads."""
  policy_logits: tf.Tensor  # [..., A] float32, un-normalised log-probabilities.
  baseline: tf.Tensor       # [..., N] float32, V(x). IMPALA has N = 1; PopArt-IMPALA has one for each level.
  pixel_control: Any        # [..., h, w, A] float32, action values of each cell; () without pixel control.
  features: Any             # [..., D] float32, the inputs of the heads, also for a head of an auxiliary loss.


class BehaviourOutput(NamedTuple):
  """What the learner needs to know about the policy that acted."""
  action: tf.Tensor         # [...] int32.
  policy_logits: tf.Tensor  # [..., A] float32.


class Agent(snt.Module):
  """Torso, optional LSTM, and linear heads for policy and baseline. Figure 3. Pixel control has one more head.

  Attributes:
    num_features: D, the number of inputs of the heads; see NetworkOutput.features.
  """

  def __init__(self, spec: agent_lib.EnvironmentSpec, config: configs.ActorCriticConfig, num_baselines: int = 1,
               name: str = 'agent'):
    """Creates the variables.

    Args:
      spec: the environments. They observe 'pixels' or 'vector', and perhaps 'instruction' (uint8 [L], text padded
        with zeros).
      config: ActorCriticConfig; `torso`, `torso_precision`, `centre_pixels`, `scale_pixels`, `use_lstm`,
        `lstm_precision`, `use_pixel_control` and `seed` are read.
      num_baselines: number N of values.
      name: the module's name.
    Raises:
      ValueError: neither 'pixels' nor 'vector' is observed, or the image is too small for the torso or for pixel
        control.
    """
    super().__init__(name)
    seeds = networks.Seeds(config.seed)
    self._num_actions = spec.num_actions
    if 'pixels' in spec.observation:
      self._observed = 'pixels'
      self._torso = torsos.TORSOS[config.torso](
          seeds, networks.compute_type(config.torso_precision), config.centre_pixels, config.scale_pixels)
    elif 'vector' in spec.observation:
      self._observed = 'vector'
      self._torso = torsos.VectorTorso(seeds)
    else:
      raise ValueError(f"observation_spec: want 'pixels' or 'vector', got {sorted(spec.observation)}")
    self._language = networks.LanguageEncoder(seeds) if 'instruction' in spec.observation else None
    # The first call of a layer creates its variables.
    self.num_features = self._features(self.prepare(acting.example_input(spec.observation).observation)).shape[-1]
    self._core = None
    if config.use_lstm:
      self._core = networks.LSTMCore(self.num_features + 1 + spec.num_actions, 256, seeds,
                                     networks.compute_type(config.lstm_precision))
      self.num_features = 256
    self._policy = networks.Linear(spec.num_actions, seeds, 'policy')
    self._baseline = networks.Linear(num_baselines, seeds, 'baseline')
    self._pixel_control = None
    if config.use_pixel_control and self._observed == 'pixels':
      self._pixel_control = networks.PixelControlHead(
          pixel_control.num_cells(*spec.observation['pixels'].shape[:2]), spec.num_actions, seeds)
    self._num_frames = spec.frame_stacks.get('pixels', 1)
    for head in (self._policy, *self._learner_heads):
      head(tf.zeros([1, self.num_features]))

  @property
  def _learner_heads(self):
    # Not an attribute: checkpoints would then have these heads under a second name.
    return filter(None, (self._baseline, self._pixel_control))

  @property
  def acting_variables(self) -> list[tf.Variable]:
    """The trainable variables except those of the heads that only the learner uses: baseline and pixel control."""
    of_learner = {id(variable) for head in self._learner_heads for variable in head.trainable_variables}
    return [variable for variable in self.trainable_variables if id(variable) not in of_learner]

  def initial_state(self, batch_size):
    """The LSTM's state at an episode's start: an LSTMState of [batch_size, 256], or () without an LSTM."""
    return self._core.initial_state(batch_size) if self._core else ()

  def prepare(self, observation):
    """Turns 'instruction' into 'words', as `unroll` takes it: XLA has no strings. Leading dimensions may be any."""
    return networks.with_words(observation, self._observed)

  def step(self, inputs: acting.ActorInput, agent_state: Any, seed: tf.Tensor,
           selection: acting.Selection = acting.Selection()) -> tuple[BehaviourOutput, Any]:
    """Selects actions; see agent_lib.Agent. In training, they are sampled from the policy.

    Args:
      inputs: ActorInput of [B, ...].
      agent_state: nest of [B, ...].
      seed: [2] int64; the sampled actions are a function of it.
      selection: how actions are selected.
    Returns:
      BehaviourOutput of [B, ...], and the new agent_state.
    """
    features = self._features(self.prepare(inputs.observation))
    if self._core:
      features, agent_state = self._core.step(self._core_input(features, inputs), inputs.done, agent_state)
    logits = self._policy(features)
    return BehaviourOutput(acting.select(logits, selection, seed), logits), agent_state

  def unroll(self, inputs: acting.ActorInput, agent_state: Any) -> tuple[NetworkOutput, Any]:
    """Computes all heads for all rows of an unroll. The logits are those from which `step` selects actions.

    Args:
      inputs: of [T+1, B, ...], from `acting.inputs_of`; observations are prepared.
      agent_state: nest of [B, ...], the state before row 0.
    Returns:
      NetworkOutput of [T+1, B, ...], and the agent_state after the last row.
    """
    features = snt.BatchApply(self._features)(inputs.observation)  # Time is folded into the batch (section 3.1).
    if self._core:
      features, agent_state = self._core.unroll(self._core_input(features, inputs), inputs.done, agent_state)
    action_values = snt.BatchApply(self._pixel_control)(features) if self._pixel_control else ()
    return NetworkOutput(self._policy(features), self._baseline(features), action_values, features), agent_state

  def newest_frames(self, observation):
    """Returns the newest frame of each observation's pixels, [..., H, W, C]; on Atari, pixels are a stack of frames."""
    pixels = observation['pixels']
    return pixels[..., -(pixels.shape[-1] // self._num_frames):]

  def _features(self, observation):
    features = self._torso(observation[self._observed])
    return tf.concat([features, self._language(observation['words'])], axis=-1) if self._language else features

  def _core_input(self, features, inputs):
    clipped_reward = tf.clip_by_value(inputs.reward, -1.0, 1.0)[..., tf.newaxis]
    return tf.concat([features, clipped_reward, tf.one_hot(inputs.last_action, self._num_actions)], axis=-1)


def loss(agent: Agent, batch: learner_step.Batch, config: configs.ImpalaConfig) -> learner_step.Loss:
  """The actor-critic loss with off-policy correction. Section 4.2.

  Args:
    agent: the network that learns.
    batch: has an Unroll of [T+1, B, ...] tensors; agent_state and the fields without a time dimension are [B, ...].
      Its observations come from `Agent.prepare`.
    config: configs.ImpalaConfig; its `entropy_cost` may be a variable.
  """
  output, _ = agent.unroll(acting.inputs_of(batch.unroll), batch.unroll.agent_state)
  return loss_of_output(agent, batch.unroll, output, config)


def loss_of_output(agent: Agent, unroll: unroll_lib.Unroll, output: NetworkOutput,
                   config: configs.ImpalaConfig) -> learner_step.Loss:
  """The loss for given outputs of the network, [T+1, B, ...], for an agent that adds a term of its own; see `loss`."""
  steps = unroll_lib.steps(unroll)
  values = output.baseline[..., 0]                                                         # [T+1, B].
  v_tm1, bootstrap_value = values[:-1], values[-1]
  targets, log_pi_tm1 = off_policy_targets(steps, output.policy_logits, v_tm1, bootstrap_value, steps.real_t, config)
  return actor_critic_loss(agent, unroll, output, v_tm1, log_pi_tm1, targets, config)


def off_policy_targets(steps: unroll_lib.Steps, policy_logits: tf.Tensor, v_tm1: tf.Tensor, bootstrap_value: tf.Tensor,
                       trusted: tf.Tensor, config: configs.ImpalaConfig) -> tuple[vtrace.VTraceReturns, tf.Tensor]:
  """Computes the targets of the values and of the policy, with the off-policy correction of `config`.

  Args:
    steps: of the unrolls, [T, B, ...]. Their rewards are those of the game; they are transformed here. For a reward of
      your own beside them, transform them first, and give a config with `reward_transform='none'`.
    policy_logits: [T+1, B, A] float32, of the policy that learns.
    v_tm1: [T, B] float32, its values, in the units of the rewards.
    bootstrap_value: [B] float32, the values of the last row.
    trusted: [T, B] bool, the steps that targets may use, see `vtrace.from_importance_weights`.
    config: see `loss`.
  Returns:
    The value targets and advantages, and log pi(a|x) of the actions taken, for the policy gradient; of [T, B].
  """
  log_pi_tm1 = vtrace.log_probs_from_logits_and_actions(policy_logits[:-1], steps.a_tm1)
  log_mu_tm1 = vtrace.log_probs_from_logits_and_actions(steps.behaviour_tm1.policy_logits, steps.a_tm1)
  targets = off_policy.targets(
      config.off_policy_correction, log_pi_tm1 - log_mu_tm1, config.discount * steps.discount_t,
      losses.transform_rewards(steps.r_t, config.reward_transform), v_tm1, bootstrap_value,
      clip_rho_threshold=config.clip_rho_threshold, clip_c_threshold=config.clip_c_threshold,
      clip_pg_rho_threshold=config.clip_pg_rho_threshold, lambda_=config.vtrace_lambda, trusted=trusted,
      action_values=config.action_values)
  return targets, off_policy.log_pi(config.off_policy_correction, log_pi_tm1)


def actor_critic_loss(agent: Agent, unroll: unroll_lib.Unroll, output: NetworkOutput, v_tm1: tf.Tensor,
                      log_pi_tm1: tf.Tensor, targets: vtrace.VTraceReturns, config: configs.ActorCriticConfig,
                      weights: tf.Tensor | float = 1., entropy_weights: tf.Tensor | float = 1.,
                      trusted: tf.Tensor | bool = True) -> learner_step.Loss:
  """The terms of the loss, summed over time and batch, for given targets. Section 4.2.

  Args:
    agent, config: see `loss`.
    unroll: Batch.unroll.
    output: of [T+1, B, ...], the network's outputs for the unroll.
    v_tm1: [T, B] float32, the values that learn the value targets.
    log_pi_tm1: [T, B] float32, log pi(a|x) of the actions taken.
    targets: of [T, B], the value targets and the advantages.
    weights: of the steps in the loss, [T, B] float32 or a number. Steps that are not real have no weight.
    entropy_weights: of the steps in the entropy, likewise.
    trusted: [T, B] bool, or True for all, the real steps that the targets of the auxiliary task may use.
  Returns:
    learner_step.Loss. Its terms are without their weights.
  """
  steps = unroll_lib.steps(unroll)
  is_real = tf.cast(steps.real_t, tf.float32)                                              # [T, B].
  weights, entropy_weights = is_real * weights, is_real * entropy_weights
  policy_gradient_loss = losses.policy_gradient_loss(log_pi_tm1, targets.pg_advantages, weights)
  baseline_loss = losses.baseline_loss(targets.vs, v_tm1, weights)
  entropy_loss = losses.entropy_loss(output.policy_logits[:-1], entropy_weights)
  total = policy_gradient_loss + config.baseline_cost * baseline_loss + config.entropy_cost * entropy_loss
  terms = {'loss/policy_gradient': policy_gradient_loss, 'loss/baseline': baseline_loss, 'loss/entropy': entropy_loss}
  if tf.is_tensor(output.pixel_control):  # The auxiliary task.
    terms['loss/pixel_control'] = pixel_control_loss = pixel_control.loss(
        output.pixel_control, steps.a_tm1, agent.newest_frames(unroll.environment_output.observation), steps.done_t,
        config.pixel_control_discount, weights, steps.real_t & trusted)
    total += config.pixel_control_cost * pixel_control_loss
  return learner_step.Loss(total, terms)


def make_optimizer(variables, config: configs.ActorCriticConfig) -> optimizers.RMSProp | optimizers.Adam:
  """Makes the optimiser of `config`; its `rmsprop_epsilon` may be a variable."""
  if config.optimizer == 'rmsprop':
    return optimizers.RMSProp(variables, config.rmsprop_decay, config.rmsprop_momentum, config.rmsprop_epsilon)
  if config.optimizer == 'adam':
    return optimizers.Adam(variables, config.adam_beta1, config.adam_beta2, config.adam_epsilon)
  raise ValueError(f'no optimiser is made for {config.optimizer!r}')


def tuned(config: configs.ActorCriticConfig) -> dict[str, bool]:
  """Returns the hyper-parameters that populations tune (appendix F), and whether each is in use."""
  return {'learning_rate': True, 'entropy_cost': True, 'rmsprop_epsilon': config.optimizer == 'rmsprop',
          'clip_gradient_norm': config.clip_gradient_norm > 0}


def make_experience(intake: intake_lib.Intake, spec: agent_lib.EnvironmentSpec, config: configs.ImpalaConfig, seed: int,
                    unused_parameters: parameters_lib.ParameterSnapshot,
                    unused_make_agent: Callable[[], agent_lib.Agent]) -> experience.Experience:
  """Makes the experience: a queue, so that unrolls are learned from once, and perhaps a replay (section 5.2.2)."""
  if not config.replay_share:
    return experience.QueueExperience(intake, config.batch_size)
  replay = unroll_replay.UnrollReplay(intake.unroll_spec, spec.frame_stacks, config.replay_capacity, config.batch_size,
                                      minimum_size=1)
  sizes = mixed_experience.MixedSettings(*config.split_batch(), is_saved=config.save_replay)
  return mixed_experience.MixedExperience(intake, replay, sizes, seed)


IMPALA = definition.Definition(
    name='impala',
    config=configs.ImpalaConfig,
    validate=configs.validate_impala,
    network=Agent,
    loss=loss,
    make_optimizer=make_optimizer,
    tuned=tuned,
    make_experience=make_experience,
    replay_steps=lambda config: config.replay_capacity if config.replay_share else 0,
    sweep=sweeps.IMPALA,
    # The paper does not say how actions are selected in evaluations; the released agent samples.
    evaluation_policies=(acting.SAMPLED, acting.GREEDY, acting.EPSILON),
)
