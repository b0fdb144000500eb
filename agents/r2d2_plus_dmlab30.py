"""Trains and evaluates R2D2+ on a level of DMLab-30: R2D2 with a deeper network and asymmetric rewards.

  scalable-agents r2d2_plus_dmlab30 --level_name=rooms_watermaze --logdir=runs/r2d2_plus_watermaze

Kapturowski et al. 2019, section 4.2 and table 2. All that r2d2_dmlab30 says holds here.
"""

from scalable_agents.agents import train

if __name__ == '__main__':
  train.main('r2d2_plus_dmlab30')
