"""Trains a population of agents on this machine. Espeholt et al. 2018 (IMPALA), appendix F.

  scalable-agents population --agent=impala_dmlab30 --population_size=8 --dataset_path=IMAGES
  scalable-agents population --agent=impala_atari57 --level_name=atari57 --total_environment_frames=11_400_000_000
  scalable-agents population --agent=popart_impala_atari57
  scalable-agents population --agent=laser_dmlab30 --share_replay --dataset_path=IMAGES

The program starts the members POPULATION/member_00, member_01, ... with samples of the agent's sweep as
hyper-parameters (agents/sweeps.py). With --seed=1, member i has sample i; with --seed=0, too. Populations whose seeds
are at least 1, and at least the population's size apart, are independent.
With --share_replay, LASER's members share a replay (Schmitt et al. 2020, figure 3), which this program serves in
POPULATION/replay. They run at equal speed then: members that are ahead wait.
It restarts members that die. The same command resumes. Flags that this program does not define go to every member.

Each member is a training process with environments of its own, so 24 members need a large machine. Set
--num_environments, because by default each member has as many environments as are good for the whole machine.

On several machines with a shared file system, start the members one by one. This program is not needed then:

  scalable-agents impala_dmlab30 --population_size=8 --logdir=shared/population/member_03 --sweep_index=3 \\
    --seed=4 --nolearning_rate_decay --dataset_path=IMAGES
"""

from collections.abc import Sequence
import dataclasses
import sys

from scalable_agents.agents import laser_sweep
from scalable_agents.agents import registry
from scalable_agents.population import population_launcher
from scalable_agents.processes import free_ports
from scalable_agents.processes import run_flags
from scalable_agents.records import errors
from scalable_agents.records import settings
from scalable_agents.records.settings import setting

# The launcher sets these flags of the members, besides the flags of LauncherConfig.
_OURS = ('learning_rate_decay', 'mode', 'nolearning_rate_decay', 'sweep_index')
_SHARED = 'shared_replay'  # It also sets this flag if the members share a replay.


@dataclasses.dataclass(frozen=True)
class LauncherConfig:
  """The flags."""

  agent: str = setting('impala_dmlab30', "The members' program: " + ' or '.join(registry.PRESETS) + '; or module:NAME '
                       'of an agent of your own.')
  population_size: int = setting(0, "Number of members; 0 for the paper's number: 8 for popart_impala_dmlab30, 10 "
                                 'for laser_dmlab30, and 24 for IMPALA and popart_impala_atari57. All others have '
                                 '24, too; no paper states it.',
                                 at_least=0, at_most=settings.MAX_PROCESSES)
  logdir: str = setting('runs/population', "The folder of the members' run directories. If it has a population "
                        'already, the population is resumed.', required='a folder')
  seed: int = setting(1, "Member 0's random seed s. Member i has the seed s + i, and starts with sample number "
                      's - 1 + i of the hyper-parameters (i if s is 0).', at_least=0,
                      at_most=settings.MAX_SEED - settings.MAX_PROCESSES)
  share_replay: bool = setting(False, 'Whether the members share a replay, which this program serves. Only for ' +
                               ' and '.join(laser_sweep.AGENTS) + '.')


def size_of(config: LauncherConfig) -> int:
  """Returns the number of members, the paper's by default."""
  return config.population_size or registry.find(config.agent).population_size


def first_sample(config: LauncherConfig) -> int:
  """Returns the number of member 0's sample; member i has the i-th one after it. Seeds 0 and 1 give the same."""
  return max(config.seed - 1, 0)


def validate(config: LauncherConfig):
  """Raises ValueError with one line: the flag, its value and the allowed values."""
  settings.check(config)
  registry.check_name(config.agent)
  if config.population_size == 1:
    raise ValueError("--population_size=1: want at least 2, or 0 for the paper's number")
  if config.share_replay and config.agent not in laser_sweep.AGENTS:
    raise ValueError(f'--share_replay: want --agent={" or ".join(laser_sweep.AGENTS)}, got {config.agent}')


def main(others: Sequence[str]):
  """Runs the population. `others` are the flags for all members."""
  config = run_flags.config_from_flags(LauncherConfig, validate)
  ours = (*_OURS, _SHARED) if config.share_replay else _OURS
  run_flags.refuse(others, ours, 'the population sets this flag of its members by itself')
  folder = run_flags.user_path(config.logdir)
  services, shared = {}, []
  if config.share_replay:
    address = f'127.0.0.1:{free_ports.find(1)[0]}'
    services = {'replay': [sys.executable, *laser_sweep.replay_command(address, folder)]}
    shared = [f'--{_SHARED}={address}']

  def flags_of(index):
    return [*others, *shared, f'--sweep_index={first_sample(config) + index}', f'--seed={config.seed + index}',
            '--nolearning_rate_decay']

  program = [sys.executable, *registry.command(config.agent)]
  given_up = population_launcher.launcher(program, folder, size_of(config), flags_of, sys.stdout, services).run()
  print(population_launcher.summary(folder), flush=True)
  if given_up:
    raise errors.UserError(f'{folder}: not started again: {", ".join(given_up)}; the same command tries again')


if __name__ == '__main__':
  run_flags.define(LauncherConfig())
  run_flags.run_main(main, takes_others=True)
