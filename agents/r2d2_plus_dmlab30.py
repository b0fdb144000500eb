"""Trains and evaluates R2D2+ on a level of DMLab-30: R2D2 with a deeper network and asymmetric rewards.

  bazel run //agents:r2d2_plus_dmlab30 -- --level_name=rooms_watermaze --logdir=runs/r2d2_plus_watermaze

Kapturowski et al. 2019, section 4.2 and table 2. All that r2d2_dmlab30 says holds here.
"""

from scalable_agents.processes import quiet

if __name__ == '__main__':
  quiet.start()  # Before TensorFlow is imported.

import dataclasses

from scalable_agents.agents import r2d2
from scalable_agents.agents import r2d2_dmlab30
from scalable_agents.launch import program

CONFIG = dataclasses.replace(
    r2d2_dmlab30.CONFIG,
    torso='deep',                              # The 15-layer ResNet of IMPALA.
    reward_transform='optimistic_asymmetric',  # Table 3: that of figure D.1 of the IMPALA paper.
    batch_size=32,
    target_update_interval=400,
)

if __name__ == '__main__':
  program.run(r2d2, CONFIG, r2d2_dmlab30.PROTOCOL, r2d2_dmlab30.RUN_CONFIG)
