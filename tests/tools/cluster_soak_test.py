"""Tests of a small soak test: processes are killed, the cluster continues, and errors are reported."""

import json
import subprocess
import sys

from absl.testing import absltest

from scalable_agents.actor import python_path
from scalable_agents.tests.training import faulty_environments
from scalable_agents.tools import cluster_soak


class ClusterSoakTest(absltest.TestCase):

  def _soak(self, *flags):
    return subprocess.run(
        [sys.executable, '-m', cluster_soak.__name__, '--minutes=0.3', '--calm_seconds=3', '--seconds_between_kills=20',
         '--minutes_between_learner_kills=0.2', '--actors=2', *flags],
        env=python_path.environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)

  def test_a_process_that_ends_by_itself_is_an_error(self):
    done = self._soak('--actors=1', '--flags=--level_name=no_such_level')
    self.assertEqual(done.returncode, 1)
    self.assertRegex(done.stdout, '^error: (learner|actor) ended with exit code 1\n$')

  def test_a_short_one(self):
    done = self._soak('--flags=' + ','.join([*faulty_environments.SLOW_FLAGS, '--torso=shallow']))
    self.assertEqual(done.returncode, 0, done.stdout + done.stderr[-3000:])
    figures = json.loads(done.stdout.splitlines()[-1])
    self.assertGreater(figures['frames_per_second'], 0)
    self.assertGreater(figures['lives'][0]['megabytes'][0], 100)
    self.assertGreaterEqual(figures['kills']['actor'], 1)
    self.assertGreaterEqual(figures['kills']['learner'], 1)
    self.assertIn('seconds_to_end', figures)


if __name__ == '__main__':
  absltest.main()
