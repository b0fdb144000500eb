"""Trains and evaluates PopArt-IMPALA on all levels of DMLab-30 or on some of them.

  scalable-agents popart_impala_dmlab30 --dataset_path=IMAGES --logdir=runs/popart_dmlab30
  scalable-agents popart_impala_dmlab30 --logdir=runs/popart_dmlab30 --mode=test
  scalable-agents popart_impala_dmlab30 --dataset_path=IMAGES --use_pixel_control   (figure 5)

The same --logdir resumes a run. Every hyper-parameter is a flag. The agent has the larger action set of Hessel et al.
2019. All other defaults are those of impala_dmlab30, since the paper refers to IMPALA for them; see docs/fidelity.md.

DeepMind Lab must be built from source; see docs/dmlab.md.
"""

from scalable_agents.agents import train

if __name__ == '__main__':
  train.main('popart_impala_dmlab30')
