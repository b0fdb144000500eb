"""IMPALA: importance weighted actor-learner architectures.

Espeholt et al. 2018. Many actors play with slightly old parameters; one learner corrects for the difference with
V-trace. In this order: the hyper-parameters, the agent, its loss, and the learner's step.
"""

import contextlib
import dataclasses
import functools
import math
from typing import NamedTuple

import sonnet as snt
import tensorflow as tf

from scalable_agents.actor import unroll as unroll_lib
from scalable_agents.agents import networks
from scalable_agents.agents import sweep
from scalable_agents.learner import losses
from scalable_agents.learner import off_policy
from scalable_agents.learner import optimizers
from scalable_agents.learner import vtrace
from scalable_agents.records import settings
from scalable_agents.records.settings import setting

OPTIMIZERS = ('rmsprop', 'adam')
PRECISIONS = ('float32', 'bfloat16')

# Larger values are typing errors. What this machine has memory for is known only with the environments: memory.py.
_MAX_UNROLL_LENGTH = 100_000
_MAX_BATCH_SIZE = 10_000
_MAX_QUEUE_SIZE = 100_000
_MAX_POLICY_LAG = 10_000

_TUNED = ('learning_rate', 'entropy_cost', 'rmsprop_epsilon', 'clip_gradient_norm')
_CHECKED_TERMS = ('loss/policy_gradient', 'loss/baseline', 'loss/entropy')


@dataclasses.dataclass(frozen=True)
class ImpalaConfig:
  """Every hyper-parameter; defaults are the paper's for single Atari games (section 5.3.2, table G.1)."""

  # The task.
  level_name: str = setting(
      'pong', 'What to play: an Atari game, a built-in task, gymnasium:ID; or several at once: a suite, atari57, or '
      'names with commas between them. Environments are spread over them in turn.')
  total_environment_frames: int = setting(
      200_000_000, 'Environment frames (agent steps times action repeats) to train for, of all levels together. '
      'Section 5.3.2 has 200 million per Atari game: 11_400_000_000 for atari57.', at_least=1,
      at_most=settings.MAX_FRAMES)

  # The network.
  torso: str = setting('deep', 'Network for pixels: shallow or deep. Figure 3.', choices=tuple(networks.TORSOS))
  torso_precision: str = setting(
      'float32', 'What the torso for pixels computes in: float32, or bfloat16, which is up to 1.8 times as fast on '
      'processors that have it. Parameters, LSTM, heads and losses are float32 in either case. Ours.',
      choices=PRECISIONS)
  centre_pixels: bool = setting(
      False, 'Subtract from each observation the mean of its pixels before the torso. All positive, pixels move '
      "all weights of a filter alike, and noise that does so switches whole filters off for ever; LeCun et al. 1998, "
      '"Efficient BackProp", section 4.3. Ours.')
  use_lstm: bool = setting(
      False, 'An LSTM of 256 after the torso, fed with the last reward and action too. The paper: not on Atari.')

  # The loss.
  unroll_length: int = setting(20, 'Agent steps per unroll. Table G.1.', at_least=1, at_most=_MAX_UNROLL_LENGTH)
  batch_size: int = setting(32, 'Unrolls per update. Table G.1.', at_least=1, at_most=_MAX_BATCH_SIZE)
  discount: float = setting(0.99, 'Discount per agent step (gamma). Table G.1.', at_least=0, at_most=1)
  baseline_cost: float = setting(0.5, 'Weight of the baseline loss. Table G.1.', at_least=0)
  entropy_cost: float = setting(0.01, 'Weight of the entropy bonus. Table G.1.', at_least=0)
  reward_transform: str = setting(
      'abs_one', 'What rewards go through before learning: abs_one (clip to [-1, 1], table G.1), soft_asymmetric '
      '(released code), optimistic_asymmetric (figure D.1) or none.', choices=tuple(losses.REWARD_TRANSFORMS))
  off_policy_correction: str = setting(
      'vtrace', 'How the learner corrects for actions of older policies: vtrace, one_step, epsilon or none. '
      'Section 5.2.2.', choices=tuple(off_policy.CORRECTIONS))
  clip_rho_threshold: float = setting(
      1.0, 'Importance weights in the value targets are clipped here (rho-bar); inf for no clipping. Section 5.2.2.',
      at_least=0, at_most=math.inf)
  clip_pg_rho_threshold: float = setting(
      1.0, 'Importance weights in the policy gradient are clipped here; inf for no clipping. Section 5.2.2.',
      at_least=0, at_most=math.inf)
  vtrace_lambda: float = setting(
      1.0, 'V-trace mixes one-step (0) and full (1) value targets. Section 4.1, remark 2.', at_least=0, at_most=1)
  policy_lag: int = setting(
      0, 'Actors play with parameters this many updates older than need be, to study staleness; as many copies of them '
      'are kept in memory. After a resume the lag grows from 0 again, as at the start. Section E.1.',
      at_least=0, at_most=_MAX_POLICY_LAG)

  # The optimiser.
  optimizer: str = setting('rmsprop', 'rmsprop (table G.1) or adam (ours).', choices=OPTIMIZERS)
  learning_rate: float = setting(6e-4, 'Learning rate at the start. Table G.1.', at_least=0)
  learning_rate_decay: bool = setting(
      True, 'Decay the learning rate linearly to 0 over total_environment_frames. Table G.1.')
  rmsprop_decay: float = setting(
      0.99, 'RMSProp: decay of the mean square, per update. Released code.', at_least=0, less_than=1)
  rmsprop_momentum: float = setting(0.0, 'RMSProp: momentum. Table G.1.', at_least=0, less_than=1)
  rmsprop_epsilon: float = setting(
      0.01, 'RMSProp: added to the mean square inside the root. Table G.1.', at_least=0)
  adam_beta1: float = setting(0.9, 'Adam: decay of the first moment, per update. Ours.', at_least=0, less_than=1)
  adam_beta2: float = setting(0.999, 'Adam: decay of the second moment, per update. Ours.', at_least=0, less_than=1)
  adam_epsilon: float = setting(1e-8, 'Adam: added to the root of the second moment. Ours.', at_least=0)
  clip_gradient_norm: float = setting(
      40.0, 'Largest global norm of the gradient; 0 for no clipping. Table G.1.', at_least=0)
  sweep_index: int = setting(
      sweep.NO_SAMPLE, 'Which sample of learning_rate, entropy_cost and rmsprop_epsilon to take in place of their own '
      f'flags: 0 to {sweep.NUM_SAMPLES - 1}, more in a population; -1 for none. Table D.1.', at_least=sweep.NO_SAMPLE,
      at_most=settings.MAX_SEED)

  # The run.
  queue_size: int = setting(
      1, 'Unrolls in the queue to the learner at most. Beside them wait the batch that it collects and what the actors '
      'have finished; then they wait too. Released code.', at_least=1, at_most=_MAX_QUEUE_SIZE)
  synchronous: bool = setting(
      False, 'Environments, inference and learning take turns, so that a seed determines the run. Ours; slower.')
  seed: int = setting(
      1, 'Seed of initial weights, sampled actions and environments.', at_least=0, at_most=settings.MAX_SEED)


def validate(config: ImpalaConfig) -> None:
  """Raises ValueError, one line with flag, value and what is allowed, for the first setting out of its range."""
  settings.check(config)
  if not config.level_name:
    raise ValueError('--level_name=: want the name of a level')


class NetworkOutput(NamedTuple):
  """The two heads."""
  policy_logits: tf.Tensor  # [..., A] float32, un-normalised log-probabilities.
  baseline: tf.Tensor       # [...] float32, V(x).


class Agent(snt.Module):
  """Torso, optional LSTM, and linear heads for policy and baseline. Figure 3."""

  def __init__(self, num_actions: int, observation_spec, config: ImpalaConfig, name: str = 'agent'):
    """Creates the variables.

    Args:
      num_actions: A.
      observation_spec: dict with 'pixels' (uint8 [H, W, C]) or 'vector' (float32 [N]), and perhaps 'instruction' (uint8
        [L], text filled up with zeros), to specs with `shape`, `dtype`.
      config: ImpalaConfig; `torso`, `torso_precision`, `centre_pixels`, `use_lstm` and `seed` are read.
      name: of the module.
    Raises:
      ValueError: neither 'pixels' nor 'vector' is observed, or the pixels are too few for the torso.
    """
    super().__init__(name)
    seeds = networks.Seeds(config.seed)
    self._num_actions = num_actions
    if 'pixels' in observation_spec:
      self._observed = 'pixels'
      self._torso = networks.TORSOS[config.torso](
          seeds, tf.as_dtype(config.torso_precision), config.centre_pixels)
    elif 'vector' in observation_spec:
      self._observed, self._torso = 'vector', networks.VectorTorso(seeds)
    else:
      raise ValueError(f"observation_spec: want 'pixels' or 'vector', got {sorted(observation_spec)}")
    self._language = networks.LanguageEncoder(seeds) if 'instruction' in observation_spec else None
    num_features = 256 + (networks.LANGUAGE_SIZE if self._language else 0)
    self._core = networks.LSTMCore(num_features + 1 + num_actions, 256, seeds) if config.use_lstm else None
    self._policy = networks.Linear(num_actions, seeds, 'policy')
    self._baseline = networks.Linear(1, seeds, 'baseline')
    zeros = {name: tf.zeros([1, *spec.shape], spec.dtype) for name, spec in observation_spec.items()}
    self.step(tf.zeros([1], tf.int32), tf.zeros([1]), tf.ones([1], tf.bool), zeros, self.initial_state(1),
              tf.zeros([2], tf.int32))

  def initial_state(self, batch_size):
    """The core's state at an episode's start: () without an LSTM, else an LSTMState of [batch_size, 256]."""
    return self._core.initial_state(batch_size) if self._core else ()

  def prepare(self, observation):
    """Observations of any shape as `unroll` takes them: 'words' for 'instruction'. XLA has no strings."""
    if not self._language:
      return observation
    with tf.device('/CPU:0'):
      words = networks.instruction_words(observation['instruction'])
    return {self._observed: observation[self._observed], 'words': words}

  def step(self, last_action, reward, done, observation, agent_state, seed):
    """Acts.

    Args:
      last_action: [B] int32, the action that led here.
      reward: [B] float32, raw, that it earned.
      done: [B] bool, the observation starts an episode: the core is reset before it sees it.
      observation: dict of [B, ...].
      agent_state: nest of [B, ...].
      seed: [2] int32 or int64; the sampled actions are a function of it.
    Returns:
      AgentOutput of action [B] int32, policy_logits [B, A], baseline [B]; and the new agent_state.
    """
    features = self._features(self.prepare(observation))
    if self._core:
      features, agent_state = self._core.step(self._core_input(features, last_action, reward), done, agent_state)
    output = self._heads(features)
    action = tf.random.stateless_categorical(output.policy_logits, 1, seed, dtype=tf.int32)[:, 0]
    return unroll_lib.AgentOutput(action, output.policy_logits, output.baseline), agent_state

  def unroll(self, last_action, reward, done, observation, agent_state):
    """What `step` computes before sampling, for all rows of an unroll.

    Args:
      last_action, reward, done: [T+1, B].
      observation: dict of [T+1, B, ...], prepared.
      agent_state: nest of [B, ...], before row 0.
    Returns:
      NetworkOutput of [T+1, B, ...], and the agent_state after the last row.
    """
    # Time is folded into the batch for all that has no memory (section 3.1).
    features = snt.BatchApply(self._features)(observation)
    if self._core:
      features, agent_state = self._core.unroll(self._core_input(features, last_action, reward), done, agent_state)
    return self._heads(features), agent_state

  def _features(self, observation):
    features = self._torso(observation[self._observed])
    return tf.concat([features, self._language(observation['words'])], axis=-1) if self._language else features

  def _core_input(self, features, last_action, reward):
    clipped_reward = tf.clip_by_value(reward, -1.0, 1.0)[..., tf.newaxis]
    return tf.concat([features, clipped_reward, tf.one_hot(last_action, self._num_actions)], axis=-1)

  def _heads(self, features):
    return NetworkOutput(self._policy(features), tf.squeeze(self._baseline(features), axis=-1))


def loss(agent: Agent, unroll: unroll_lib.Unroll, config: ImpalaConfig):
  """The actor-critic loss of section 4.2, summed over time and batch.

  Args:
    agent: the network that learns.
    unroll: Unroll of [T+1, B, ...] tensors (agent_state [B, ...], level_id and actor_id [B]), observations prepared.
    config: ImpalaConfig; its `entropy_cost` may be a variable.
  Returns:
    [] float32, and a dict of its terms, unweighted: 'loss/...' -> [] float32.
  """
  environment, actor = unroll.environment_output, unroll.agent_output
  output, _ = agent.unroll(
      actor.action, environment.reward, environment.done, environment.observation, unroll.agent_state)

  # Row t's action was computed from row t-1: pair rows 1..T of what happened with rows 0..T-1 of our own outputs.
  actions, behaviour_logits = actor.action[1:], actor.policy_logits[1:]           # [T, B], [T, B, A].
  rewards = losses.transform_rewards(environment.reward[1:], config.reward_transform)
  discounts = config.discount * environment.discount[1:]
  logits, values, bootstrap_value = output.policy_logits[:-1], output.baseline[:-1], output.baseline[-1]

  log_probs = vtrace.log_probs_from_logits_and_actions(logits, actions)
  log_rhos = log_probs - vtrace.log_probs_from_logits_and_actions(behaviour_logits, actions)
  targets = off_policy.targets(
      config.off_policy_correction, tf.stop_gradient(log_rhos), discounts, rewards, tf.stop_gradient(values),
      bootstrap_value, config.clip_rho_threshold, config.clip_pg_rho_threshold, config.vtrace_lambda)

  policy_gradient = losses.policy_gradient_loss(
      off_policy.log_pi(config.off_policy_correction, log_probs), targets.pg_advantages)
  baseline = losses.baseline_loss(targets.vs, values)
  entropy = losses.entropy_loss(logits)
  total = policy_gradient + config.baseline_cost * baseline + config.entropy_cost * entropy
  return total, {'loss/total': total, 'loss/policy_gradient': policy_gradient, 'loss/baseline': baseline,
                 'loss/entropy': entropy}


class Learner(tf.Module):
  """The agent's parameters, their optimiser and the two counters; `step` learns from one batch of unrolls.

  Made and stepped under a tf.distribute.Strategy it is one of several learners, which learn in step: each from a batch
  of its own, and all with the sum of their gradients, as from one large batch. Section 3, figure 1.
  """

  def __init__(self, agent: Agent, config: ImpalaConfig, frames_per_step: int, xla: str = 'auto',
               device: str | None = None, name: str = 'learner'):
    """Creates the optimiser's slots.

    Args:
      agent: Agent.
      config: ImpalaConfig.
      frames_per_step: environment frames per agent step.
      xla: 'always' compiles the step, 'never' does not, 'auto' does except on a CPU, where oneDNN's convolutions
        are three times as fast as XLA's, and compiling the rest of the step alone gains nothing.
      device: where to learn, '/GPU:0' say; None for where the agent's variables are. A strategy knows its own.
      name: of the module.
    """
    super().__init__(name)
    self.agent = agent
    self.config = config
    self._frames_per_step = frames_per_step
    self._num_learners = tf.distribute.get_strategy().num_replicas_in_sync
    self._device = device or agent.trainable_variables[0].device
    with self._on_device():
      self.environment_frames, self.update_steps, self.skipped_updates = (
          tf.Variable(0, dtype=tf.int64, trainable=False, name=name,
                      aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
          for name in ('environment_frames', 'update_steps', 'skipped_updates'))
      # Variables, as they change while a population trains.
      self.learning_rate, self.entropy_cost, self.rmsprop_epsilon, self.clip_gradient_norm = (
          tf.Variable(getattr(config, name), dtype=tf.float32, trainable=False, name=name) for name in _TUNED)
      self.optimizer = _make_optimizer(agent.trainable_variables, config, self.rmsprop_epsilon)
    compiled = {'always': True, 'never': False, 'auto': 'CPU' not in self._device.upper()}[xla]
    # AutoGraph would convert all of Sonnet that a step calls, which took four fifths of the time to trace it.
    compile_ = functools.partial(tf.function, autograph=False, jit_compile=compiled)
    self._compiled_gradients = compile_(self._gradients)
    # Several learners talk to each other amid the step, which XLA cannot.
    self._compiled_step = compile_(self._step) if self._num_learners == 1 else self._step

  def step(self, unroll: unroll_lib.Unroll) -> dict[str, tf.Tensor]:
    """One update. All of the batch's frames count, also where the update is skipped.

    Of several learners, this one's part; to be called in a graph, in the context of a replica.

    Args:
      unroll: Unroll of [T+1, B, ...] tensors.
    Returns:
      dict of scalars, the same for all learners: the terms of `loss`; 'grad_norm', before clipping; 'learning_rate';
      'update_skipped', 1 where the loss, the gradient or what the update would have made of parameters and slots was
      not finite, so that nothing was learned; 'culprit', for `culprit`; 'policy_lag', how many updates the parameters
      that acted were behind, on average.
    """
    with self._on_device():
      return self._compiled_step(self._prepare(unroll))

  @property
  def hyper_parameters(self) -> dict[str, tf.Variable]:
    """What may be changed between two steps, of what is in use. Appendix F tunes just these."""
    in_use = {'rmsprop_epsilon': self.config.optimizer == 'rmsprop',
              'clip_gradient_norm': self.config.clip_gradient_norm > 0}
    return {name: getattr(self, name) for name in _TUNED if in_use.get(name, True)}

  def culprit(self, metrics) -> str | None:
    """The first term of the loss, gradient or new value of a variable that was not finite; None if all were."""
    index = int(metrics['culprit'])
    names = [*_CHECKED_TERMS, *(f'gradient of {v.name}' for v in self.agent.trainable_variables),
             *(f'the new value of {v.name}' for v in self.optimizer.variables)]
    return None if index < 0 else names[index]

  def _on_device(self):
    return tf.device(self._device) if self._num_learners == 1 else contextlib.nullcontext()

  def _prepare(self, unroll):
    environment_output = unroll.environment_output
    return unroll._replace(environment_output=environment_output._replace(
        observation=self.agent.prepare(environment_output.observation)))

  def _gradients(self, unroll):
    """The gradients of the loss, its terms, and the mean policy lag: what several learners add up."""
    variables = self.agent.trainable_variables
    with tf.GradientTape() as tape:
      total, terms = loss(self.agent, unroll, dataclasses.replace(self.config, entropy_cost=self.entropy_cost))
    # Those that acted for a learner before, which died, may be ahead.
    lag = tf.reduce_mean(tf.cast(tf.maximum(self.update_steps - unroll.parameter_version[1:], 0), tf.float32))
    # Dense: as slices, an embedding's gradient makes XLA compile the step anew for each batch.
    gradients = [tf.convert_to_tensor(gradient) for gradient in tape.gradient(total, variables)]
    return gradients, terms, lag

  def _step(self, unroll):
    gradients, metrics, lag = self._compiled_gradients(unroll)
    if self._num_learners > 1:
      gradients, metrics, lag = tf.distribute.get_replica_context().all_reduce(
          tf.distribute.ReduceOp.SUM, (gradients, metrics, lag))

    half_squares = tf.stack([tf.nn.l2_loss(g) for g in gradients])
    grad_norm = tf.sqrt(2.0 * tf.reduce_sum(half_squares))
    finite = tf.math.is_finite(tf.concat([[metrics[name] for name in _CHECKED_TERMS], half_squares], 0))

    learning_rate = self.learning_rate.read_value()
    if self.config.learning_rate_decay:
      learning_rate = optimizers.linear_decay(
          learning_rate, self.environment_frames, self.config.total_environment_frames)
    finite_after = tf.cond(tf.reduce_all(finite), lambda: self._apply(gradients, grad_norm, learning_rate),
                           lambda: tf.fill([len(self.optimizer.variables)], True))
    finite = tf.concat([finite, finite_after], 0)
    all_finite = tf.reduce_all(finite)
    metrics |= {
        'grad_norm': grad_norm,
        'learning_rate': learning_rate,
        'update_skipped': 1.0 - tf.cast(all_finite, tf.float32),
        'culprit': tf.where(all_finite, -1, tf.argmin(tf.cast(finite, tf.int32), output_type=tf.int32)),
        'policy_lag': lag / self._num_learners,
    }
    self.update_steps.assign_add(tf.cast(all_finite, tf.int64))
    self.skipped_updates.assign_add(tf.cast(~all_finite, tf.int64))
    agent_steps = self._num_learners * tf.size(unroll.environment_output.reward[1:], out_type=tf.int64)
    self.environment_frames.assign_add(agent_steps * self._frames_per_step)
    return metrics

  def _apply(self, gradients, grad_norm, learning_rate):
    if self.config.clip_gradient_norm:  # Else it is off for good, and not tuned.
      gradients = optimizers.clip_by_global_norm(gradients, grad_norm, self.clip_gradient_norm)
    return optimizers.apply_if_finite(self.optimizer, gradients, learning_rate)


def _make_optimizer(variables, config, rmsprop_epsilon):
  if config.optimizer == 'adam':
    return optimizers.Adam(variables, config.adam_beta1, config.adam_beta2, config.adam_epsilon)
  return optimizers.RMSProp(variables, config.rmsprop_decay, config.rmsprop_momentum, rmsprop_epsilon)
