"""Lets a cluster run for a while, ends its processes at random and starts others, and watches that it goes on.

  bazel run //tools:cluster_soak -- --minutes=20

An actor process is killed every few seconds and another started in its place; every few minutes the learner is killed,
too, and started again. A line each minute says how far it is; the last line is a JSON object, which holds the rate while
nothing is killed and while something is, and for each life of the learner how many actors were killed in it and what
memory it had, first when it had settled and then in the end. Exit code 1 if a process ends by itself, an actor does not
find the learner again, updates are skipped, or the end is not orderly.
"""

import dataclasses
import json
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time

import psutil

from scalable_agents.actor import parent_death
from scalable_agents.actor import python_path
from scalable_agents.records import run_rows
from scalable_agents.records import settings
from scalable_agents.records.settings import setting
from scalable_agents.tools import local_cluster
from scalable_agents.tools import training_rate
from scalable_agents.training import run_flags

_TICK_SECONDS = 0.2
_PATIENCE_SECONDS = 180.
_MAX_MINUTES = 100_000


@dataclasses.dataclass(frozen=True)
class ClusterSoakConfig:
  """The flags."""

  minutes: float = setting(20., 'How long.', at_least=0.1, at_most=_MAX_MINUTES)
  actors: int = setting(4, 'Actor processes at a time.', at_least=1, at_most=settings.MAX_PROCESSES)
  environments: int = setting(8, 'Of each actor process.', at_least=1, at_most=settings.MAX_ENVIRONMENTS)
  seconds_between_kills: float = setting(10., 'Between two kills of an actor.', at_least=0.1,
                                         at_most=training_rate.MAX_SECONDS)
  minutes_between_learner_kills: float = setting(5., 'Between two kills of the learner.', at_least=0.1,
                                                 at_most=_MAX_MINUTES)
  calm_seconds: float = setting(60., 'At the start, in which nothing is killed.', at_least=1,
                                at_most=training_rate.MAX_SECONDS)
  seed: int = setting(1, 'Of which actor is next.', at_least=0, at_most=settings.MAX_SEED)
  flags: str = setting('--level_name=catch,--torso=shallow',
                       'Flags of //agents:impala_atari57 for all processes, with commas between them.')


class SoakError(Exception):
  """What must not happen has happened. The message is one line."""


class Soak:
  """The processes, and what has been seen of them."""

  def __init__(self, config: ClusterSoakConfig, folder: str, address: str):
    self._config = config
    self.logdir = f'{folder}/run'
    self._address = address
    self._log = open(f'{folder}/log', 'w', encoding='utf-8')
    self.kills = {'actor': 0, 'learner': 0}
    self.learner = self._start_learner()
    self.actors = [self._start_actor() for _ in range(config.actors)]

  def kill_actor(self, which: int):
    """Kills an actor process and starts another."""
    self._kill(self.actors[which], 'actor')
    self.actors[which] = self._start_actor()

  def kill_learner(self):
    """Kills the learner and starts it again."""
    self._kill(self.learner, 'learner')
    self.learner = self._start_learner()

  def watch(self):
    """Raises SoakError if one has ended by itself."""
    for name, process in (('learner', self.learner), *(('actor', actor) for actor in self.actors)):
      if process.poll() is not None:
        raise SoakError(f'{name} ended with exit code {process.returncode}')

  def wait_for_all(self):
    """Waits until the learner knows all actors: one that it does not know would look for it after its end."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    names = {f'actor/{socket.gethostname()}-{actor.pid}/frames_per_second' for actor in self.actors}
    while not self._have_played(names):
      if time.monotonic() > deadline:
        raise SoakError(f'not all actors have found the learner within {_PATIENCE_SECONDS:g} s')
      time.sleep(_TICK_SECONDS)

  def _have_played(self, names):
    """Whether the last row has all of these, and more frames than the first one."""
    rows = run_rows.read_metrics(self.logdir)
    return bool(rows) and names <= rows[-1].keys() and rows[-1]['environment_frames'] > rows[0]['environment_frames']

  def end(self) -> float:
    """Ends the learner in an orderly way. Returns the seconds until the last actor had left by itself."""
    began = time.monotonic()
    self.learner.send_signal(signal.SIGINT)
    codes = [process.wait(_PATIENCE_SECONDS) for process in (self.learner, *self.actors)]
    if any(codes):
      raise SoakError(f'exit codes at the end, the learner first: {codes}')
    return time.monotonic() - began

  def close(self):
    """Ends whatever still runs."""
    for process in (self.learner, *self.actors):
      process.kill()
      process.wait()
    self._log.close()

  def megabytes(self) -> float:
    """The learner's resident memory."""
    return psutil.Process(self.learner.pid).memory_info().rss * 1e-6

  def _kill(self, process, name):
    process.kill()
    process.wait()
    self.kills[name] += 1

  def _start(self, *arguments):
    return subprocess.Popen(
        [sys.executable, '-m', 'scalable_agents.agents.impala_atari57', *training_rate.split(self._config.flags),
         '--total_environment_frames=1_000_000_000_000', f'--learner_addresses={self._address}', *arguments],
        env=python_path.environment(), stdout=self._log, stderr=self._log,
        preexec_fn=parent_death.leaving_with_parent(signal.SIGTERM))

  def _start_learner(self):
    return self._start('--job_name=learner', '--num_environments=0', f'--logdir={self.logdir}',
                       '--checkpoint_interval_seconds=10', '--log_interval_seconds=2')

  def _start_actor(self):
    return self._start('--job_name=actor', f'--num_environments={self._config.environments}',
                       '--num_environment_workers=1')


def _rate(rows, begin, end):
  """Environment frames a second between two wall_seconds of a run."""
  rows = [row for row in rows if begin <= row['wall_seconds'] <= end]
  seconds = rows[-1]['wall_seconds'] - rows[0]['wall_seconds'] if rows else 0.
  return (rows[-1]['environment_frames'] - rows[0]['environment_frames']) / seconds if seconds else 0.


def _run(soak, config):
  """Kills until the time is over. Returns the figures."""
  draw = random.Random(config.seed)
  while not run_rows.read_metrics(soak.logdir):
    soak.watch()
    time.sleep(_TICK_SECONDS)
  began = said = learner_began = time.monotonic()
  next_kill, lives, settled = began + config.calm_seconds, [], None
  while (passed := time.monotonic() - began) < 60 * config.minutes:
    time.sleep(_TICK_SECONDS)
    soak.watch()
    now = time.monotonic()
    if settled is None and now - learner_began >= config.calm_seconds:
      settled = soak.kills['actor'], soak.megabytes()
    if now >= next_kill:
      next_kill = now + config.seconds_between_kills
      soak.kill_actor(draw.randrange(config.actors))
    if now - learner_began >= 60 * config.minutes_between_learner_kills:
      lives += _life(soak, settled)
      learner_began, settled = now, None
      soak.kill_learner()
    if now - said >= 60:
      said = now
      row = run_rows.read_metrics(soak.logdir)[-1]
      print(f'minute {passed / 60:.0f}: {row["environment_frames"]:,} frames, {row["frames_per_second"]:,.0f} frames/s, '
            f'{row["actor_hosts"]} actor hosts, learner {soak.megabytes():.0f} MB, killed {soak.kills}', flush=True)
  soak.wait_for_all()
  rows = run_rows.read_metrics(soak.logdir)
  if rows[-1]['skipped_updates']:
    raise SoakError(f'{rows[-1]["skipped_updates"]} updates were skipped')
  return {'calm_frames_per_second': _rate(rows, 0., config.calm_seconds),
          'frames_per_second': _rate(rows, config.calm_seconds, rows[-1]['wall_seconds']),
          'kills': soak.kills, 'lives': lives + _life(soak, settled), 'seconds_to_end': soak.end()}


def _life(soak, settled):
  """What a life of the learner's has been; nothing if it has not `settled`."""
  if settled is None:
    return []
  kills, megabytes = settled
  return [{'killed_actors': soak.kills['actor'] - kills, 'megabytes': [megabytes, soak.megabytes()]}]


def main():
  """Soaks; exit code 1 if anything went wrong."""
  config = run_flags.config_from_flags(ClusterSoakConfig)
  address = f'localhost:{local_cluster.free_ports(1)[0]}'
  with tempfile.TemporaryDirectory() as folder:
    soak = Soak(config, folder, address)
    try:
      print(json.dumps(_run(soak, config)))
    except SoakError as error:
      print(f'error: {error}')
      return 1
    finally:
      soak.close()


if __name__ == '__main__':
  run_flags.define(ClusterSoakConfig())
  run_flags.run_main(main)
