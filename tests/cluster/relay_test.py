"""A relay serves the parameters that it fetches, and the hosts behind it use the learner whenever it does not."""

from concurrent import futures
import functools
import os
import signal
import threading
from unittest import mock

from absl.testing import absltest
import numpy as np
import tensorflow as tf

from scalable_agents.cluster import learner_port
from scalable_agents.cluster import relay
from scalable_agents.cluster import remote_learner
from scalable_agents.processes import parent_death
from scalable_agents.processes import ports
from scalable_agents.tests.actor import waiting
from scalable_agents.tests.cluster import cluster_testing
from scalable_agents.tests.cluster import remote_learner_testing
from scalable_agents.tests.suites import ending

_RELAYS_HOST = 1


def _relay(learner, port):
  """Runs an actor host that is a relay, and whose own environments stand still."""
  parent_death.signal_at_parents_end(signal.SIGKILL)
  remote_learner._RELAYED_SECONDS = 0.05
  report = learner_port.Report(_RELAYS_HOST, 'relay', 0., 0., 0, 0, 0)
  remote = remote_learner.RemoteLearner(
      f'localhost:{learner}', 0, cluster_testing.SETTINGS, cluster_testing.UNROLL_SPEC,
      cluster_testing.PARAMETER_SPECS, cluster_testing.CAPACITY, lambda: False, lambda totals: report, print,
      lambda: None, relay_port=relay.RelayPort(port))
  remote.start()
  signal.pause()


class RelayTest(remote_learner_testing.TestCase):
  learner_is_well = False  # It is killed, and threads that wait on a dead connection never end.

  def setUp(self):
    super().setUp()
    self.learners_port = self.enterContext(cluster_testing.free_port())
    self.relays_port = self.enterContext(cluster_testing.free_port())
    self.learner = self.enterContext(cluster_testing.Learner(self.learners_port))
    self.enterContext(mock.patch.object(relay, '_RETRY_SECONDS', 0.2))
    self.version = 1

  def _start_relay(self, learners_port=None):
    process = cluster_testing.processes().Process(
        target=_relay, args=[learners_port or self.learners_port, self.relays_port], daemon=True)
    process.start()
    self.addCleanup(process.join)
    self.addCleanup(process.kill)
    return process

  def _check_new_parameters_arrive(self, remote, learner):
    self.version += 1
    learner.publish(self.version)
    waiting.wait_until(lambda: remote.parameters.latest()[0] == self.version)
    for parameter, spec in zip(remote.parameters.latest()[1], cluster_testing.PARAMETER_SPECS, strict=True):
      np.testing.assert_array_equal(parameter, np.full(spec.shape, float(self.version)))

  def _wait_until_relayed(self, remote):
    """Waits until the relay serves, and checks that the learner is not asked for the next parameters."""
    connection = remote._connection
    waiting.wait_until(lambda: remote._relay.fetch(connection.greeting['incarnation'], -1))
    self.said.clear()
    connection._latest = mock.Mock(wraps=connection._latest)

    def arrive_without_the_learner():
      connection._latest.reset_mock()
      self._check_new_parameters_arrive(remote, self.learner)
      return not connection._latest.called

    waiting.wait_until(arrive_without_the_learner)  # A relay that is slow to answer does not count as one.

  def test_a_relay_comes_and_goes_and_so_does_the_learner(self):
    remote = self.connected(self.learners_port, parameters_from=f'localhost:{self.relays_port}')
    missing = f'no parameters from the relay at localhost:{self.relays_port}: .*; they come from the learner until .*'
    self.wait_until_said(missing)  # It has not been started yet.
    process = self._start_relay()
    self.wait_until_said(f'parameters come from the relay at localhost:{self.relays_port}')
    self._wait_until_relayed(remote)
    # The unrolls go to the learner.
    remote_learner_testing.put(remote, range(4))()
    self.check(self.learner.take(4), range(4))
    # It freezes and goes on.
    os.kill(process.pid, signal.SIGSTOP)
    self._check_new_parameters_arrive(remote, self.learner)
    self.wait_until_said(missing)
    os.kill(process.pid, signal.SIGCONT)
    self._wait_until_relayed(remote)
    # It dies, and another one takes its place.
    process.kill()
    process.join()
    self._check_new_parameters_arrive(remote, self.learner)
    self.wait_until_said(missing)
    process = self._start_relay()
    self._wait_until_relayed(remote)
    # The learner dies, and its checkpoint has an earlier version.
    self.learner.kill()
    self.wait_until_said('no learner at .*')
    self.learner = self.enterContext(cluster_testing.Learner(self.learners_port))
    waiting.wait_until(lambda: remote.parameters.latest()[0] == 1)
    self.version = 1
    self._wait_until_relayed(remote)
    remote.check()
    # A user takes it for the learner.
    mistaken = self.remote(self.relays_port)
    self.wait_until_said(f'no learner at localhost:{self.relays_port} for .*: another kind of process answers there')
    mistaken.check()

  def test_a_relay_that_loses_the_learner_serves_no_parameters(self):
    """The learner lives, and the hosts behind the relay still reach it."""
    with cluster_testing.Proxy(self.learners_port) as proxy:
      self._start_relay(proxy.port)
      remote = self.connected(self.learners_port, parameters_from=f'localhost:{self.relays_port}')
      self.wait_until_said(f'parameters come from the relay at localhost:{self.relays_port}')
      self._wait_until_relayed(remote)
      fetch = functools.partial(remote._relay.fetch, remote._connection.greeting['incarnation'], -1)
      self.learner.freeze()
      waiting.wait_until(lambda: not fetch())
      self.learner.thaw()
      waiting.wait_until(fetch)  # Although the learner has no new parameters.
    self._check_new_parameters_arrive(remote, self.learner)

  def test_two_relays_at_one_port(self):
    with self.assertRaisesRegex(ports.PortError, f'localhost:{self.learners_port}: port .* is in use .*--relay_port$'):
      relay.RelayPort(self.learners_port)


class RelayOfThreadsTest(absltest.TestCase):

  def test_regression_a_thread_does_not_use_the_session_that_another_one_closes(self):
    """While a host changes its connection to the learner, the thread of the old one may still wait for the relay."""
    asked, answers = threading.Event(), threading.Event()
    session, said = mock.Mock(), []

    def freeze(_):
      asked.set()
      answers.wait()
      raise tf.errors.DeadlineExceededError(None, None, 'late')

    session.run = mock.Mock(side_effect=freeze)
    source = relay.Relay('localhost:1', cluster_testing.PARAMETER_SPECS, said.append)
    with mock.patch.object(ports, 'check_address'), futures.ThreadPoolExecutor(2) as threads, \
         mock.patch.object(relay.sessions, 'make_session', return_value=session):
      fetches = [threads.submit(source.fetch, 'learner', 0)]
      asked.wait()
      fetches.append(threads.submit(source.fetch, 'learner', 0))
      futures.wait(fetches, timeout=0.1)  # Time for the second one to use the session, if it could.
      answers.set()
      self.assertEqual([fetch.result() for fetch in fetches], [None, None])
    session.run.assert_called_once()
    self.assertLen(said, 1)

  def test_regression_parameters_may_take_longer_than_an_answer(self):
    """If twenty hosts asked at once over a slow network, each gave up and asked the learner."""
    transfer_seconds = 4 * ports.ANSWER_SECONDS

    def run(nodes, options=None):
      deadline = options.timeout_in_ms / 1000 if options else ports.ANSWER_SECONDS
      if len(nodes) == 3 and deadline < transfer_seconds:
        raise tf.errors.DeadlineExceededError(None, None, 'late')
      return [b'learner', 7, ['parameters']][:len(nodes)]

    source = relay.Relay('localhost:1', cluster_testing.PARAMETER_SPECS, print)
    with mock.patch.object(ports, 'check_address'), mock.patch.object(
        relay.sessions, 'make_session', return_value=mock.Mock(run=run)):
      self.assertEqual(source.fetch('learner', 0), (7, ['parameters']))


if __name__ == '__main__':
  with ending.abrupt_end():
    absltest.main()
