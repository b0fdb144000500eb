"""Trains and evaluates LASER on a game of Atari-57.

  bazel run //agents:laser_atari57 -- --level_name=pong --logdir=runs/laser_pong
  bazel run //agents:laser_atari57 -- --level_name=pong --logdir=runs/laser_pong --mode=test

The same --logdir resumes a run, with its replay. Every hyper-parameter is a flag. The defaults are those of Schmitt et
al. 2020 (section 5.1) for an agent of a sweep. The single agent of the paper has

  --batch_size=256 --replay_share=0.875 --replay_capacity=15_000_000 --learning_rate_decay

A full replay takes 71 GB; --replay_capacity makes it smaller. docs/laser.md has the paper's ablations, sweeps with a
shared replay, and settings for a small machine.
"""

from scalable_agents.processes import quiet

if __name__ == '__main__':
  quiet.start()  # Before TensorFlow is imported.

from scalable_agents.agents import laser
from scalable_agents.launch import program
from scalable_agents.training import atari57_protocol
from scalable_agents.training import run_config

CONFIG = laser.LaserConfig(
    torso='deep_4x',
    unroll_length=19,
    batch_size=160,                # 32 new unrolls and 128 replayed ones.
    replay_share=0.8,
    discount=0.995,
    clip_gradient_norm=0.,
    learning_rate_decay=False,
    value_normalization='none',    # Only the agent for DMLab-30 has PopArt.
    trust_region_threshold=0.1,    # Ours: the paper does not state it. See docs/laser.md for others.
)
PROTOCOL = atari57_protocol.Protocol(noop_max=37)  # Appendix D.
RUN_CONFIG = run_config.RunConfig(checkpoint_interval_seconds=600.)  # Because the replay is saved with each checkpoint.

if __name__ == '__main__':
  program.run(laser, CONFIG, PROTOCOL, RUN_CONFIG)
