"""Trains and evaluates PopArt-IMPALA on all 57 Atari games with one agent, or on other levels.

  scalable-agents popart_impala_atari57 --logdir=runs/popart_atari57
  scalable-agents popart_impala_atari57 --logdir=runs/popart_atari57 --mode=test
  scalable-agents popart_impala_atari57 --value_normalization=none      (MultiHead-IMPALA)
  scalable-agents popart_impala_atari57 --reward_transform=abs_one      (clipped rewards, figure 1)

The same --logdir resumes a run. Every hyper-parameter is a flag. The frames and the rewards are those of the unclipped
Atari-57 in Hessel et al. 2019. All other defaults are IMPALA's, also the network and the unrolls; see docs/fidelity.md.
"""

from scalable_agents.agents import train

if __name__ == '__main__':
  train.main('popart_impala_atari57')
