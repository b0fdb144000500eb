"""Trains and evaluates batched A2C on Atari games: one, several or all 57. Also on tasks of your own.

  scalable-agents a2c_atari57 --level_name=pong --logdir=runs/pong_a2c
  scalable-agents a2c_atari57 --level_name=pong --logdir=runs/pong_a2c --mode=test
  scalable-agents a2c_atari57 --level_name=pong --batching=dynamic_batching --logdir=runs/pong_a2c_dynamic

The same --logdir resumes a run. Every hyper-parameter is a flag. Espeholt et al. 2018 have A2C on DeepMind Lab only, so
the defaults are those of IMPALA on Atari (table G.1, with the deep feed-forward network).
"""

from scalable_agents.agents import train

if __name__ == '__main__':
  train.main('a2c_atari57')
