"""Trains and evaluates LASER on all levels of DMLab-30 or on some of them.

  bazel run //agents:laser_dmlab30 -- --dataset_path=IMAGES --logdir=runs/laser_dmlab30
  bazel run //agents:laser_dmlab30 -- --logdir=runs/laser_dmlab30 --mode=test

The same --logdir resumes a run, with its replay. Every hyper-parameter is a flag. The agent of Schmitt et al. 2020
(section 5.1) is PopArt-IMPALA with pixel control and a replay. All values that the paper does not state are those of
popart_impala_dmlab30; see docs/fidelity.md. The paper's LSTM is a variant (PreCo) that no paper describes in full; this
is the usual one.

DeepMind Lab must be built from source; see docs/suites.md.
"""

from scalable_agents.processes import quiet

if __name__ == '__main__':
  quiet.start()  # Before TensorFlow is imported.

import dataclasses

from scalable_agents.agents import impala_dmlab30
from scalable_agents.agents import laser
from scalable_agents.agents import popart_impala_dmlab30
from scalable_agents.launch import program

CONFIG = laser.LaserConfig(**(dataclasses.asdict(popart_impala_dmlab30.CONFIG) | dict(
    use_pixel_control=True,
    unroll_length=79,
    batch_size=256,              # 32 new unrolls, as IMPALA has, and 224 replayed ones: 7/8 (figures 2 and 3).
    replay_share=0.875,
    replay_capacity=10_000_000,
    learning_rate_decay=False,
    trust_region_threshold=0.1,  # As in laser_atari57.
)))
RUN_CONFIG = dataclasses.replace(impala_dmlab30.RUN_CONFIG, checkpoint_interval_seconds=600.)  # It saves the replay.

if __name__ == '__main__':
  program.run(laser, CONFIG, popart_impala_dmlab30.PROTOCOL, RUN_CONFIG)
