"""The settings that every agent has, because the runtime reads them. Each agent's config adds its own."""

import dataclasses

from scalable_agents.records import settings
from scalable_agents.records.settings import setting

NO_SAMPLE = -1  # The value of sweep_index with which no sample replaces the settings of the flags.


@dataclasses.dataclass(frozen=True)
class RuntimeConfig:
  """The base of the agents' configs. A config repeats a field to give it the default and the source of its paper."""
  level_name: str = setting(
      'pong', "The level to play: one of the program's suite (a game of Atari-57 or a level of DMLab-30), a built-in "
      'task, gymnasium:ID or dm_env:MODULE:FUNCTION. For several levels at once: a suite (atari57 or dmlab30), or '
      'names separated by commas. Environments are assigned to the levels in turn.')
  total_environment_frames: int = setting(
      200_000_000, 'Number of environment frames to train for (agent steps times action repeats), summed over all '
      'levels.', at_least=1, at_most=settings.MAX_FRAMES)
  unroll_length: int = setting(20, 'Agent steps per unroll.', at_least=1, at_most=100_000)
  batch_size: int = setting(32, 'Unrolls per update.', at_least=1, at_most=10_000)
  learning_rate: float = setting(6e-4, 'Learning rate at the start.', at_least=0)
  learning_rate_decay: bool = setting(
      False, 'Decay the learning rate linearly to 0 over total_environment_frames.')
  clip_gradient_norm: float = setting(
      40.0, 'Largest global norm of the gradient; a larger gradient is scaled down to it. 0 for no clipping.',
      at_least=0)
  sweep_index: int = setting(
      NO_SAMPLE, "Number of a random sample of the sweep's hyper-parameters, used instead of the flags of these names. "
      '-1 for no sample.', at_least=NO_SAMPLE, at_most=settings.MAX_SEED)
  policy_lag: int = setting(
      0, 'Number of updates by which the parameters of the actors are held back, to study stale parameters. For each '
      'update of lag one copy of the parameters is kept in memory. After a resume the lag grows from 0 again, as at '
      'the start. A2C and A3C: only 0. Espeholt et al. 2018 (IMPALA), section E.1.', at_least=0, at_most=10_000)
  queue_size: int = setting(
      1, 'Largest number of unrolls in the queue between actors and learner. When the queue is full, actors wait. '
      'Unrolls of the next batch, and unrolls that actors have just finished, do not count. Released code of IMPALA.',
      at_least=1, at_most=100_000)
  synchronous: bool = setting(
      False, 'Let environments, inference and learning take turns, so that the seed and num_environments determine a '
      'run on a CPU that is not interrupted and shares nothing with others. This is slower. Ours.')
  seed: int = setting(
      1, 'Seed of the initial weights, the actions, the samples of a replay and the environments.', at_least=0,
      at_most=settings.MAX_SEED)

  @property
  def barrier(self) -> str:
    """What environments wait for: none, unroll or step; see actor_pool.ActorPool. With none, they do not wait."""
    return 'step' if self.synchronous else 'none'
