"""Runs the examples of the pages in docs."""

import re
import sys

from absl.testing import absltest

from scalable_agents.environments import registry
from scalable_agents.tests import source_tree


class ExamplesTest(absltest.TestCase):

  def test_the_environment_of_ones_own(self):
    """The page says that the best return of a corridor of length 8 is 0.94."""
    page = (source_tree.ROOT / 'docs' / 'environments.md').read_text(encoding='utf-8')
    code, = re.findall(r'```python\n(.*?)```', page, re.DOTALL)
    folder = self.create_tempdir()
    folder.create_file('my_tasks.py', content=code)
    self.enter_context(absltest.mock.patch.object(sys, 'path', [*sys.path, folder.full_path]))
    level, = set(re.findall(r"--level_name=(dm_env:\S+)'", page))
    registry.check(level)
    environment = registry.make(level, seed=0)
    environment.reset()
    steps = [environment.step(1) for _ in range(7)]
    self.assertTrue(steps[-1].last())
    self.assertAlmostEqual(sum(step.reward for step in steps), 0.94)


if __name__ == '__main__':
  absltest.main()
