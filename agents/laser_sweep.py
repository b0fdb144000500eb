"""Trains a sweep of LASER agents that share a replay, on this machine. Schmitt et al. 2020, section 5.1.

  scalable-agents laser_sweep --agents=9 --level_name=pong --logdir=runs/pong_sweep
  scalable-agents laser_sweep --agents=10 --agent=laser_dmlab30 --dataset_path=IMAGES
  scalable-agents laser_sweep --agents=9 --noshare
  scalable-agents laser_sweep --agents=9 --print_commands=replay-host:20000

On Atari the agents are the cells of the paper's grid: learning rates 3e-4, 6e-4 and 1.2e-3 times entropy costs 5e-3,
1e-2 and 2e-2, each for 50 million frames. On DMLab-30 they are random samples from IMPALA's ranges. Each agent has its
own actors and its own network, and all run at equal speed: agents that are ahead wait. An agent that dies is started
again, and joins the others. The same command resumes the sweep.

Flags that this program does not define go to every agent. Set --num_environments, because by default each agent has as
many environments as are good for the whole machine. --print_commands prints the commands of all processes, to start
them on several machines; the replay's address is its value.
"""

from collections.abc import Sequence
import dataclasses
import itertools
import os
import shlex
import sys

from scalable_agents.agents import registry
from scalable_agents.agents import sweeps
from scalable_agents.processes import free_ports
from scalable_agents.processes import ports
from scalable_agents.processes import run_flags
from scalable_agents.processes import run_launcher
from scalable_agents.records import errors
from scalable_agents.records import settings
from scalable_agents.records.settings import setting

AGENTS = tuple(name for name, preset in registry.PRESETS.items() if preset.agent == registry.AGENTS['laser'])
# The cells in the middle of the grid come first, so a sweep of fewer agents has these. Section 5.1.
_GRID = sorted(itertools.product((3e-4, 6e-4, 1.2e-3), (5e-3, 1e-2, 2e-2)),
               key=lambda cell: (cell[0] != 6e-4) + (cell[1] != 1e-2))
_FRAMES = {'laser_atari57': 50_000_000, 'laser_dmlab30': 10_000_000_000}  # Per agent. Figure 1; table 1.
_OURS = ('learning_rate', 'entropy_cost', 'mode', 'shared_replay', 'sweep_index')  # This program sets these flags.


@dataclasses.dataclass(frozen=True)
class SweepConfig:
  """The flags."""

  agents: int = setting(9, 'Number of agents, on Atari at most 9. The paper has 9 on Atari and 10 on DMLab-30.',
                        at_least=1, at_most=settings.MAX_PROCESSES)
  agent: str = setting('laser_atari57', "The agents' program: " + ' or '.join(AGENTS) + '.', choices=AGENTS)
  share: bool = setting(True, 'Whether the agents share a replay. Otherwise each has its own.')
  logdir: str = setting('runs/laser_sweep', "The folder of the agents' run directories and of the replay. If it has a "
                        'sweep already, the sweep is resumed.', required='a folder')
  seed: int = setting(1, "Agent 0's random seed. Agent i has this seed + i.", at_least=0,
                      at_most=settings.MAX_SEED - settings.MAX_PROCESSES)
  print_commands: str = setting('', 'Print the commands of all processes and start none. The value is HOST:PORT of the '
                                'replay.')


def validate(config: SweepConfig):
  """Raises ValueError with one line: the flag, its value and the allowed values."""
  settings.check(config)
  most = len(_GRID) if config.agent == 'laser_atari57' else sweeps.LASER.num_samples
  if config.agents > most:
    raise ValueError(f"--agents={config.agents}: want at most {most}, the size of the paper's sweep")
  if config.print_commands:
    ports.split_address(config.print_commands, 'print_commands')


def flags_of(config: SweepConfig, index: int) -> list[str]:
  """Returns the flags of agent `index` that differ between the agents of a sweep."""
  if config.agent == 'laser_atari57':
    learning_rate, entropy_cost = _GRID[index]
    sample = [f'--learning_rate={learning_rate:g}', f'--entropy_cost={entropy_cost:g}']
  else:
    sample = [f'--sweep_index={index}']
  return [*sample, f'--seed={config.seed + index}']


def commands(config: SweepConfig, others: Sequence[str], address: str) -> tuple[dict[str, list[str]], list[str]]:
  """Returns the arguments after `python` that start each agent, by its name, and those that start the replay.

  Args:
    config: the flags.
    others: flags for all agents.
    address: HOST:PORT of the replay.
  """
  common = [f'--total_environment_frames={_FRAMES[config.agent]}', *others]  # Of two equal flags the last counts.
  if config.share:
    common.append(f'--shared_replay={address}')
  agents = {f'agent_{index:02}': [*registry.command(config.agent), *common, *flags_of(config, index)]
            for index in range(config.agents)}
  return agents, replay_command(address, run_flags.user_path(config.logdir))


def replay_command(address: str, folder: str) -> list[str]:
  """Returns the arguments after `python` that start the replay that the runs in a folder share."""
  return ['-m', 'scalable_agents.agents.laser_replay', f'--shared_replay={address}',
          f'--logdir={os.path.join(folder, "replay")}']


def main(others: Sequence[str]):
  """Runs the sweep, or prints its commands. `others` are the flags for all agents."""
  config = run_flags.config_from_flags(SweepConfig, validate)
  run_flags.refuse(others, _OURS, 'the sweep sets this flag of its agents by itself')
  folder = run_flags.user_path(config.logdir)
  address = config.print_commands or f'127.0.0.1:{free_ports.find(1)[0]}'
  agents, replay = commands(config, others, address)
  if config.print_commands:
    processes = [[*command, f'--logdir={os.path.join(folder, name)}'] for name, command in agents.items()]
    if config.share:
      processes.insert(0, replay)
    return print(*(f'python {shlex.join(process)}' for process in processes), sep='\n')
  services = {'replay': [sys.executable, *replay]} if config.share else {}
  if not config.share and config.agents > 1:
    print(f'each agent checks the memory of its own replay only: replays of all agents need {config.agents} times as '
          'much', flush=True)
  given_up = run_launcher.Launcher({name: [sys.executable, *command] for name, command in agents.items()}, folder,
                                   sys.stdout, services).run()
  if given_up:
    raise errors.UserError(f'{folder}: not started again: {", ".join(given_up)}; the same command tries again')
  runs = shlex.quote(os.path.join(folder, 'agent_*'))
  print(f'scalable-agents tables --paper=laser --figures --runs={runs} draws the sweep', flush=True)


if __name__ == '__main__':
  run_flags.define(SweepConfig())
  run_flags.run_main(main, takes_others=True)
