"""Starts the members of a population on one machine, restarts members that die, and shows their output.

This is a convenience. Members need only each other's files (training/population/population_directory.py).
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
_LEAVING_SECONDS = 60.  # Time for a member to end: it waits a few seconds for its update, and saves a checkpoint.


class Launcher:
  """The members' processes."""

  def __init__(self, program: Sequence[str], folder: str, size: int, flags_of: Callable[[int], Sequence[str]],
               stream: TextIO):
    """Starts nothing yet.

    Args:
      program: the command that starts the agent's binary.
      folder: the folder of the members' run directories.
      size: number of members.
      flags_of: returns a member's flags, given its index. `--logdir` and `--population_size` are added.
      stream: gets each line of output of each member, with the member's name.
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
    """Runs until all members have ended, or until SIGINT or SIGTERM. All processes have ended when it returns.

    Returns:
      The names of members that died too often and were not started again.
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
      self._children.end(self._members, signal.SIGTERM, _LEAVING_SECONDS)  # The members save checkpoints.
      self._children.close()
    if self._interrupted:
      self._children.say('stopped; the same command continues')
    return given_up

  def _interrupt(self, *unused_signal):
    self._interrupted = True

  def _follow_up(self, member) -> bool:
    """Starts a member again after its end, if necessary. Returns False if it has died too often for that."""
    reason = member.bury()
    if self._is_finished(member):
      return True
    if member.refusal:
      raise errors.UserError(f'{member.name}: {member.refusal}')
    if member.short_lives == child_process.SHORT_LIVES:
      self._children.say(f'{member.name} is not started again: it ended {child_process.SHORT_LIVES} times in a row '
                         f'within {_SHORT_LIFE_SECONDS:g} s of its start, the last time {reason}')
      return False
    self._children.say(f'{member.name} ended {reason}: it is started again')
    member.start()
    return True

  def _is_finished(self, member) -> bool:
    """Returns whether the member's run is complete. Exit code 0 alone is not enough: it also follows a signal."""
    logdir = os.path.join(self._folder, member.name)
    row = run_rows.last_metrics(logdir) if member.code == 0 else None
    return row is not None and (
        row['environment_frames'] >= run_directory.read_config(logdir)['flags']['total_environment_frames'])


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
    lines.append(f'fittest: {members[max(known, key=known.get)]}')
  return '\n'.join(lines)
