"""Tests the computation of the number of actors that a learner can serve, and that the cost is measured."""

import multiprocessing
from unittest import mock

from absl.testing import absltest
from tensorflow.python.eager import context

from scalable_agents.tools import cluster_scaling


class ClusterScalingTest(absltest.TestCase):

  def test_limits_by_hand(self):
    # 100 agent steps are 400 frames. Per second, 8 cores receive 4,000 unrolls of 2 ms, and 16 Gbit/s carry 1,000 of 2
    # MB.
    cost = cluster_scaling.Cost(unrolls_per_second=1., bytes=2_000_000, cpu_seconds=0.002)
    self.assertSequenceAlmostEqual(cluster_scaling.limits(cost, 100, 8, 16.), [1_600_000., 400_000.])

  def test_an_unroll_costs_something(self):
    # The measuring processes are forked, so this one must not have used TensorFlow yet: in a suite, this file is first.
    self.assertFalse(context.context()._initialized)
    fork = multiprocessing.get_context('fork')
    with mock.patch.object(cluster_scaling.multiprocessing, 'get_context', lambda _: fork), mock.patch.object(
        cluster_scaling, '_WARM_UP_SECONDS', 0.1):
      cost = cluster_scaling.measure('Atari', seconds=0.5)
    self.assertEqual(cost.bytes, 4 + 24 * 84 * 84)  # Each frame once.
    self.assertGreater(cost.unrolls_per_second, 1.)
    self.assertBetween(cost.cpu_seconds, 1e-6, 1.)


if __name__ == '__main__':
  absltest.main()
