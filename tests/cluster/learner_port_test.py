"""The learner's side of a cluster: its port, and the reports and metrics of actor hosts."""

import collections
from concurrent import futures
import contextlib
import json
import socket
import types
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import psutil
import tensorflow as tf

from scalable_agents.cluster import cluster_config
from scalable_agents.cluster import learner_port
from scalable_agents.processes import ports
from scalable_agents.processes import sessions
from scalable_agents.tests.actor import waiting
from scalable_agents.tests.cluster import cluster_testing


def setUpModule():
  global _port
  with cluster_testing.free_port() as number:  # A process can open only one port, before all else.
    _port = learner_port.LearnerPort(_learner(number), {})


def _learner(port):
  return cluster_config.ClusterConfig(job_name='learner', learner_addresses=f'localhost:{port}')


class PortTest(absltest.TestCase):

  def test_specs_are_fit_for_json(self):
    got = sessions.specs(cluster_testing.UNROLL_SPEC)
    self.assertEqual(got, [['int32', []], *3 * [['int64', []]], ['float32', [5, 2000]]])
    self.assertEqual(json.loads(json.dumps(got)), got)

  def _check_refused(self, port):
    with self.assertRaisesRegex(
        ports.PortError, f'^localhost:{port}: port {port} is in use on this machine .*: another learner.*$'):
      learner_port.LearnerPort(_learner(port), {})

  def test_where_somebody_listens(self):
    with socket.create_server(('', 0)) as server:
      self._check_refused(server.getsockname()[1])
    with socket.create_server(('127.0.0.1', 0)) as server:
      self._check_refused(server.getsockname()[1])

  def test_two_learners_at_one_port(self):
    with cluster_testing.free_port() as port, contextlib.ExitStack() as stack:
      def start(_):
        try:
          stack.enter_context(cluster_testing.Learner(port))
          return None
        except ports.PortError as error:
          return str(error)
      with futures.ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(start, range(2)))
      self.assertCountEqual([outcome is None for outcome in outcomes], [True, False])
      self.assertRegex(''.join(filter(None, outcomes)), f'localhost:{port}: port {port} is in use on this machine')
      self._check_refused(port)

  def test_where_connections_of_the_learner_before_linger(self):
    """A connection in TIME_WAIT, which lasts a minute on the side that closes first, does not block a restart."""
    with socket.create_server(('localhost', 0)) as server:
      port = server.getsockname()[1]
      with socket.create_connection(('localhost', port)) as client:
        server.accept()[0].close()
        client.recv(1)
    waiting.wait_until(lambda: ('TIME_WAIT', port) in {
        (connection.status, connection.laddr.port) for connection in psutil.net_connections('tcp')})
    with cluster_testing.Learner(port) as learner:
      self.assertEqual(learner.size(), 0)


class MetricsTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    _port._reports.clear()

  def _send(self, text):
    tf.raw_ops.QueueEnqueueV2(handle=_port._queue, components=[tf.constant(text)])

  def _report(self, host, **values):
    values = {'frames_per_second': 0., 'bytes_per_second': 0., 'environment_restarts': 0, 'reconnects': 0,
              'lost_unrolls': 0} | values
    report = learner_port.Report(host, f'task_{host}', **values)
    self._send(json.dumps(report._asdict()))

  def test_of_hosts_that_have_reported(self):
    self.assertEqual(_port.metrics(), {'actor_hosts': 0})
    self._report(3, frames_per_second=1.)
    self._report(3, frames_per_second=20., bytes_per_second=3e6, environment_restarts=1, reconnects=2, lost_unrolls=4)
    self._report(5)
    first = cluster_config.first_actor_id(3)
    ids = [first, first + 7, 1]  # The last one belongs to the learner itself.
    # A version may be ahead of a learner that was started again.
    versions = tf.constant([[9, 8, 1], [9, 8, 1], [11, 7, 0]], tf.int64)  # [T, n].
    _port.record_lags(10, [types.SimpleNamespace(actor_ids=tf.constant(ids), parameter_versions=versions)])
    want = {'frames_per_second': 20, 'megabytes_per_second': 3, 'environment_restarts': 1, 'reconnects': 2,
            'lost_unrolls': 4, 'policy_lag': 1.5}
    row = _port.metrics()
    self.assertEqual(row['actor_hosts'], 2)
    self.assertEqual({name: value for name, value in row.items() if '/task_3/' in name},
                     {f'actor/task_3/{name}': value for name, value in want.items()})
    self.assertNotIn('actor/task_5/policy_lag', row)
    self.assertNotIn('actor/task_3/policy_lag', _port.metrics())  # No unrolls since the last row.

  @parameterized.named_parameters(
      ('no_json', b'hello'), ('no_text', b'\xff\xfe{}'), ('nothing', b''), ('a_number', b'3'), ('a_list', b'[{}]'),
      ('deep', b'[' * 4000 + b']' * 4000), ('deep_and_short', b'[' * 2000 + b']' * 2000),
      ('huge', b'{"name": "' + b'x' * (1 << 20) + b'"}'), ('fields_missing', b'{"host": 3, "name": "task_3"}'))
  def test_what_is_no_report_is_ignored(self, text):
    self._send(text)
    self._check_ignored()

  @parameterized.parameters(
      dict(host=-1), dict(host=cluster_config.MAX_HOSTS), dict(host=1.5), dict(host=True), dict(host='3'),
      dict(host=10 ** 300), dict(frames_per_second=float('nan')), dict(frames_per_second=float('inf')),
      dict(bytes_per_second=-1.), dict(frames_per_second=10 ** 400), dict(environment_restarts=None),
      dict(reconnects=[1]), dict(lost_unrolls={}), dict(lost_unrolls=1 << 60), dict(incarnation=3), dict(leaving='no'),
      dict(more=1))
  def test_a_report_that_cannot_be_right_is_ignored(self, **wrong):
    self._send(json.dumps(learner_port.Report(3, 'task_3', 0., 0., 0, 0, 0)._asdict() | wrong))
    self._check_ignored(sender='task_3')

  @parameterized.parameters('', 'a/b', 'two\nlines', 7, 'x' * 301)
  def test_a_report_with_a_name_that_is_none_is_ignored(self, name):
    self._send(json.dumps(learner_port.Report(3, name, 0., 0., 0, 0, 0)._asdict()))
    self._check_ignored()

  def _check_ignored(self, sender='(an unknown sender|task_3)'):
    self._report(5)
    self.assertIn('actor/task_5/reconnects', _port.metrics())
    self.assertRegex(_port.warning(), f'^malformed reports ignored: 1, the last one from {sender}: [a-zA-Z_, ]+$')
    self.assertEqual(_port.warning(), '')

  def test_names_of_actors(self):
    self._report(3)
    _port.metrics()
    self.assertEqual(_port.actor_name(cluster_config.first_actor_id(3) + 7), 'environment 7 of task_3')
    self.assertEqual(_port.actor_name(1), 'environment 1 of host 0')

  def test_a_host_that_is_silent_or_leaves_is_forgotten(self):
    clock = mock.Mock(return_value=0.)
    with mock.patch.object(learner_port.time, 'monotonic', clock):
      self._report(3)
      self._report(5)
      self.assertEqual(_port.metrics()['actor_hosts'], 2)
      clock.return_value = 19.
      self._report(5)
      self.assertEqual(_port.metrics()['actor_hosts'], 2)
      clock.return_value = 21.
      self.assertEqual(_port.metrics()['actor_hosts'], 1)
      self._report(5, leaving=True)
      self.assertEqual(_port.metrics()['actor_hosts'], 0)

  def test_restarts_at_actor_hosts_are_counted_once(self):
    before = _port.environment_restarts
    self._report(3, incarnation='a', environment_restarts=2)
    self._report(3, incarnation='a', environment_restarts=5)
    self._report(7, incarnation='b', environment_restarts=4, reconnects=1)  # An earlier learner counted these.
    self._report(7, incarnation='b', environment_restarts=5, reconnects=1)
    self._report(3, incarnation='c', environment_restarts=1)  # The successor of the process before.
    _port.metrics()
    self.assertEqual(_port.environment_restarts - before, 5 + 1 + 1)

  def test_the_later_one_of_two_with_one_number_is_unwelcome(self):
    before = len(_port._unwelcome)
    self._report(9, incarnation='old')
    self._report(9, incarnation='older than thought', frames_per_second=1.)  # It seems to be a restart.
    _port.metrics()
    self.assertLen(_port._unwelcome, before)
    self._report(9, incarnation='old', frames_per_second=2.)
    self._report(9, incarnation='older than thought', leaving=True)
    self.assertEqual(_port.metrics()['actor/task_9/frames_per_second'], 2)
    self.assertEqual(_port._unwelcome[before:], ['older than thought'])

  def test_of_three_with_one_number_the_later_ones_are_unwelcome(self):
    before = len(_port._unwelcome)
    for incarnation in 'xyzxyz':
      self._report(11, incarnation=incarnation)
    _port.metrics()
    self.assertEqual(_port._unwelcome[before:], ['y', 'z'])

  def test_one_that_leaves_late_does_not_take_its_successor_with_it(self):
    before = len(_port._unwelcome)
    for incarnation, leaving in (('p', False), ('q', False), ('p', True), ('q', False)):
      self._report(12, incarnation=incarnation, leaving=leaving)
    self.assertIn('actor/task_12/reconnects', _port.metrics())
    self.assertLen(_port._unwelcome, before)

  def test_farewells_are_waited_for_but_not_for_ever(self):
    seconds = collections.deque([0.])
    with mock.patch.object(learner_port.time, 'monotonic', lambda: seconds[-1]), mock.patch.object(
        learner_port.time, 'sleep', lambda tick: seconds.append(seconds[-1] + tick)):
      _port.wait_for_farewells()
      self.assertEqual(seconds[-1], 0)  # The run has not ended.
      _port._content['ended'] = True
      self.addCleanup(_port._content.pop, 'ended')
      _port.wait_for_farewells()
      self.assertBetween(seconds[-1], 1, 5)  # An unknown host tries to connect every second.
      seconds.append(0.)
      self._report(3)
      _port.wait_for_farewells()
      self.assertBetween(seconds[-1], 10, 20)  # A known host reports every 5 s, and may be late.


if __name__ == '__main__':
  absltest.main()
