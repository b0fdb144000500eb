"""R2D2: recurrent replay distributed DQN.

Kapturowski et al. 2019. Many actors with different epsilons fill a prioritised replay with sequences. One learner
learns from them by n-step double Q-learning. The stored recurrent state and a burn-in give its LSTM a state like that
of the actor. This file has, in this order, the agent, its loss, its replay, and its definition
(training/definition.py). configs.py has the hyper-parameters.
"""

import operator
from typing import Any, NamedTuple

import sonnet as snt
import tensorflow as tf

from scalable_agents.actor import acting
from scalable_agents.actor import agent as agent_lib
from scalable_agents.actor import unroll as unroll_lib
from scalable_agents.agents import configs
from scalable_agents.agents import sweeps
from scalable_agents.experience import intake as intake_lib
from scalable_agents.experience import replay_experience
from scalable_agents.learner import learner_step
from scalable_agents.learner import losses
from scalable_agents.learner import optimizers
from scalable_agents.learner import q_learning
from scalable_agents.learner import value_rescaling
from scalable_agents.networks import q_networks
from scalable_agents.replay import sequence_replay as replay_lib
from scalable_agents.training import definition


def resets(environment: acting.ActorInput | unroll_lib.EnvironmentOutput, config: configs.R2d2Config) -> tf.Tensor:
  """Says in which rows the recurrent state is reset, and a new sequence begins: bool, as `done`."""
  if config.reset_on_life_loss:  # Figure 8: Life-Loss (reset).
    return environment.done | (environment.discount == 0.)
  return environment.done


def _starts(environment, config):
  """Says in which rows the steps of an episode are counted from 0: bool, as `done`."""
  return tf.zeros_like(environment.done) if config.cross_episodes else resets(environment, config)


class ActorState(NamedTuple):
  """What an actor keeps from row to row."""
  network: Any             # nest of [B, 512], the recurrent state.
  episode_step: tf.Tensor  # [B] int32, number of the next row in its episode, unless another episode starts there.


class BehaviourOutput(NamedTuple):
  """What the replay needs to know about the actor. All values are those of the row that was acted on."""
  action: tf.Tensor        # [...] int32.
  action_value: tf.Tensor  # [...] float32, Q of the action.
  max_value: tf.Tensor     # [...] float32, the largest Q.
  agent_state: Any         # nest of [..., 512], the recurrent state before the row. Sent only where it is needed.
  episode_step: tf.Tensor  # [...] int32, number of the row, from the start of its episode; see _starts.


class Agent(snt.Module):
  """The online network, which learns and acts, and the target network, an older copy of it."""

  def __init__(self, spec: agent_lib.EnvironmentSpec, config: configs.R2d2Config, name: str = 'agent'):
    """Creates the variables. Both networks have the same initial values.

    Args:
      spec: the environments. They observe 'pixels' or 'vector', and perhaps 'instruction'.
      config, name: configs.R2d2Config, and the module's name.
    Raises:
      ValueError: neither 'pixels' nor 'vector' is observed, or the image is too small for the torso.
    """
    super().__init__(name)
    self._config = config
    self.online, self.target = (
        q_networks.QNetwork(spec.observation, spec.num_actions, config, network) for network in ('online', 'target'))
    self.prepare = self.online.prepare

  @property
  def trainable_variables(self):
    """The variables of the online network."""
    return self.online.trainable_variables

  acting_variables = trainable_variables

  def initial_state(self, batch_size: int | tf.Tensor) -> ActorState:
    """Returns the state before an actor's first row, an ActorState of zeros [batch_size, ...]."""
    return ActorState(self.online.initial_state(batch_size), tf.zeros([batch_size], tf.int32))

  def step(self, inputs: acting.ActorInput, agent_state: ActorState, seed: tf.Tensor,
           selection: acting.Selection = acting.Selection()) -> tuple[BehaviourOutput, ActorState]:
    """Selects actions epsilon-greedily; see agent_lib.Agent. In training, each actor has its own epsilon."""
    values, new_state = self.online.step(
        inputs._replace(done=resets(inputs, self._config), observation=self.prepare(inputs.observation)),
        agent_state.network)
    step = tf.where(_starts(inputs, self._config), 0, agent_state.episode_step)
    config = self._config
    epsilon = acting.ladder(inputs.actor_place, config.epsilon_base, config.epsilon_exponent, config.num_actors)
    action = acting.select_by_value(values, selection, epsilon, seed)
    return BehaviourOutput(action, tf.gather(values, action, batch_dims=1), tf.reduce_max(values, axis=-1),
                           agent_state.network, step), ActorState(new_state, step + 1)


def loss(agent: Agent, batch: learner_step.Batch, config: configs.R2d2Config) -> learner_step.Loss:
  """n-step double Q-learning on the trained steps of sequences. Section 2.3.

  The loss is half the squared TD error, summed over time, weighted by importance, and averaged over the batch. The
  paper does not state this reduction; see docs/fidelity.md.

  Args:
    agent, config: the networks and the hyper-parameters.
    batch: an Unroll of [burn_in + m + 1, B, ...] tensors, whose observations come from `Agent.prepare`, and a
      replay_experience.SequenceSample.
  Returns:
    learner_step.Loss; its feedback is the new priorities, [B].
  """
  unroll, sample = batch
  steps = unroll_lib.steps(unroll, config.burn_in)                         # [m, B], the trained steps.
  values = _after_burn_in(agent.online, unroll, config)                    # [m + 1, B, A].
  target_values = _after_burn_in(agent.target, unroll, config)
  # Double Q-learning: the online network selects the action, and the target network evaluates it.
  best = tf.argmax(values[1:], axis=-1, output_type=tf.int32)
  bootstrap_values = tf.gather(target_values[1:], best, batch_dims=2)
  targets = n_step_targets(steps.r_t, steps.discount_t, steps.real_t, bootstrap_values, config)
  trains = tf.cast(sample.trains & steps.real_t, tf.float32)
  td_errors = (targets - tf.gather(values[:-1], steps.a_tm1, batch_dims=2)) * trains
  weights = q_learning.importance_weights(sample.probability, config.importance_exponent)
  losses_of_sequences = 0.5 * tf.reduce_sum(tf.square(td_errors), axis=0)  # [B].
  num_learners = tf.distribute.get_strategy().num_replicas_in_sync         # They add up their losses.
  total = tf.reduce_mean(weights * losses_of_sequences) / num_learners
  priorities = q_learning.sequence_priorities(td_errors, sample.trains & steps.real_t, config.priority_eta)
  means = {'value': tf.reduce_sum(trains * tf.reduce_mean(values[:-1], axis=-1)) / tf.reduce_sum(trains),
           'priority': tf.reduce_mean(priorities), 'replay_age': tf.reduce_mean(tf.cast(sample.age, tf.float32))}
  if config.measure_delta_q and config.use_lstm:
    means |= _delta_q(agent, batch, values, config)
  return learner_step.Loss(total, {'loss/td': total}, means, feedback=priorities)


def n_step_targets(r_t: tf.Tensor, discount_t: tf.Tensor, real_t: tf.Tensor, bootstrap_values: tf.Tensor,
                   config: configs.R2d2Config) -> tf.Tensor:
  """y_t = h(sum_{k<n} gamma^k r_{t+k} + gamma^n h^-1(Q(s_{t+n}, a*))). Section 2.3.

  Args:
    r_t, discount_t, real_t: [T, B], what the steps led to, as in unroll.Steps.
    bootstrap_values: [T, B] float32, Q(s, a*) of the states that they led to, in the scale of the network.
    config: the hyper-parameters.
  Returns:
    [T, B] float32, without gradient, in the scale of the network.
  """
  if config.value_rescaling:
    bootstrap_values = value_rescaling.unrescale(bootstrap_values)
  r_t = losses.transform_rewards(r_t, config.reward_transform)
  targets = q_learning.n_step_targets(r_t, config.discount * discount_t, bootstrap_values, config.n_step, real_t)
  return value_rescaling.rescale(targets) if config.value_rescaling else targets


def _inputs(unroll, config):
  """Returns the inputs of the network in all rows. Its state is reset where `resets` says."""
  inputs = acting.inputs_of(unroll)
  return inputs._replace(done=resets(inputs, config))


def _after_burn_in(network, unroll, config):
  """Returns the values of the trained steps and of the row after them, [m + 1, B, A].

  The burn-in has no gradient: it only gives the state (section 3).
  """
  inputs, state = _inputs(unroll, config), unroll.agent_state
  if config.recurrent_state == 'zero':
    state = tf.nest.map_structure(tf.zeros_like, state)
  if config.burn_in and config.use_lstm:
    _, state = network.unroll(tf.nest.map_structure(lambda values: values[:config.burn_in], inputs), state)
    state = tf.nest.map_structure(tf.stop_gradient, state)
  return network.unroll(tf.nest.map_structure(lambda values: values[config.burn_in:], inputs), state)[0]


def _delta_q(agent, batch, values, config):
  """||q(h^) - q(h)||_2 / |max q(h^)| at the first and the last trained step. Section 3, the equation of Delta Q.

  h^ is the state that the burn-in gives, and h the one that the actor had; both values are of the current network.
  Sequences that begin with an episode are left out: there, the state is always known.
  """
  inputs, sample = _inputs(batch.unroll, config), batch.sample
  largest = tf.abs(tf.reduce_max(tf.where(sample.trains[..., tf.newaxis], values[:-1], values.dtype.min), axis=[0, 2]))
  begins_in_episode = (sample.padding == 0) & ~inputs.done[0]  # [B].
  differences = {}
  for number, (name, step) in enumerate({'first': 0, 'last': config.sequence_length - 1}.items()):
    row = tf.nest.map_structure(operator.itemgetter(config.burn_in + step), inputs)
    actors_values, _ = agent.online.step(
        row, tf.nest.map_structure(operator.itemgetter(number), sample.later_states))
    counts = tf.cast(sample.trains[step] & begins_in_episode, tf.float32)
    difference = tf.where(counts > 0, tf.norm(values[step] - actors_values, axis=-1) / largest, 0.)
    differences[f'delta_q/{name}'] = tf.reduce_sum(difference) / tf.reduce_sum(counts)  # NaN means that none counts.
  return differences


def first_priorities(unroll: unroll_lib.Unroll, trains: tf.Tensor, config: configs.R2d2Config) -> tf.Tensor:
  """Priorities of new sequences, from the actor's values, which are used for those of both networks, as in Ape-X.

  They are in one tree with those that `loss` gives later: whoever changes one of the two changes both.

  Args:
    unroll: an Unroll of [length + 1, n, ...], of sequence_replay.Inserted.signals. Unlike in a batch, no row comes
      before the first step: row t is what step t led to, and its agent_output was computed in the state before step t.
      Of the last row, only max_value is used.
    trains: [length, n] bool, the steps that are trained.
    config: the hyper-parameters.
  Returns:
    [n] float32.
  """
  actor, environment = unroll.agent_output, unroll.environment_output
  real = unroll_lib.is_real(environment)
  # The value of the row that a step led to comes with the next action, one row later.
  targets = n_step_targets(environment.reward[:-1], environment.discount[:-1], real[:-1], actor.max_value[1:], config)
  return q_learning.sequence_priorities(targets - actor.action_value[:-1], trains & real[:-1], config.priority_eta)


def to_send(unroll: unroll_lib.Unroll, config: configs.R2d2Config) -> unroll_lib.Unroll:
  """Leaves out the recurrent states that the replay does not need; see Definition."""
  return replay_experience.to_send(unroll, _replay_settings(config))


def _replay_settings(config):
  trained = config.burn_in, config.burn_in + config.sequence_length - 1  # The first and the last trained step.
  return replay_experience.ReplaySettings(
      replay_lib.Geometry(config.burn_in, config.sequence_length, config.sequence_period, config.cross_episodes),
      capacity=config.replay_capacity, minimum_size=config.replay_minimum_size, batch_size=config.batch_size,
      unrolls_per_batch=round(configs.unrolls_per_batch(config)), priority_exponent=config.priority_exponent,
      state_offsets=(0, *trained) if config.measure_delta_q else (0,), is_saved=config.save_replay)


def make_experience(intake: intake_lib.Intake, spec: agent_lib.EnvironmentSpec, config: configs.R2d2Config,
                    seed: int, unused_parameters: Any, unused_make_agent: Any) -> replay_experience.SequenceExperience:
  """Makes the replay; see Definition."""
  return replay_experience.SequenceExperience(
      intake, spec.frame_stacks, _replay_settings(config), seed, lambda environment: _starts(environment, config),
      lambda unroll, trains: first_priorities(unroll, trains, config))


R2D2 = definition.Definition(
    name='r2d2',
    config=configs.R2d2Config,
    validate=configs.validate_r2d2,
    network=Agent,
    loss=loss,
    make_optimizer=lambda variables, config: optimizers.Adam(
        variables, config.adam_beta1, config.adam_beta2, config.adam_epsilon),
    tuned=lambda config: {'learning_rate': True, 'adam_epsilon': True,
                          'clip_gradient_norm': config.clip_gradient_norm > 0},
    after_update=q_learning.update_target,
    make_experience=make_experience,
    to_send=to_send,
    steps_between_fetches=lambda config: 100,  # Agent steps: 400 frames with 4 action repeats, table 2.
    replay_steps=lambda config: config.replay_capacity * config.sequence_period,
    sweep=sweeps.R2D2,
    evaluation_policies=(acting.EPSILON, acting.GREEDY),  # The paper does not name an epsilon: see --test_epsilon.
)
