"""Tests that every flag in the pages listed below is a flag of one of the programs that they describe."""

import dataclasses
import re
import shlex

from absl import flags
from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents.agents import configs
from scalable_agents.agents import export
from scalable_agents.agents import laser_replay
from scalable_agents.agents import laser_sweep
from scalable_agents.agents import play
from scalable_agents.agents import population
from scalable_agents.agents import r2d2_history
from scalable_agents.agents import registry
from scalable_agents.cluster import cluster_config
from scalable_agents.launch import atari57_protocol
from scalable_agents.launch import dmlab30_protocol
from scalable_agents.launch import preset_flags
from scalable_agents.population import population_config
from scalable_agents.processes import run_flags
from scalable_agents.tables import population as population_figure
from scalable_agents.tables import tables
from scalable_agents.tests import source_tree
from scalable_agents.tools import benchmark
from scalable_agents.tools import compare_runs
from scalable_agents.tools import local_cluster
from scalable_agents.tools import reward_scales
from scalable_agents.tools import throughput
from scalable_agents.training import run_config

_CONFIGS = (
    configs.A2cConfig, configs.LaserConfig, export.ExportConfig, laser_replay.ReplayConfig, laser_sweep.SweepConfig,
    configs.R2d2Config, r2d2_history.HistoryConfig, play.PlayConfig,
    atari57_protocol.Protocol, dmlab30_protocol.Protocol, cluster_config.ClusterConfig, population.LauncherConfig,
    population_config.PopulationConfig, run_config.RunConfig, tables.TablesConfig,
    population_figure.PopulationFigureConfig, benchmark.BenchmarkConfig, compare_runs.CompareConfig,
    local_cluster.LocalClusterConfig, reward_scales.RewardScalesConfig, throughput.ThroughputConfig)
_OTHERS = {'help', 'config', 'no'}  # --config is a flag of Bazel, --no-build-isolation and --no-deps of pip.


class FlagsTest(parameterized.TestCase):

  @parameterized.parameters('README.md', 'SECURITY.md', *(f'docs/{name}.md' for name in (
      'a3c', 'agents', 'environments', 'faq', 'fidelity', 'install', 'laser', 'performance', 'play', 'popart',
      'population', 'python', 'r2d2', 'results', 'run_directory', 'start', 'suites')))
  def test_every_flag_exists(self, page):
    known = {field.name for config in _CONFIGS for field in dataclasses.fields(config)}
    known |= {f'no{name}' for name in known} | _OTHERS
    named = set(re.findall(r'--([a-z]\w+)', (source_tree.ROOT / page).read_text(encoding='utf-8')))
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

  def test_commands_of_lasers_tables_are_accepted(self):
    """Every program accepts the flags of its commands, and so do the agents that a launcher starts."""
    text = (source_tree.ROOT / 'docs' / 'laser.md').read_text(encoding='utf-8')
    text = text[text.index('## The paper'):text.index('Table 1 has the paper')]
    commands = re.findall(r'bazel run //(\w+):(\w+) -- ((?:.*\\\n)*.*)', text)
    programs = [program for _, program, _ in commands]
    self.assertEqual(programs, ['laser_atari57', *5 * ['laser_sweep'], *2 * ['population'], 'laser', 'laser'])
    for _, program, arguments in commands:
      words = [word for word in shlex.split(arguments.replace('$game', 'pong')) if word != '\n']
      if program == 'laser':
        self._parse(tables.TablesConfig(), words)
      elif program in registry.PRESETS:
        self._check_agent(program, words)
      else:
        module = laser_sweep if program == 'laser_sweep' else population
        values, others = self._parse(
            laser_sweep.SweepConfig() if module is laser_sweep else population.LauncherConfig(), words, True)
        config_class = laser_sweep.SweepConfig if module is laser_sweep else population.LauncherConfig
        config = run_flags.config_from_flags(config_class, module.validate, flag_values=values)
        self._check_agent(config.agent, others)

  def _parse(self, config, words, takes_others=False):
    """Returns the values of the flags, and the other arguments."""
    values = flags.FlagValues()
    run_flags.define(config, values)
    others = values(['program', *words], known_only=takes_others)[1:]
    self.assertTrue(takes_others or not others, others)
    return values, others

  def _check_agent(self, name, words):
    values = flags.FlagValues()
    preset = registry.PRESETS[name]
    preset_flags.define(preset, values)
    self.assertEqual(values(['program', *words]), ['program'])
    for config in (preset.config, preset.protocol, preset.run):
      run_flags.config_from_flags(type(config), flag_values=values)


if __name__ == '__main__':
  absltest.main()
