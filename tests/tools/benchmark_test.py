"""The benchmark in little: what its last line holds, not how fast anything is."""

import json
import subprocess
import sys

from absl.testing import absltest

from scalable_agents.actor import python_path
from scalable_agents.tools import benchmark


class BenchmarkTest(absltest.TestCase):

  def test_the_last_line_has_all_figures(self):
    done = subprocess.run([sys.executable, '-m', benchmark.__name__, '--seconds=0.2'], env=python_path.environment(),
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    self.assertEqual(done.returncode, 0, done.stderr[-3000:])
    figures = json.loads(done.stdout.splitlines()[-1])
    steps, bound = figures['end_to_end_steps_per_second'], figures['bound_steps_per_second']
    self.assertAlmostEqual(figures['share_of_bound'], steps / bound)
    occurring = str(max(1, round(figures['end_to_end']['inference_batch_size'])))
    costs = (figures['environment'], figures['inference'][occurring], figures['learner'])
    self.assertAlmostEqual(bound * sum(cost['cpu_seconds'] for cost in costs), figures['cores'])
    self.assertContainsSubset({'1', '8', '16', '32'}, figures['inference'])
    for rate in (steps, figures['environment']['vector_env_steps_per_second'],
                 figures['learner']['transitions_per_second'], figures['dynamic_batcher']['calls_per_second'],
                 figures['actor_pool']['steps_per_second']):
      self.assertGreater(rate, 0)


if __name__ == '__main__':
  absltest.main()
