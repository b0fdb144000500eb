"""The soak in little: it kills, the cluster goes on, and what goes wrong is told."""

import json
import subprocess
import sys

from absl.testing import absltest

from scalable_agents.actor import python_path
from scalable_agents.tools import cluster_soak


def _row(frames, seconds, skipped=0):
  return {'environment_frames': frames, 'wall_seconds': seconds, 'skipped_updates': skipped}


class ClusterSoakTest(absltest.TestCase):

  def test_what_is_wrong_with_rows(self):
    self.assertEmpty(cluster_soak.examine([_row(10, 1.), _row(10, 2.), _row(30, 3.)]))
    self.assertEqual(cluster_soak.examine([_row(3000, 1.), _row(10, 2.)]), ['after 3,000 frames come 10'])
    self.assertEqual(cluster_soak.examine([_row(10, 1.), _row(20, 2., skipped=3)]), ['3 updates were skipped'])

  def test_a_short_one(self):
    done = subprocess.run(
        [sys.executable, '-m', cluster_soak.__name__, '--minutes=0.5', '--calm_seconds=5', '--seconds_between_kills=8',
         '--minutes_between_learner_kills=0.25', '--actors=2'],
        env=python_path.environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    self.assertEqual(done.returncode, 0, done.stdout + done.stderr[-3000:])
    figures = json.loads(done.stdout.splitlines()[-1])
    self.assertEqual(figures['faults'], [])
    self.assertGreaterEqual(figures['kills']['actor'], 1)
    self.assertGreaterEqual(figures['kills']['learner'], 1)
    self.assertLess(figures['seconds_to_end'], 30.)


if __name__ == '__main__':
  absltest.main()
