"""Trains and evaluates IMPALA on Atari games: one, several or all 57. Also on tasks of your own.

  scalable-agents impala_atari57 --level_name=pong --logdir=runs/pong
  scalable-agents impala_atari57 --level_name=pong --logdir=runs/pong --mode=test
  scalable-agents impala_atari57 --level_name=atari57 --total_environment_frames=11_400_000_000

The same --logdir resumes a run. Every hyper-parameter is a flag. The defaults are those of Espeholt et al. 2018 (table
G.1, with the deep feed-forward network).
"""

from scalable_agents.agents import train

if __name__ == '__main__':
  train.main('impala_atari57')
