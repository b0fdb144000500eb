"""Helpers for tests of remote learners: a test case that makes them, and functions that put unrolls."""

import re
import threading
from unittest import mock

from absl.testing import parameterized
import numpy as np

from scalable_agents.cluster import cluster_config
from scalable_agents.cluster import learner_connection
from scalable_agents.cluster import learner_port
from scalable_agents.cluster import remote_learner
from scalable_agents.processes import ports
from scalable_agents.tests.actor import waiting
from scalable_agents.tests.cluster import cluster_testing

HOST = 3
LARGEST_PUSH = 4  # Most unrolls in one call, and most unrolls that wait in a lane.
IN_HAND = 2 * LARGEST_PUSH  # Most unrolls that the two pushers have in flight.


class TestCase(parameterized.TestCase):
  """Makes remote learners with short time limits."""
  learner_is_well = True

  def setUp(self):
    super().setUp()
    self._remotes, self._threads_before = [], set(threading.enumerate())
    self.addCleanup(self.leave_nothing_behind)
    self.said, self.ended, self.due = [], threading.Event(), True
    self.set_constants(_RETRY_SECONDS=0.2, _PATIENCE_SECONDS=30., _FIRST_MESSAGE_SECONDS=1., _LATER_MESSAGES_SECONDS=1.)
    self.enterContext(mock.patch.multiple(learner_connection, LARGEST_PUSH=LARGEST_PUSH, _PATIENCE_BEATS=150))
    self.enterContext(mock.patch.multiple(ports, ANSWER_SECONDS=1., BEAT_SECONDS=0.2))

  def set_constants(self, **constants):
    self.enterContext(mock.patch.multiple(remote_learner, **constants))

  def remote(self, address, host=HOST, task=0, settings=None, unroll_spec=cluster_testing.UNROLL_SPEC,
             parameter_specs=cluster_testing.PARAMETER_SPECS, **options):
    """Returns a started remote learner. The end of the test closes it. `options` are RemoteLearner's last arguments."""
    if isinstance(address, int):
      address = f'localhost:{address}'

    def report(totals):
      return learner_port.Report(host, f'task_{host}', 1., 2., 0, totals.reconnects, totals.lost_unrolls)

    remote = remote_learner.RemoteLearner(
        address, task, settings or cluster_testing.SETTINGS, unroll_spec, parameter_specs, cluster_testing.CAPACITY,
        lambda: cluster_testing.are_due() and self.due, report, self.said.append, self.ended.set, **options)
    self._remotes.append(remote)
    remote.start()
    return remote

  def leave_nothing_behind(self):
    """Closes all remote learners. If the learner is well, waits until their threads have ended, too."""
    for remote in self._remotes:
      remote.close()
    if self.learner_is_well:
      waiting.wait_until(lambda: set(threading.enumerate()) <= self._threads_before)

  def connected(self, *args, **kwargs):
    remote = self.remote(*args, **kwargs)
    self.assertTrue(remote.wait_for_parameters(waiting.PATIENCE_SECONDS), self.said)
    return remote

  def wait_until_said(self, pattern):
    waiting.wait_until(lambda: any(re.fullmatch(pattern, line) for line in self.said))

  def check(self, unrolls, numbers, host=HOST):
    """Checks that exactly these unrolls arrived, each as it was sent, and those of each stream in order."""
    self.assertCountEqual(unrolls.number.tolist(), numbers)
    np.testing.assert_array_equal(unrolls.actor_id // cluster_config.MAX_ENVIRONMENTS, host)
    for number, content in zip(unrolls.number, unrolls.content, strict=True):
      np.testing.assert_array_equal(content, cluster_testing.content(host, number))
    for stream in np.unique(unrolls.stream_id):
      indices = unrolls.index[unrolls.stream_id == stream].tolist()
      self.assertEqual(indices, sorted(indices))


def put(remote, numbers, host=HOST):
  """Puts unrolls of these numbers in another thread. Returns a function that waits for its end; see waiting.start."""
  def put():
    for number in numbers:
      remote.put(cluster_testing.make_unroll(host, number))
  return waiting.start(put)


def noting(items, noted):
  """Yields the items, and appends each one to the list `noted` when it is asked for."""
  for item in items:
    noted.append(item)
    yield item


def wait_for_back_pressure(remote, learner):
  """Waits until nothing moves, because nothing is taken from the learner's queue.

  Then a lane is full. The other one may be empty, if the learner took more from it.
  """
  waiting.wait_until(lambda: remote._connection.in_flight and
                     max(lane.size() for lane in remote._lanes) == LARGEST_PUSH and
                     learner.size() == cluster_testing.CAPACITY)
