"""Tests of a small measurement of a cluster: the content of its last line, not the speeds."""

import contextlib
import io
import json
import statistics
import subprocess
import sys
from unittest import mock

from absl.testing import absltest

from scalable_agents.actor import python_path
from scalable_agents.tools import cluster_rate
from scalable_agents.tools import training_rate


class ClusterRateTest(absltest.TestCase):

  def test_the_last_line_has_all_figures(self):
    """The cluster is really trained. One process is the same command without the flags of a cluster."""
    config = cluster_rate.ClusterRateConfig(
        seconds=1., turns=1, environments=5, flags='--level_name=catch,--torso=shallow,--batch_size=2')
    commands, train = {}, training_rate.steady_rows

    def steady_rows(arguments, seconds):
      command = arguments({'logdir': 'there', 'log_interval_seconds': 1.})
      is_cluster = '--job_name=learner' in command
      commands[is_cluster] = command
      if is_cluster:
        return train(arguments, seconds)
      return [{'environment_frames': 0, 'wall_seconds': 2., 'policy_lag': 1.},
              {'environment_frames': 1_000, 'wall_seconds': 4., 'policy_lag': 2.}]

    with contextlib.redirect_stdout(io.StringIO()) as screen, mock.patch.object(
        cluster_rate.run_flags, 'config_from_flags', return_value=config), mock.patch.object(
            training_rate, 'steady_rows', steady_rows):
      cluster_rate.main()
    figures = json.loads(screen.getvalue().splitlines()[-1])
    self.assertEqual(figures['one process'], [500.])
    self.assertGreater(min(figures['cluster']), 0)
    self.assertAlmostEqual(
        figures['ratio'], statistics.mean(figures['cluster']) / statistics.mean(figures['one process']))
    of_a_cluster = [word for word in commands[True] if word not in commands[False]]
    self.assertLen(of_a_cluster, 3)
    self.assertStartsWith(of_a_cluster[1], '--learner_addresses=localhost:')
    self.assertEqual(of_a_cluster[::2], ['--job_name=learner', '--num_environments=0'])
    self.assertEqual([word for word in commands[False] if word not in commands[True]], ['--num_environments=5'])

  def test_the_program_reads_its_flags(self):
    done = subprocess.run([sys.executable, '-m', cluster_rate.__name__, '--turns=0'], env=python_path.environment(),
                          text=True, capture_output=True, check=False)
    self.assertEqual((done.returncode, done.stdout, done.stderr),
                     (1, '', 'error: --turns=0: want a whole number from 1 to 1000\n'))


if __name__ == '__main__':
  absltest.main()
