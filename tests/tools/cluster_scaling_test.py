"""Tests the computation of the number of actors that a learner can serve, and that the costs are measured."""

import multiprocessing
import os
from unittest import mock

from absl.testing import absltest
import psutil
from tensorflow.python.eager import context

from scalable_agents.cluster import remote_learner
from scalable_agents.processes import ports
from scalable_agents.records import errors
from scalable_agents.tests.actor import waiting
from scalable_agents.tools import cluster_scaling


class ClusterScalingTest(absltest.TestCase):

  def test_limits_by_hand(self):
    # 100 agent steps are 400 frames. Per second, 8 cores receive 4,000 unrolls of 2 ms, and 16 Gbit/s carry 1,000 of 2
    # MB.
    cost = cluster_scaling.Cost(unrolls_per_second=1., bytes=2_000_000, cpu_seconds=0.002)
    self.assertSequenceAlmostEqual(cluster_scaling.limits(cost, 100, 8, 16.), [1_600_000., 400_000.])

  def test_hosts_by_hand(self):
    # A host has 4 environments. Per second, each makes 2 unrolls of 1 MB, and the host fetches 2 times 10 MB. 8 Gbit/s
    # are 1,000 MB/s.
    self.assertSequenceAlmostEqual(cluster_scaling.most_hosts(1_000_000, 10_000_000, 4, 2., 8.), [125., 50.])

  def _fork(self):
    """Makes the measuring processes forks of this one, which must not have used TensorFlow: in a suite, it is first."""
    self.assertFalse(context.context()._initialized)
    fork = multiprocessing.get_context('fork')
    self.enterContext(mock.patch.object(cluster_scaling.multiprocessing, 'get_context', lambda _: fork))

  def test_rates_by_hand(self):
    with mock.patch.object(cluster_scaling, 'time') as time:
      time.monotonic.return_value = 10.
      host = cluster_scaling._Host(3, 'direct')
      for seconds, fetched, rate in ((12., 6_000_000, 3_000_000.), (16., 8_000_000, 500_000.)):
        time.monotonic.return_value = seconds
        report = host.report(remote_learner.Totals(0, fetched, 0, 0))
        self.assertEqual((report.name, report.bytes_per_second), ('direct_3', rate))
    self.assertAlmostEqual(cluster_scaling.sent_per_second({
        'actor_hosts': 3, 'actor/direct_0/megabytes_per_second': 12.5, 'actor/direct_3/megabytes_per_second': 0.5,
        'actor/relayed_1/megabytes_per_second': 7., 'actor/direct_0/frames_per_second': 100.}), 13e6)

  def test_parameters_cost_something(self):
    self._fork()
    self.enterContext(mock.patch.object(ports, 'BEAT_SECONDS', 0.5))
    self.enterContext(mock.patch.object(cluster_scaling, '_FETCH_SECONDS', 0.25))
    cost = cluster_scaling.measure_parameters(3, 1, 'bfloat16', seconds=1.)
    self.assertEqual(cost.bytes, 3_200_000)
    self.assertGreater(cost.cpu_per_second, 0.)

  def test_pieces_of_two_learners_are_as_many_bytes(self):
    self._fork()
    self.enterContext(mock.patch.object(ports, 'BEAT_SECONDS', 0.5))
    self.enterContext(mock.patch.object(cluster_scaling, '_FETCH_SECONDS', 0.25))
    for in_pieces, num_bytes in ((False, 6_400_000), (True, 3_200_000)):
      with self.subTest(in_pieces=in_pieces):
        costs = cluster_scaling.measure_learners(2, 2, in_pieces, seconds=1.)
        self.assertEqual([cost.bytes for cost in costs], [num_bytes] * 2)

  def test_there_are_at_most_as_many_relays_as_hosts(self):
    cluster_scaling.validate(cluster_scaling.ClusterScalingConfig())
    with self.assertRaisesRegex(ValueError, '^--relays=8: want at most --hosts=4$'):
      cluster_scaling.validate(cluster_scaling.ClusterScalingConfig(hosts=4))

  def test_regression_both_processes_end_with_who_measures(self):
    self._fork()
    measuring = multiprocessing.get_context('fork').Process(target=cluster_scaling.measure, args=('Atari', 1000.))
    measuring.start()
    self.addCleanup(measuring.kill)

    def connected():
      return [child for child in psutil.Process(measuring.pid).children()
              if any(connection.status == psutil.CONN_ESTABLISHED for connection in child.net_connections('tcp'))]

    waiting.wait_until(lambda: len(connected()) == 2)
    children = connected()
    measuring.kill()
    measuring.join()
    self.assertEmpty(psutil.wait_procs(children, timeout=waiting.PATIENCE_SECONDS)[1])

  def test_the_measurement_ends_with_its_sender(self):
    self._fork()
    with mock.patch.object(cluster_scaling, '_send', lambda *unused_arguments: os._exit(3)):
      with self.assertRaisesRegex(errors.UserError, '^the sending process ended with exit code 3$'):
        cluster_scaling.measure('Atari', seconds=1000.)

  def test_an_unroll_costs_something(self):
    self._fork()
    with mock.patch.object(cluster_scaling, '_WARM_UP_SECONDS', 0.1):
      cost = cluster_scaling.measure('Atari', seconds=0.5)
    self.assertEqual(cost.bytes, 4 + 24 * 84 * 84)  # Each frame once.
    self.assertGreater(cost.unrolls_per_second, 0.)
    self.assertGreater(cost.cpu_seconds, 0.)


if __name__ == '__main__':
  absltest.main()
