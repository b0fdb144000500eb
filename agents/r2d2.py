"""R2D2: recurrent replay distributed DQN.

Kapturowski et al. 2019. Many actors with different epsilons fill a prioritised replay with sequences. One learner
learns from them by n-step double Q-learning. The stored recurrent state and a burn-in give its LSTM a state like that
of the actor. This file has, in this order, the hyper-parameters, the agent, its loss, and the functions that make a
learner and its replay (training/agent_interface.py lists what the runtime needs).
"""

import dataclasses
import operator
from typing import Any, NamedTuple

import sonnet as snt
import tensorflow as tf

from scalable_agents.actor import acting
from scalable_agents.actor import agent as agent_lib
from scalable_agents.actor import unroll as unroll_lib
from scalable_agents.agents import q_networks
from scalable_agents.agents import sweeps
from scalable_agents.experience import intake as intake_lib
from scalable_agents.experience import replay_experience
from scalable_agents.learner import learner_step
from scalable_agents.learner import losses
from scalable_agents.learner import optimizers
from scalable_agents.learner import q_learning
from scalable_agents.learner import value_rescaling
from scalable_agents.records import runtime_config
from scalable_agents.records import settings
from scalable_agents.records.settings import setting
from scalable_agents.replay import sequence_replay as replay_lib
from scalable_agents.training import sweep

_MAX_STEPS = 100_000         # Larger values are taken for typing errors.
_MAX_SEQUENCES = 10_000_000

NAME = 'r2d2'
EVALUATION_POLICIES = (acting.EPSILON, acting.GREEDY)  # The paper does not name an epsilon: see --test_epsilon.
SINGLE_FRAMES = True  # The replay rebuilds the stacks.
SWEEP = sweeps.R2D2


@dataclasses.dataclass(frozen=True)
class R2d2Config(runtime_config.RuntimeConfig):
  """Every hyper-parameter. The defaults are the paper's for Atari (table 2, section 2.3)."""

  # The task.
  level_name: str = setting(
      'pong', "The level to play: one of the binary's suite, a built-in task or gymnasium:ID. For several levels: a "
      'suite (atari57 or dmlab30), or names separated by commas. Environments are assigned to the levels in turn.')
  total_environment_frames: int = setting(
      10_000_000_000, 'Number of environment frames to train for (agent steps times action repeats), summed over all '
      'levels. The paper has 10 billion per level.', at_least=1, at_most=settings.MAX_FRAMES)

  # The network.
  torso: str = setting('dqn', 'Convolutional network for pixels: dqn (appendix), deep (R2D2+) or shallow.',
                       choices=tuple(q_networks.TORSOS))
  torso_precision: str = setting('float32', 'Data type of the torso for pixels: float32, or bfloat16, which is faster '
                                 'on processors that support it. Ours.', choices=('float32', 'bfloat16'))
  centre_pixels: bool = setting(
      False, 'Subtract from each observation the mean of its pixels before the torso. Ours.')
  dense_before_lstm: bool = setting(
      False, 'Put a fully connected layer of 512 units between the torso and the LSTM. The paper names none.')
  use_lstm: bool = setting(True, 'Have an LSTM of 512 units. Without it: the Feed-Forward ablation of figure 4.')

  # Acting.
  epsilon_base: float = setting(
      0.4, 'Actor i of N takes a random action with probability epsilon_base ** (1 + epsilon_exponent * i / (N - 1)). '
      'Ape-X (Horgan et al. 2018), to which the paper refers.', at_least=0, at_most=1)
  epsilon_exponent: float = setting(7., 'See epsilon_base. Ape-X.', at_least=0, at_most=1000)
  num_actors: int = setting(
      0, 'Number N of actors in the whole cluster. Each process takes its share of the N epsilons; for each epsilon to '
      'have one actor, give actor hosts a --task and as many actors each. 0: each process spreads its own actors '
      'evenly over the whole range.', at_least=0, at_most=settings.MAX_ENVIRONMENTS)
  policy_lag: int = setting(
      0, 'Number of updates by which the parameters of the actors are held back, to study stale parameters.',
      at_least=0, at_most=10_000)

  # Sequences.
  burn_in: int = setting(
      40, 'Agent steps before the trained ones, from which the LSTM computes its state (l). Table 2.', at_least=0,
      at_most=_MAX_STEPS)
  sequence_length: int = setting(
      80, 'Trained agent steps of a sequence (m). Table 2.', at_least=1, at_most=_MAX_STEPS)
  sequence_period: int = setting(
      40, 'Agent steps from the first trained step of a sequence to that of the next one. Section 2.3.', at_least=1,
      at_most=_MAX_STEPS)
  cross_episodes: bool = setting(
      False, "Let sequences go on across the ends of episodes. The paper's never do, section 2.3.")
  recurrent_state: str = setting(
      'stored', 'The LSTM\'s state at the start of a sequence: stored (as the actor had it) or zero. Section 3.',
      choices=('stored', 'zero'))
  reset_on_life_loss: bool = setting(
      False, 'With --episode_end_on_life_loss: also reset the LSTM and end the sequence, which is Life-Loss (reset) of '
      'figure 8. Without this flag it is Life-Loss (roll).')

  # The replay.
  replay_capacity: int = setting(
      100_000, 'Sequences in the replay. 100,000 take about 29 GB on Atari, 84 GB on DMLab. Table 2.', at_least=1,
      at_most=_MAX_SEQUENCES)
  replay_minimum_size: int = setting(
      1_250, 'Sequences in the replay before the first update: 50,000 agent steps. Ape-X.', at_least=1,
      at_most=_MAX_SEQUENCES)
  save_replay: bool = setting(
      True, 'Save the replay with each checkpoint. Otherwise a resumed run fills it again. Ours.', free=True)
  samples_per_period: float = setting(
      0.77, 'Sequences learned from per sequence_period new agent steps, rounded by at most 2 %. Section 2.3: '
      '5 updates of 64 sequences per second, while 256 actors make 416.', at_least=1e-6, at_most=1e6)
  priority_exponent: float = setting(
      0.9, 'Sequences are sampled in proportion to their priority to this power; 0 for uniformly. Section 2.3.',
      at_least=0, at_most=10)
  importance_exponent: float = setting(
      0.6, 'Exponent of the importance weights, which correct for the priorities. Table 2.', at_least=0, at_most=1)
  priority_eta: float = setting(
      0.9, 'Weight of the largest TD error in a priority; the mean has the rest. Section 2.3.', at_least=0, at_most=1)

  # The loss.
  unroll_length: int = setting(40, 'Agent steps that an actor sends at once. Ours.', at_least=1, at_most=_MAX_STEPS)
  batch_size: int = setting(64, 'Sequences per update. Table 2.', at_least=1, at_most=10_000)
  discount: float = setting(0.997, 'Discount per agent step (gamma). Table 2.', at_least=0, at_most=1)
  n_step: int = setting(5, 'Steps of the n-step targets. Section 2.3.', at_least=1, at_most=_MAX_STEPS)
  value_rescaling: bool = setting(
      True, 'Learn values h(x) = sign(x)(sqrt(|x|+1)-1)+0.001x. Section 2.3. The Clipped ablation has none.')
  reward_transform: str = setting(
      'none', 'Transformation of the rewards before learning: none (section 2.3), abs_one (the Clipped ablation), '
      'soft_asymmetric (R2D2+; released code) or optimistic_asymmetric (R2D2+; IMPALA, figure D.1).',
      choices=tuple(losses.REWARD_TRANSFORMS))
  target_update_interval: int = setting(
      2500, 'Updates between two copies of the network to the target network. Table 2.', at_least=1,
      at_most=1_000_000_000)
  measure_delta_q: bool = setting(
      False, 'Measure how much values computed from the state of a sequence differ from those of the actor\'s state. '
      'Section 3. The replay then keeps three states per sequence.')

  # The optimiser.
  learning_rate: float = setting(1e-4, 'Learning rate of Adam at the start. Table 2.', at_least=0)
  learning_rate_decay: bool = setting(
      False, 'Decay the learning rate linearly to 0 over total_environment_frames. Ours.')
  adam_beta1: float = setting(0.9, 'Adam: decay of the first moment, per update.', at_least=0, less_than=1)
  adam_beta2: float = setting(0.999, 'Adam: decay of the second moment, per update.', at_least=0, less_than=1)
  adam_epsilon: float = setting(1e-3, 'Adam: number added to the root of the second moment. Table 2.', at_least=0)
  clip_gradient_norm: float = setting(
      40.0, 'Largest global norm of the gradient; a larger gradient is scaled down to it. 0 for no clipping. Ape-X.',
      at_least=0)
  sweep_index: int = setting(
      sweep.NO_SAMPLE, 'Number of a random sample of learning_rate and adam_epsilon, used instead of the flags of '
      'these names. -1 for no sample. Ours.', at_least=sweep.NO_SAMPLE, at_most=settings.MAX_SEED)

  # The run.
  queue_size: int = setting(
      4, 'Largest number of unrolls in the queue between actors and learner; when it is full, actors wait. Ours.',
      at_least=1, at_most=100_000)
  synchronous: bool = setting(
      False, 'Let environments, inference and learning take turns, so that the seed determines the run. Slower. Ours.')
  seed: int = setting(
      1, 'Seed of the initial weights, the actions, the samples and the environments.', at_least=0,
      at_most=settings.MAX_SEED)


def validate(config: R2d2Config) -> None:
  """Raises ValueError for the first setting out of range; the message is one line: flag, value, what is allowed."""
  settings.check(config)
  if not config.level_name:
    raise ValueError('--level_name=: want the name of a level')
  if config.sequence_period > config.sequence_length:
    raise ValueError(f'--sequence_period={config.sequence_period}: want at most --sequence_length='
                     f'{config.sequence_length}, so that every step is trained')
  if config.replay_minimum_size > config.replay_capacity:
    raise ValueError(f'--replay_minimum_size={config.replay_minimum_size}: want at most --replay_capacity='
                     f'{config.replay_capacity}')
  wanted, ratio = unrolls_per_batch(config), config.samples_per_period
  nearest = max(round(wanted), 1)
  if abs(wanted - nearest) > 0.02 * wanted:
    raise ValueError(f'--samples_per_period={ratio:g}: a batch of {config.batch_size} sequences would wait for '
                     f'{wanted:.3g} new unrolls of {config.unroll_length} steps: want a whole number, for example with '
                     f'--samples_per_period={ratio * wanted / nearest:.3g}, or another --unroll_length or --batch_size')


def unrolls_per_batch(config: R2d2Config) -> float:
  """The number of new unrolls per update that --samples_per_period asks for. `validate` wants about a whole number."""
  return config.batch_size * config.sequence_period / (config.samples_per_period * config.unroll_length)


def replay_steps(config: R2d2Config) -> int:
  """The number of agent steps in a full replay; see agent_interface.AgentModule."""
  return config.replay_capacity * config.sequence_period


def to_send(unroll: unroll_lib.Unroll, config: R2d2Config) -> unroll_lib.Unroll:
  """Leaves out the recurrent states that the replay does not need; see agent_interface.AgentModule."""
  return replay_experience.to_send(unroll, *_geometry_and_state_offsets(config))


def resets(environment: acting.ActorInput | unroll_lib.EnvironmentOutput, config: R2d2Config) -> tf.Tensor:
  """Says in which rows the recurrent state is reset, and a new sequence begins: bool, as `done`."""
  if config.reset_on_life_loss:  # Figure 8: Life-Loss (reset).
    return environment.done | (environment.discount == 0.)
  return environment.done


def _starts(environment, config):
  """Says in which rows the steps of an episode are counted from 0: bool, as `done`."""
  return tf.zeros_like(environment.done) if config.cross_episodes else resets(environment, config)


def _geometry_and_state_offsets(config):
  """Returns the geometry of sequences, and the offsets of the rows in a sequence that have a stored state."""
  lengths = config.burn_in, config.sequence_length, config.sequence_period
  trained = config.burn_in, config.burn_in + config.sequence_length - 1  # The first and the last trained step.
  return replay_lib.Geometry(*lengths, config.cross_episodes), (0, *trained) if config.measure_delta_q else (0,)


class ActorState(NamedTuple):
  """What an actor keeps from row to row."""
  network: Any             # nest of [B, 512], the recurrent state.
  episode_step: tf.Tensor  # [B] int32, number of the next row in its episode, unless another one starts there.


class BehaviourOutput(NamedTuple):
  """What the replay needs to know about the actor. All values are those of the row that was acted on."""
  action: tf.Tensor        # [...] int32.
  action_value: tf.Tensor  # [...] float32, Q of the action.
  max_value: tf.Tensor     # [...] float32, the largest Q.
  agent_state: Any         # nest of [..., 512], the recurrent state before the row. Sent only where it is needed.
  episode_step: tf.Tensor  # [...] int32, number of the row, from the start of its episode; see _starts.


class Agent(snt.Module):
  """The online network, which learns and acts, and the target network, an older copy of it."""

  def __init__(self, spec: agent_lib.EnvironmentSpec, config: R2d2Config, name: str = 'agent'):
    """Creates the variables. Both networks have the same initial values.

    Args:
      spec: the environments. They observe 'pixels' or 'vector', and perhaps 'instruction'.
      config, name: R2d2Config, and the module's name.
    Raises:
      ValueError: neither 'pixels' nor 'vector' is observed, or the image is too small for the torso.
    """
    super().__init__(name)
    self._config = config
    self.online, self.target = (
        q_networks.QNetwork(
            spec.observation, spec.num_actions, config.seed, torso=config.torso,
            torso_precision=config.torso_precision, centre_pixels=config.centre_pixels,
            dense_before_lstm=config.dense_before_lstm, use_lstm=config.use_lstm, name=name)
        for name in ('online', 'target'))
    self.prepare = self.online.prepare

  @property
  def trainable_variables(self):
    """The variables of the online network."""
    return self.online.trainable_variables

  acting_variables = trainable_variables

  def initial_state(self, batch_size) -> ActorState:
    """Returns the state before an actor's first row."""
    return ActorState(self.online.initial_state(batch_size), tf.zeros([batch_size], tf.int32))

  def step(self, inputs: acting.ActorInput, agent_state, seed, selection: acting.Selection = acting.Selection()):
    """Selects actions epsilon-greedily; see agent_lib.Agent. In training, each actor has its own epsilon."""
    values, new_state = self.online.step(
        inputs.last_action, inputs.reward, resets(inputs, self._config), self.prepare(inputs.observation),
        agent_state.network)
    step = tf.where(_starts(inputs, self._config), 0, agent_state.episode_step)
    if selection.kind == acting.GREEDY:
      action = acting.greedy(values)
    else:
      ladder = self._config.epsilon_base, self._config.epsilon_exponent, self._config.num_actors
      epsilon = selection.epsilon if selection.kind == acting.EPSILON else acting.ladder(inputs.actor_place, *ladder)
      action = acting.epsilon_greedy(values, epsilon, seed)
    return BehaviourOutput(action, tf.gather(values, action, batch_dims=1), tf.reduce_max(values, axis=-1),
                           agent_state.network, step), ActorState(new_state, step + 1)


def loss(agent: Agent, batch: learner_step.Batch, config: R2d2Config) -> learner_step.Loss:
  """n-step double Q-learning on the trained steps of sequences. Section 2.3.

  The loss is half the squared TD error, summed over time, weighted by importance, and averaged over the batch. The
  paper does not state this reduction; see docs/fidelity.md.

  Args:
    agent, config: the networks and the hyper-parameters.
    batch: an Unroll of [burn_in + m + 1, B, ...] tensors, whose observations come from `Agent.prepare`, and a
      replay_experience.SequenceSample.
  Returns:
    learner_step.Loss; its feedback are the new priorities, [B].
  """
  unroll, sample = batch
  actions, environment = tf.nest.map_structure(lambda rows: rows[config.burn_in + 1:], (  # [m, B], of trained steps.
      unroll.agent_output.action, unroll.environment_output._replace(observation=())))
  values = _after_burn_in(agent.online, unroll, config)                    # [m + 1, B, A].
  target_values = _after_burn_in(agent.target, unroll, config)
  # Double Q-learning: the online network selects the action, and the target network evaluates it.
  best = tf.argmax(values[1:], axis=-1, output_type=tf.int32)
  bootstrap_values = tf.gather(target_values[1:], best, batch_dims=2)
  targets = n_step_targets(environment, bootstrap_values, config)
  trains = tf.cast(sample.trains, tf.float32)
  td_errors = (targets - tf.gather(values[:-1], actions, batch_dims=2)) * trains
  weights = q_learning.importance_weights(sample.probability, config.importance_exponent)
  losses_of_sequences = 0.5 * tf.reduce_sum(tf.square(td_errors), axis=0)  # [B].
  num_learners = tf.distribute.get_strategy().num_replicas_in_sync         # They add up their losses.
  total = tf.reduce_mean(weights * losses_of_sequences) / num_learners
  priorities = q_learning.sequence_priorities(td_errors, sample.trains, config.priority_eta)
  means = {'value': tf.reduce_sum(trains * tf.reduce_mean(values[:-1], axis=-1)) / tf.reduce_sum(trains),
           'priority': tf.reduce_mean(priorities), 'replay_age': tf.reduce_mean(tf.cast(sample.age, tf.float32))}
  if config.measure_delta_q and config.use_lstm:
    means |= _delta_q(agent, batch, values, config)
  return learner_step.Loss(total, {'loss/td': total}, means, feedback=priorities)


def n_step_targets(environment: unroll_lib.EnvironmentOutput, bootstrap_values: tf.Tensor,
                   config: R2d2Config) -> tf.Tensor:
  """y_t = h(sum_{k<n} gamma^k r_{t+k} + gamma^n h^-1(Q(s_{t+n}, a*))). Section 2.3.

  Args:
    environment: EnvironmentOutput of [T, B], what steps 0 to T - 1 led to.
    bootstrap_values: [T, B] float32, Q(s, a*) of these rows, in the scale of the network.
    config: the hyper-parameters.
  Returns:
    [T, B] float32, without gradient, in the scale of the network.
  """
  if config.value_rescaling:
    bootstrap_values = value_rescaling.unrescale(bootstrap_values)
  rewards = losses.transform_rewards(environment.reward, config.reward_transform)
  targets = q_learning.n_step_targets(rewards, config.discount * environment.discount, bootstrap_values, config.n_step)
  return value_rescaling.rescale(targets) if config.value_rescaling else targets


def _after_burn_in(network, unroll, config):
  """Returns the values of the trained steps and of the row after them, [m + 1, B, A].

  The burn-in has no gradient: it only gives the state (section 3).
  """
  rows = (unroll.agent_output.action, unroll.environment_output.reward, resets(unroll.environment_output, config),
          unroll.environment_output.observation)
  state = unroll.agent_state
  if config.recurrent_state == 'zero':
    state = tf.nest.map_structure(tf.zeros_like, state)
  if config.burn_in and config.use_lstm:
    _, state = network.unroll(*tf.nest.map_structure(lambda values: values[:config.burn_in], rows), state)
    state = tf.nest.map_structure(tf.stop_gradient, state)
  return network.unroll(*tf.nest.map_structure(lambda values: values[config.burn_in:], rows), state)[0]


def _delta_q(agent, batch, values, config):
  """||q(h^) - q(h)||_2 / |max q(h^)| at the first and the last trained step. Section 3, the equation of Delta Q.

  h^ is the state that the burn-in gives, and h the one that the actor had; both values are of the current network.
  Sequences that begin with an episode are left out: there, the state is always known.
  """
  environment, sample = batch.unroll.environment_output, batch.sample
  largest = tf.abs(tf.reduce_max(tf.where(sample.trains[..., tf.newaxis], values[:-1], values.dtype.min), axis=[0, 2]))
  begins_in_episode = (sample.padding == 0) & ~resets(environment, config)[0]  # [B].
  differences = {}
  for number, (name, step) in enumerate({'first': 0, 'last': config.sequence_length - 1}.items()):
    seen = tf.nest.map_structure(operator.itemgetter(config.burn_in + step), environment)
    states = tf.nest.map_structure(operator.itemgetter(number), sample.later_states)
    actors_values, _ = agent.online.step(batch.unroll.agent_output.action[config.burn_in + step], seen.reward,
                                         resets(seen, config), seen.observation, states)
    counts = tf.cast(sample.trains[step] & begins_in_episode, tf.float32)
    difference = tf.where(counts > 0, tf.norm(values[step] - actors_values, axis=-1) / largest, 0.)
    differences[f'delta_q/{name}'] = tf.reduce_sum(difference) / tf.reduce_sum(counts)  # NaN means that none counts.
  return differences


def make_learner(agent: Agent, config: R2d2Config, xla: str = 'auto',
                 device: str | None = None) -> learner_step.Learner:
  """Makes the learner; see agent_interface.AgentModule."""
  def update_target(unused_gathered, updates):
    is_time = updates % config.target_update_interval == 0
    return [(target, tf.where(is_time, online, target))
            for target, online in zip(agent.target.variables, agent.online.variables, strict=True)]

  tuned = {'learning_rate': True, 'adam_epsilon': True, 'clip_gradient_norm': config.clip_gradient_norm > 0}
  return learner_step.Learner(
      agent, loss, lambda variables, live: optimizers.Adam(
          variables, live.adam_beta1, live.adam_beta2, live.adam_epsilon), config, tuned, xla, device, update_target)


def make_experience(intake: intake_lib.Intake, spec: agent_lib.EnvironmentSpec, config: R2d2Config,
                    seed: int, unused_parameters: Any) -> replay_experience.ReplayExperience:
  """Makes the replay; see agent_interface.AgentModule."""
  geometry, state_offsets = _geometry_and_state_offsets(config)
  replay_settings = replay_experience.ReplaySettings(
      geometry, config.replay_capacity, config.replay_minimum_size, config.batch_size, round(unrolls_per_batch(config)),
      config.priority_exponent, state_offsets, is_saved=config.save_replay)

  def first_priorities(unroll, trains):
    """From the actor's own values: they stand for both networks. As in Ape-X."""
    actor = unroll.agent_output
    environment = tf.nest.map_structure(lambda rows: rows[:-1], unroll.environment_output)
    # The value of the row that a step led to comes with the next action, one row later.
    targets = n_step_targets(environment, actor.max_value[1:], config)
    return q_learning.sequence_priorities(targets - actor.action_value[:-1], trains, config.priority_eta)

  return replay_experience.ReplayExperience(
      intake, spec.frame_stacks, replay_settings, seed, lambda environment: _starts(environment, config),
      first_priorities)
