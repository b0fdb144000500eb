"""The measure of a cluster in little: what its last line holds, not how fast anything is."""

import json
import statistics
import subprocess
import sys

from absl.testing import absltest

from scalable_agents.actor import python_path
from scalable_agents.tools import cluster_rate


class ClusterRateTest(absltest.TestCase):

  def test_the_last_line_has_all_figures(self):
    done = subprocess.run(
        [sys.executable, '-m', cluster_rate.__name__, '--seconds=1', '--turns=1', '--environments=5',
         '--flags=--level_name=catch,--torso=shallow,--batch_size=2'],
        env=python_path.environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    self.assertEqual(done.returncode, 0, done.stderr[-3000:])
    figures = json.loads(done.stdout.splitlines()[-1])
    self.assertGreater(min(figures['one process'] + figures['cluster']), 0)
    self.assertAlmostEqual(
        figures['ratio'], statistics.mean(figures['cluster']) / statistics.mean(figures['one process']))


if __name__ == '__main__':
  absltest.main()
