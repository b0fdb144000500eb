"""What an agent is given to act on, and how it is told to select actions."""

from typing import Any, NamedTuple

import tensorflow as tf

TRAINING = 'training'  # As the agent explores while it learns.
SAMPLED = 'sampled'    # From the policy's probabilities.
GREEDY = 'greedy'      # The action with the highest logit or value.
EPSILON = 'epsilon'    # A random action with probability epsilon, else the greedy one.


class ActorInput(NamedTuple):
  """The latest row of each of B actors; actor/unroll.py says what a row is."""
  actor_id: Any     # [B] int32, the actor's id in the run, over all processes.
  actor_place: Any  # [B] float32 in [0, 1], the actor's place among those of its process that play its level: 0 is the
                    # first of them, 1 the last. For settings that differ between actors, as a ladder of epsilons.
  last_action: Any  # [B] int32, the action that led to this row.
  reward: Any       # [B] float32, raw, that it earned; 0 in place of one that is not finite.
  done: Any         # [B] bool, the observation starts an episode: a core is reset before it sees it.
  observation: Any  # dict of [B, ...].


class Selection(NamedTuple):
  """How actions are selected."""
  kind: str = TRAINING
  epsilon: float = 0.  # Of EPSILON: the probability of a random action.


def example_input(observation_spec) -> ActorInput:
  """A row of zeros for one actor, with which a network's variables can be made. Args: dict of tf.TensorSpec."""
  return ActorInput(
      actor_id=tf.zeros([1], tf.int32), actor_place=tf.zeros([1]), last_action=tf.zeros([1], tf.int32),
      reward=tf.zeros([1]), done=tf.ones([1], tf.bool),
      observation={name: tf.zeros([1, *spec.shape], spec.dtype) for name, spec in observation_spec.items()})


def greedy(preferences: tf.Tensor) -> tf.Tensor:
  """The preferred actions: [B, A] logits or values -> [B] int32."""
  return tf.argmax(preferences, axis=-1, output_type=tf.int32)


def sample(logits: tf.Tensor, seed) -> tf.Tensor:
  """Draws actions from a softmax policy.

  Args:
    logits: [B, A] float32, un-normalised log-probabilities.
    seed: [2] int32 or int64; the actions are a function of it.
  Returns:
    [B] int32.
  """
  return tf.random.stateless_categorical(logits, 1, seed, dtype=tf.int32)[:, 0]


def epsilon_greedy(preferences: tf.Tensor, epsilon, seed) -> tf.Tensor:
  """Takes a uniformly random action with probability epsilon, and else the preferred one.

  Args:
    preferences: [B, A] float32, logits or values.
    epsilon: probability, [] or [B] float32.
    seed: [2] int32 or int64; the actions are a function of it.
  Returns:
    [B] int32.
  """
  batch_size, num_actions = tf.unstack(tf.shape(preferences))
  seeds = tf.random.experimental.stateless_split(seed, 2)
  is_random = tf.random.stateless_uniform([batch_size], seeds[0]) < epsilon
  random_action = tf.random.stateless_uniform([batch_size], seeds[1], 0, num_actions, tf.int32)
  return tf.where(is_random, random_action, greedy(preferences))
