"""The settings of a population. Nothing here imports TensorFlow."""

import dataclasses

from scalable_agents.population import population_directory
from scalable_agents.records import settings
from scalable_agents.records.settings import setting


@dataclasses.dataclass(frozen=True)
class PopulationConfig:
  """The settings of a population, the same for all members. The defaults are the paper's, except population_size."""

  population_size: int = setting(
      1, 'Number of members of the population to which this run belongs. The run directories of the members are '
      'POPULATION/member_00, member_01 and so on. `scalable-agents population` starts as many as the papers have. 1: '
      'no population.', at_least=1, at_most=settings.MAX_PROCESSES)
  population_episodes: int = setting(
      5_000, 'A member evolves after this many episodes of all levels together, with at least one of each level. '
      'IMPALA, appendix F.', at_least=1, at_most=settings.MAX_FRAMES)
  population_initial_frames: int = setting(
      20_000_000, 'Environment frames that a member trains for before it first evolves. IMPALA, appendix F.',
      at_least=0, at_most=settings.MAX_FRAMES)


def validate_member(config: PopulationConfig, learning_rate_decay: bool, logdir: str):
  """Raises ValueError with one line if a run with these settings cannot be a member of its population."""
  if config.population_size == 1:
    return
  if learning_rate_decay:
    raise ValueError('--learning_rate_decay: only the population may change the learning rate; add '
                     '--nolearning_rate_decay')
  if population_directory.member_index(logdir) not in range(config.population_size):
    last = population_directory.member_name(config.population_size - 1)
    raise ValueError(f'--logdir={logdir}: want {population_directory.member_name(0)} to {last} in a folder that the '
                     f'{config.population_size} members share')
