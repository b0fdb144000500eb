"""A replay job for tests: it saves often, and soon forgets agents that are silent."""

import os

from scalable_agents.agents import laser_replay
from scalable_agents.experience import replay_port
from scalable_agents.processes import run_flags

FORGOTTEN_SECONDS = 'FORGOTTEN_SECONDS'  # The environment variable with the time after which it forgets an agent.

if __name__ == '__main__':
  replay_port.FORGOTTEN_SECONDS = float(os.environ[FORGOTTEN_SECONDS])
  run_flags.define(laser_replay.ReplayConfig(checkpoint_interval_seconds=0.3))
  run_flags.run_main(laser_replay.main)
