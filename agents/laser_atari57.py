"""Trains and evaluates LASER on a game of Atari-57.

  scalable-agents laser_atari57 --level_name=pong --logdir=runs/laser_pong
  scalable-agents laser_atari57 --level_name=pong --logdir=runs/laser_pong --mode=test

The same --logdir resumes a run, with its replay. Every hyper-parameter is a flag. The defaults are those of Schmitt et
al. 2020 (section 5.1) for an agent of a sweep. The single agent of the paper has

  --batch_size=256 --replay_share=0.875 --replay_capacity=15_000_000 --learning_rate_decay

A full replay takes 71 GB with the default --replay_capacity of 10 million steps, and 106 GB with 15 million.
docs/laser.md has the paper's ablations, sweeps with a shared replay, and settings for a small machine.
"""

from scalable_agents.agents import train

if __name__ == '__main__':
  train.main('laser_atari57')
