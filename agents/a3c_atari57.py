"""Trains and evaluates A3C on Atari games: one, several or all 57. Also on tasks of your own.

  scalable-agents a3c_atari57 --level_name=pong --logdir=runs/pong_a3c
  scalable-agents a3c_atari57 --level_name=pong --logdir=runs/pong_a3c --mode=test

The same --logdir resumes a run. Every hyper-parameter is a flag. The defaults are those of Espeholt et al. 2018 (table
G.1, with the deep feed-forward network), and 32 workers (table 1).
"""

from scalable_agents.agents import train

if __name__ == '__main__':
  train.main('a3c_atari57')
