"""The input that an agent acts on, and the ways to select actions."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from scalable_agents.actor import unroll as unroll_lib

TRAINING = 'training'  # As in training, with the agent's exploration.
SAMPLED = 'sampled'    # Sampled from the policy.
GREEDY = 'greedy'      # The action with the highest logit or value.
EPSILON = 'epsilon'    # A random action with probability epsilon, otherwise the greedy one.


class ActorInput(NamedTuple):
  """The agent's input: the latest row of each of B actors. actor/unroll.py defines a row.

  For the learner, `inputs_of` returns all rows of unrolls in this structure.
  """
  actor_id: tf.Tensor     # [B] int32, the actor's id, unique over all processes of the run.
  actor_place: tf.Tensor  # [B] float32 in [0, 1], the actor's place among the actors that play the same level. The
                          # places of all processes are spread evenly; see actor_host.places_of. An agent can derive a
                          # setting from it, for example each actor's epsilon.
  last_action: tf.Tensor  # [B] int32, the action that led to this row.
  reward: tf.Tensor       # [B] float32, the raw reward of that action; 0 if it is not finite.
  discount: tf.Tensor     # [B] float32, 0 at an end of episode or a lost life, else 1.
  done: tf.Tensor         # [B] bool, the observation starts an episode: reset the recurrent state before it is used.
  observation: Mapping[str, tf.Tensor]  # Each is [B, ...].


class Selection(NamedTuple):
  """How actions are selected."""
  kind: str = TRAINING  # TRAINING, SAMPLED, GREEDY or EPSILON.
  epsilon: float = 0.   # Probability of a random action, for EPSILON.


class ActionOutput(NamedTuple):
  """The behaviour output of an agent whose loss needs only the actions of the behaviour policy."""
  action: tf.Tensor  # [...] int32.


def example_input(observation_spec) -> ActorInput:
  """Returns a row of zeros for one actor, for example to create a network's variables.

  Args:
    observation_spec: dict of tf.TensorSpec.
  """
  return ActorInput(
      actor_id=tf.zeros([1], tf.int32), actor_place=tf.zeros([1]), last_action=tf.zeros([1], tf.int32),
      reward=tf.zeros([1]), discount=tf.zeros([1]), done=tf.ones([1], tf.bool),
      observation={name: tf.zeros([1, *spec.shape], spec.dtype) for name, spec in observation_spec.items()})


def inputs_of(unroll: unroll_lib.Unroll) -> ActorInput:
  """Returns the agent's input for each row of a batch of unrolls, [T+1, B, ...]. Actor ids and places are ().

  As for actors, the reward is 0 if it is not finite. So a faulty reward spoils only the losses that use it.
  """
  environment = unroll.environment_output
  return ActorInput(
      actor_id=(), actor_place=(), last_action=unroll.agent_output.action,
      reward=finite_rewards(environment.reward), discount=environment.discount, done=environment.done,
      observation=environment.observation)


def lone_inputs(observation, last_action, reward, done) -> ActorInput:
  """Returns the input of actors that play without a pool of actors, for example in an exported agent.

  Args:
    observation: name -> [B, ...].
    last_action: [B] int32.
    reward: [B] float32, of that action.
    done: [B] bool, whether an episode starts. A lost life is no end here.
  """
  batch = tf.shape(done)
  return ActorInput(
      actor_id=tf.range(batch[0]), actor_place=tf.zeros(batch), last_action=last_action, reward=finite_rewards(reward),
      discount=1. - tf.cast(done, tf.float32), done=done, observation=observation)


def compiled(agent, selection: Selection) -> Callable[..., Any]:
  """Returns a tf.function of (inputs, agent state, seed), which is agent.step with this selection."""
  return tf.function(lambda *args: agent.step(*args, selection), autograph=False)


def finite_rewards(rewards: tf.Tensor) -> tf.Tensor:
  """The rewards, with 0 for those that are not finite. NaN or infinity would spoil an agent's recurrent state."""
  return tf.where(tf.math.is_finite(rewards), rewards, 0.)


def greedy(preferences: tf.Tensor) -> tf.Tensor:
  """The preferred actions: [B, A] logits or values -> [B] int32."""
  return tf.argmax(preferences, axis=-1, output_type=tf.int32)


def sample(logits: tf.Tensor, seed) -> tf.Tensor:
  """Draws actions from a softmax policy.

  Args:
    logits: [B, A] float32, un-normalised log-probabilities.
    seed: [2] int64; the actions are a function of it.
  Returns:
    [B] int32.
  """
  return tf.random.stateless_categorical(logits, 1, seed, dtype=tf.int32)[:, 0]


def epsilon_greedy(preferences: tf.Tensor, epsilon, seed) -> tf.Tensor:
  """Selects a uniformly random action with probability epsilon, and otherwise the preferred one.

  Args:
    preferences: [B, A] float32, logits or values.
    epsilon: probability, [] or [B] float32.
    seed: [2] int64; the actions are a function of it.
  Returns:
    [B] int32.
  """
  batch_size, num_actions = tf.unstack(tf.shape(preferences))
  with tf.device('/CPU:0'):  # TensorFlow reads seeds on the host, also for operations on a GPU.
    seeds = tf.random.experimental.stateless_split(seed, 2)
    first, second = seeds[0], seeds[1]
  is_random = tf.random.stateless_uniform([batch_size], first) < epsilon
  random_action = tf.random.stateless_uniform([batch_size], second, 0, num_actions, tf.int32)
  return tf.where(is_random, random_action, greedy(preferences))


def select(logits: tf.Tensor, selection: Selection, seed) -> tf.Tensor:
  """Selects actions of a softmax policy. In training, they are sampled.

  Args:
    logits: [B, A] float32, un-normalised log-probabilities.
    selection: how actions are selected.
    seed: [2] int64; the actions are a function of it.
  Returns:
    [B] int32.
  """
  if selection.kind == GREEDY:
    return greedy(logits)
  if selection.kind == EPSILON:
    return epsilon_greedy(logits, selection.epsilon, seed)
  return sample(logits, seed)


def select_by_value(values: tf.Tensor, selection: Selection, training_epsilon: float | tf.Tensor, seed) -> tf.Tensor:
  """Selects actions by their values. In training, epsilon-greedily.

  Args:
    values: [B, A] float32, Q of each action.
    selection: how actions are selected. The kind is TRAINING, GREEDY or EPSILON.
    training_epsilon: probability of a random action in training, [] or [B] float32, for example from `ladder`.
    seed: [2] int64; the actions are a function of it.
  Returns:
    [B] int32.
  """
  if selection.kind == GREEDY:
    return greedy(values)
  return epsilon_greedy(values, selection.epsilon if selection.kind == EPSILON else training_epsilon, seed)


def ladder(place: tf.Tensor, base: float, exponent: float, num_actors: int = 0) -> tf.Tensor:
  """epsilon_i = base^(1 + exponent i / (N - 1)) for actor i of N. Horgan et al. 2018 (Ape-X), section 4.1.

  Args:
    place: [B] float32, ActorInput.actor_place, which stands for i / (N - 1).
    base, exponent: the paper has 0.4 and 7.
    num_actors: N, the number of actors in all processes together. There are N different epsilons, and each process has
      an even share of them. 0: each process spreads its own actors over the whole ladder.
  Returns:
    [B] float32.
  """
  if num_actors:
    place = tf.minimum(tf.floor(place * num_actors), num_actors - 1) / max(num_actors - 1, 1)  # A single one has 0.
  return tf.pow(base, 1. + exponent * place)
