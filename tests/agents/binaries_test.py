"""Tests that launchers accept the programs of all agents."""

import re

from absl.testing import absltest

from scalable_agents.agents import binaries
from scalable_agents.agents import population
from scalable_agents.tests import source_tree
from scalable_agents.tools import local_cluster


class BinariesTest(absltest.TestCase):

  def test_every_agents_program_is_accepted_by_every_launcher(self):
    programs = [re.fullmatch(r'agents/(\w+)\.py', path)[1] for path, text in source_tree.texts('*.py').items()
                if path.startswith('agents/') and '\n  program.run(' in text]
    self.assertGreaterEqual(len(programs), 9)
    self.assertEqual(sorted(programs), list(binaries.NAMES))
    for name in programs:
      population.validate(population.LauncherConfig(agent=name))
      local_cluster.validate(local_cluster.LocalClusterConfig(agent=name))


if __name__ == '__main__':
  absltest.main()
