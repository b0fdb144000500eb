"""Trains and evaluates A3C on all levels of DMLab-30 or on one of them, or on a level of DeepMind Lab.

  scalable-agents a3c_dmlab30 --dataset_path=IMAGES --logdir=runs/a3c_dmlab30
  scalable-agents a3c_dmlab30 --logdir=runs/a3c_dmlab30 --mode=test
  scalable-agents a3c_dmlab30 --level_name=rooms_watermaze --torso=shallow --reward_transform=abs_one \\
    --total_environment_frames=1_000_000_000 --logdir=runs/a3c_watermaze

The same --logdir resumes a run. Every hyper-parameter is a flag. The defaults are those of Espeholt et al. 2018: the
deep network with LSTM and language, 7 workers per level (section 5.3.1), or 32 for a single level (table 1), and for
the rest IMPALA's (impala_dmlab30.py). DeepMind Lab must be built from source: see impala_dmlab30.py.
"""

from scalable_agents.agents import train

if __name__ == '__main__':
  train.main('a3c_dmlab30')
