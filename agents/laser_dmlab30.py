"""Trains and evaluates LASER on all levels of DMLab-30 or on some of them.

  scalable-agents laser_dmlab30 --dataset_path=IMAGES --logdir=runs/laser_dmlab30
  scalable-agents laser_dmlab30 --logdir=runs/laser_dmlab30 --mode=test

The same --logdir resumes a run, with its replay. Every hyper-parameter is a flag. The agent of Schmitt et al. 2020
(section 5.1) is PopArt-IMPALA with pixel control and a replay. All values that the paper does not state are those of
popart_impala_dmlab30; see docs/fidelity.md. The paper's LSTM is a variant (PreCo) that no paper describes in full; this
is the usual one.

DeepMind Lab must be built from source; see docs/dmlab.md.
"""

from scalable_agents.agents import train

if __name__ == '__main__':
  train.main('laser_dmlab30')
