"""Tests that every flag in the pages listed below is a flag of one of the programs that they describe."""

import dataclasses
import re

from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents.agents import configs
from scalable_agents.agents import export
from scalable_agents.agents import laser_replay
from scalable_agents.agents import laser_sweep
from scalable_agents.agents import population
from scalable_agents.agents import r2d2_history
from scalable_agents.agents import registry
from scalable_agents.cluster import cluster_config
from scalable_agents.launch import atari57_protocol
from scalable_agents.launch import dmlab30_protocol
from scalable_agents.population import population_config
from scalable_agents.tables import population as population_figure
from scalable_agents.tables import tables
from scalable_agents.tests import source_tree
from scalable_agents.tools import reward_scales
from scalable_agents.training import run_config

_CONFIGS = (
    configs.A2cConfig, configs.LaserConfig, export.ExportConfig, laser_replay.ReplayConfig, laser_sweep.SweepConfig,
    configs.R2d2Config, r2d2_history.HistoryConfig,
    atari57_protocol.Protocol, dmlab30_protocol.Protocol, cluster_config.ClusterConfig, population.LauncherConfig,
    population_config.PopulationConfig, run_config.RunConfig, tables.TablesConfig,
    population_figure.PopulationFigureConfig, reward_scales.RewardScalesConfig)


class FlagsTest(parameterized.TestCase):

  @parameterized.parameters('a3c.md', 'environments.md', 'fidelity.md', 'install.md', 'laser.md', 'popart.md',
                            'python.md', 'r2d2.md', 'suites.md')
  def test_every_flag_exists(self, page):
    known = {field.name for config in _CONFIGS for field in dataclasses.fields(config)}
    known |= {f'no{name}' for name in known} | {'help', 'config'}  # --config is a flag of Bazel.
    named = set(re.findall(r'--([a-z]\w+)', (source_tree.ROOT / 'docs' / page).read_text(encoding='utf-8')))
    self.assertNotEmpty(named)
    self.assertEmpty(named - known)

  def test_every_experiment_exists(self):
    text = (source_tree.ROOT / 'docs' / 'popart.md').read_text(encoding='utf-8')
    self.assertEqual(set(re.findall(r'--experiment=(\w+)', text)), set(reward_scales.EXPERIMENTS))

  def test_ablations_of_laser_have_as_many_new_unrolls_as_the_agent(self):
    """Section 5.3 varies the replayed ones. With the flags of each row, for both suites."""
    text = (source_tree.ROOT / 'docs' / 'laser.md').read_text(encoding='utf-8')
    table = text[text.index('## Ablations'):text.index('## The paper')]
    rows = [dict(re.findall(r'--(replay_share|batch_size)=([0-9.]+)', row)) for row in table.splitlines()
            if row.startswith('|')]
    flags = [(float(row['replay_share']), int(row['batch_size'])) for row in rows if row]
    self.assertEqual({share for share, _ in flags}, {0., 0.5, 0.75, 0.875})
    for config in (registry.PRESETS['laser_atari57'].config, registry.PRESETS['laser_dmlab30'].config):
      of_agent = config.split_batch()[0]
      for share, batch_size in flags:
        online, _ = configs.LaserConfig(batch_size=batch_size, replay_share=share).split_batch()
        self.assertEqual(online, of_agent, (share, batch_size))


if __name__ == '__main__':
  absltest.main()
