"""Tests that the configs, which do not import TensorFlow, allow just the choices that the agents' code has."""

import dataclasses

from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents.agents import configs
from scalable_agents.learner import losses
from scalable_agents.learner import off_policy
from scalable_agents.learner import popart
from scalable_agents.learner import trust_region
from scalable_agents.learner import vtrace
from scalable_agents.networks import q_networks
from scalable_agents.networks import torsos
from scalable_agents.records import runtime_config


class ConfigsTest(parameterized.TestCase):

  @parameterized.parameters(
      (configs.ImpalaConfig, 'torso', torsos.TORSOS),
      (configs.ImpalaConfig, 'reward_transform', losses.REWARD_TRANSFORMS),
      (configs.ImpalaConfig, 'off_policy_correction', off_policy.CORRECTIONS),
      (configs.ImpalaConfig, 'action_values', vtrace.ACTION_VALUES),
      (configs.PopArtImpalaConfig, 'popart_second_moment', popart.SECOND_MOMENTS),
      (configs.R2d2Config, 'torso', q_networks.TORSOS),
      (configs.R2d2Config, 'reward_transform', losses.REWARD_TRANSFORMS),
      (configs.LaserConfig, 'relevance', trust_region.RELEVANCES))
  def test_choices(self, config, name, choices):
    field, = (field for field in dataclasses.fields(config) if field.name == name)
    self.assertCountEqual(field.metadata['choices'], choices)

  @parameterized.parameters(configs.ImpalaConfig, configs.PopArtImpalaConfig, configs.R2d2Config, configs.LaserConfig)
  def test_has_all_settings_that_the_runtime_reads(self, config):
    self.assertTrue(issubclass(config, runtime_config.RuntimeConfig))


if __name__ == '__main__':
  absltest.main()
