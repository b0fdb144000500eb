"""Trains and evaluates batched A2C on all levels of DMLab-30 or on one of them, or on a level of DeepMind Lab.

  scalable-agents a2c_dmlab30 --level_name=rooms_watermaze --reward_transform=abs_one \\
    --total_environment_frames=1_000_000_000 --logdir=runs/a2c_watermaze
  scalable-agents a2c_dmlab30 --logdir=runs/a2c_watermaze --mode=test

The same --logdir resumes a run. Every hyper-parameter is a flag. The defaults are those of Espeholt et al. 2018: the
shallow network with LSTM and language (section 5.1), and for the rest IMPALA's (impala_dmlab30.py). DeepMind Lab must
be built from source: see impala_dmlab30.py.
"""

from scalable_agents.agents import train

if __name__ == '__main__':
  train.main('a2c_dmlab30')
