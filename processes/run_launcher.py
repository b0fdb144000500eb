"""Starts the training processes of several runs on one machine, restarts those that die, and shows their output."""

from collections.abc import Mapping, Sequence
import os
import signal
from typing import TextIO

from scalable_agents.processes import child_process
from scalable_agents.processes import stop_signals
from scalable_agents.records import errors
from scalable_agents.records import run_rows


class Launcher:
  """The processes of the runs, and services that they need."""

  def __init__(self, commands: Mapping[str, Sequence[str]], folder: str, stream: TextIO,
               services: Mapping[str, Sequence[str]] = {}):
    """Starts nothing yet.

    Args:
      commands: name of a run -> its command. `--logdir` is added: the run directory has the run's name.
      folder: the folder of the run directories.
      stream: gets each line of output of each process, with its name.
      services: name -> command of each process that serves the runs. It runs until all runs have ended.
    """
    self._folder = folder
    self._children = child_process.Children(stream)
    self._members = [self._children.add(name, [*command, f'--logdir={os.path.join(folder, name)}'])
                     for name, command in commands.items()]
    self._services = [self._children.add(name, command) for name, command in services.items()]
    self._signals = stop_signals.StopSignals()

  def run(self) -> list[str]:
    """Runs until all runs have ended, or until SIGINT, SIGTERM or SIGHUP. All processes have ended then.

    Returns:
      The names of runs that died too often and were not started again.
    Raises:
      errors.UserError: a process refuses its flags or its directory, a service dies too often, or a process ends with
        an error when it is told to end.
    """
    self._signals.install()
    given_up, failures = [], []
    try:
      for child in (*self._services, *self._members):
        child.start()
      while not self._signals.count and (running := [member for member in self._members if member.process]):
        self._children.listen()
        for service in self._services:
          if service.has_ended() and not self._signals.count:
            self._restart(service)
        for member in running:
          if member.has_ended() and not self._signals.count and not self._follow_up(member):
            given_up.append(member.name)
    finally:
      # The runs and the services save checkpoints.
      for group in (self._members, self._services):
        failures += self._children.end(group, signal.SIGTERM, child_process.SAVING_SECONDS, self._signals)
      for failure in failures:
        self._children.say(failure)
      self._children.close()
    if failures:
      raise errors.UserError('not all processes ended well; the same command continues from their last checkpoints')
    if self._signals.count:
      self._children.say('stopped; the same command continues')
    return given_up

  def _restart(self, service: child_process.Child):
    """Starts a service again after its end."""
    service.reap()
    if fault := service.refusal or service.why_not_again():
      raise errors.UserError(f'{service.name}: {fault}')
    service.start_again()

  def _follow_up(self, member: child_process.Child) -> bool:
    """Starts a member again after its end, if necessary. Returns False if it has died too often for that."""
    member.reap()
    if self._is_finished(member):
      return True
    if member.refusal:
      raise errors.UserError(f'{member.name}: {member.refusal}')
    if fault := member.why_not_again():
      self._children.say(f'{member.name} is not started again: {fault}')
      return False
    member.start_again()
    return True

  def _is_finished(self, member) -> bool:
    """Returns whether the member's run is complete. Exit code 0 alone is not enough: it also follows a signal."""
    return member.code == 0 and run_rows.is_complete(os.path.join(self._folder, member.name))
