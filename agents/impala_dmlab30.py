"""Trains and evaluates IMPALA on all levels of DMLab-30 or on one of them.

  scalable-agents impala_dmlab30 --dataset_path=IMAGES --logdir=runs/dmlab30
  scalable-agents impala_dmlab30 --logdir=runs/dmlab30 --mode=test
  scalable-agents impala_dmlab30 --level_name=rooms_watermaze --reward_transform=abs_one \\
    --total_environment_frames=1_000_000_000

The same --logdir resumes a run. Every hyper-parameter is a flag. The defaults are those of Espeholt et al. 2018: the
deep network with LSTM and language (figure 3) and tables D.1 to D.3. The released code's values for DMLab-30 are those
that the paper swept, the number of frames, and the reward transformation (figure D.1 has another). Built-in and
gymnasium tasks can also be trained.

DeepMind Lab must be built from source. docs/dmlab.md says how, and docs/suites.md where to get the images that two
levels need.
"""

from scalable_agents.agents import train

if __name__ == '__main__':
  train.main('impala_dmlab30')
