"""One learner takes unrolls from many actor hosts, some of which are killed. The unrolls arrive intact and in order.

To run it for longer and with more processes:
  python -m scalable_agents.tests.cluster.many_actors_test --batches=10000 --kills=100 --processes=16 --hosts=4
"""

import collections
import random
import signal
import threading
import time

from absl import flags
from absl.testing import absltest
import numpy as np

from scalable_agents.cluster import cluster_config
from scalable_agents.cluster import learner_port
from scalable_agents.cluster import remote_learner
from scalable_agents.experience import unroll_order
from scalable_agents.processes import parent_death
from scalable_agents.tests.actor import waiting
from scalable_agents.tests.cluster import cluster_testing

_BATCHES = flags.DEFINE_integer('batches', 150, 'Number of batches that are taken before the first process is killed.')
_KILLS = flags.DEFINE_integer('kills', 3, 'Number of processes that are killed.')
_PROCESSES = flags.DEFINE_integer('processes', 3, 'Number of processes with actor hosts at a time.')
_HOSTS = flags.DEFINE_integer('hosts', 2, 'Number of actor hosts in each process.')
_MOST_BETWEEN_KILLS = 20  # Batches.
_BATCH_SIZE = 8
_PATIENCE_SECONDS = 120.
_FLAT_MEGABYTES = 15.  # The unrolls of the second half of the batches have 24 MB.


def _act(port, hosts):
  """Runs a process with actor hosts of these numbers."""
  parent_death.signal_at_parents_end(signal.SIGKILL)
  for host in hosts:
    report = learner_port.Report(host, f'task_{host}', 0., 0., 0, 0, 0)
    remote = remote_learner.RemoteLearner(
        f'localhost:{port}', 0, cluster_testing.SETTINGS, cluster_testing.UNROLL_SPEC, cluster_testing.PARAMETER_SPECS,
        cluster_testing.CAPACITY, cluster_testing.are_due,
        lambda totals, report=report: report._replace(lost_unrolls=totals.lost_unrolls), print, lambda: None)
    remote.start()
    for actor in range(cluster_testing.NUM_ACTORS):  # Actors put unrolls at the same time.
      threading.Thread(target=_put, args=[remote, host, actor], daemon=True).start()
  threading.Event().wait()


def _put(remote, host, actor):
  for number in range(actor, 1 << 62, cluster_testing.NUM_ACTORS):
    remote.put(cluster_testing.make_unroll(host, number))


class ManyActorsTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    port = self.enterContext(cluster_testing.free_port())
    self.learner = self.enterContext(cluster_testing.Learner(port))
    self.order = unroll_order.UnrollOrder()
    self.numbers = collections.defaultdict(set)  # Host -> numbers of its unrolls that have arrived.
    self._port, self._last_host = port, 0
    self.processes = {}  # Numbers of hosts -> process.
    self.addCleanup(self._end)
    for _ in range(_PROCESSES.value):
      self._start()

  def _end(self):
    for process in self.processes.values():
      process.kill()
    for process in self.processes.values():
      process.join()

  def _start(self):
    """Starts a process with new actor hosts."""
    hosts = tuple(range(self._last_host + 1, self._last_host + 1 + _HOSTS.value))
    self._last_host = hosts[-1]
    self.processes[hosts] = cluster_testing.processes().Process(target=_act, args=[self._port, hosts], daemon=True)
    self.processes[hosts].start()

  def _take(self):
    """Takes a batch and checks its unrolls."""
    unrolls = self.learner.take(_BATCH_SIZE)
    self.order.admit(unrolls.stream_id, unrolls.index)
    for actor_id, number, content in zip(unrolls.actor_id, unrolls.number, unrolls.content, strict=True):
      host = actor_id // cluster_config.MAX_ENVIRONMENTS
      np.testing.assert_array_equal(content, cluster_testing.content(host, number))
      self.assertNotIn(number, self.numbers[host])
      self.numbers[host].add(number)

  def _take_until_all_are_heard(self):
    began, hosts = time.monotonic(), set(sum(self.processes, ()))
    while not hosts <= self.numbers.keys():
      self.assertLess(time.monotonic() - began, _PATIENCE_SECONDS)
      self._take()

  def _lost(self):
    """Returns the number of unrolls in flight when connections broke, from the actor hosts' reports."""
    return sum(count for name, count in self.learner.metrics().items() if name.endswith('/lost_unrolls'))

  def test_what_arrives_is_whole_and_the_learners_memory_is_flat(self):
    self._take_until_all_are_heard()
    memory = []
    for _ in range(_BATCHES.value):
      self._take()
      memory.append(self.learner.megabytes())
    counts = {host: len(numbers) for host, numbers in self.numbers.items()}
    print(f'{len(counts)} actor hosts in {len(self.processes)} processes, {sum(counts.values()):,} unrolls, from '
          f'{min(counts.values()):,} to {max(counts.values()):,} of each; learner {memory[0]:.0f} to '
          f'{memory[-1]:.0f} MB')
    # On a slow machine connections may break.
    waiting.wait_until(lambda: self.order.metrics()['unrolls_missing'] <= self._lost())
    half = len(memory) // 2
    self.assertLess(max(memory[half:]) - max(memory[:half]), _FLAT_MEGABYTES)
    self._take_while_processes_are_killed()

  def _take_while_processes_are_killed(self):
    draw = random.Random(1)
    for _ in range(_KILLS.value):
      for _ in range(draw.randint(1, _MOST_BETWEEN_KILLS)):
        self._take()
      process = self.processes.pop(draw.choice(sorted(self.processes)))
      process.kill()
      process.join()
      self._start()
    self._take_until_all_are_heard()
    print(f'{_KILLS.value} processes with {_HOSTS.value} actor hosts each were killed, '
          f'{sum(map(len, self.numbers.values())):,} unrolls arrived, all whole; learner '
          f'{self.learner.megabytes():.0f} MB')


if __name__ == '__main__':
  absltest.main()
