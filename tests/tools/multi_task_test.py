"""The measure of several games in little: what its last line holds, not how fast anything is."""

import json
import statistics
import subprocess
import sys

from absl.testing import absltest

from scalable_agents.actor import python_path
from scalable_agents.tools import multi_task


class MultiTaskTest(absltest.TestCase):

  def test_the_last_line_has_all_figures(self):
    done = subprocess.run(
        [sys.executable, '-m', multi_task.__name__, '--seconds=1', '--games=pong,breakout',
         '--flags=--torso=shallow,--num_environments=4,--batch_size=2'],
        env=python_path.environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    self.assertEqual(done.returncode, 0, done.stderr[-3000:])
    figures = json.loads(done.stdout.splitlines()[-1])
    self.assertCountEqual(figures['alone'], ['pong', 'breakout'])
    self.assertAlmostEqual(figures['harmonic_mean'], statistics.harmonic_mean(figures['alone'].values()))
    self.assertAlmostEqual(figures['share'], figures['together'] / figures['harmonic_mean'])
    self.assertGreater(figures['together'], 0)


if __name__ == '__main__':
  absltest.main()
