"""For tests of remote learners: a test case that makes them, and what they are given to send."""

import re
import threading
from unittest import mock

from absl.testing import parameterized
import numpy as np

from scalable_agents.tests.actor import waiting
from scalable_agents.tests.training.cluster import cluster_testing
from scalable_agents.training.cluster import cluster_config
from scalable_agents.training.cluster import learner_connection
from scalable_agents.training.cluster import learner_port
from scalable_agents.training.cluster import remote_learner

HOST = 3
LARGEST_PUSH = 4  # Unrolls that are pushed in one call at most, and that wait in a lane at most.
IN_HAND = 2 * LARGEST_PUSH  # What two pushers take at a time.


class TestCase(parameterized.TestCase):
  """Makes remote learners, which are impatient."""
  learner_is_well = True

  def setUp(self):
    super().setUp()
    self._remotes, self._threads_before = [], set(threading.enumerate())
    self.addCleanup(self.leave_nothing_behind)
    self.said, self.ended, self.due = [], threading.Event(), True
    self.set_constants(_RETRY_SECONDS=0.2, _PATIENCE_SECONDS=30., _FIRST_WORD_SECONDS=1., _LATER_WORDS_SECONDS=1.)
    self.enterContext(mock.patch.multiple(learner_connection, ANSWER_SECONDS=1., LARGEST_PUSH=LARGEST_PUSH))
    self.enterContext(mock.patch.object(learner_port, 'BEAT_SECONDS', 0.2))

  def set_constants(self, **constants):
    self.enterContext(mock.patch.multiple(remote_learner, **constants))

  def remote(self, address, host=HOST, task=0, settings=None, unroll_spec=cluster_testing.UNROLL_SPEC,
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

  def leave_nothing_behind(self):
    """Threads end as well, where there is a learner."""
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
    """Whether these unrolls, and no others, have arrived, each as it was sent, and those of each life in order."""
    self.assertCountEqual(unrolls.number.tolist(), numbers)
    np.testing.assert_array_equal(unrolls.actor_id // cluster_config.MAX_ENVIRONMENTS, host)
    for number, content in zip(unrolls.number, unrolls.content, strict=True):
      np.testing.assert_array_equal(content, cluster_testing.content(host, number))
    for life in np.unique(unrolls.life_id):
      indices = unrolls.index[unrolls.life_id == life].tolist()
      self.assertEqual(indices, sorted(indices))


def put(remote, numbers, host=HOST):
  """Puts unrolls of these numbers in a thread of its own. Returns a function that waits for its end; see waiting."""
  def put():
    for number in numbers:
      remote.put(cluster_testing.make_unroll(host, number))
  return waiting.start(put)


def noting(items, noted):
  """The items, each of which is in the list `noted` once it was asked for."""
  for item in items:
    noted.append(item)
    yield item


def wait_for_back_pressure(remote, learner):
  """Waits until nothing moves any more, as nothing is taken from the learner's queue."""
  # pylint: disable=protected-access
  waiting.wait_until(lambda: len(remote._connection.in_hand) == 2 and
                     max(lane.size() for lane in remote._lanes) == LARGEST_PUSH and
                     learner.size() == cluster_testing.CAPACITY)
