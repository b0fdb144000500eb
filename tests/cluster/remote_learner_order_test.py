"""Unrolls reach a learner in the order of each stream, and every lost unroll is counted, in spite of faults.

The tests cut connections during pushes and kill learners. All unrolls that a learner takes go through UnrollOrder.
"""

import collections
import itertools
import random
import threading

from absl.testing import absltest
import numpy as np

from scalable_agents.cluster import cluster_config
from scalable_agents.experience import unroll_order
from scalable_agents.tests.actor import waiting
from scalable_agents.tests.cluster import cluster_testing
from scalable_agents.tests.cluster import remote_learner_testing
from scalable_agents.tests.suites import ending

_HOSTS = (remote_learner_testing.HOST, 500_000)
_CUTS, _KILLS = 10, 2
_MOST_BETWEEN_FAULTS = 40  # Unrolls.


def _left(remote):
  """Returns the number of unrolls that a host does not send again."""
  totals = remote.totals()
  return totals.unrolls + totals.lost_unrolls


class OrderTest(remote_learner_testing.TestCase):
  """Two actor hosts with eight actors each send unrolls all the time."""
  learner_is_well = False

  def setUp(self):
    super().setUp()
    self.port = self.enterContext(cluster_testing.free_port())
    self.proxy = self.enterContext(cluster_testing.Proxy(self.port))
    self.draw = random.Random(1)
    self.order = unroll_order.UnrollOrder()
    self.admitted = collections.defaultdict(list)  # Stream -> indices of its admitted unrolls.
    self.late = []        # (stream, index) of the unrolls that were not admitted.
    self.taken = 0        # Unrolls that were taken from learners.
    self.sent = {}        # Host -> the numbers of the unrolls that were put.
    self.enough = threading.Event()

  def _start_hosts(self):
    """Starts hosts that send until `enough` is set. Returns their remote learners by host."""
    remotes = {host: self.connected(self.proxy.port, host) for host in _HOSTS}
    self.ends = []
    for host, remote in remotes.items():
      numbers = itertools.takewhile(lambda number: not self.enough.is_set(), itertools.count())
      self.sent[host] = []
      noted = remote_learner_testing.noting(numbers, self.sent[host])
      self.ends.append(remote_learner_testing.put(remote, noted, host))
    return remotes

  def _take(self, learner, count):
    """Takes unrolls and records which of them were admitted."""
    unrolls = learner.take(count)
    self.taken += count
    admitted = self.order.admit(unrolls.stream_id, unrolls.index)
    for unroll, is_admitted in zip(zip(*unrolls, strict=True), admitted, strict=True):
      actor_id, stream, index, number, content = unroll
      host = actor_id // cluster_config.MAX_ENVIRONMENTS
      np.testing.assert_array_equal(content, cluster_testing.content(host, number))
      if not is_admitted:
        self.late.append((stream, index))
        continue
      self.assertGreater(index, max(self.admitted[stream], default=-1))
      self.admitted[stream].append(index)

  def _take_the_rest(self, learner, remotes):
    """Takes unrolls until one of each stream is admitted, then ends the hosts and takes all remaining unrolls."""
    streams = {int(cluster_testing.make_unroll(host, number).stream_id)
               for host in _HOSTS for number in range(cluster_testing.NUM_ACTORS)}
    waiting.wait_until(lambda: self._take_what_is_there(learner) or streams <= self.admitted.keys())
    self.enough.set()
    waiting.wait_until(lambda: self._take_what_is_there(learner) or all(end.ended.is_set() for end in self.ends))
    for end in self.ends:
      end()

    waiting.wait_until(lambda: self._take_what_is_there(learner) or
                       all(_left(remotes[host]) == len(self.sent[host]) for host in remotes))
    self._take_what_is_there(learner)

  def _take_what_is_there(self, learner):
    if size := learner.size():
      self._take(learner, size)

  def _check_account(self):
    """Checks that each unroll of a stream, up to the last one, is admitted or missing. Returns the missing ones."""
    missing = [(stream, index) for stream, admitted in self.admitted.items()
               for index in sorted(set(range(admitted[-1])) - set(admitted))]
    self.assertEqual(self.order.metrics(), {'unrolls_missing': len(missing), 'unrolls_late': len(self.late)})
    self.assertEqual(bool(self.order.warning()), bool(missing or self.late))
    return missing

  def test_connections_cut_amid_pushes(self):
    learner = self.enterContext(cluster_testing.Learner(self.port))
    remotes = self._start_hosts()
    for cut in range(_CUTS):
      self._take(learner, self.draw.randint(1, _MOST_BETWEEN_FAULTS))
      for remote in remotes.values() if cut % 2 else ():  # The other cuts come at any moment.
        remote_learner_testing.wait_for_back_pressure(remote, learner)
      self.proxy.cut()
    self._take_the_rest(learner, remotes)
    missing = self._check_account()
    lost = sum(remote.totals().lost_unrolls for remote in remotes.values())
    print(f'{sum(map(len, self.sent.values()))} unrolls sent, {lost} in flight at {_CUTS} cuts: '
          f'{len(missing)} missing, {len(self.late)} late')
    self.assertNotEmpty(missing)
    self.assertLessEqual(len(missing), lost)
    self.assertContainsSubset(self.late, missing)  # None arrives twice.

  def test_connections_that_die_without_a_word(self):
    learner = self.enterContext(cluster_testing.Learner(self.port))
    remotes = self._start_hosts()
    for remote in remotes.values():
      remote_learner_testing.wait_for_back_pressure(remote, learner)
    self.set_constants(_PATIENCE_SECONDS=4.)
    self.proxy.freeze()  # Unrolls in flight wait in the learner, and may arrive after later ones.
    for remote in remotes.values():
      waiting.wait_until(lambda: remote.totals().reconnects >= 1)
    self.set_constants(_PATIENCE_SECONDS=30.)
    self._take(learner, _MOST_BETWEEN_FAULTS)
    self._take_the_rest(learner, remotes)
    missing = self._check_account()
    self.assertLessEqual(len(missing), sum(remote.totals().lost_unrolls for remote in remotes.values()))
    self.assertContainsSubset(self.late, missing)  # None arrives twice.

  def test_learners_killed_amid_pushes(self):
    learner = self.enterContext(cluster_testing.Learner(self.port))
    remotes = self._start_hosts()
    for kill in range(1, _KILLS + 1):
      self._take(learner, self.draw.randint(1, _MOST_BETWEEN_FAULTS))
      for remote in remotes.values():
        remote_learner_testing.wait_for_back_pressure(remote, learner)
      # The queue holds an unroll whose push is over. Its host sends it again unless the answer has arrived.
      waiting.wait_until(lambda: sum(map(_left, remotes.values())) > self.taken)
      learner.kill()
      learner = self.enterContext(cluster_testing.Learner(self.port))
      for remote in remotes.values():
        waiting.wait_until(lambda: remote.totals().reconnects >= kill)
    self._take_the_rest(learner, remotes)
    missing = self._check_account()
    # On a busy machine a connection to the same learner may break, too.
    lost = sum(remote.totals().lost_unrolls for remote in remotes.values())
    print(f'{len(missing)} missing, {len(self.late)} late, {lost} lost with connections')
    # The unrolls in a killed learner's queue are lost. The unrolls in flight are sent again, before later ones.
    self.assertBetween(len(missing), 1, _KILLS * cluster_testing.CAPACITY + lost)
    # Unrolls that are sent again may arrive twice, but they arrive before later ones.
    self.assertLessEqual(len([index for stream, index in self.late if index not in self.admitted[stream]]), lost)


if __name__ == '__main__':
  with ending.abrupt_end():
    absltest.main()
