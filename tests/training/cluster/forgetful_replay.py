"""A replay job for tests, which forgets agents after half a second without a report."""

from scalable_agents.agents import laser_replay
from scalable_agents.training import run_flags
from scalable_agents.training.cluster import replay_port

if __name__ == '__main__':
  replay_port.FORGOTTEN_SECONDS = 0.5
  run_flags.define(laser_replay.ReplayConfig())
  run_flags.run_main(laser_replay.main)
