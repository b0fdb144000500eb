"""IMPALA on DMLab-30, all its levels at once or one of them.

  bazel run //agents:impala_dmlab30 -- --dataset_path=IMAGES --logdir=runs/dmlab30
  bazel run //agents:impala_dmlab30 -- --logdir=runs/dmlab30 --mode=test
  bazel run //agents:impala_dmlab30 -- --level_name=rooms_watermaze --reward_transform=abs_one \\
    --total_environment_frames=1_000_000_000

The same --logdir again resumes. Every hyper-parameter is a flag; their defaults are those of Espeholt et al. 2018: the
deep network with LSTM and language (figure 3), tables D.1 to D.3, and where the paper swept a value, the one that the
released code names for DMLab-30. Built-in and gymnasium tasks can be played too.

DeepMind Lab is built from source, as the message says that comes where it is missing; docs/suites.md says where the
images come from that two levels show.
"""

from scalable_agents.training import quiet

if __name__ == '__main__':
  quiet.start()  # Before TensorFlow is imported.

# pylint: disable=g-import-not-at-top
from scalable_agents.agents import impala
from scalable_agents.environments import dmlab30
from scalable_agents.training import dmlab30_protocol
from scalable_agents.training import program
from scalable_agents.training import run_flags

CONFIG = impala.ImpalaConfig(
    level_name='dmlab30',
    total_environment_frames=10_000_000_000,  # Released code, as below; the paper's own are not said.
    use_lstm=True,
    unroll_length=100,                        # Table D.3.
    batch_size=32,                            # Table 1.
    entropy_cost=0.0033391318945337044,       # Released code: the best of a sweep over table D.1's ranges.
    reward_transform='soft_asymmetric',       # Released code; figure D.1 has optimistic_asymmetric.
    learning_rate=0.00031866995608948655,     # Released code: as entropy_cost.
    rmsprop_epsilon=0.1,                      # Released code: one of table D.1's four.
    clip_gradient_norm=0.,                    # Neither table D.3 nor the released code clips.
)
# A reset may take half a minute where a map is compiled, more where many are at once.
RUN_CONFIG = run_flags.RunConfig(environment_timeout_seconds=300., test_num_episodes=dmlab30.SUITE.test_episodes)

if __name__ == '__main__':
  program.run(impala, CONFIG, dmlab30_protocol.Protocol(), RUN_CONFIG)
