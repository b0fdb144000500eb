"""Serves a replay of episodes that several LASER agents share. Schmitt et al. 2020, section 5.1.

  scalable-agents laser_replay --shared_replay=localhost:20000 --logdir=runs/sweep/replay
  scalable-agents laser_atari57 --shared_replay=localhost:20000 --logdir=runs/sweep/agent_00 --seed=1
  scalable-agents laser_atari57 --shared_replay=localhost:20000 --logdir=runs/sweep/agent_01 --seed=2

The first agent that connects decides what the replay holds and its capacity. `scalable-agents laser_sweep` starts all
of this on one machine. The replay is saved at intervals; the same command continues with it. Ctrl-C saves it and ends
the process.
"""

from scalable_agents.processes import ports
from scalable_agents.processes import quiet

if __name__ == '__main__':
  quiet.start()  # Before TensorFlow is imported.

import dataclasses
import time

from scalable_agents.experience import replay_port
from scalable_agents.processes import run_flags
from scalable_agents.processes import stop_signals
from scalable_agents.records import progress as progress_lib
from scalable_agents.records import run_directory
from scalable_agents.records import settings
from scalable_agents.records.settings import setting

_SHOW_SECONDS = 5.


@dataclasses.dataclass(frozen=True)
class ReplayConfig:
  """The flags."""

  shared_replay: str = setting(
      'localhost:20000', 'HOST:PORT of the replay, the same as for the agents. HOST must be this machine. The port '
      'opens on all network interfaces without authentication, so use private networks only.')
  logdir: str = setting('runs/replay', 'The folder to save the replay in. If it has a replay already, that one is '
                        'continued.', required='a folder')
  checkpoint_interval_seconds: float = setting(
      600., 'Seconds between two saves. After a crash, episodes since the last save are lost.', more_than=0,
      at_most=settings.MAX_SECONDS)


def validate(config: ReplayConfig):
  """Raises ValueError with one line: the flag, its value and the allowed values."""
  settings.check(config)
  ports.split_address(config.shared_replay, 'shared_replay')


def main():
  """Serves until SIGINT, SIGTERM or SIGHUP."""
  config = run_flags.config_from_flags(ReplayConfig, validate)
  logdir, screen = run_flags.user_path(config.logdir), quiet.screen()
  line = progress_lib.Line(0, 0, '{desc}', screen)
  signals = stop_signals.StopSignals()
  signals.install()  # ReplayPort makes files. If no agent comes, a clean end removes them.
  port = replay_port.ReplayPort(config.shared_replay, logdir, line.message)
  quiet.keep_log(run_directory.path(logdir, run_directory.LIBRARY_LOG))
  signals.install()  # `keep_log` has its own handler of SIGTERM.
  _, number = ports.split_address(config.shared_replay)
  line.message(f'port {number} is open on all interfaces, without authentication: anyone who reaches it can run code '
               'in this process. Keep it on a private network')
  shown = 0.

  def is_over():
    nonlocal shown
    if time.monotonic() - shown >= _SHOW_SECONDS:
      shown = time.monotonic()
      if counts := port.statistics():
        line.show(f'{port.num_agents} agents, {counts.steps:,} agent steps in {counts.episodes:,} episodes, '
                  f'{counts.bytes * 1e-9:.2f} GB')
    return signals.count > 0

  port.serve(is_over, config.checkpoint_interval_seconds)
  line.close()
  line.message('stopped; the same command continues')
  quiet.leave(0)  # Threads of TensorFlow's server still wait for the network.


if __name__ == '__main__':
  run_flags.define(ReplayConfig())
  run_flags.run_main(main)
