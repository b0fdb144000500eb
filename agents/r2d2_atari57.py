"""Trains and evaluates R2D2 on a game of Atari-57.

  bazel run //agents:r2d2_atari57 -- --level_name=pong --logdir=runs/r2d2_pong
  bazel run //agents:r2d2_atari57 -- --level_name=pong --logdir=runs/r2d2_pong --mode=test

The same --logdir resumes a run, with its replay. Every hyper-parameter is a flag. The defaults are those of Kapturowski
et al. 2019 (table 2): all 18 actions, rewards as they are, and episodes that end with the game. A full replay takes
about 29 GB; --replay_capacity makes it smaller. docs/r2d2.md has the commands of the paper's ablations, and settings
for a small machine.
"""

from scalable_agents.processes import quiet

if __name__ == '__main__':
  quiet.start()  # Before TensorFlow is imported.

from scalable_agents.agents import r2d2
from scalable_agents.launch import program
from scalable_agents.training import atari57_protocol
from scalable_agents.training import run_config

CONFIG = r2d2.R2d2Config()
RUN_CONFIG = run_config.RunConfig(checkpoint_interval_seconds=600.)  # Because the replay is saved with each checkpoint.
PROTOCOL = atari57_protocol.Protocol(episode_end_on_life_loss=False, full_action_set=True)  # Section 2.3, appendix.

if __name__ == '__main__':
  program.run(r2d2, CONFIG, PROTOCOL, RUN_CONFIG)
