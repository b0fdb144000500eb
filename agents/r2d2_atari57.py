"""Trains and evaluates R2D2 on a game of Atari-57.

  scalable-agents r2d2_atari57 --level_name=pong --logdir=runs/r2d2_pong
  scalable-agents r2d2_atari57 --level_name=pong --logdir=runs/r2d2_pong --mode=test

The same --logdir resumes a run, with its replay. Every hyper-parameter is a flag. The defaults are those of Kapturowski
et al. 2019 (table 2): all 18 actions, rewards as they are, and episodes that end with the game. A full replay takes
about 29 GB; --replay_capacity makes it smaller. docs/r2d2.md has the commands of the paper's ablations, and settings
for a small machine.
"""

from scalable_agents.agents import train

if __name__ == '__main__':
  train.main('r2d2_atari57')
