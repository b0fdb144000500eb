"""Keeps the members of a population running: starts them, starts them again, and shows what they say.

All of it is for convenience on one machine: members need each other's files (learner/population_directory.py) and
nothing from here. One thread, so that a member may be told to leave with its parent: that is the thread that forked it.
"""

import os
import selectors
import signal
import subprocess
import time
from typing import Callable, Sequence, TextIO

from scalable_agents.actor import parent_death
from scalable_agents.actor import python_path
from scalable_agents.agents import run_flags
from scalable_agents.learner import population_directory
from scalable_agents.learner import run_directory

SHORT_LIVES = 3  # So many in a row, and a member is given up.
_SHORT_LIFE_SECONDS = 60.
_TICK_SECONDS = 0.2
_LEAVING_SECONDS = 60.  # Saving takes a moment; Ctrl-C waits a few seconds for an update under way.
_ERROR = 'error: '  # So begins the line with which a program refuses what its user has said; see run_flags.run_main.


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
    self._folder, self._stream = folder, stream
    self._selector = selectors.DefaultSelector()
    self._members = []
    for index in range(size):
      name = population_directory.member_name(index)
      command = [*program, *flags_of(index), f'--population_size={size}', f'--logdir={os.path.join(folder, name)}']
      self._members.append(_Member(name, os.path.join(folder, name), command, self._selector, self._say))
    self._interrupted = False

  def run(self) -> list[str]:
    """Runs all members to their ends, or until SIGINT or SIGTERM; nothing is left running either way.

    Returns:
      The names of the members that were given up.
    Raises:
      run_flags.UserError: a member refuses its flags or its directory.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
      signal.signal(number, self._interrupt)
    given_up = []
    try:
      for member in self._members:
        member.start()
      while not self._interrupted and (running := [member for member in self._members if member.process]):
        self._listen()
        for member in running:
          if member.process.poll() is not None and not self._interrupted and not self._follow_up(member):
            given_up.append(member.name)
    finally:
      self._end()
      self._selector.close()
    if self._interrupted:
      self._say('stopped, the same command goes on from there')
    return given_up

  def _interrupt(self, *unused_signal):
    self._interrupted = True

  def _follow_up(self, member) -> bool:
    """Decides what comes after a member's end. False if it is given up."""
    reason = member.bury()
    if member.is_finished():
      return True
    if member.refusal:
      raise run_flags.UserError(f'{member.name}: {member.refusal}')
    if member.short_lives == SHORT_LIVES:
      self._say(f'{member.name} is given up: it ended {SHORT_LIVES} times in a row within {_SHORT_LIFE_SECONDS:g} s of '
                f'its start, at last {reason}')
      return False
    self._say(f'{member.name} ended {reason}: it is started again')
    member.start()
    return True

  def _listen(self):
    """Shows what members say, for a moment."""
    for key, _ in self._selector.select(_TICK_SECONDS):
      key.data.read()

  def _end(self):
    """Ends all members in an orderly way: they leave checkpoints."""
    running = [member for member in self._members if member.process]
    for member in running:
      member.process.terminate()
    deadline = time.monotonic() + _LEAVING_SECONDS
    while any(member.process.poll() is None for member in running):
      self._listen()
      if time.monotonic() > deadline:
        for member in running:
          member.process.kill()
    for member in running:
      member.bury()

  def _say(self, text: str):
    print(text, file=self._stream, flush=True)


class _Member:
  """One member: its process while there is one, and what became of those before."""

  def __init__(self, name, logdir, command, selector, say):
    self.name, self._logdir, self._command, self._selector, self._say = name, logdir, command, selector, say
    self.process = None
    self.short_lives = 0  # In a row.
    self.refusal = None   # What the last process had to say, if it did nothing but refuse.

  def start(self):
    """Starts the process, in a session of its own: Ctrl-C is for the launcher alone."""
    self._began, self._unfinished_line, self._last_error, self._has_spoken = time.monotonic(), b'', '', False
    self.process = subprocess.Popen(
        self._command, bufsize=0, env=python_path.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=parent_death.leaving_with_parent(signal.SIGTERM))
    os.set_blocking(self.process.stdout.fileno(), False)
    self._selector.register(self.process.stdout, selectors.EVENT_READ, self)

  def read(self):
    """Shows the complete lines that the process has written."""
    while block := self.process.stdout.read(1 << 16):
      *lines, self._unfinished_line = (self._unfinished_line + block).split(b'\n')
      for line in lines:
        self._show(line.decode(errors='replace'))

  def bury(self) -> str:
    """To be called when the process has ended. Returns how it has."""
    self.read()
    if self._unfinished_line:
      self._show(self._unfinished_line.decode(errors='replace'))
    self._selector.unregister(self.process.stdout)
    self.process.stdout.close()
    self._code, self.process = self.process.returncode, None
    self.refusal = self._last_error if self._code == 1 and not self._has_spoken else None
    self.short_lives = self.short_lives + 1 if time.monotonic() - self._began < _SHORT_LIFE_SECONDS else 0
    if self._code < 0:
      return f'by {signal.Signals(-self._code).name}'
    return f'with exit code {self._code}' + f' ({self._last_error})' * bool(self._last_error)

  def is_finished(self) -> bool:
    """Whether the process that has ended left a run with all its frames: without an error a signal may end it, too."""
    rows = run_directory.read_metrics(self._logdir) if self._code == 0 else []
    return bool(rows) and (
        rows[-1]['environment_frames'] >= run_directory.read_config(self._logdir)['flags']['total_environment_frames'])

  def _show(self, line):
    if line.startswith(_ERROR):  # Shown where its end is.
      self._last_error = line.removeprefix(_ERROR)
    else:
      self._has_spoken = True
      self._say(f'{self.name}: {line}')


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
