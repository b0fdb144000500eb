"""An actor host's side of a cluster against real servers: what arrives, what is waited for, and every kind of silence.

Whole programs are in cluster_training_test.py.
"""

import contextlib
import re
import socket
import threading
import time
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from scalable_agents.tests.actor import waiting
from scalable_agents.tests.training.cluster import cluster_testing
from scalable_agents.training.cluster import cluster_config
from scalable_agents.training.cluster import learner_connection
from scalable_agents.training.cluster import learner_port
from scalable_agents.training.cluster import remote_learner

_HOST = 3
_OUTBOX = 4  # Unrolls: as many as are pushed in one call at most.
_IN_HAND = 2 * _OUTBOX  # What two pushers take at a time.


class _TestCase(parameterized.TestCase):
  """Makes remote learners, which are impatient."""
  learner_is_well = True

  def setUp(self):
    super().setUp()
    self._remotes, self._threads_before = [], set(threading.enumerate())
    self.addCleanup(self._leave_nothing_behind)
    self.said, self.ended, self.due = [], threading.Event(), True
    self._set(_RETRY_SECONDS=0.2, _PATIENCE_SECONDS=30., _FIRST_WORD_SECONDS=1., _LATER_WORDS_SECONDS=1.)
    self.enterContext(mock.patch.multiple(learner_connection, ANSWER_SECONDS=1., LARGEST_PUSH=_OUTBOX))
    self.enterContext(mock.patch.object(learner_port, 'BEAT_SECONDS', 0.2))

  def _set(self, **constants):
    self.enterContext(mock.patch.multiple(remote_learner, **constants))

  def _remote(self, address, host=_HOST, task=0, settings=None, unroll_spec=cluster_testing.UNROLL_SPEC,
              parameter_specs=cluster_testing.PARAMETER_SPECS):
    """A started remote learner; closed when the test ends."""
    if isinstance(address, int):
      address = f'localhost:{address}'

    def report(totals):
      return learner_port.Report(host, f'task_{host}', 1., 2., 0, totals.reconnects, totals.lost_unrolls)

    remote = remote_learner.RemoteLearner(
        address, task, settings or cluster_testing.SETTINGS, unroll_spec, parameter_specs, cluster_testing.CAPACITY,
        lambda: self.due, report, self.said.append, self.ended.set)
    self._remotes.append(remote)
    remote.start()
    return remote

  def _leave_nothing_behind(self):
    """Threads end as well, where there is a learner."""
    for remote in self._remotes:
      remote.close()
    if self.learner_is_well:
      waiting.wait_until(lambda: set(threading.enumerate()) <= self._threads_before)

  def _connected(self, *args, **kwargs):
    remote = self._remote(*args, **kwargs)
    self.assertTrue(remote.wait_for_parameters(waiting.PATIENCE_SECONDS), self.said)
    return remote

  def _wait_until_said(self, pattern):
    waiting.wait_until(lambda: any(re.fullmatch(pattern, line) for line in self.said))

  def _check(self, unrolls, numbers, host=_HOST):
    """Whether these unrolls, and no others, have arrived, each as it was sent."""
    self.assertCountEqual(unrolls.number.tolist(), numbers)
    np.testing.assert_array_equal(unrolls.actor_id, cluster_config.first_actor_id(host))
    for number, content in zip(unrolls.number, unrolls.content, strict=True):
      np.testing.assert_array_equal(content, cluster_testing.content(host, number))


def _put(remote, numbers, host=_HOST):
  """Puts unrolls of these numbers in a thread of its own. Returns a function that waits for its end; see waiting."""
  def put():
    for number in numbers:
      remote.put(cluster_testing.make_unroll(host, number))
  return waiting.start(put)


def _noting(items, noted):
  """The items, each of which is in the list `noted` once it was asked for."""
  for item in items:
    noted.append(item)
    yield item


def _wait_for_back_pressure(remote, learner):
  """Waits until nothing moves any more, as nothing is taken from the learner's queue."""
  # pylint: disable=protected-access
  waiting.wait_until(lambda: len(remote._connection.in_hand) == 2 and remote._outbox.size() == _OUTBOX and
                     learner.size() == cluster_testing.CAPACITY)


class WellTest(_TestCase):
  """Against one learner, which is well."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.port = cls.enterClassContext(cluster_testing.free_port())
    cls.learner = cls.enterClassContext(cluster_testing.Learner(cls.port))
    cls.version = 1

  def _publish(self):
    """Publishes parameters; returns their version."""
    type(self).version += 1
    self.learner.publish(self.version)
    return self.version

  def test_unrolls_of_several_hosts_arrive_unaltered_each_once(self):
    remotes = {host: self._connected(self.port, host) for host in (_HOST, 500_000)}
    ends = [_put(remote, range(60), host) for host, remote in remotes.items()]
    taken = [self.learner.take(8) for _ in range(15)]
    for end in ends:
      end()
    together = cluster_testing.Unroll(*map(np.concatenate, zip(*taken)))
    for host, remote in remotes.items():
      its = together.actor_id == cluster_config.first_actor_id(host)
      unrolls = cluster_testing.Unroll(*(array[its] for array in together))
      self._check(unrolls, range(60), host)
      waiting.wait_until(lambda: remote.totals().unrolls == 60)  # pylint: disable=cell-var-from-loop
      self.assertEqual(remote.totals()[2:], (0, 0))
      self.assertGreater(remote.totals().bytes, 60 * 4 * 5 * 2000)

  def test_parameters_belong_together_and_come_in_their_order(self):
    remote = self._connected(self.port)
    published = waiting.start(lambda: [self._publish() for _ in range(200)])
    seen = []
    while not published.ended.is_set() or not seen or seen[-1] != self.version:
      version, parameters = remote.latest()
      for parameter, spec in zip(parameters, cluster_testing.PARAMETER_SPECS, strict=True):
        np.testing.assert_array_equal(parameter, np.full(spec.shape, float(version)))
      seen.append(int(version))
    published()
    self.assertEqual(seen, sorted(seen))
    self.assertGreater(len(set(seen)), 3)

  def test_parameters_are_fetched_when_it_is_time_and_only_if_they_are_new(self):
    remote = self._connected(self.port)
    connection, asked = remote._connection, 0  # pylint: disable=protected-access
    connection._latest = mock.Mock(wraps=connection._latest)  # pylint: disable=protected-access
    ask = connection._version  # pylint: disable=protected-access

    def count():
      nonlocal asked
      asked += 1
      return ask()

    connection._version = count  # pylint: disable=protected-access
    waiting.wait_until(lambda: asked >= 5)
    connection._latest.assert_not_called()  # pylint: disable=protected-access
    self.due = False
    asked = 0
    waiting.wait_until(lambda: asked >= 2)  # The first of them may have been under way.
    asked = 0
    version = self._publish()
    waiting.wait_until(lambda: asked >= 3)  # Not for parameters: for a sign of life.
    connection._latest.assert_not_called()  # pylint: disable=protected-access
    self.due = True
    waiting.wait_until(lambda: remote.latest()[0] == version)
    connection._latest.assert_called_once()  # pylint: disable=protected-access

  def test_put_waits_while_the_learners_queue_is_full(self):
    remote = self._connected(self.port)
    begun = []
    end = _put(remote, _noting(range(30), begun))
    _wait_for_back_pressure(remote, self.learner)
    self.assertFalse(end.ended.is_set())
    self.assertLessEqual(len(begun), cluster_testing.CAPACITY + _IN_HAND + _OUTBOX + 1)
    self._check(self.learner.take(30), range(30))
    end()

  def test_the_learner_knows_its_hosts(self):
    self.enterContext(mock.patch.object(learner_connection, 'ANSWER_SECONDS', 30.))  # To a farewell, too.
    remote = self._connected(self.port)
    name = f'actor/task_{_HOST}/frames_per_second'
    waiting.wait_until(lambda: self.learner.metrics().get(name) == 1)
    self.assertEqual(self.learner.metrics()['actor_hosts'], 1)
    remote.close()
    self.assertEqual(self.learner.metrics()['actor_hosts'], 0)
    self.learner.wait_for_farewells()

  def test_of_two_hosts_with_one_number_the_later_one_is_refused(self):
    first, second = self._connected(self.port), self._connected(self.port)
    waiting.wait_until(lambda: self.learner.metrics() and self.ended.is_set())
    first.check()
    with self.assertRaisesRegex(remote_learner.RefusedError, f'^localhost:{self.port}: another actor has the number of '
                                                             'this one: give each a --task of its own'):
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
      self._check_refused('what actors report is another there')

  def _check_refused(self, difference, **what):
    remote = self._remote(self.port, **what)
    self.assertTrue(self.ended.wait(waiting.PATIENCE_SECONDS))
    with self.assertRaisesRegex(
        remote_learner.RefusedError,
        f'^localhost:{self.port}: the learner has another configuration: {difference}. Give all processes .*$'):
      remote.check()
    self.assertFalse(remote.wait_for_parameters(0))

  def test_close_ends_what_waits(self):
    remote = self._connected(self.port)
    end = _put(remote, range(30))
    _wait_for_back_pressure(remote, self.learner)
    remote.close()
    with self.assertRaises(tf.errors.CancelledError):
      end()
    self._leave_nothing_behind()  # Among them those who waited for room in the learner's queue.
    self.assertFalse(self.ended.is_set())
    remote.check()
    unrolls = self.learner.take(cluster_testing.CAPACITY)  # None of those that waited comes behind them.
    self.assertLen(set(unrolls.number.tolist()), cluster_testing.CAPACITY)
    self._check(unrolls, unrolls.number.tolist())
    self.assertEqual(self.learner.size(), 0)

  def test_a_frozen_learner_goes_on_with_what_it_was_sent(self):
    remote = self._connected(self.port)
    end = _put(remote, range(30))
    _wait_for_back_pressure(remote, self.learner)
    self.learner.freeze()
    try:
      self._wait_until_said(rf'no learner at localhost:{self.port} for \d+ s: it does not answer')
    finally:
      self.learner.thaw()
    self._wait_until_said(f'the learner at localhost:{self.port} answers again')
    self._check(self.learner.take(30), range(30))
    end()
    waiting.wait_until(lambda: remote.totals().unrolls == 30)
    self.assertEqual(remote.totals()[2:], (0, 0))
    self.assertEmpty({line for line in self.said if not line.startswith('no learner')} - {
        f'the learner at localhost:{self.port} answers again', f'connected to the learner at localhost:{self.port}'})


class ProxyTest(_TestCase):
  """Where the network lets connections die without a word."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.port = cls.enterClassContext(cluster_testing.free_port())
    cls.learner = cls.enterClassContext(cluster_testing.Learner(cls.port))

  learner_is_well = False  # It is, but what waits for an answer on a dead connection waits for ever.

  def test_a_connection_that_is_half_open_is_replaced(self):
    with cluster_testing.Proxy(self.port) as proxy:
      remote = self._connected(proxy.port)
      _put(remote, range(5))()
      self._check(self.learner.take(5), range(5))
      waiting.wait_until(lambda: remote.totals().unrolls == 5)
      self._set(_PATIENCE_SECONDS=4.)
      proxy.freeze()
      waiting.wait_until(lambda: remote.totals().reconnects == 1)
      self._set(_PATIENCE_SECONDS=30.)
      self._wait_until_said(rf'connected to the learner at localhost:{proxy.port} again \(it does not answer\)')
      # Those who push through the dead connection waited for unrolls, and do so still.
      end = _put(remote, range(100, 112))
      self._check(self.learner.take(12), range(100, 112))
      end()
      self.learner.publish(17)
      waiting.wait_until(lambda: remote.latest()[0] == 17)
      waiting.wait_until(lambda: remote.totals().unrolls == 17)
      self.assertEqual(remote.totals()[2:], (1, 0))

  def test_unrolls_on_their_way_through_a_dead_connection_are_counted_as_lost(self):
    with cluster_testing.Proxy(self.port) as proxy:
      remote = self._connected(proxy.port)
      end = _put(remote, range(40))
      _wait_for_back_pressure(remote, self.learner)
      self._set(_PATIENCE_SECONDS=4.)
      proxy.freeze()
      waiting.wait_until(lambda: remote.totals().reconnects == 1)
      self._set(_PATIENCE_SECONDS=30.)
      lost = remote.totals().lost_unrolls
      self.assertBetween(lost, 2, _IN_HAND)

      def all_are_gone():
        if self.learner.size():
          self.learner.take(1)
        return remote.totals().unrolls + lost == 40

      waiting.wait_until(all_are_gone)
      end()
      while self.learner.size():
        self.learner.take(1)

  def test_a_data_connection_that_dies_alone_is_noticed(self):
    with cluster_testing.Proxy(self.port) as proxy:
      remote = self._connected(proxy.port)
      before = remote.totals().reconnects
      with mock.patch.object(learner_connection, '_PATIENCE_BEATS', 4):
        proxy.freeze(only_the_busiest=True)
        waiting.wait_until(lambda: remote.totals().reconnects > before)
      _put(remote, range(5))()
      self._check(self.learner.take(5), range(5))


class EndTest(_TestCase):
  """Learners that end, in every way."""
  learner_is_well = False

  def setUp(self):
    super().setUp()
    self.port = self.enterContext(cluster_testing.free_port())

  def _start_learner(self, *args):
    return self.enterContext(cluster_testing.Learner(self.port, *args))

  def test_what_was_not_received_by_a_killed_learner_is_sent_to_the_next(self):
    first = self._start_learner()
    remote = self._connected(self.port)
    end = _put(remote, range(40))
    first.take(6)
    _wait_for_back_pressure(remote, first)
    first.kill()
    self._wait_until_said(rf'no learner at localhost:{self.port} for \d+ s: (it does not answer|Connection refused)')
    received = remote.totals().unrolls
    second = self._start_learner()
    unrolls = second.take(40 - received)
    end()
    self.assertLen(set(unrolls.number.tolist()), 40 - received)  # Each once.
    self._check(unrolls, unrolls.number.tolist())
    self.assertEqual(second.size(), 0)
    waiting.wait_until(lambda: remote.totals().unrolls == 40)
    self.assertEqual(remote.totals()[2:], (1, 0))
    second.publish(7)
    waiting.wait_until(lambda: remote.latest()[0] == 7)
    self._wait_until_said(rf'connected to the learner at localhost:{self.port} again \(.+\)')
    second.kill()

  def test_a_learner_that_is_frozen_for_longer_than_there_is_patience_is_found_again(self):
    learner = self._start_learner()
    remote = self._connected(self.port)
    end = _put(remote, range(40))
    _wait_for_back_pressure(remote, learner)
    self._set(_PATIENCE_SECONDS=2.)
    learner.freeze()
    self._wait_until_said(rf'no learner at localhost:{self.port} for ([4-9]|\d\d+) s: it does not answer')
    self._set(_PATIENCE_SECONDS=30.)
    learner.thaw()
    self._wait_until_said(f'.*the learner at localhost:{self.port} (answers )?again.*')
    received = set()

    def all_are_accounted_for():
      if learner.size():
        received.update(learner.take(1).number.tolist())
      totals = remote.totals()
      return totals.unrolls + totals.lost_unrolls == 40 and not learner.size()

    waiting.wait_until(all_are_accounted_for)
    end()
    self.assertGreaterEqual(len(received), 40 - remote.totals().lost_unrolls)
    self.assertLessEqual(remote.totals().lost_unrolls, _IN_HAND)

  def test_another_learner_at_the_port_may_refuse(self):
    first = self._start_learner()
    remote = self._connected(self.port)
    first.kill()
    self._start_learner(cluster_testing.SETTINGS | {'--seed': 2})
    self.assertTrue(self.ended.wait(waiting.PATIENCE_SECONDS))
    with self.assertRaisesRegex(remote_learner.RefusedError, '--seed is 2 there and "absent" here'):
      remote.check()

  def test_the_end_of_the_run_ends_the_contact_and_failing_connections_are_made_in_no_rush(self):
    self.enterContext(mock.patch.object(learner_connection, 'ANSWER_SECONDS', 30.))  # To a farewell, too.
    learner = self._start_learner()
    remote = self._connected(self.port)
    began = time.monotonic()
    learner.close_queue()  # As in a learner that fails.
    _put(remote, range(100))
    waiting.wait_until(lambda: remote.totals().reconnects >= 3)
    # pylint: disable-next=protected-access
    self.assertGreater(time.monotonic() - began, 2 * remote_learner._RETRY_SECONDS)
    self.assertGreater(remote.totals().lost_unrolls, 0)
    self.assertGreater(learner.metrics()['actor_hosts'], 0)
    learner.announce_end()
    self.assertTrue(self.ended.wait(waiting.PATIENCE_SECONDS))
    self.assertEqual(learner.metrics()['actor_hosts'], 0)
    remote.check()
    late = self._remote(self.port, host=5)
    waiting.wait_until(lambda: not late._heart.is_alive())  # pylint: disable=protected-access
    self.assertFalse(late.wait_for_parameters(0))
    late.check()


class NoLearnerTest(_TestCase):
  """Where there is something else, or nothing."""
  learner_is_well = False

  def _check_said(self, address, reason, **kwargs):
    remote = self._remote(address, **kwargs)
    self._wait_until_said(rf'no learner at {address} for \d+ s: {reason}')
    waiting.start(remote.close)()
    self.assertFalse(self.ended.is_set())
    self.assertFalse(remote.wait_for_parameters(0))
    with self.assertRaises(tf.errors.CancelledError):
      remote.put(cluster_testing.make_unroll(_HOST, 0))

  def test_nobody_listens(self):
    with cluster_testing.free_port() as port:
      self._check_said(f'localhost:{port}', 'Connection refused')

  @parameterized.parameters('no-such-host.invalid', 'no..such.host', '.')
  def test_there_is_no_such_host(self, host):
    self._check_said(f'{host}:80', f'(Name or service not known|No address .*|Temporary failure .*|{host} is no name .*)')

  def test_a_learner_that_is_not_ready(self):
    with cluster_testing.free_port() as port:
      server = tf.distribute.Server({learner_port.JOB: [f'localhost:{port}']}, learner_port.JOB, 0)
      self._check_said(f'localhost:{port}', 'it is starting')
      del server  # It cannot be stopped.

  def test_a_learner_of_another_place(self):
    with cluster_testing.free_port() as port, cluster_testing.Learner(port):
      self._check_said(f'localhost:{port}', 'it is a learner of another place in --learner_addresses', task=1)

  def test_something_that_never_answers(self):
    with socket.create_server(('localhost', 0)) as server:
      self._check_said(f'localhost:{server.getsockname()[1]}', 'it does not answer')

  def test_something_that_talks_garbage(self):
    with socket.create_server(('localhost', 0)) as server:
      def answer():
        with contextlib.suppress(OSError):
          while True:
            with server.accept()[0] as connection:
              connection.sendall(b'HTTP/1.0 400 Bad Request\r\n\r\n')
      threading.Thread(target=answer, daemon=True).start()
      self._check_said(f'localhost:{server.getsockname()[1]}', '.+')
      server.shutdown(socket.SHUT_RDWR)  # Ends the wait for somebody who connects.


if __name__ == '__main__':
  with cluster_testing.abrupt_end():
    absltest.main()
