"""A shared replay whose job is killed, frozen or cut off. Every row that an agent reads must be right, by content."""

import os
import shutil
import signal
import threading
from unittest import mock

from absl.testing import absltest
import numpy as np
import tensorflow as tf

from scalable_agents.experience import shared_replay
from scalable_agents.processes import ports
from scalable_agents.records import run_directory
from scalable_agents.tests.actor import waiting
from scalable_agents.tests.cluster import cluster_testing
from scalable_agents.tests.experience import replay_testing
from scalable_agents.tests.suites import ending


class FaultsTest(replay_testing.TestCase):

  def setUp(self):
    super().setUp()
    self.port = self.enterContext(cluster_testing.free_port())
    self.folder = self.enterContext(replay_testing.folder())
    self.streams = {stream_id: replay_testing.Stream(stream_id, 4 + stream_id) for stream_id in range(1, 5)}

  def _job(self, *flags):
    return replay_testing.job(self.port, self.folder, *flags)

  def _check(self, replayed):
    for i in range(len(replayed.key)):
      replay_testing.check(replayed, i, self.streams)

  def _keep_busy(self, agent, stream, over):
    """Makes an agent insert and read in another thread, until the event. Returns what waiting.start does.

    Then the agent leaves. Otherwise an agent that is ahead of it would wait for it.
    """
    def run():
      while not over.is_set():
        agent.insert(stream, agent.inserted)
        if agent.replay.statistics().episodes or agent.replay.size():
          self._check(agent.next(agent.inserted))
      agent.replay.close()
    return waiting.start(run)

  def test_agents_wait_for_a_killed_job_and_go_on_with_what_it_has_saved(self):
    # Agents stay together, so that none of them runs out of rows.
    agents, over = [self.agent(self.port, tolerance=replay_testing.LENGTH) for _ in range(2)], threading.Event()
    self.addCleanup(over.set)
    contents, kept = run_directory.path(self.folder, 'replay'), f'{self.folder}_kept'
    with self._job('--checkpoint_interval_seconds=0.1') as job:
      ends = [self._keep_busy(agent, self.streams[number], over) for number, agent in enumerate(agents, 1)]
      waiting.wait_until(lambda: os.path.exists(contents) and min(agent.inserted for agent in agents) > 20)
      for agent in agents:
        agent.replay.warnings()  # Of the time before the job was there.
      job.kill()
    for agent in agents:
      self.wait_until_said(agent, f'no replay at localhost:{self.port} for .* s: .+')
      self.assertEqual(agent.replay.waits_for, 'replay')
    shutil.copy(contents, kept)
    own, inserted = replay_testing.restored(kept), [agent.inserted for agent in agents]
    with self._job() as job:
      for agent, before in zip(agents, inserted):
        self.wait_until_said(agent, f'the replay at localhost:{self.port} answers again')
        waiting.wait_until(lambda: agent.inserted > before + 20)
      over.set()
      for end in ends:
        end()
      self.assertIn(f'{int(own.size()):,} agent steps restored from {self.folder}', job.screen())
      self.assertEqual(job.end(signal.SIGINT)[0], 0, job.screen())

  def test_a_position_does_not_go_on_in_an_episode_that_got_the_key_of_a_lost_one(self):
    agent, other, stale = (self.agent(self.port, num_replayers=32) for _ in range(3))
    with self._job() as job:
      for index in range(5):
        agent.insert(self.streams[1], index)
      self.assertEqual(job.end(signal.SIGINT)[0], 0, job.screen())
    with self._job() as job:
      saved = agent.replay.size()
      first_lost_key = agent.replay.statistics().inserted_episodes
      for index in range(20):
        agent.insert(self.streams[2], index)
      self._check(agent.next(seed=1))
      position = agent.key, agent.step
      going_on = (agent.key >= first_lost_key) & (agent.step < self.streams[2].steps)
      self.assertGreater(going_on.sum(), 5)
      job.kill()
    with self._job():
      self.assertEqual(other.replay.size(), saved)
      for index in range(25):
        other.insert(self.streams[3], index)
      replayed = agent.next(seed=2)
      self._check(replayed)
      self.assertTrue(replayed.is_new.all())
      # Otherwise all replayers would be at the same step for ever where all episodes have the same length.
      self.assertGreater(len({row % self.streams[stream_id].steps
                              for stream_id, row in zip(replayed.stream_id, replayed.stream_row)}), 3)
      self.assertContainsSubset({1, 3}, set(replayed.stream_id))
      replayed = agent.next(seed=3)
      self._check(replayed)
      self.assertFalse(replayed.is_new.any())  # The new positions go on.
      # If they were not reset, episodes of stream 2 would go on in those of stream 3, which have their keys.
      stale.replay.size()
      stale.key, stale.step = position
      stale.replay._position_incarnation = stale.replay._connection.incarnation
      mixed = stale.next(seed=2)
      np.testing.assert_array_equal(mixed.stream_id[going_on], 3)
      np.testing.assert_array_equal(mixed.stream_row[going_on] % self.streams[3].steps, position[1][going_on])

  def test_a_replay_that_was_lost_as_a_whole_gives_nothing_until_there_are_episodes(self):
    agent = self.agent(self.port)
    with self._job() as job:
      for index in range(5):
        agent.insert(self.streams[1], index)
      self._check(agent.next(seed=1))
      job.kill()  # It has saved nothing.
    self.assertEqual(os.listdir(self.folder).count('replay'), 0)
    with self._job():
      replayed = agent.next(seed=2)  # If all agents waited here, nobody would insert.
      np.testing.assert_array_equal(replayed.key, -1)
      for values in replayed.rows:
        self.assertFalse(np.any(values))
      self.assertEqual(agent.replay.size(), 0)
      for index in range(5, 10):
        agent.insert(self.streams[1], index)
      replayed = agent.next(seed=3)
      self._check(replayed)
      np.testing.assert_array_less(-1, replayed.key)

  def _compare_with_own(self, disturb, port=None):
    """Inserts and reads while `disturb(index)` is called. All must be as in a replay of this process."""
    agent, own = self.agent(port or self.port), replay_testing.own_replay()
    for index in range(20):
      disturb(index, agent)
      for stream in (self.streams[1], self.streams[2]):
        agent.insert(stream, index)
        own.insert([stream.id], [index], stream.unroll(index))
      if own.size():
        position = agent.key, agent.step
        replayed = agent.next(index)
        self._check(replayed)
        tf.nest.map_structure(np.testing.assert_array_equal, replayed, own.next(*position, index))
    agent.replay.size()
    self.assertEqual(agent.replay.statistics()[:3], own.statistics()[:3])
    return agent

  def test_broken_connections_lose_and_repeat_nothing(self):
    with self._job(), cluster_testing.Proxy(self.port) as proxy:
      def disturb(index, agent):
        if index in (7, 14):
          proxy.cut()
        elif index in (9, 16):
          agent.replay._connection.session.close()  # As another thread does.

      self._compare_with_own(disturb, proxy.port)

  def test_a_job_that_was_frozen_goes_on_and_repeats_nothing(self):
    self.enterContext(mock.patch.object(shared_replay, '_ANSWER_SECONDS', 0.5))
    thawed = threading.Event()
    with self._job() as job:
      def disturb(index, agent):
        if index == 12:
          job.process.send_signal(signal.SIGSTOP)

          def thaw():
            self.wait_until_said(agent, f'no replay at localhost:{self.port} for .* s: it does not answer')
            job.process.send_signal(signal.SIGCONT)
            thawed.set()

          waiting.start(thaw)

      agent = self._compare_with_own(disturb)
      self.assertTrue(thawed.wait(waiting.PATIENCE_SECONDS))
      self.wait_until_said(agent, f'the replay at localhost:{self.port} answers again')

  def test_regression_calls_with_many_bytes_may_take_longer(self):
    """A batch of LASER has hundreds of megabytes. A replay that needed more than 10 s for it counted as lost."""
    self.enterContext(mock.patch.multiple(shared_replay, _ANSWER_SECONDS=2., _BYTES_PER_SECOND=1.))
    self.enterContext(mock.patch.object(ports, 'BEAT_SECONDS', 1e6))
    agent, stream = self.agent(self.port), self.streams[1]
    with self._job() as job:
      for index in range(5):
        agent.insert(stream, index)
      agent.replay.warnings()  # Of the time before the job was there.
      connection = agent.replay._connection
      job.process.send_signal(signal.SIGSTOP)
      ends = [waiting.start(agent.next, 1), waiting.start(agent.insert, stream, 5)]
      for _ in range(2):  # The first one may begin before the other threads' calls, and end before they would.
        with self.assertRaises(tf.errors.DeadlineExceededError):  # It has no rows.
          connection.session.run(agent.replay._nodes.greeting)
      job.process.send_signal(signal.SIGCONT)
      self._check(ends[0]())
      ends[1]()
      self.assertIs(agent.replay._connection, connection)
      self.assertEqual(agent.replay.warnings(), [])


if __name__ == '__main__':
  with ending.abrupt_end():
    absltest.main()
