"""An actor host's side of a cluster, against a real and healthy learner.

Faults are in remote_learner_faults_test.py. cluster_training_test.py tests whole programs.
"""

import os
import threading
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from scalable_agents.cluster import cluster_config
from scalable_agents.cluster import learner_port
from scalable_agents.cluster import remote_learner
from scalable_agents.processes import ports
from scalable_agents.tests.actor import waiting
from scalable_agents.tests.cluster import cluster_testing
from scalable_agents.tests.cluster import remote_learner_testing
from scalable_agents.tests.suites import ending


class WellTest(remote_learner_testing.TestCase):
  """Tests against one healthy learner."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    # As on many clusters. Nothing answers there.
    cls.enterClassContext(mock.patch.dict(os.environ, {'http_proxy': 'http://127.0.0.1:9'}))
    cls.port = cls.enterClassContext(cluster_testing.free_port())
    cls.learner = cls.enterClassContext(cluster_testing.Learner(cls.port))
    cls.version = 1

  def _publish(self):
    """Publishes parameters and returns their version."""
    type(self).version += 1
    self.learner.publish(self.version)
    return self.version

  def test_unrolls_of_several_hosts_arrive_unaltered_each_once(self):
    remotes = {host: self.connected(self.port, host) for host in (remote_learner_testing.HOST, 500_000)}
    ends = [remote_learner_testing.put(remote, range(60), host) for host, remote in remotes.items()]
    taken = [self.learner.take(8) for _ in range(15)]
    for end in ends:
      end()
    together = cluster_testing.Unroll(*map(np.concatenate, zip(*taken)))
    for host, remote in remotes.items():
      its = together.actor_id // cluster_config.MAX_ENVIRONMENTS == host
      unrolls = cluster_testing.Unroll(*(array[its] for array in together))
      self.check(unrolls, range(60), host)
      waiting.wait_until(lambda: remote.totals().unrolls == 60)
      self.assertEqual(remote.totals()[2:], (0, 0))
      self.assertGreater(remote.totals().bytes, 60 * 4 * 5 * 2000)

  def test_parameters_belong_together_and_come_in_their_order(self):
    remote = self.connected(self.port)
    published = waiting.start(lambda: [self._publish() for _ in range(200)])
    seen = []
    while not published.ended.is_set() or not seen or seen[-1] != self.version:
      version, parameters = remote.parameters.latest()
      for parameter, spec in zip(parameters, cluster_testing.PARAMETER_SPECS, strict=True):
        np.testing.assert_array_equal(parameter, np.full(spec.shape, float(version)))
      seen.append(int(version))
    published()
    self.assertEqual(seen, sorted(seen))
    self.assertGreater(len(set(seen)), 3)

  def test_parameters_are_fetched_when_it_is_time_and_only_if_they_are_new(self):
    remote = self.connected(self.port)
    connection, asked = remote._connection, 0
    connection._latest = mock.Mock(wraps=connection._latest)
    ask = connection._version

    def count():
      nonlocal asked
      asked += 1
      return ask()

    connection._version = count
    waiting.wait_until(lambda: asked >= 5)
    connection._latest.assert_not_called()
    self.due = False
    asked = 0
    waiting.wait_until(lambda: asked >= 2)  # The first call may have started before `due` changed.
    asked = 0
    version = self._publish()
    waiting.wait_until(lambda: asked >= 3)  # A sign of life; it fetches no parameters.
    connection._latest.assert_not_called()
    self.due = True
    waiting.wait_until(lambda: remote.parameters.latest()[0] == version)
    connection._latest.assert_called_once()

  def test_weights_in_bfloat16_are_half_the_bytes_and_are_rounded(self):
    port, megabytes = self.enterContext(cluster_testing.free_port()), {}
    learner = self.enterContext(cluster_testing.Learner(port, precision='bfloat16'))
    for precision, its, there in (('float32', self.learner, self.port), ('bfloat16', learner, port)):
      with cluster_testing.Proxy(there) as proxy:
        self.due = True
        remote = self.connected(proxy.port, parameter_precision=precision)
        before = sum(proxy._live.values())
        for version in range(1001, 1041, 2):  # Odd numbers above 256 have more bits than bfloat16.
          self.due = False  # It asks for parameters only while there are new ones.
          its.publish(version)
          self.due = True
          waiting.wait_until(lambda version=version, remote=remote: remote.parameters.latest()[0] == version)
        self.due = False
        megabytes[precision] = (sum(proxy._live.values()) - before) * 1e-6
        weights, vector = remote.parameters.latest()[1]
        self.assertEqual((weights.dtype, vector.dtype), (tf.float32, tf.float32))
        np.testing.assert_array_equal(weights, np.full([200, 50], 1040. if precision == 'bfloat16' else 1039.))
        np.testing.assert_array_equal(vector, np.full([7], 1039.))
        remote.close()
        # Sessions must not close through a proxy that is gone.
        waiting.wait_until(lambda proxy=proxy: set(threading.enumerate()) <= {*self._threads_before, proxy._thread})
    type(self).version = version
    self.assertBetween(megabytes['float32'], 20 * 0.04, 20 * 0.06)  # 20 versions of 10,000 weights.
    self.assertBetween(megabytes['bfloat16'] / megabytes['float32'], 0.45, 0.6)

  def test_put_waits_while_the_learners_queue_is_full(self):
    remote = self.connected(self.port)
    begun = []
    end = remote_learner_testing.put(remote, remote_learner_testing.noting(range(30), begun))
    remote_learner_testing.wait_for_back_pressure(remote, self.learner)
    self.assertFalse(end.ended.is_set())
    self.assertLessEqual(len(begun), cluster_testing.CAPACITY + remote_learner_testing.IN_HAND +
                         2 * remote_learner_testing.LARGEST_PUSH + 1)
    self.check(self.learner.take(30), range(30))
    end()

  def test_the_learner_knows_its_hosts(self):
    self.enterContext(mock.patch.object(ports, 'ANSWER_SECONDS', 30.))  # The farewell may take as long.
    remote = self.connected(self.port)
    name = f'actor/task_{remote_learner_testing.HOST}/frames_per_second'
    waiting.wait_until(lambda: self.learner.metrics().get(name) == 1)
    self.assertEqual(self.learner.metrics()['actor_hosts'], 1)
    remote.close()
    self.assertEqual(self.learner.metrics()['actor_hosts'], 0)
    self.learner.wait_for_farewells()

  def test_of_two_hosts_with_one_number_the_later_one_is_refused(self):
    first = self.connected(self.port)
    waiting.wait_until(lambda: self.learner.metrics().get('actor_hosts'))
    second = self.connected(self.port)
    waiting.wait_until(lambda: self.learner.metrics() and self.ended.is_set())
    first.check()
    with self.assertRaisesRegex(remote_learner.RefusedError, f'^localhost:{self.port}: another actor host has the same '
                                                             'number: give each actor host a --task of its own'):
      second.check()
    self.assertEqual(self.learner.metrics()['actor_hosts'], 1)

  @parameterized.named_parameters(
      ('value', cluster_testing.SETTINGS | {'--unroll_length': 10}, '--unroll_length is 20 there and 10 here'),
      ('several', cluster_testing.SETTINGS | {'--unroll_length': 10, '--torso': 'deep'},
       '--torso is .*; --unroll_length is .*'),
      ('agent', cluster_testing.SETTINGS | {'agent': 'r2d2'}, 'agent is "impala" there and "r2d2" here'),
      ('absent_here', {'agent': 'impala', '--level_name': 'catch', '--torso': 'shallow'},
       '--unroll_length is 20 there and "absent" here'),
      ('absent_there', cluster_testing.SETTINGS | {'--seed': 1}, '--seed is "absent" there and 1 here'))
  def test_another_configuration_is_refused(self, settings, difference):
    self._check_refused(difference, settings=settings)

  @parameterized.named_parameters(
      ('type', dict(unroll_spec=cluster_testing.UNROLL_SPEC._replace(number=tf.TensorSpec([], tf.int32))),
       r'shapes or types of unrolls are int64 \[\] there and int32 \[\] here'),
      ('parameter', dict(parameter_specs=[tf.TensorSpec([200, 51]), tf.TensorSpec([7])]),
       r"the network's parameters are float32 \[200, 50\] there and float32 \[200, 51\] here"),
      ('number', dict(parameter_specs=[tf.TensorSpec([200, 50])]), "the network's parameters are 2 there and 1 here"))
  def test_other_shapes_are_refused(self, specs, difference):
    self._check_refused(difference, **specs)

  def test_another_version_is_refused(self):
    with mock.patch.object(learner_port.Report, '_fields', learner_port.Report._fields[:-1]):
      self._check_refused('the fields of reports differ')

  def _check_refused(self, difference, **what):
    remote = self.remote(self.port, **what)
    self.assertTrue(self.ended.wait(waiting.PATIENCE_SECONDS))
    with self.assertRaisesRegex(
        remote_learner.RefusedError,
        f'^localhost:{self.port}: the learner has another configuration: {difference}. Give all processes .*$'):
      remote.check()
    self.assertFalse(remote.wait_for_parameters(0))

  def test_close_ends_what_waits(self):
    remote = self.connected(self.port)
    end = remote_learner_testing.put(remote, range(30))
    remote_learner_testing.wait_for_back_pressure(remote, self.learner)
    remote.close()
    with self.assertRaises(tf.errors.CancelledError):
      end()
    self.leave_nothing_behind()  # No thread still waits for room in the learner's queue.
    self.assertFalse(self.ended.is_set())
    remote.check()
    unrolls = self.learner.take(cluster_testing.CAPACITY)  # The unrolls that waited for room do not follow.
    self.assertLen(set(unrolls.number.tolist()), cluster_testing.CAPACITY)
    self.check(unrolls, unrolls.number.tolist())
    self.assertEqual(self.learner.size(), 0)

  def test_a_frozen_learner_goes_on_with_what_it_was_sent(self):
    remote = self.connected(self.port)
    end = remote_learner_testing.put(remote, range(30))
    remote_learner_testing.wait_for_back_pressure(remote, self.learner)
    self.learner.freeze()
    try:
      self.wait_until_said(rf'no learner at localhost:{self.port} for \d+ s: it does not answer')
    finally:
      self.learner.thaw()
    self.wait_until_said(f'the learner at localhost:{self.port} answers again')
    self.check(self.learner.take(30), range(30))
    end()
    waiting.wait_until(lambda: remote.totals().unrolls == 30)
    self.assertEqual(remote.totals()[2:], (0, 0))
    self.assertEmpty({line for line in self.said if not line.startswith('no learner')} - {
        f'the learner at localhost:{self.port} answers again', f'connected to the learner at localhost:{self.port}'})


if __name__ == '__main__':
  with ending.abrupt_end():
    absltest.main()
