"""Trains and evaluates IMPALA on all levels of DMLab-30 or on one of them.

  bazel run //agents:impala_dmlab30 -- --dataset_path=IMAGES --logdir=runs/dmlab30
  bazel run //agents:impala_dmlab30 -- --logdir=runs/dmlab30 --mode=test
  bazel run //agents:impala_dmlab30 -- --level_name=rooms_watermaze --reward_transform=abs_one \\
    --total_environment_frames=1_000_000_000

The same --logdir resumes a run. Every hyper-parameter is a flag. The defaults are those of Espeholt et al. 2018: the
deep network with LSTM and language (figure 3) and tables D.1 to D.3. For values that the paper swept, the defaults are
the released code's values for DMLab-30. Built-in and gymnasium tasks can also be trained.

DeepMind Lab must be built from source. docs/suites.md says how to install it, and where to get the images that two
levels need.
"""

from scalable_agents.processes import quiet

if __name__ == '__main__':
  quiet.start()  # Before TensorFlow is imported.

from scalable_agents.agents import impala
from scalable_agents.environments import dmlab30
from scalable_agents.launch import program
from scalable_agents.training import dmlab30_protocol
from scalable_agents.training import run_config

CONFIG = impala.ImpalaConfig(
    level_name='dmlab30',
    total_environment_frames=10_000_000_000,  # Released code. The paper does not state it.
    use_lstm=True,
    unroll_length=100,                        # Table D.3.
    batch_size=32,                            # Table 1.
    entropy_cost=0.0033391318945337044,       # Released code: the best of a sweep over table D.1's ranges.
    reward_transform='soft_asymmetric',       # Released code; figure D.1 has optimistic_asymmetric.
    learning_rate=0.00031866995608948655,     # Released code, like entropy_cost.
    rmsprop_epsilon=0.1,                      # Released code: one of table D.1's four values.
    clip_gradient_norm=0.,                    # Neither table D.3 nor the released code clips.
)
# A reset that compiles a map may take half a minute, and longer if many maps are compiled at once.
RUN_CONFIG = run_config.RunConfig(environment_timeout_seconds=300., test_num_episodes=dmlab30.SUITE.test_episodes)

if __name__ == '__main__':
  program.run(impala, CONFIG, dmlab30_protocol.Protocol(), RUN_CONFIG)
