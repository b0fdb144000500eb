"""Keeps the members of a population running: starts them, starts them again, and shows what they say.

All of it is for convenience on one machine: members need each other's files (training/population/population_directory.py) and
nothing from here.
"""

import os
import signal
from typing import Callable, Sequence, TextIO

from scalable_agents.records import errors
from scalable_agents.records import run_directory
from scalable_agents.records import run_rows
from scalable_agents.training import child_process
from scalable_agents.training.population import population_directory

_SHORT_LIFE_SECONDS = child_process.SHORT_LIFE_SECONDS
_LEAVING_SECONDS = 60.  # Saving takes a moment; Ctrl-C waits a few seconds for an update under way.


class Launcher:
  """The members' processes."""

  def __init__(self, program: Sequence[str], folder: str, size: int, flags_of: Callable[[int], Sequence[str]],
               stream: TextIO):
    """Starts nothing yet.

    Args:
      program: the agent's binary, as a command.
      folder: of the members' run directories.
      size: number of members.
      flags_of: gives a member's flags by its index; `--logdir` and `--population_size` are added.
      stream: what members say goes there, line by line, with their names.
    """
    self._folder = folder
    self._children = child_process.Children(stream, _SHORT_LIFE_SECONDS)
    self._members = []
    for index in range(size):
      name = population_directory.member_name(index)
      command = [*program, *flags_of(index), f'--population_size={size}', f'--logdir={os.path.join(folder, name)}']
      self._members.append(self._children.add(name, command))
    self._interrupted = False

  def run(self) -> list[str]:
    """Runs all members to their ends, or until SIGINT or SIGTERM; nothing is left running either way.

    Returns:
      The names of the members that were given up.
    Raises:
      errors.UserError: a member refuses its flags or its directory.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
      signal.signal(number, self._interrupt)
    given_up = []
    try:
      for member in self._members:
        member.start()
      while not self._interrupted and (running := [member for member in self._members if member.process]):
        self._children.listen()
        for member in running:
          if member.has_ended() and not self._interrupted and not self._follow_up(member):
            given_up.append(member.name)
    finally:
      self._children.end(self._members, signal.SIGTERM, _LEAVING_SECONDS)  # They leave checkpoints.
      self._children.close()
    if self._interrupted:
      self._children.say('stopped, the same command goes on from there')
    return given_up

  def _interrupt(self, *unused_signal):
    self._interrupted = True

  def _follow_up(self, member) -> bool:
    """Decides what comes after a member's end. False if it is given up."""
    reason = member.bury()
    if self._is_finished(member):
      return True
    if member.refusal:
      raise errors.UserError(f'{member.name}: {member.refusal}')
    if member.short_lives == child_process.SHORT_LIVES:
      self._children.say(f'{member.name} is given up: it ended {child_process.SHORT_LIVES} times in a row within '
                         f'{_SHORT_LIFE_SECONDS:g} s of its start, at last {reason}')
      return False
    self._children.say(f'{member.name} ended {reason}: it is started again')
    member.start()
    return True

  def _is_finished(self, member) -> bool:
    """Whether the process that has ended left a run with all its frames: without an error a signal may end it, too."""
    logdir = os.path.join(self._folder, member.name)
    row = run_rows.last_metrics(logdir) if member.code == 0 else None
    return row is not None and (
        row['environment_frames'] >= run_directory.read_config(logdir)['flags']['total_environment_frames'])


def summary(folder: str) -> str:
  """A line per member, and which is the fittest.

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
    lines.append(f'fittest: {members[max(known, key=known.get)]}')
  return '\n'.join(lines)
