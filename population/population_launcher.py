"""Starts the members of a population on one machine, and summarises them.

This is a convenience. Members need only each other's files (population/population_directory.py).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TextIO

from scalable_agents.population import population_directory
from scalable_agents.processes import run_launcher
from scalable_agents.records import errors
from scalable_agents.records import run_directory


def launcher(program: Sequence[str], folder: str, size: int, flags_of: Callable[[int], Sequence[str]],
             stream: TextIO, services: Mapping[str, Sequence[str]] = {}) -> run_launcher.Launcher:
  """Returns a launcher of the members. It has started nothing yet.

  Args:
    program: the command that starts the agent's binary.
    folder: the folder of the members' run directories.
    size: number of members.
    flags_of: returns a member's flags, given its index. `--logdir` and `--population_size` are added.
    stream, services: see run_launcher.Launcher.
  Raises:
    errors.UserError: the folder has a population of another size, or the settings of a member are damaged. Members
      check this, too, but a new one would have started by then.
  """
  for logdir in population_directory.members(folder).values():
    its_size = run_directory.read_config(logdir)['flags'].get('population_size', size)
    if its_size != size:
      raise errors.UserError(f'--population_size={size}: {logdir} is a member of a population of {its_size}: '
                             f'want --population_size={its_size}, or another --logdir')
  commands = {population_directory.member_name(index): [*program, *flags_of(index), f'--population_size={size}']
              for index in range(size)}
  return run_launcher.Launcher(commands, folder, stream, services)


def summary(folder: str) -> str:
  """Returns a line per member, and a line that names the fittest.

  Raises:
    run_directory.RunDirectoryError: a file of a member is damaged.
  """
  members = population_directory.members(folder)
  found = {index: population_directory.read_fitness(logdir) for index, logdir in members.items()}
  lines = []
  for index, fitness in found.items():
    if fitness is None:
      lines.append(f'{population_directory.member_name(index)}: no fitness yet')
    else:
      values = ', '.join(f'{name} {value:.3g}' for name, value in fitness.hyper_parameters.items())
      lines.append(f'{population_directory.member_name(index)}: fitness {fitness.fitness:.2f} at '
                   f'{fitness.environment_frames:,} frames with {values}')
  known = {index: fitness.fitness for index, fitness in found.items() if fitness}
  if known:
    lines.append(f'fittest: {members[max(known, key=lambda index: known[index])]}')
  return '\n'.join(lines)
