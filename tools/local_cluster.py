"""Runs a whole cluster on one machine, to try out a cluster before it runs on several machines.

  scalable-agents local_cluster --agent=impala_atari57 --learners=1 --actors=2 --logdir=runs/pong -- \\
    --level_name=pong --torso=shallow --num_environments=16

The program shows the output of all learners and actor hosts. The flags after the -- are for every process.
There, --num_environments is the number of environments per actor host. The number per learner is
--learner_environments. If an actor host dies, it is started again. If a learner dies, all learners are started again.
Ctrl-C, SIGTERM and closing the terminal end the learners, which save and tell the actor hosts to end. The learners
listen on free ports, and the actor hosts reach them through the loopback interface. As in any cluster, the ports are
open on all interfaces and have no authentication.
"""

from collections.abc import Sequence
import dataclasses
import signal
import sys
from typing import TextIO

from scalable_agents.agents import registry
from scalable_agents.processes import child_process
from scalable_agents.processes import free_ports
from scalable_agents.processes import run_flags
from scalable_agents.processes import stop_signals
from scalable_agents.records import errors
from scalable_agents.records import settings
from scalable_agents.records.settings import setting

_NOT_FOR_ALL = ('help', 'helpfull', 'job_name', 'learner_addresses', 'logdir', 'mode', 'task')
_NOTICING_SECONDS = 10.  # Time for actor hosts to notice the learners' end and to exit by themselves.
_LEAVING_SECONDS = 20.   # Time for a process to exit if it cannot continue.


@dataclasses.dataclass(frozen=True)
class LocalClusterConfig:
  """The flags."""

  agent: str = setting('impala_atari57', 'The program of all processes: ' + ' or '.join(registry.PRESETS) + '; or '
                       'module:NAME of an agent of your own.')
  learners: int = setting(1, 'Number of learner processes.', at_least=1, at_most=settings.MAX_PROCESSES)
  actors: int = setting(2, 'Number of actor hosts.', at_least=0, at_most=settings.MAX_PROCESSES)
  logdir: str = setting('', "The learners' run directory. Default: runs/LEVEL_NAME in the current folder.")
  learner_environments: int = setting(
      0, 'Number of environments per learner.', at_least=0, at_most=settings.MAX_ENVIRONMENTS)


def validate(config: LocalClusterConfig):
  """Raises ValueError with one line: the flag, its value and the allowed values."""
  settings.check(config)
  registry.check_name(config.agent)
  if config.actors < config.learners and not config.learner_environments:  # A learner would wait for unrolls for ever.
    raise ValueError(f'--actors={config.actors}: want at least {config.learners}, one for each learner, or fewer with '
                     '--learner_environments')


class Cluster:
  """The processes of a cluster on this machine."""

  def __init__(self, program: Sequence[str], config: LocalClusterConfig, others: Sequence[str], stream: TextIO):
    """Starts no process yet.

    Args:
      program: the command that starts the agent's binary.
      config: the numbers of processes and environments.
      others: flags for every process.
      stream: gets every line that a process prints, with the name of the process.
    """
    self._children = child_process.Children(stream)
    addresses = ','.join(f'127.0.0.1:{port}' for port in free_ports.find(config.learners))

    def make(job, index, *flags):
      return self._children.add(f'{job}_{index}', [
          *program, *others, f'--job_name={job}', f'--task={index}', f'--learner_addresses={addresses}', *flags])

    place = [f'--logdir={run_flags.user_path(config.logdir)}'] if config.logdir else []
    self._learners = [make('learner', index, *place, f'--num_environments={config.learner_environments}')
                      for index in range(config.learners)]
    self._actors = [make('actor', index) for index in range(config.actors)]
    self._learners_act = config.learner_environments > 0
    self._given_up = set()  # Actor hosts that are not started again.
    self._signals = stop_signals.StopSignals()

  def run(self):
    """Runs until the learners have ended, or until SIGINT, SIGTERM or SIGHUP. All processes have ended then.

    Raises:
      errors.UserError: a process refuses its flags or dies too often, or a learner has ended with an error.
    """
    self._signals.install()
    try:
      for child in (*self._learners, *self._actors):
        child.start()
      while not self._signals.count and any(learner.process for learner in self._learners):
        self._children.listen()
        self._look_after_learners()
        self._look_after_actors()
    finally:
      self._end()
      self._children.close()
    # SIGINT ends a learner that is starting.
    failed = [f'{learner.name} ended {learner.reason()}' for learner in self._learners
              if learner.code and not (self._signals.count and learner.ended_by(signal.SIGINT))]
    if failed:
      raise errors.UserError('; '.join(failed))
    if self._signals.count:
      self._children.say('stopped')

  def _look_after_learners(self):
    """Starts all learners again if one has died, because none can continue without the others."""
    ended = self._reap(self._learners)
    if self._signals.count or not any(learner.code for learner in ended):
      return
    self._children.wait(self._learners, _LEAVING_SECONDS, lambda: self._signals.count > 0)
    ended += self._reap(self._learners)
    if self._signals.count:
      return  # `_end` gives the others time to save.
    # SIGKILL gives the learners no chance to tell the actor hosts that the run has ended.
    self._children.end(self._learners, signal.SIGKILL, _LEAVING_SECONDS)
    failed = [learner for learner in ended if learner.code]
    died = [learner for learner in failed if not learner.refusal]  # The others may have refused to continue without it.
    if not died:
      raise errors.UserError(f'{failed[0].name}: {failed[0].refusal}')
    for learner in died:
      if fault := learner.why_not_again():
        raise errors.UserError(f'{learner.name} is not started again: {fault}')
    self._children.say(f'{died[0].name} ended {died[0].reason()}: ' +
                       ('it is started again' if len(self._learners) == 1 else 'all learners are started again'))
    for learner in self._learners:
      learner.start()
    self._look_after_actors()
    for actor in self._actors:
      if not actor.process and actor not in self._given_up:  # Perhaps a learner that has saved told it of the end.
        actor.start()

  def _look_after_actors(self):
    """Starts actor hosts again that have died."""
    if not any(learner.process for learner in self._learners):
      return  # The run has ended.
    for actor in self._reap(self._actors):
      if actor.refusal:
        raise errors.UserError(f'{actor.name}: {actor.refusal}')
      if not actor.code or self._signals.count:  # It was told to end, or the run is ending.
        continue
      fault = actor.why_not_again()
      if not fault:
        actor.start_again()
        continue
      self._given_up.add(actor)
      message = f'{actor.name} is not started again: {fault}'
      if len(self._given_up) == len(self._actors) and not self._learners_act:
        raise errors.UserError(message)
      self._children.say(message)

  def _reap(self, children):
    """Returns the children whose processes have ended since the last call."""
    ended = [child for child in children if child.has_ended()]
    for child in ended:
      child.reap()
    return ended

  def _end(self):
    """Ends the learners, which save and tell the actor hosts to end, and then the actor hosts."""
    self._children.end(self._learners, signal.SIGINT, child_process.SAVING_SECONDS, self._signals)
    patience = _NOTICING_SECONDS if all(learner.code == 0 for learner in self._learners) else 0.
    self._children.wait(self._actors, patience)
    # An actor host that has just been started still tries to connect to the learners.
    self._children.end(self._actors, signal.SIGTERM, _LEAVING_SECONDS - patience)


def main(others: Sequence[str]):
  """Runs the cluster. `others` are the flags for every process, and the -- before them."""
  config = run_flags.config_from_flags(LocalClusterConfig, validate)
  common = [flag for flag in others if flag != '--']
  run_flags.refuse(common, _NOT_FOR_ALL, 'this flag cannot be the same for every process of a cluster: leave it out, '
                   'or give --logdir before the --')
  program = [sys.executable, *registry.command(config.agent)]
  Cluster(program, config, common, sys.stdout).run()


if __name__ == '__main__':
  run_flags.define(LocalClusterConfig())
  run_flags.run_main(main, takes_others=True)
