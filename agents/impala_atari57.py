"""Trains and evaluates IMPALA on one Atari game, several games or all 57, or on a built-in or gymnasium task.

  bazel run //agents:impala_atari57 -- --level_name=pong --logdir=runs/pong
  bazel run //agents:impala_atari57 -- --level_name=pong --logdir=runs/pong --mode=test
  bazel run //agents:impala_atari57 -- --level_name=atari57 --total_environment_frames=11_400_000_000

The same --logdir resumes a run. Every hyper-parameter is a flag. The defaults are those of Espeholt et al. 2018 (table
G.1, with the deep feed-forward network).
"""

from scalable_agents.processes import quiet

if __name__ == '__main__':
  quiet.start()  # Before TensorFlow is imported.

from scalable_agents.agents import impala
from scalable_agents.launch import program
from scalable_agents.training import atari57_protocol

if __name__ == '__main__':
  program.run(impala, impala.ImpalaConfig(), atari57_protocol.Protocol())
