"""Trains and evaluates R2D2 on a level of DMLab-30.

  bazel run //agents:r2d2_dmlab30 -- --level_name=rooms_watermaze --logdir=runs/r2d2_watermaze
  bazel run //agents:r2d2_dmlab30 -- --level_name=rooms_watermaze --logdir=runs/r2d2_watermaze --mode=test
  bazel run //agents:r2d2_plus_dmlab30 -- --level_name=rooms_watermaze      (R2D2+)

The same --logdir resumes a run, with its replay. Every hyper-parameter is a flag. The defaults are those of Kapturowski
et al. 2019, who train an agent per level with the same settings as on Atari, and with the larger action set.

DeepMind Lab must be built from source; see docs/suites.md.
"""

from scalable_agents.processes import quiet

if __name__ == '__main__':
  quiet.start()  # Before TensorFlow is imported.

import dataclasses

from scalable_agents.agents import impala_dmlab30
from scalable_agents.agents import r2d2
from scalable_agents.launch import program
from scalable_agents.training import dmlab30_protocol

CONFIG = r2d2.R2d2Config(level_name='rooms_watermaze')
RUN_CONFIG = dataclasses.replace(
    impala_dmlab30.RUN_CONFIG, checkpoint_interval_seconds=600.)  # Because the replay is saved with each checkpoint.
PROTOCOL = dmlab30_protocol.Protocol(action_set='popart')  # Sections 2.3, 4.2: that of Hessel et al. 2019.

if __name__ == '__main__':
  program.run(r2d2, CONFIG, PROTOCOL, RUN_CONFIG)
