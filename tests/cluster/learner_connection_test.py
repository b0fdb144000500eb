"""A connection to a real learner's port. The remote_learner tests cover the handling of its failures."""

import resource

from absl.testing import absltest
import numpy as np
import tensorflow as tf

from scalable_agents.cluster import learner_connection
from scalable_agents.cluster import learner_port
from scalable_agents.processes import ports
from scalable_agents.processes import sessions
from scalable_agents.tests.cluster import cluster_testing
from scalable_agents.tests.suites import ending

_HOST = 7


class ConnectionTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.port = self.enterContext(cluster_testing.free_port())
    self.learner = self.enterContext(cluster_testing.Learner(self.port))

  def _connect(self):
    graph = learner_connection.make_graph(
        0, list(cluster_testing.UNROLL_SPEC), cluster_testing.PARAMETER_SPECS, cluster_testing.CAPACITY)
    connection = learner_connection.Connection(f'localhost:{self.port}', graph)
    connection.open()
    self.addCleanup(connection.close)
    return connection

  def test_unrolls_parameters_and_heartbeats(self):
    connection = self._connect()
    for numbers in ([0], [1, 2], [3, 4, 5, 6]):
      connection.push([list(cluster_testing.make_unroll(_HOST, number)) for number in numbers])
      unrolls = self.learner.take(len(numbers))
      self.assertSequenceEqual(unrolls.number.tolist(), numbers)
      for number, content in zip(unrolls.number, unrolls.content):
        np.testing.assert_array_equal(content, cluster_testing.content(_HOST, number))
    self.assertEqual(connection.fetch()[0], 1)
    connection.latest_version = 1
    self.assertEqual(connection.fetch(), (1, None))
    self.learner.publish(5)
    version, parameters = connection.fetch()
    self.assertEqual(version, 5)
    for array, spec in zip(parameters, cluster_testing.PARAMETER_SPECS, strict=True):
      np.testing.assert_array_equal(array, np.full(spec.shape, 5, np.float32))
    report = learner_port.Report(_HOST, 'task_7', 1., 2., 0, 3, 4)
    self.assertFalse(connection.beat(report)['ended'])
    self.assertEqual(self.learner.metrics()['actor/task_7/lost_unrolls'], 4)
    self.learner.announce_end()
    self.assertTrue(connection.beat(report)['ended'])

  def test_a_port_allows_many_connections(self):
    limits = soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 300), hard))
    with cluster_testing.free_port() as port, ports.take_port(f'localhost:{port}', 'learner'):
      self.assertEqual(resource.getrlimit(resource.RLIMIT_NOFILE), (min(hard, 65_536), hard))

  def test_unrolls_of_a_push_arrive_in_their_order(self):
    connection = self._connect()
    for first in range(0, 200, cluster_testing.CAPACITY):
      numbers = range(first, first + cluster_testing.CAPACITY)
      connection.push([list(cluster_testing.make_unroll(_HOST, number)) for number in numbers])
      self.assertSequenceEqual(self.learner.take(len(numbers)).number.tolist(), numbers)

  def test_a_learner_that_has_gone_and_one_that_has_come_in_its_place(self):
    connection = self._connect()
    report = learner_port.Report(_HOST, 'task_7', 1., 2., 0, 3, 4)
    self.learner.kill()
    with self.assertRaises(tf.errors.OpError):
      connection.beat(report)
    with self.assertRaisesRegex(OSError, 'Connection refused'):
      self._connect()
    self.enterContext(cluster_testing.Learner(self.port))
    with self.assertRaises(tf.errors.AbortedError):
      connection.beat(report)
    self.assertFalse(self._connect().beat(report)['ended'])


class ReasonTest(absltest.TestCase):

  def test_one_short_line(self):
    for error, reason in ((tf.errors.DeadlineExceededError(None, None, 'late\nvery'), 'it does not answer'),
                          (tf.errors.UnavailableError(None, None, 'Graph execution error:\n\nDetected at node x'),
                           'the connection broke'),
                          (tf.errors.UnavailableError(None, None, 'gone [[node]]\nfar'), 'gone'),
                          (tf.errors.NotFoundError(None, None, 'From /job:worker/replica:0/task:1:\nnone [[node]]'),
                           'none'),
                          (ConnectionRefusedError(111, 'Connection refused'), 'Connection refused'),
                          (OSError('no name of a host'), 'no name of a host'),
                          (sessions.NotReadyError('it is starting'), 'it is starting')):
      self.assertEqual(sessions.reason(error), reason)


if __name__ == '__main__':
  with ending.abrupt_end():
    absltest.main()
