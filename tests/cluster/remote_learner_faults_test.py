"""An actor host's side of a cluster, against faulty servers: they are silent, end, restart or are no learners."""

import contextlib
import socket
import threading
import time
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import tensorflow as tf

from scalable_agents.actor import parameters as parameters_lib
from scalable_agents.cluster import learner_connection
from scalable_agents.cluster import learner_port
from scalable_agents.cluster import remote_learner
from scalable_agents.processes import ports
from scalable_agents.records import errors
from scalable_agents.tests.actor import waiting
from scalable_agents.tests.cluster import cluster_testing
from scalable_agents.tests.cluster import remote_learner_testing
from scalable_agents.tests.suites import ending


class ProxyTest(remote_learner_testing.TestCase):
  """A network that drops connections silently."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.port = cls.enterClassContext(cluster_testing.free_port())
    cls.learner = cls.enterClassContext(cluster_testing.Learner(cls.port))

  learner_is_well = False  # The learner is well, but threads that wait on a dead connection never end.

  def test_a_connection_that_is_half_open_is_replaced(self):
    with cluster_testing.Proxy(self.port) as proxy:
      remote = self.connected(proxy.port)
      remote_learner_testing.put(remote, range(5))()
      self.check(self.learner.take(5), range(5))
      waiting.wait_until(lambda: remote.totals().unrolls == 5)
      self.set_constants(_PATIENCE_SECONDS=4.)
      proxy.freeze()
      waiting.wait_until(lambda: remote.totals().reconnects == 1)
      self.set_constants(_PATIENCE_SECONDS=30.)
      self.wait_until_said(rf'connected to the learner at localhost:{proxy.port} again \(it does not answer\)')
      # The threads that push through the dead connection still wait for unrolls.
      end = remote_learner_testing.put(remote, range(100, 112))
      self.check(self.learner.take(12), range(100, 112))
      end()
      self.learner.publish(17)
      waiting.wait_until(lambda: remote.parameters.latest()[0] == 17)
      waiting.wait_until(lambda: remote.totals().unrolls == 17)
      self.assertEqual(remote.totals()[2:], (1, 0))

  def test_unrolls_on_their_way_through_a_dead_connection_are_counted_as_lost(self):
    with cluster_testing.Proxy(self.port) as proxy:
      remote = self.connected(proxy.port)
      end = remote_learner_testing.put(remote, range(40))
      remote_learner_testing.wait_for_back_pressure(remote, self.learner)
      self.set_constants(_PATIENCE_SECONDS=4.)
      proxy.freeze()
      waiting.wait_until(lambda: remote.totals().reconnects == 1)
      self.set_constants(_PATIENCE_SECONDS=30.)
      lost = remote.totals().lost_unrolls
      self.assertBetween(lost, 1, remote_learner_testing.IN_HAND)

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
      remote = self.connected(proxy.port)
      before = remote.totals().reconnects
      with mock.patch.object(learner_connection, '_PATIENCE_BEATS', 4):
        proxy.freeze(only_the_busiest=True)
        waiting.wait_until(lambda: remote.totals().reconnects > before)
      remote_learner_testing.put(remote, range(5))()
      self.check(self.learner.take(5), range(5))


class EndTest(remote_learner_testing.TestCase):
  """Learners that end in different ways."""
  learner_is_well = False

  def setUp(self):
    super().setUp()
    self.port = self.enterContext(cluster_testing.free_port())

  def _start_learner(self, *args):
    return self.enterContext(cluster_testing.Learner(self.port, *args))

  def test_what_was_not_received_by_a_killed_learner_is_sent_to_the_next(self):
    first = self._start_learner()
    remote = self.connected(self.port)
    end = remote_learner_testing.put(remote, range(40))
    first.take(6)
    remote_learner_testing.wait_for_back_pressure(remote, first)
    first.kill()
    self.wait_until_said(rf'no learner at localhost:{self.port} for \d+ s: (it does not answer|Connection refused)')
    received = remote.totals().unrolls
    second = self._start_learner()
    unrolls = second.take(40 - received)
    end()
    self.assertLen(set(unrolls.number.tolist()), 40 - received)  # Each arrives once.
    self.check(unrolls, unrolls.number.tolist())
    self.assertEqual(second.size(), 0)
    waiting.wait_until(lambda: remote.totals().unrolls == 40)
    self.assertEqual(remote.totals()[2:], (1, 0))
    second.publish(7)
    waiting.wait_until(lambda: remote.parameters.latest()[0] == 7)
    self.wait_until_said(rf'connected to the learner at localhost:{self.port} again \(.+\)')
    second.kill()

  def test_a_learner_that_is_frozen_for_longer_than_there_is_patience_is_found_again(self):
    learner = self._start_learner()
    remote = self.connected(self.port)
    end = remote_learner_testing.put(remote, range(40))
    remote_learner_testing.wait_for_back_pressure(remote, learner)
    self.set_constants(_PATIENCE_SECONDS=2.)
    learner.freeze()
    self.wait_until_said(rf'no learner at localhost:{self.port} for ([4-9]|\d\d+) s: it does not answer')
    self.set_constants(_PATIENCE_SECONDS=30.)
    learner.thaw()
    self.wait_until_said(f'.*the learner at localhost:{self.port} (answers )?again.*')
    received = set()

    def all_are_accounted_for():
      if learner.size():
        received.update(learner.take(1).number.tolist())
      totals = remote.totals()
      return totals.unrolls + totals.lost_unrolls == 40 and not learner.size()

    waiting.wait_until(all_are_accounted_for)
    end()
    self.assertGreaterEqual(len(received), 40 - remote.totals().lost_unrolls)
    self.assertLessEqual(remote.totals().lost_unrolls, remote_learner_testing.IN_HAND)

  def test_parameters_that_cannot_be_kept_end_the_contact(self):
    self._start_learner()
    full = tf.errors.ResourceExhaustedError(None, None, 'no memory on the card')
    with mock.patch.object(parameters_lib.ParameterSnapshot, 'publish', side_effect=full):
      remote = self.remote(self.port)
      self.assertTrue(self.ended.wait(waiting.PATIENCE_SECONDS))
    with self.assertRaisesRegex(errors.UserError, '^parameters that have arrived cannot be kept: .*no memory on the'):
      remote.check()

  def test_another_learner_at_the_port_may_refuse(self):
    first = self._start_learner()
    remote = self.connected(self.port)
    first.kill()
    self._start_learner(cluster_testing.SETTINGS | {'--seed': 2})
    self.assertTrue(self.ended.wait(waiting.PATIENCE_SECONDS))
    with self.assertRaisesRegex(remote_learner.RefusedError, '--seed is 2 there and "absent" here'):
      remote.check()

  def test_regression_while_the_learner_saves_the_hosts_wait_for_the_end_or_the_next_learner(self):
    """They left before the save. If it failed, the learner was started again, and waited for them for ever."""
    self.set_constants(_FIRST_MESSAGE_SECONDS=waiting.PATIENCE_SECONDS)
    first = self._start_learner()
    remote = self.connected(self.port)
    first.announce_save()
    first.close_queue()
    end = remote_learner_testing.put(remote, range(20))
    waiting.wait_until(lambda: remote._connection.failure)
    connection = remote._connection
    with mock.patch.object(connection, 'beat', wraps=connection.beat) as beat, \
        mock.patch.object(learner_connection, 'Connection', wraps=learner_connection.Connection) as connect:
      late = self.remote(self.port, host=5)
      # Who begins to ask for the third time has had two answers.
      waiting.wait_until(lambda: min(beat.call_count, connect.call_count) >= 3)
    self.assertEqual((remote.totals().reconnects, self.said), (0, []))
    self.assertFalse(late.wait_for_parameters(0))
    self.assertFalse(self.ended.is_set())
    first.kill()
    second = self._start_learner()
    self.check(second.take(20), range(20))
    end()
    self.assertTrue(late.wait_for_parameters(waiting.PATIENCE_SECONDS))
    self.assertEqual(remote.totals()[2:], (1, 0))
    second.announce_save()
    second.announce_end()
    self.assertTrue(self.ended.wait(waiting.PATIENCE_SECONDS))

  def test_the_end_of_the_run_ends_the_contact_and_failing_connections_are_made_in_no_rush(self):
    self.enterContext(mock.patch.object(ports, 'ANSWER_SECONDS', 30.))  # The farewell may take as long.
    learner = self._start_learner()
    remote = self.connected(self.port)
    began = time.monotonic()
    learner.close_queue()  # A failing learner does so.
    remote_learner_testing.put(remote, range(100))
    waiting.wait_until(lambda: remote.totals().reconnects >= 3)
    self.assertGreater(time.monotonic() - began, 2 * remote_learner._RETRY_SECONDS)
    self.assertGreater(remote.totals().lost_unrolls, 0)
    self.wait_until_said(r'connected to the learner .* again \(.*\)')
    self.assertNotIn('Session', ' '.join(self.said))  # The reason is not that the old connection was closed.
    self.assertGreater(learner.metrics()['actor_hosts'], 0)
    learner.announce_end()
    self.assertTrue(self.ended.wait(waiting.PATIENCE_SECONDS))
    self.assertEqual(learner.metrics()['actor_hosts'], 0)
    remote.check()
    late = self.remote(self.port, host=5)
    waiting.wait_until(lambda: not late._heart.is_alive())
    self.assertFalse(late.wait_for_parameters(0))
    late.check()


class NoLearnerTest(remote_learner_testing.TestCase):
  """Addresses where there is no learner, or another process."""
  learner_is_well = False

  def _check_said(self, address, reason, **kwargs):
    remote = self.remote(address, **kwargs)
    self.wait_until_said(rf'no learner at {address} for \d+ s: {reason}')
    waiting.start(remote.close)()
    self.assertFalse(self.ended.is_set())
    self.assertFalse(remote.wait_for_parameters(0))
    with self.assertRaises(tf.errors.CancelledError):
      remote.put(cluster_testing.make_unroll(remote_learner_testing.HOST, 0))

  def test_nobody_listens(self):
    with cluster_testing.free_port() as port:
      self._check_said(f'localhost:{port}', 'Connection refused')

  @parameterized.parameters('no-such-host.invalid', 'no..such.host', '.')
  def test_there_is_no_such_host(self, host):
    self._check_said(f'{host}:80',
                     f'(Name or service not known|No address .*|Temporary failure .*|{host} is not a valid host name)')

  def test_a_learner_that_is_not_ready(self):
    with cluster_testing.free_port() as port:
      server = tf.distribute.Server({learner_port.JOB: [f'localhost:{port}']}, learner_port.JOB, 0)
      self._check_said(f'localhost:{port}', 'it is starting')
      del server  # There is no way to stop it.

  def test_a_learner_of_another_place(self):
    with cluster_testing.free_port() as port, cluster_testing.Learner(port):
      self._check_said(f'localhost:{port}', 'the process there is no learner, or one with another place in '
                       '--learner_addresses', task=1)

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
      server.shutdown(socket.SHUT_RDWR)  # Ends the wait in `accept`.


if __name__ == '__main__':
  with ending.abrupt_end():
    absltest.main()
