"""Trains and evaluates PopArt-IMPALA on all levels of DMLab-30 or on some of them.

  bazel run //agents:popart_impala_dmlab30 -- --dataset_path=IMAGES --logdir=runs/popart_dmlab30
  bazel run //agents:popart_impala_dmlab30 -- --logdir=runs/popart_dmlab30 --mode=test
  bazel run //agents:popart_impala_dmlab30 -- --dataset_path=IMAGES --use_pixel_control   (figure 5)

The same --logdir resumes a run. Every hyper-parameter is a flag. The agent has the larger action set of Hessel et al.
2019. All other defaults are those of impala_dmlab30, since the paper refers to IMPALA for them; see docs/fidelity.md.

DeepMind Lab must be built from source; see docs/suites.md.
"""

from scalable_agents.processes import quiet

if __name__ == '__main__':
  quiet.start()  # Before TensorFlow is imported.

import dataclasses

from scalable_agents.agents import impala_dmlab30
from scalable_agents.agents import popart_impala
from scalable_agents.launch import program
from scalable_agents.training import dmlab30_protocol

CONFIG = popart_impala.PopArtImpalaConfig(**dataclasses.asdict(impala_dmlab30.CONFIG))
PROTOCOL = dmlab30_protocol.Protocol(action_set='popart')  # "DmLab-30": a larger action set than IMPALA's.

if __name__ == '__main__':
  program.run(popart_impala, CONFIG, PROTOCOL, impala_dmlab30.RUN_CONFIG)
