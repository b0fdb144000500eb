"""LASER: off-policy actor-critic with experience replay that agents may share.

Schmitt et al. 2020. Most of each batch is replayed, perhaps from the experience of other agents. V-trace clips its
importance weights, so it learns about an implied policy between the behaviour policy and the target policy. Steps where
this policy is far from the target policy would mislead, and are left out: the trust region of section 4. A share of
online steps in each batch keeps the rest of the bias harmless (proposition 3).

This file has only what differs from PopArt-IMPALA and IMPALA (popart_impala.py, impala.py): further hyper-parameters,
the loss, and the experience.
"""

import dataclasses
import math

import tensorflow as tf

from scalable_agents.actor import agent as agent_lib
from scalable_agents.actor import parameters as parameters_lib
from scalable_agents.agents import impala
from scalable_agents.agents import popart_impala
from scalable_agents.agents import sweeps
from scalable_agents.cluster import cluster_config
from scalable_agents.experience import experience
from scalable_agents.experience import intake as intake_lib
from scalable_agents.experience import mixed_experience
from scalable_agents.experience import replayers
from scalable_agents.experience import unroll_replay
from scalable_agents.learner import learner_step
from scalable_agents.learner import q_learning
from scalable_agents.learner import trust_region
from scalable_agents.records import settings
from scalable_agents.records.settings import setting
from scalable_agents.training import sweep

NAME = 'laser'
SWEEP = sweeps.LASER
EVALUATION_POLICIES = impala.EVALUATION_POLICIES
SINGLE_FRAMES = impala.SINGLE_FRAMES
_MOST_BATCHES_AHEAD = 4  # By this many batches an agent may be ahead of the slowest one that shares its replay.

Agent = popart_impala.Agent
to_send = impala.to_send


@dataclasses.dataclass(frozen=True)
class LaserConfig(popart_impala.PopArtImpalaConfig):
  """PopArt-IMPALA's hyper-parameters and those of LASER. The binaries have the paper's values for each suite."""

  # The trust region.
  trust_region_threshold: float = setting(
      math.inf, 'A step is learned from only if its relevance is below this threshold (b). inf learns from all steps. '
      'Section 4.3. The paper does not state its value.', at_least=0, at_most=math.inf)
  relevance: str = setting(
      'implied', "How far V-trace's implied policy is from the target policy pi: implied, KL(pi || implied policy) of "
      'section 4.3, or kl_mu, KL(pi || behaviour policy) of Algorithm 1.', choices=trust_region.RELEVANCES)

  entropy_steps: str = setting(
      'online', 'Which steps have the entropy bonus: online, as in section 5.1, or all. With --nolearn_online no step '
      'is online, so there is no bonus unless all steps have it.', choices=('online', 'all'))

  # The replay.
  replay_share: float = setting(
      0.875, "Share of each batch's unrolls that are replayed. The others are new. Section 5.3 has 0.5, 0.75 and "
      '0.875, and section 5.1 has 128 of 160 on Atari. To compare shares, keep the new unrolls, for example 32 with '
      '--batch_size=64, 128 and 256, or 32 for a share of 0; else the updates per frame change as well.',
      at_least=0, less_than=1)
  replay_capacity: int = setting(
      10_000_000, 'Capacity of the replay, in agent steps. The oldest episodes leave it first. On Atari, 10 million '
      'take 71 GB. Section 5.3.', at_least=1, at_most=settings.MAX_FRAMES)
  replay_minimum_size: int = setting(
      10_000, 'Agent steps in the replay before replayed unrolls are learned from. Until then, updates learn from new '
      'unrolls only; with --nolearn_online or another --replay_sampling than episodes, they wait. Ours: the paper '
      'states none.', at_least=1, at_most=settings.MAX_FRAMES)
  sweep_index: int = setting(
      sweep.NO_SAMPLE, 'Number of a random sample of learning_rate and entropy_cost, used instead of the flags of '
      f'these names: 0 to {sweeps.LASER.num_samples - 1}, or any number in a population. -1 for no sample. '
      'Section 5.1, DMLab-30.', at_least=sweep.NO_SAMPLE, at_most=settings.MAX_SEED)
  replay_sampling: str = setting(
      'episodes', 'What is drawn from the replay: episodes (uniformly; each is replayed from its start, with recurrent '
      'states of the latest network, section 5.1), unrolls (uniformly, with the recurrent states of the actor) or '
      'prioritised (unrolls in proportion to the error of their values, appendix A.2).',
      choices=('episodes', 'unrolls', 'prioritised'))
  priority_exponent: float = setting(
      0.6, 'With --replay_sampling=prioritised: unrolls are drawn in proportion to their priority to this power. The '
      'paper does not state it; Schaul et al. 2016 have 0.6.', at_least=0, at_most=10)
  importance_exponent: float = setting(
      1., 'With --replay_sampling=prioritised: exponent (beta) of the weights that correct for the priorities. '
      'Figure 4 has 1 and 0.5.', at_least=0, at_most=1)
  shared_replay: str = setting(
      '', 'HOST:PORT of a replay that several agents share (//agents:laser_replay). Whoever is ahead of the slowest '
      'agent waits. Empty: the agent has its own replay. Section 5.1.', free=True)
  learn_online: bool = setting(
      True, 'Learn from new unrolls before they are replayed. Otherwise all unrolls of a batch are replayed, while as '
      'many new ones arrive: the pure replay of figure 2.')
  save_replay: bool = setting(
      True, 'Save the replay with each checkpoint. Otherwise a resumed run fills it again. Ours.', free=True)


def validate(config: LaserConfig) -> None:
  """Raises ValueError for the first setting out of range; the message is one line: flag, value, what is allowed."""
  impala.validate(config)
  if not config.clip_rho_threshold:
    raise ValueError('--clip_rho_threshold=0: want more than 0, since nothing would be learned')
  if not config.learn_online and not config.replay_share:
    raise ValueError('--nolearn_online: want a --replay_share above 0, since nothing would be learned from')
  # A replay drops whole episodes or unrolls, so that it is seldom full to its last step.
  if 2 * config.replay_minimum_size > config.replay_capacity:
    raise ValueError(f'--replay_minimum_size={config.replay_minimum_size}: want at most half of --replay_capacity='
                     f'{config.replay_capacity}')
  if config.shared_replay:
    try:
      cluster_config.split_address(config.shared_replay)
    except ValueError as error:
      raise ValueError(f'--shared_replay={error}') from error
    if config.replay_sampling != 'episodes' or not config.replay_share:
      raise ValueError(f'--shared_replay={config.shared_replay}: want --replay_sampling=episodes and a --replay_share '
                       'above 0: agents share whole episodes, because their recurrent states and priorities differ')


def replay_steps(config: LaserConfig) -> int:
  """The number of agent steps in a full replay; see agent_interface.AgentModule."""
  return 0 if config.shared_replay else impala.replay_steps(config)  # A shared replay is in another process.


def loss(agent: Agent, batch: learner_step.Batch, config: LaserConfig) -> learner_step.Loss:
  """The loss of PopArt-IMPALA on the trusted steps, usually with the entropy of online steps only. Section 4.

  Args:
    agent: the network that learns.
    batch: an Unroll of [T+1, B, ...] tensors, whose observations come from `Agent.prepare`, and a
      mixed_experience.MixedSample; () if the batch is all online.
    config: LaserConfig; its `entropy_cost` may be a variable.
  Returns:
    learner_step.Loss. Its `means` include the share of rejected steps and the mean relevance, of online and of replayed
    steps. Its feedback are the priorities of replayed unrolls.
  """
  unroll, sample = batch
  output = impala.forward(agent, unroll)
  relevance = trust_region.relevance(                                             # [T, B].
      config.relevance, unroll.agent_output.policy_logits[1:], output.policy_logits[:-1], config.clip_rho_threshold)
  if sample == ():
    is_online = there = tf.fill(tf.shape(relevance), True)
    num_online, weights = relevance.shape[1], 1.
  else:
    num_online = relevance.shape[1] - sample.key.shape[0]
    of_unrolls = sample.is_online, tf.concat([tf.fill([num_online], True), sample.key >= 0], axis=0)  # [B] each.
    is_online, there = (tf.broadcast_to(each, tf.shape(relevance)) for each in of_unrolls)
    weights = _importance_weights(sample, config, num_online)                     # [B].
  trusted = (relevance < config.trust_region_threshold) & there                   # lambda of equation 8.
  weights *= tf.cast(trusted, tf.float32)
  entropy_weights = weights if config.entropy_steps == 'all' else weights * tf.cast(is_online, tf.float32)
  result = popart_impala.weighted_loss(agent, unroll, output, config, trusted, weights, entropy_weights)
  means = dict(result.means)
  for name, chosen in {'online': is_online, 'replayed': ~is_online & there}.items():
    means[f'rejected/{name}'] = _mean(tf.cast(~trusted, tf.float32), chosen)
    means[f'relevance/{name}'] = _mean(relevance, chosen)
  return result._replace(means=means, feedback=result.feedback[num_online:])


def _importance_weights(sample, config, num_online):
  """Returns the weights of unrolls, [B] float32, which correct for priorities. Appendix A.2. Online unrolls have 1."""
  replayed = q_learning.importance_weights(sample.probability, config.importance_exponent)
  return tf.concat([tf.ones([num_online]), replayed], axis=0)


def _mean(values, chosen):
  """Returns the mean of the chosen values, all [T, B]. NaN, which is no value, if there are none."""
  counts = tf.cast(chosen, tf.float32)
  return tf.reduce_sum(counts * values) / tf.reduce_sum(counts)


def make_learner(agent: Agent, config: LaserConfig, xla: str = 'auto',
                 device: str | None = None) -> learner_step.Learner:
  """Makes the learner; see agent_interface.AgentModule."""
  return popart_impala.make_learner(agent, config, xla, device, loss, tuned)


def tuned(config: LaserConfig) -> dict[str, bool]:
  """Returns what populations tune, as impala.tuned. Epsilon of RMSProp is fixed, as in the sweeps of section 5.1."""
  return {name: in_use for name, in_use in impala.tuned(config).items() if name != 'rmsprop_epsilon'}


def make_experience(intake: intake_lib.Intake, spec: agent_lib.EnvironmentSpec, config: LaserConfig, seed: int,
                    parameters: parameters_lib.Parameters) -> experience.Experience:
  """Makes the experience, a queue and a replay; see agent_interface.AgentModule."""
  num_new, num_replayed = mixed_experience.split(config.batch_size, config.replay_share)
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
    copy = Agent(spec, config) if config.use_lstm else None
    replay = replayers.Replayers(*rows, episodes, num_replayed, copy, parameters, config.replay_minimum_size,
                                 must_fill=not config.learn_online)
  else:
    exponent = config.priority_exponent if config.replay_sampling == 'prioritised' else 0.
    replay = unroll_replay.UnrollReplay(*rows, config.replay_capacity, config.batch_size, config.replay_minimum_size,
                                        exponent)
  sizes = mixed_experience.MixedSettings(num_new, num_replayed, config.learn_online,
                                    is_saved=config.save_replay and not config.shared_replay)
  return mixed_experience.MixedExperience(intake, replay, sizes, seed)
