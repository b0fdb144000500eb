"""LASER: off-policy actor-critic with experience replay that agents may share.

Schmitt et al. 2020. Most of each batch is replayed, perhaps from the experience of other agents. V-trace clips its
importance weights, so it learns about an implied policy between the behaviour policy and the target policy. Steps where
this policy is far from the target policy would mislead, and are left out: the trust region of section 4. A share of
online steps in each batch keeps the rest of the bias harmless (proposition 3).

This file has only what differs from PopArt-IMPALA and IMPALA (popart_impala.py, impala.py): the loss and the
experience.
"""

from collections.abc import Callable
import dataclasses

import tensorflow as tf

from scalable_agents.actor import acting
from scalable_agents.actor import agent as agent_lib
from scalable_agents.actor import parameters as parameters_lib
from scalable_agents.actor import unroll as unroll_lib
from scalable_agents.agents import configs
from scalable_agents.agents import impala
from scalable_agents.agents import popart_impala
from scalable_agents.agents import sweeps
from scalable_agents.experience import experience
from scalable_agents.experience import intake as intake_lib
from scalable_agents.experience import mixed_experience
from scalable_agents.experience import replayers
from scalable_agents.experience import unroll_replay
from scalable_agents.learner import learner_step
from scalable_agents.learner import q_learning
from scalable_agents.learner import trust_region

_MOSTLY_REPLAYED = 0.75  # From this share on, learning takes more than half of the processors' time (make benchmark).
_MOST_BATCHES_AHEAD = 4  # Batches by which an agent may be ahead of the slowest one that shares its replay.

Agent = popart_impala.Agent


def loss(agent: Agent, batch: learner_step.Batch, config: configs.LaserConfig) -> learner_step.Loss:
  """The loss of PopArt-IMPALA on the trusted steps, usually with the entropy of online steps only. Section 4.

  Args:
    agent: the network that learns.
    batch: an Unroll of [T+1, B, ...] tensors, whose observations come from `Agent.prepare`, and a
      mixed_experience.MixedSample; () if the batch is all online.
    config: LaserConfig; its `entropy_cost` may be a variable.
  Returns:
    learner_step.Loss. Its `means` include the share of rejected steps and the mean relevance, of online and of replayed
    steps. Its feedback has the priorities of replayed unrolls.
  """
  unroll, sample = batch
  output, _ = agent.unroll(acting.inputs_of(unroll), unroll.agent_state)
  relevance = trust_region.relevance(                                             # [T, B].
      config.relevance, unroll_lib.steps(unroll).behaviour_tm1.policy_logits, output.policy_logits[:-1],
      config.clip_rho_threshold)
  if sample == ():
    sample = mixed_experience.MixedSample(tf.zeros([0]), tf.zeros([0], tf.int64))
  num_online = relevance.shape[1] - sample.key.shape[0]                           # The replayed unrolls come last.
  is_online = tf.range(relevance.shape[1]) < num_online                           # [B].
  was_drawn = tf.concat([tf.fill([num_online], True), sample.key >= 0], axis=0)   # [B].
  is_online, was_drawn = (tf.broadcast_to(each, tf.shape(relevance)) for each in (is_online, was_drawn))
  trusted = (relevance < config.trust_region_threshold) & was_drawn               # lambda of equation 8.
  # Weights correct for priorities (appendix A.2).
  replayed_weights = q_learning.importance_weights(sample.probability, config.importance_exponent)
  weights = tf.concat([tf.ones([num_online]), replayed_weights], axis=0) * tf.cast(trusted, tf.float32)
  entropy_weights = weights if config.entropy_steps == 'all' else weights * tf.cast(is_online, tf.float32)
  result = popart_impala.weighted_loss(agent, unroll, output, config, trusted, weights, entropy_weights, was_drawn)
  means = dict(result.means)
  for name, chosen in {'online': is_online, 'replayed': ~is_online & was_drawn}.items():
    means[f'rejected/{name}'] = _mean(tf.cast(~trusted, tf.float32), chosen)
    means[f'relevance/{name}'] = _mean(relevance, chosen)
  return result._replace(means=means, feedback=result.feedback[num_online:])


def _mean(values: tf.Tensor, chosen: tf.Tensor) -> tf.Tensor:
  """Returns the mean of the chosen values; both are [T, B]. NaN, which metrics take for no value, if none is chosen."""
  counts = tf.cast(chosen, tf.float32)
  return tf.reduce_sum(counts * values) / tf.reduce_sum(counts)


def tuned(config: configs.LaserConfig) -> dict[str, bool]:
  """Returns what populations tune, as impala.tuned. RMSProp's epsilon is fixed, as in the sweeps of section 5.1."""
  return {name: in_use for name, in_use in impala.tuned(config).items() if name != 'rmsprop_epsilon'}


def make_experience(intake: intake_lib.Intake, spec: agent_lib.EnvironmentSpec, config: configs.LaserConfig, seed: int,
                    parameters: parameters_lib.ParameterSnapshot,
                    make_agent: Callable[[], Agent]) -> experience.Experience:
  """Makes the experience, a queue and a replay; see Definition."""
  num_new, num_replayed = config.split_batch()
  if not num_replayed:
    return experience.QueueExperience(intake, config.batch_size)
  if not config.learn_online:
    num_replayed = config.batch_size
  rows = intake.unroll_spec, spec.frame_stacks
  if config.replay_sampling == 'episodes':
    if config.shared_replay:
      episodes = replayers.join_replay(
          config.shared_replay, *rows, config.replay_capacity,
          dict(levels=spec.levels, num_actions=spec.num_actions, **spec.protocol),
          _MOST_BATCHES_AHEAD * num_new * config.unroll_length, len(spec.levels), spec.num_actions)
    else:
      episodes = replayers.own_replay(*rows, config.replay_capacity, config.batch_size)
    copy = make_agent() if config.use_lstm else None
    replay = replayers.Replayers(*rows, episodes, num_replayed, copy, parameters, config.replay_minimum_size,
                                 must_fill=not config.learn_online)
  else:
    exponent = config.priority_exponent if config.replay_sampling == 'prioritised' else 0.
    replay = unroll_replay.UnrollReplay(*rows, config.replay_capacity, config.batch_size, config.replay_minimum_size,
                                        exponent)
  sizes = mixed_experience.MixedSettings(num_new, num_replayed, config.learn_online,
                                         is_saved=config.save_replay and not config.shared_replay)
  return mixed_experience.MixedExperience(intake, replay, sizes, seed)


LASER = dataclasses.replace(
    popart_impala.POPART_IMPALA,
    name='laser',
    config=configs.LaserConfig,
    validate=configs.validate_laser,
    loss=loss,
    tuned=tuned,
    make_experience=make_experience,
    # A shared replay is in another process.
    replay_steps=lambda config: config.replay_capacity if config.replay_share and not config.shared_replay else 0,
    mostly_learns=lambda config: config.replay_share >= _MOSTLY_REPLAYED,
    sweep=sweeps.LASER,
)
