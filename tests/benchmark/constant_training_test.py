"""Tests of benchmark/constant_training.py."""

from absl.testing import absltest

from scalable_agents.agents import configs
from scalable_agents.benchmark import constant_training
from scalable_agents.records import run_rows
from scalable_agents.training import run_config


class ConstantTrainingTest(absltest.TestCase):

  def test_trains_with_instructions_and_memory_but_without_a_game(self):
    logdir = self.create_tempdir().full_path
    config = configs.ImpalaConfig(level_name='dmlab', use_lstm=True, total_environment_frames=12, unroll_length=3,
                                  batch_size=2)
    constant_training.train(config, run_config.RunConfig(logdir, num_environments=4, num_environment_workers=2))
    *_, row = run_rows.read_metrics(logdir)
    self.assertEqual((row['environment_frames'], row['learner_steps'], row['skipped_updates']), (12, 2, 0))


if __name__ == '__main__':
  absltest.main()
