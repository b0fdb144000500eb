"""Trains and evaluates R2D2 on a level of DMLab-30.

  scalable-agents r2d2_dmlab30 --level_name=rooms_watermaze --logdir=runs/r2d2_watermaze
  scalable-agents r2d2_dmlab30 --level_name=rooms_watermaze --logdir=runs/r2d2_watermaze --mode=test
  scalable-agents r2d2_plus_dmlab30 --level_name=rooms_watermaze      (R2D2+)

The same --logdir resumes a run, with its replay. Every hyper-parameter is a flag. The defaults are those of Kapturowski
et al. 2019, who train an agent per level with the same settings as on Atari, and with the larger action set.

DeepMind Lab must be built from source; see docs/dmlab.md.
"""

from scalable_agents.agents import train

if __name__ == '__main__':
  train.main('r2d2_dmlab30')
