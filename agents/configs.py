"""The hyper-parameters of all agents. Each is a flag of the binaries.

The defaults are the papers'. registry.py has what a suite changes. Nothing here imports TensorFlow, so that the tables
and launchers know every default.
"""

import dataclasses
import math

from scalable_agents.agents import sweeps
from scalable_agents.processes import ports
from scalable_agents.records import runtime_config
from scalable_agents.records import settings
from scalable_agents.records.settings import setting

_MAX_STEPS = 100_000         # Larger values are taken for typing errors.
_MAX_SEQUENCES = 10_000_000
_PRECISIONS = ('float32', 'bfloat16', 'auto')
_CENTRES = ('none', 'mean', 'median')  # See networks/torsos.py.
_REWARD_TRANSFORMS = ('abs_one', 'soft_asymmetric', 'optimistic_asymmetric', 'none')  # See learner/losses.py.


@dataclasses.dataclass(frozen=True)
class ActorCriticConfig(runtime_config.RuntimeConfig):
  """The hyper-parameters of the actor-critic agents of the IMPALA paper.

  The defaults are the paper's for single Atari games (section 5.3.2, table G.1).
  """

  # The task.
  total_environment_frames: int = setting(
      200_000_000, 'Number of environment frames to train for (agent steps times action repeats), summed over all '
      'levels. IMPALA: 200 million per Atari game (section 5.3.2), which is 11_400_000_000 for atari57.', at_least=1,
      at_most=settings.MAX_FRAMES)

  # The network.
  torso: str = setting(
      'deep', 'Convolutional network for pixels: shallow or deep (IMPALA, figure 3); dqn, with three convolutions '
      "(Mnih et al. 2015), which is the other reading of IMPALA's shallow network (section 5.3.2); or deep_4x, deep "
      'with four times the channels (Schmitt et al. 2020, section 5.1).', choices=('shallow', 'dqn', 'deep', 'deep_4x'))
  torso_precision: str = setting(
      'float32', 'Data type in which the torso for pixels computes: float32, bfloat16, or auto, the faster one of '
      'the two on the device that computes. bfloat16 is up to 1.8 times as fast on processors that support it. '
      'Parameters, heads and losses are always float32. Ours.',
      choices=_PRECISIONS)
  centre_pixels: str = setting(
      'none', 'What to subtract from the pixels of each observation before the torso: none; their mean; or their '
      'median, which makes the background 0 in most games. Pixels are never negative, so with none many filters are '
      'off from the start where pictures are bright. A gradient then moves all weights of a filter in the same '
      'direction, and noise can switch off further ones for ever. LeCun et al. 1998, "Efficient BackProp", section '
      '4.3. Ours.', choices=_CENTRES)
  scale_pixels: bool = setting(
      True, 'Divide pixels by 255, as the released code does for DMLab. The paper says nothing about it on Atari. '
      '--noscale_pixels keeps pixels from 0 to 255: features are larger at first, and each update changes the policy '
      'more. On Breakout, IMPALA learns several times faster then.')
  use_lstm: bool = setting(
      False, 'Add an LSTM of 256 units after the torso. Its inputs include the last reward and the last action. The '
      'IMPALA paper uses none on Atari.')
  lstm_precision: str = setting(
      'float32', "Data type of the LSTM's matrix products: float32, bfloat16, or auto, the faster one of the two on "
      'the device that computes. The state and the gates are always float32. Ours.', choices=_PRECISIONS)

  # The loss.
  unroll_length: int = setting(
      20, 'Agent steps per unroll. IMPALA: 20 on Atari (table G.1), 100 on DMLab (table D.3). LASER: 19 and 79 '
      '(section 5.1).', at_least=1, at_most=100_000)
  batch_size: int = setting(
      32, 'Unrolls per update of each learner. IMPALA: 32 (tables 1 and G.1). LASER on Atari: 160 (section 5.1).',
      at_least=1, at_most=10_000)
  discount: float = setting(
      0.99, 'Discount per agent step (gamma). IMPALA: 0.99 (tables D.3 and G.1). LASER on Atari: 0.995 (section 5.1).',
      at_least=0, at_most=1)
  baseline_cost: float = setting(0.5, 'Weight of the baseline loss. IMPALA: 0.5 (tables D.3 and G.1).', at_least=0)
  entropy_cost: float = setting(
      0.01, 'Weight of the entropy bonus. IMPALA: 0.01 on Atari (table G.1), drawn at random on DMLab (table D.1).',
      at_least=0)
  reward_transform: str = setting(
      'abs_one', 'Transformation of the rewards before learning: abs_one (clip to [-1, 1]; IMPALA, table G.1), '
      'soft_asymmetric (released code), optimistic_asymmetric (IMPALA, figure D.1) or none.',
      choices=_REWARD_TRANSFORMS)

  # The auxiliary task.
  use_pixel_control: bool = setting(
      False, 'Also learn, as an auxiliary task, how actions change the pixels. Needs images of at least 16x16 pixels; '
      'a level without pixels has no such task. Hessel et al. 2019 (PopArt-IMPALA), figure 5.')
  pixel_control_cost: float = setting(
      0.05, 'Weight of the pixel control loss. Ours: the PopArt paper does not state it. Jaderberg et al. 2016 '
      '(UNREAL) drew it from 0.01 to 0.1 on Labyrinth, and from 0.0001 to 0.01 on Atari.', at_least=0)
  pixel_control_discount: float = setting(
      0.9, 'Discount of pixel control, per agent step. Jaderberg et al. 2016 (UNREAL).', at_least=0, at_most=1)

  # The optimiser.
  optimizer: str = setting(
      'rmsprop', 'Optimiser: rmsprop (IMPALA, table G.1) or adam (ours).', choices=('rmsprop', 'adam'))
  learning_rate: float = setting(
      6e-4, 'Learning rate at the start. IMPALA: 6e-4 on Atari (table G.1), drawn at random on DMLab (table D.1).',
      at_least=0)
  learning_rate_decay: bool = setting(
      True, 'Decay the learning rate linearly to 0 over total_environment_frames. IMPALA: yes (table G.1). LASER: not '
      'in sweeps on Atari (section 5.1).')
  rmsprop_decay: float = setting(
      0.99, 'RMSProp: decay of the mean squared gradient, per update. Released code.', at_least=0, less_than=1)
  rmsprop_momentum: float = setting(0.0, 'RMSProp: momentum. IMPALA, table G.1.', at_least=0, less_than=1)
  rmsprop_epsilon: float = setting(
      0.01, 'RMSProp: number added to the mean square under the square root. IMPALA: 0.01 on Atari (table G.1), '
      'drawn at random on DMLab (table D.1). LASER on DMLab: 0.1 (section 5.1).', more_than=0)
  adam_beta1: float = setting(0.9, 'Adam: decay of the first moment, per update. Ours.', at_least=0, less_than=1)
  adam_beta2: float = setting(0.999, 'Adam: decay of the second moment, per update. Ours.', at_least=0, less_than=1)
  adam_epsilon: float = setting(1e-8, 'Adam: number added to the root of the second moment. Ours.', more_than=0)
  clip_gradient_norm: float = setting(
      40.0, 'Largest global norm of the gradient; a larger gradient is scaled down to it. 0 for no clipping. '
      'IMPALA: 40 on Atari (table G.1). LASER: none (section 5.1).', at_least=0)
  sweep_index: int = setting(
      runtime_config.NO_SAMPLE, 'Number of a random sample of learning_rate, entropy_cost and rmsprop_epsilon, used '
      f'instead of the flags of these names: 0 to {sweeps.IMPALA.num_samples - 1}, or any number in a population. -1 '
      'for no sample. IMPALA, table D.1.', at_least=runtime_config.NO_SAMPLE, at_most=settings.MAX_SEED)


@dataclasses.dataclass(frozen=True)
class ImpalaConfig(ActorCriticConfig):
  """The actor-critic's hyper-parameters, and those of off-policy learning."""

  # The correction.
  off_policy_correction: str = setting(
      'vtrace', 'How the learner corrects for actions that were chosen with older parameters: vtrace, one_step, '
      'epsilon or none. IMPALA, section 5.2.2.', choices=('vtrace', 'one_step', 'epsilon', 'none'))
  clip_rho_threshold: float = setting(
      1.0, 'Largest importance weight in the value targets (rho-bar); larger weights are clipped to it. inf for no '
      'clipping. IMPALA, section 5.2.2. The theory wants at least clip_c_threshold (section 4.1).', more_than=0,
      at_most=math.inf)
  clip_pg_rho_threshold: float = setting(
      1.0, 'Largest importance weight in the policy gradient; larger weights are clipped to it. inf for no clipping. '
      'IMPALA, section 5.2.2.', more_than=0, at_most=math.inf)
  clip_c_threshold: float = setting(
      1.0, 'Largest importance weight in the products that carry corrections back in time (c-bar); larger weights are '
      'clipped to it. inf for no clipping. IMPALA, section 5.2.2.', at_least=0, at_most=math.inf)
  vtrace_lambda: float = setting(
      1.0, 'Lambda of V-trace: 0 gives one-step value targets, 1 gives the full ones, and values between mix them. '
      'IMPALA, section 4.1, remark 2.', at_least=0, at_most=1)
  action_values: str = setting(
      'bootstrapped', "Estimate of an action's value in the policy gradient: bootstrapped (the reward plus gamma times "
      'the V-trace target of the next state, section 4.2), one_step (the reward plus gamma times the value of the next '
      'state, section E.3) or target (the V-trace target of this state, Schmitt et al. 2020, Algorithm 1).',
      choices=('bootstrapped', 'one_step', 'target'))

  # The replay.
  replay_share: float = setting(
      0., "Share of each batch's unrolls that are drawn from a replay, uniformly. IMPALA, section 5.2.2: 0.5.",
      at_least=0, less_than=1)
  replay_capacity: int = setting(
      1_000_000, 'Capacity of the replay, in agent steps: 10,000 unrolls of 100 steps in table D.3. The oldest unrolls '
      'leave it first.', at_least=1, at_most=settings.MAX_FRAMES)
  save_replay: bool = setting(
      True, 'Save the replay with each checkpoint. Otherwise a resumed run fills it again. To save a large one takes '
      'long: see --checkpoint_interval_seconds. Ours.', free=True)

  def split_batch(self) -> tuple[int, int]:
    """Returns the numbers of online and of replayed unrolls in a batch."""
    replayed = round(self.batch_size * self.replay_share)
    return self.batch_size - replayed, replayed


def validate_impala(config: ImpalaConfig) -> None:
  """Raises ValueError for the first setting out of range; the message is one line: flag, value, what is allowed."""
  settings.check(config)
  online, replayed = config.split_batch()
  if not online or bool(replayed) != (config.replay_share > 0):
    raise ValueError(f'--replay_share={config.replay_share:g}: a batch of {config.batch_size} unrolls would have '
                     f'{online} new and {replayed} replayed ones: want at least one of each, for example with a larger '
                     '--batch_size')


@dataclasses.dataclass(frozen=True)
class A2cConfig(ActorCriticConfig):
  """The actor-critic's hyper-parameters, and how environments are batched."""

  batching: str = setting(
      'sync_step', 'What environments wait for (section 5.1, figure 2). sync_step: for the slowest one at each step. '
      'sync_trajectory: for the slowest one at the end of each unroll; the actions of each environment are computed '
      'alone. dynamic_batching: as sync_trajectory, but the actions of environments that need one at the same time are '
      'computed in one batch.', choices=('sync_step', 'sync_trajectory', 'dynamic_batching'))

  @property
  def barrier(self) -> str:
    """See RuntimeConfig. In each of the three ways, actors and learner take turns."""
    return 'step' if self.batching == 'sync_step' else 'unroll'


def validate_on_policy(config: ActorCriticConfig) -> None:
  """Raises ValueError for the first setting out of range; the message is one line: flag, value, what is allowed."""
  settings.check(config)
  if config.policy_lag:
    raise ValueError(f'--policy_lag={config.policy_lag}: want 0; the on-policy loss does not correct for stale '
                     'parameters')


def validate_a2c(config: A2cConfig) -> None:
  """Raises ValueError for the first setting out of range; the message is one line: flag, value, what is allowed."""
  validate_on_policy(config)
  if config.synchronous and config.barrier != 'step':
    raise ValueError(f'--synchronous: want --batching=sync_step, got {config.batching}')


@dataclasses.dataclass(frozen=True)
class A3cConfig(ActorCriticConfig):
  """The actor-critic's hyper-parameters. Each update has one worker's gradient (Mnih et al. 2016, algorithm S3)."""

  batch_size: int = setting(
      1, 'Unrolls per update: 1, because each worker learns from its own unroll. Mnih et al. 2016.', at_least=1,
      at_most=1)
  queue_size: int = setting(
      1, 'Largest number of gradients in the queue between workers and shared parameters. When the queue is full, '
      'workers wait. Ours.', at_least=1, at_most=100_000)


@dataclasses.dataclass(frozen=True)
class PopArtImpalaConfig(ImpalaConfig):
  """IMPALA's hyper-parameters and those of PopArt. The defaults are the paper's ("Implementation notes")."""

  value_normalization: str = setting(
      'popart', "Normalisation of the value targets and of the policy's advantages: popart or none. With none, the "
      'agent is MultiHead-IMPALA, a baseline of Hessel et al. 2019.', choices=('popart', 'none'))
  popart_decay: float = setting(
      3e-4, 'Decay rate (beta) of the statistics, per rollout of a level. PopArt-IMPALA, equation 6, "Implementation '
      'notes".', at_least=0, at_most=1)
  popart_second_moment: str = setting(
      'literal', "What a rollout adds to the second moment: the square of its mean target (literal, as the paper's "
      'text says), or the mean of its squared targets (mean_of_squares, ours).',
      choices=('literal', 'mean_of_squares'))


@dataclasses.dataclass(frozen=True)
class R2d2Config(runtime_config.RuntimeConfig):
  """Every hyper-parameter. The defaults are the paper's for Atari (table 2, section 2.3)."""

  # The task.
  total_environment_frames: int = setting(
      10_000_000_000, 'Number of environment frames to train for (agent steps times action repeats), summed over all '
      'levels. The paper has 10 billion per level of DMLab-30 (table 1); its text has no number for Atari.',
      at_least=1, at_most=settings.MAX_FRAMES)

  # The network.
  torso: str = setting('dqn', 'Convolutional network for pixels: dqn (appendix), deep (R2D2+), shallow, or deep_4x '
                       '(LASER).', choices=('dqn', 'shallow', 'deep', 'deep_4x'))
  torso_precision: str = setting('float32', 'Data type of the torso for pixels: float32; bfloat16, which is faster on '
                                 'devices that support it; or auto, the faster one. Ours.', choices=_PRECISIONS)
  centre_pixels: str = setting(
      'none', 'What to subtract from the pixels of each observation before the torso: none, their mean, or their '
      'median. Ours.', choices=_CENTRES)
  dense_before_lstm: bool = setting(
      False, 'Put a fully connected layer of 512 units between the torso and the LSTM. The paper names none.')
  use_lstm: bool = setting(True, 'Have an LSTM of 512 units. Without it: the Feed-Forward ablation of figure 4.')
  lstm_precision: str = setting(
      'float32', "Data type of the LSTM's matrix products: float32, bfloat16, or auto, the faster one of the two on "
      'the device that computes. The state and the gates are always float32. Ours.', choices=_PRECISIONS)

  # Acting.
  epsilon_base: float = setting(
      0.4, 'Actor i of N takes a random action with probability epsilon_base ** (1 + epsilon_exponent * i / (N - 1)). '
      'Ape-X (Horgan et al. 2018), to which the paper refers.', at_least=0, at_most=1)
  epsilon_exponent: float = setting(7., 'See epsilon_base. Ape-X.', at_least=0, at_most=1000)
  num_actors: int = setting(
      0, 'Number N of actors in the whole cluster. Table 2: 256. Each process takes its share of the N epsilons; for '
      'each epsilon to have one actor, train on one level, and give each actor host a --task and the same number of '
      'actors. 0: each process spreads its own actors of a level evenly over the whole range. If a level has only one, '
      'its epsilon is fixed: 0.4 with one environment.', at_least=0, at_most=settings.MAX_ENVIRONMENTS)

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
      '5 updates of 64 sequences per second, while 256 actors make 416 on Atari and 208 on DMLab.', at_least=1e-6,
      at_most=1e6)
  priority_exponent: float = setting(
      0.9, 'Sequences are sampled in proportion to their priority to this power; 0 for uniformly. Section 2.3.',
      at_least=0, at_most=10)
  importance_exponent: float = setting(
      0.6, 'Exponent of the importance weights, which correct for the priorities. Table 2.', at_least=0, at_most=1)
  priority_eta: float = setting(
      0.9, 'Weight of the largest TD error in a priority; the mean has the rest. Section 2.3.', at_least=0, at_most=1)

  # The loss.
  unroll_length: int = setting(40, 'Agent steps that an actor sends at once. Ours.', at_least=1, at_most=_MAX_STEPS)
  batch_size: int = setting(64, 'Sequences per update of each learner. Table 2.', at_least=1, at_most=10_000)
  discount: float = setting(0.997, 'Discount per agent step (gamma). Table 2.', at_least=0, at_most=1)
  n_step: int = setting(5, 'Steps of the n-step targets. Section 2.3.', at_least=1, at_most=_MAX_STEPS)
  value_rescaling: bool = setting(
      True, 'Learn values h(x) = sign(x)(sqrt(|x|+1)-1)+0.001x. Section 2.3. The Clipped ablation has none.')
  reward_transform: str = setting(
      'none', 'Transformation of the rewards before learning: none (section 2.3), abs_one (the Clipped ablation), '
      'soft_asymmetric (R2D2+; released code) or optimistic_asymmetric (R2D2+; IMPALA, figure D.1).',
      choices=_REWARD_TRANSFORMS)
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
  adam_beta1: float = setting(0.9, 'Adam: decay of the first moment, per update. Ours.', at_least=0, less_than=1)
  adam_beta2: float = setting(0.999, 'Adam: decay of the second moment, per update. Ours.', at_least=0, less_than=1)
  adam_epsilon: float = setting(1e-3, 'Adam: number added to the root of the second moment. Table 2.', more_than=0)
  clip_gradient_norm: float = setting(
      40.0, 'Largest global norm of the gradient; a larger gradient is scaled down to it. 0 for no clipping. Ape-X.',
      at_least=0)
  sweep_index: int = setting(
      runtime_config.NO_SAMPLE, 'Number of a random sample of learning_rate and adam_epsilon, used instead of the '
      f'flags of these names: 0 to {sweeps.R2D2.num_samples - 1}, or any number in a population. -1 for no sample. '
      'Ours.', at_least=runtime_config.NO_SAMPLE, at_most=settings.MAX_SEED)

  # The run.
  queue_size: int = setting(
      4, 'Largest number of unrolls in the queue between actors and learner; when it is full, actors wait. Ours.',
      at_least=1, at_most=100_000)


def validate_r2d2(config: R2d2Config) -> None:
  """Raises ValueError for the first setting out of range; the message is one line: flag, value, what is allowed."""
  settings.check(config)
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
  """Returns the number of new unrolls per update for --samples_per_period; `validate_r2d2` wants about a whole one."""
  return config.batch_size * config.sequence_period / (config.samples_per_period * config.unroll_length)


@dataclasses.dataclass(frozen=True)
class LaserConfig(PopArtImpalaConfig):
  """PopArt-IMPALA's hyper-parameters and those of LASER. The binaries have the paper's values for each suite."""

  # The trust region.
  trust_region_threshold: float = setting(
      0.1, 'A step is learned from only if its relevance is below this threshold (b). inf learns from all steps. '
      'Section 4.3. Ours: the paper does not state its value.', more_than=0, at_most=math.inf)
  relevance: str = setting(
      'implied', "How far V-trace's implied policy is from the target policy pi: implied, KL(pi || implied policy) of "
      'section 4.3, or kl_mu, KL(pi || behaviour policy) of Algorithm 1.', choices=('implied', 'kl_mu'))

  entropy_steps: str = setting(
      'online', 'Which steps have the entropy bonus: online, as in section 5.1, or all. With --nolearn_online no step '
      'is online, so there is no bonus unless all steps have it.', choices=('online', 'all'))

  # The replay.
  replay_share: float = setting(
      0.875, "Share of each batch's unrolls that are replayed. The others are new. Section 5.3 has 0.5, 0.75 and "
      '0.875, and section 5.1 has 128 of 160 on Atari. To compare shares, keep the number of new unrolls per batch: '
      'for example 32, with --batch_size=64, 128 and 256, and 32 for a share of 0. Otherwise the number of updates per '
      'frame changes as well.',
      at_least=0, less_than=1)
  replay_capacity: int = setting(
      10_000_000, 'Capacity of the replay, in agent steps. The oldest episodes leave it first. On Atari, 10 million '
      'take 71 GB. Section 5.3, for DMLab-30; for sweeps on Atari the paper states none.', at_least=1,
      at_most=settings.MAX_FRAMES)
  replay_minimum_size: int = setting(
      10_000, 'Agent steps in the replay before replayed unrolls are learned from. Until then, updates learn from new '
      'unrolls only; with --nolearn_online or another --replay_sampling than episodes, they wait. Ours: the paper '
      'states none.', at_least=1, at_most=settings.MAX_FRAMES)
  sweep_index: int = setting(
      runtime_config.NO_SAMPLE, 'Number of a random sample of learning_rate and entropy_cost, used instead of the '
      f'flags of these names: 0 to {sweeps.LASER.num_samples - 1}, or any number in a population. -1 for no sample. '
      'Section 5.1, DMLab-30.', at_least=runtime_config.NO_SAMPLE, at_most=settings.MAX_SEED)
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
      '', 'HOST:PORT of a replay that several agents share (`scalable-agents laser_replay`). Agents that are ahead of '
      'the slowest one wait. Empty: the agent has its own replay. Section 5.1.', free=True,
      kind=lambda address: 'a shared replay' if address else 'no shared replay')
  learn_online: bool = setting(
      True, 'Also learn from new unrolls. With --nolearn_online, all unrolls of a batch are replayed. Then the new '
      'unrolls, as many per update as otherwise, only fill the replay: the pure replay of figure 2.')


def validate_laser(config: LaserConfig) -> None:
  """Raises ValueError for the first setting out of range; the message is one line: flag, value, what is allowed."""
  validate_impala(config)
  if not config.learn_online and not config.replay_share:
    raise ValueError('--nolearn_online: want a --replay_share above 0, because without a replay nothing would be '
                     'learned')
  # A replay drops whole episodes or unrolls, so that it is seldom full to its last step.
  if config.replay_share and 2 * config.replay_minimum_size > config.replay_capacity:
    raise ValueError(f'--replay_minimum_size={config.replay_minimum_size}: want at most half of --replay_capacity='
                     f'{config.replay_capacity}')
  if config.shared_replay:
    ports.split_address(config.shared_replay, 'shared_replay')
    if config.replay_sampling != 'episodes' or not config.replay_share:
      raise ValueError(f'--shared_replay={config.shared_replay}: want --replay_sampling=episodes and a --replay_share '
                       'above 0: agents share whole episodes, because their recurrent states and priorities differ')
