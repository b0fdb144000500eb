"""Runs a cluster, kills and restarts its processes at random, and checks that training continues.

  bazel run //tools:cluster_soak -- --minutes=20

Every few seconds an actor host is killed and another one is started. Every few minutes the learner is killed and
started again. The program prints a line of progress each minute. Its last line is a JSON object with the frames per
second before and during the kills. For each learner process, it also has the number of actor hosts that were killed,
and the learner's memory after a settling time and at the end.

The exit code is 1 if a process ends by itself, an actor host does not reconnect to the learner, updates are skipped, or
a process does not end with exit code 0.
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
from scalable_agents.tools import training_rate
from scalable_agents.training import run_flags
from scalable_agents.training.cluster import free_ports

_TICK_SECONDS = 0.2
_PATIENCE_SECONDS = 180.
_MAX_MINUTES = 100_000


@dataclasses.dataclass(frozen=True)
class ClusterSoakConfig:
  """The flags."""

  minutes: float = setting(20., 'Length of the test in minutes.', at_least=0.1, at_most=_MAX_MINUTES)
  actors: int = setting(4, 'Number of actor hosts that run at a time.', at_least=1, at_most=settings.MAX_PROCESSES)
  environments: int = setting(8, 'Environments per actor host.', at_least=1, at_most=settings.MAX_ENVIRONMENTS)
  seconds_between_kills: float = setting(10., 'Seconds between two kills of an actor host.', at_least=0.1,
                                         at_most=training_rate.MAX_SECONDS)
  minutes_between_learner_kills: float = setting(5., 'Minutes between two kills of the learner.', at_least=0.1,
                                                 at_most=_MAX_MINUTES)
  calm_seconds: float = setting(60., 'Seconds at the start during which nothing is killed.', at_least=1,
                                at_most=training_rate.MAX_SECONDS)
  seed: int = setting(1, 'Random seed of the order in which actor hosts are killed.', at_least=0,
                      at_most=settings.MAX_SEED)
  flags: str = setting('--level_name=catch,--torso=shallow',
                       'Flags of //agents:impala_atari57 for all processes, with commas between them.')


class SoakError(Exception):
  """The cluster did not behave as it should. The message is one line."""


class Soak:
  """The processes of the cluster, and the numbers of kills."""

  def __init__(self, config: ClusterSoakConfig, folder: str, address: str):
    self._config = config
    self.logdir = f'{folder}/run'
    self._address = address
    self._log = open(f'{folder}/log', 'w', encoding='utf-8')
    self.kills = {'actor': 0, 'learner': 0}
    self._earlier_rows = frozenset()  # wall_seconds of the rows that killed learners have written.
    self.learner = self._start_learner()
    self.actors = [self._start_actor() for _ in range(config.actors)]

  def kill_actor(self, which: int):
    """Kills an actor host and starts another one."""
    self._kill(self.actors[which], 'actor')
    self.actors[which] = self._start_actor()

  def kill_learner(self):
    """Kills the learner and starts it again."""
    self._kill(self.learner, 'learner')
    self._earlier_rows = frozenset(row['wall_seconds'] for row in run_rows.read_metrics(self.logdir))
    self.learner = self._start_learner()

  def watch(self):
    """Raises SoakError if a process has ended by itself."""
    for name, process in (('learner', self.learner), *(('actor', actor) for actor in self.actors)):
      if process.poll() is not None:
        raise SoakError(f'{name} ended with exit code {process.returncode}')

  def wait_for_all(self):
    """Waits until the current learner knows all actor hosts. A host that it does not know would not end with it."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    names = {f'actor/{socket.gethostname()}-{actor.pid}/frames_per_second' for actor in self.actors}
    while not self._have_played(names):
      if time.monotonic() > deadline:
        raise SoakError(f'not all actor hosts have connected to the learner within {_PATIENCE_SECONDS:g} s')
      time.sleep(_TICK_SECONDS)

  def _have_played(self, names):
    """Returns whether the current learner's last row has all these names, and more frames than its first row."""
    rows = [row for row in run_rows.read_metrics(self.logdir) if row['wall_seconds'] not in self._earlier_rows]
    return bool(rows) and names <= rows[-1].keys() and rows[-1]['environment_frames'] > rows[0]['environment_frames']

  def end(self) -> float:
    """Ends the learner with SIGINT. Returns the seconds until the last actor host had ended by itself."""
    began = time.monotonic()
    self.learner.send_signal(signal.SIGINT)
    codes = [process.wait(_PATIENCE_SECONDS) for process in (self.learner, *self.actors)]
    if any(codes):
      raise SoakError(f'exit codes at the end, starting with the learner: {codes}; want 0')
    return time.monotonic() - began

  def close(self):
    """Kills all processes that still run."""
    for process in (self.learner, *self.actors):
      process.kill()
      process.wait()
    self._log.close()

  def megabytes(self) -> float:
    """Returns the learner's resident memory in megabytes."""
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
  """Returns the environment frames per second between two values of a run's wall_seconds."""
  rows = [row for row in rows if begin <= row['wall_seconds'] <= end]
  seconds = rows[-1]['wall_seconds'] - rows[0]['wall_seconds'] if rows else 0.
  return (rows[-1]['environment_frames'] - rows[0]['environment_frames']) / seconds if seconds else 0.


def _run(soak, config):
  """Kills processes until the time is over. Returns the numbers for the JSON line."""
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
      print(f'minute {passed / 60:.0f}: {row["environment_frames"]:,} frames, '
            f'{row["frames_per_second"]:,.0f} frames/s, {row["actor_hosts"]} actor hosts, '
            f'learner {soak.megabytes():.0f} MB, killed {soak.kills}', flush=True)
  soak.wait_for_all()
  rows = run_rows.read_metrics(soak.logdir)
  if rows[-1]['skipped_updates']:
    raise SoakError(f'{rows[-1]["skipped_updates"]} updates were skipped')
  return {'calm_frames_per_second': _rate(rows, 0., config.calm_seconds),
          'frames_per_second': _rate(rows, config.calm_seconds, rows[-1]['wall_seconds']),
          'kills': soak.kills, 'lives': lives + _life(soak, settled), 'seconds_to_end': soak.end()}


def _life(soak, settled):
  """Returns a list with the numbers of one learner process, empty if the process has not settled."""
  if settled is None:
    return []
  kills, megabytes = settled
  return [{'killed_actors': soak.kills['actor'] - kills, 'megabytes': [megabytes, soak.megabytes()]}]


def main():
  """Runs the test. Returns the exit code, 1 after an error."""
  config = run_flags.config_from_flags(ClusterSoakConfig)
  address = f'localhost:{free_ports.find(1)[0]}'
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
