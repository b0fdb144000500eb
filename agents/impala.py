"""IMPALA: importance weighted actor-learner architectures.

Espeholt et al. 2018. Many actors play with slightly old parameters. One learner corrects for the difference with
V-trace. This file has, in this order, the hyper-parameters, the agent, its loss, and the functions that the runtime
calls to make a learner (training/definition.py lists what the runtime needs).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import sonnet as snt
import tensorflow as tf

from scalable_agents.actor import acting
from scalable_agents.actor import agent as agent_lib
from scalable_agents.actor import parameters as parameters_lib
from scalable_agents.actor import unroll as unroll_lib
from scalable_agents.agents import configs
from scalable_agents.agents import networks
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
from scalable_agents.training import definition


class NetworkOutput(NamedTuple):
  """The outputs of the heads."""
  policy_logits: tf.Tensor  # [..., A] float32, un-normalised log-probabilities.
  baseline: tf.Tensor       # [..., N] float32, V(x). IMPALA has N = 1; PopArt-IMPALA has one for each level.
  pixel_control: Any        # [..., h, w, A] float32, action values of each cell; () without pixel control.


class BehaviourOutput(NamedTuple):
  """What the learner needs to know about the policy that acted."""
  action: tf.Tensor         # [...] int32.
  policy_logits: tf.Tensor  # [..., A] float32.


class Agent(snt.Module):
  """Torso, optional LSTM, and linear heads for policy and baseline. Figure 3. Pixel control has one more head."""

  def __init__(self, spec: agent_lib.EnvironmentSpec, config: configs.ImpalaConfig, num_baselines: int = 1,
               name: str = 'agent'):
    """Creates the variables.

    Args:
      spec: the environments. They observe 'pixels' or 'vector', and perhaps 'instruction' (uint8 [L], text padded
        with zeros).
      config: ImpalaConfig; `torso`, `torso_precision`, `centre_pixels`, `use_lstm`, `use_pixel_control` and `seed`
        are read.
      num_baselines: number N of values.
      name: the module's name.
    Raises:
      ValueError: neither 'pixels' nor 'vector' is observed, pixel control has no pixels, or the image is too small
        for the torso or for pixel control.
    """
    super().__init__(name)
    seeds = networks.Seeds(config.seed)
    self._num_actions = spec.num_actions
    if 'pixels' in spec.observation:
      self._observed = 'pixels'
      self._torso = networks.TORSOS[config.torso](
          seeds, tf.as_dtype(config.torso_precision), config.centre_pixels)
    elif 'vector' in spec.observation:
      self._observed, self._torso = 'vector', networks.VectorTorso(seeds)
    else:
      raise ValueError(f"observation_spec: want 'pixels' or 'vector', got {sorted(spec.observation)}")
    self._language = networks.LanguageEncoder(seeds) if 'instruction' in spec.observation else None
    num_features = 256 + (networks.LANGUAGE_SIZE if self._language else 0)
    self._core = networks.LSTMCore(num_features + 1 + spec.num_actions, 256, seeds) if config.use_lstm else None
    self._policy = networks.Linear(spec.num_actions, seeds, 'policy')
    self._baseline = networks.Linear(num_baselines, seeds, 'baseline')
    self._pixel_control = None
    if config.use_pixel_control and self._observed == 'pixels':
      self._pixel_control = networks.PixelControlHead(
          pixel_control.num_cells(*spec.observation['pixels'].shape[:2]), spec.num_actions, seeds)
    self._num_frames = spec.frame_stacks.get('pixels', 1)
    # The first call of a layer creates its variables.
    self.step(acting.example_input(spec.observation), self.initial_state(1), tf.zeros([2], tf.int32))
    for head in self._learner_heads:
      head(tf.zeros([1, 256 if self._core else num_features]))

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

  def step(self, inputs: acting.ActorInput, agent_state, seed, selection: acting.Selection = acting.Selection()):
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
      core_input = self._core_input(features, inputs.last_action, inputs.reward)
      features, agent_state = self._core.step(core_input, inputs.done, agent_state)
    logits = self._policy(features)
    return BehaviourOutput(acting.select(logits, selection, seed), logits), agent_state

  def unroll(self, last_action, reward, done, observation, agent_state):
    """Computes all heads for all rows of an unroll. The logits are those from which `step` selects actions.

    Args:
      last_action, reward, done: [T+1, B].
      observation: dict of [T+1, B, ...], prepared.
      agent_state: nest of [B, ...], the state before row 0.
    Returns:
      NetworkOutput of [T+1, B, ...], and the agent_state after the last row.
    """
    features = snt.BatchApply(self._features)(observation)  # Time is folded into the batch (section 3.1).
    if self._core:
      features, agent_state = self._core.unroll(self._core_input(features, last_action, reward), done, agent_state)
    action_values = snt.BatchApply(self._pixel_control)(features) if self._pixel_control else ()
    return NetworkOutput(self._policy(features), self._baseline(features), action_values), agent_state

  def newest_frames(self, observation):
    """Returns the newest frame of each observation's pixels, [..., H, W, C]; on Atari, pixels are a stack of frames."""
    pixels = observation['pixels']
    return pixels[..., -(pixels.shape[-1] // self._num_frames):]

  def _features(self, observation):
    features = self._torso(observation[self._observed])
    return tf.concat([features, self._language(observation['words'])], axis=-1) if self._language else features

  def _core_input(self, features, last_action, reward):
    clipped_reward = tf.clip_by_value(reward, -1.0, 1.0)[..., tf.newaxis]
    return tf.concat([features, clipped_reward, tf.one_hot(last_action, self._num_actions)], axis=-1)


def loss(agent: Agent, batch: learner_step.Batch, config: configs.ImpalaConfig) -> learner_step.Loss:
  """The actor-critic loss of section 4.2, summed over time and batch. Its terms are returned without their weights.

  Args:
    agent: the network that learns.
    batch: has an Unroll of [T+1, B, ...] tensors; agent_state and the fields without a time dimension are [B, ...].
      Its observations come from `Agent.prepare`.
    config: configs.ImpalaConfig; its `entropy_cost` may be a variable.
  """
  output = forward(agent, batch.unroll)
  values = output.baseline[..., 0]
  targets, log_pi = off_policy_targets(batch.unroll, output.policy_logits, values, config)
  terms = {
      'loss/policy_gradient': losses.policy_gradient_loss(log_pi, targets.pg_advantages),
      'loss/baseline': losses.baseline_loss(targets.vs, values[:-1]),
      **entropy_and_auxiliary_terms(agent, batch.unroll, output, config),
  }
  return learner_step.Loss(total_loss(terms, config), terms)


def forward(agent: Agent, unroll: unroll_lib.Unroll) -> NetworkOutput:
  """Returns the network's outputs for all rows of a batch of unrolls: [T+1, B, ...]."""
  environment = unroll.environment_output
  output, _ = agent.unroll(unroll.agent_output.action, environment.reward, environment.done, environment.observation,
                           unroll.agent_state)
  return output


def off_policy_targets(unroll: unroll_lib.Unroll, policy_logits: tf.Tensor, values: tf.Tensor,
                       config: configs.ImpalaConfig,
                       trusted: tf.Tensor | None = None) -> tuple[vtrace.VTraceReturns, tf.Tensor]:
  """Computes the targets of the values and of the policy, corrected for the age of the behaviour policy.

  Args:
    unroll: an Unroll of [T+1, B, ...] tensors.
    policy_logits: [T+1, B, A] float32, of the target policy.
    values: [T+1, B] float32, V(x) in the units of the rewards.
    config: configs.ImpalaConfig.
    trusted: [T, B] bool, see `vtrace.from_importance_weights`.
  Returns:
    First, vs and pg_advantages, [T, B] float32, without gradients. Second, log pi of the actions taken, [T, B] float32,
    as `off_policy.log_pi` returns it.
  """
  environment, actor = unroll.environment_output, unroll.agent_output
  # Row t's action was computed from row t-1, so rows 1..T of what happened belong to rows 0..T-1 of our outputs.
  actions, behaviour_logits = actor.action[1:], actor.policy_logits[1:]           # [T, B], [T, B, A].
  rewards = losses.transform_rewards(environment.reward[1:], config.reward_transform)
  discounts = config.discount * environment.discount[1:]
  values = tf.stop_gradient(values)
  log_probs = vtrace.log_probs_from_logits_and_actions(policy_logits[:-1], actions)
  log_rhos = log_probs - vtrace.log_probs_from_logits_and_actions(behaviour_logits, actions)
  targets = off_policy.targets(
      config.off_policy_correction, tf.stop_gradient(log_rhos), discounts, rewards, values[:-1], values[-1],
      config.clip_rho_threshold, config.clip_pg_rho_threshold, config.vtrace_lambda, trusted=trusted,
      action_values=config.action_values)
  return targets, off_policy.log_pi(config.off_policy_correction, log_probs)


def entropy_and_auxiliary_terms(agent: Agent, unroll: unroll_lib.Unroll, output: NetworkOutput,
                                config: configs.ImpalaConfig, weights=1., entropy_weights=1.,
                                trusted: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
  """Returns the terms of the loss that do not depend on the values: name -> [] float32.

  `weights` are those of the steps, and `entropy_weights` those in the entropy: [T, B] float32 or a number. `trusted`
  are the steps that targets may use: [T, B] bool, or None for all.
  """
  terms = {'loss/entropy': losses.entropy_loss(output.policy_logits[:-1], entropy_weights)}
  if tf.is_tensor(output.pixel_control):
    environment = unroll.environment_output
    terms['loss/pixel_control'] = pixel_control.loss(
        output.pixel_control, unroll.agent_output.action[1:], agent.newest_frames(environment.observation),
        environment.done[1:], config.pixel_control_discount, weights, trusted)
  return terms


def total_loss(terms: Mapping[str, tf.Tensor], config: configs.ImpalaConfig) -> tf.Tensor:
  """Returns the sum of the loss's terms with the config's weights: [] float32."""
  weights = {'loss/policy_gradient': 1., 'loss/baseline': config.baseline_cost, 'loss/entropy': config.entropy_cost,
             'loss/pixel_control': config.pixel_control_cost}
  return sum(weights[name] * term for name, term in terms.items())


def make_optimizer(variables, config: configs.ImpalaConfig) -> optimizers.RMSProp | optimizers.Adam:
  """Makes the optimiser; `rmsprop_epsilon` may be a variable."""
  if config.optimizer == 'adam':
    return optimizers.Adam(variables, config.adam_beta1, config.adam_beta2, config.adam_epsilon)
  return optimizers.RMSProp(variables, config.rmsprop_decay, config.rmsprop_momentum, config.rmsprop_epsilon)


def tuned(config: configs.ImpalaConfig) -> dict[str, bool]:
  """Returns the hyper-parameters that populations tune (appendix F), and whether each is in use."""
  return {'learning_rate': True, 'entropy_cost': True, 'rmsprop_epsilon': config.optimizer == 'rmsprop',
          'clip_gradient_norm': config.clip_gradient_norm > 0}


def make_experience(intake: intake_lib.Intake, spec: agent_lib.EnvironmentSpec, config: configs.ImpalaConfig, seed: int,
                    unused_parameters: parameters_lib.Parameters) -> experience.Experience:
  """Makes the experience: a queue, so that unrolls are learned from once, and perhaps a replay (section 5.2.2)."""
  if not config.replay_share:
    return experience.QueueExperience(intake, config.batch_size)
  replay = unroll_replay.UnrollReplay(intake.unroll_spec, spec.frame_stacks, config.replay_capacity, config.batch_size,
                                      minimum_size=1)
  sizes = mixed_experience.MixedSettings(*mixed_experience.split(config.batch_size, config.replay_share))
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
