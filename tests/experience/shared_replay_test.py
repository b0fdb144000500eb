"""An agent's side of a shared replay: contents by value, equal speed, and agreement on what the replay holds."""

import itertools
import re
from unittest import mock

from absl.testing import absltest
import numpy as np
import tensorflow as tf

from scalable_agents.experience import shared_replay
from scalable_agents.processes import ports
from scalable_agents.records import errors
from scalable_agents.tests.actor import waiting
from scalable_agents.tests.cluster import cluster_testing
from scalable_agents.tests.experience import replay_testing
from scalable_agents.tests.suites import ending

_INSERT = replay_testing.LENGTH  # Agent steps of an insert.
_stream_ids = itertools.count(1)


def _stream(episode_steps=6):
  return replay_testing.Stream(next(_stream_ids), episode_steps)


class JobTest(replay_testing.TestCase):
  """Tests that share a replay job."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.port = cls.enterClassContext(cluster_testing.free_port())
    cls.job = cls.enterClassContext(
        replay_testing.job(cls.port, cls.enterClassContext(replay_testing.folder())))
    first = replay_testing.Agent(f'localhost:{cls.port}')
    first.replay.size()  # Waits for the job, so that no test's agent complains that there is none.
    first.replay.close()


class ContentsTest(JobTest):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.own, cls.streams = replay_testing.own_replay(), {}  # What the job must have, too.

  def _insert(self, agent, stream, index):
    """Inserts an unroll into the shared replay, and into that of this process."""
    self.streams[stream.id] = stream
    agent.insert(stream, index)
    self.own.insert([stream.id], [index], stream.unroll(index))

  def test_both_agents_read_what_both_have_inserted(self):
    agents, streams = [self.agent(self.port) for _ in range(2)], [_stream(5), _stream(7)]
    self.assertEqual(agents[0].replay.size(), self.own.size())
    for index in range(20):
      for agent, stream in zip(agents, streams):
        self._insert(agent, stream, index)
    for agent in agents:
      self.assertEqual(agent.replay.size(), self.own.size())
      seen = set()
      for seed in range(30):
        position = agent.key, agent.step
        replayed = agent.next(seed)
        for i in range(len(replayed.key)):
          replay_testing.check(replayed, i, self.streams)
        seen |= set(replayed.stream_id)
        tf.nest.map_structure(np.testing.assert_array_equal, replayed, self.own.next(*position, seed))
      self.assertContainsSubset([stream.id for stream in streams], seen)
      self.assertEqual(agent.replay.statistics()[:3], self.own.statistics()[:3])
      self.assertEqual(agent.replay.warnings(), [])

  def test_works_in_a_graph(self):
    agent, stream = self.agent(self.port), _stream()
    for index in range(3):
      self._insert(agent, stream, index)

    @tf.function(autograph=False)
    def take(index, rows, key, step, seed):
      replayed = agent.replay.next(key, step, seed)
      agent.replay.insert([stream.id], [index], rows)  # Nothing uses its result, and it runs all the same.
      self.assertEqual([values.shape.as_list() for values in tf.nest.flatten(replayed)],
                       [[5, 3, 2, 1], [5, 3], [5, 3, 2], [3, 3, 2, 1], *[[3]] * 5])
      return replayed

    size = agent.replay.size()
    rows = stream.unroll(3)
    position = np.array([-1, -1, -1]), np.array([0, 0, 0])
    replayed = take(np.int64(3), rows, *position, np.int64(5))
    want = self.own.next(*position, 5)
    tf.nest.map_structure(np.testing.assert_array_equal, replayed, want)
    self.own.insert([stream.id], [3], rows)
    self.assertEqual(agent.replay.size(), self.own.size())
    self.assertGreaterEqual(self.own.size(), size)

  def test_an_error_of_the_replay_itself_is_not_called_a_lost_replay(self):
    agent, stream = self.agent(self.port), _stream()
    for index in range(3):
      self._insert(agent, stream, index)
    agent.next(0)
    agent.step = np.full_like(agent.step, -1)
    end = waiting.start(agent.next, 0)
    self.wait_until_said(
        agent, rf'the replay at localhost:{self.port} has failed for \d+ s: step: want at least 0, got -1')
    agent.replay.close()
    with self.assertRaises(tf.errors.OutOfRangeError):
      end()

  def test_an_unroll_that_is_sent_twice_is_stored_once(self):
    agent, stream = self.agent(self.port), _stream()
    for index in (0, 1, 2, 1, 2, 3):
      self._insert(agent, stream, index)
    self.assertEqual(agent.replay.size(), self.own.size())
    self.assertEqual(agent.replay.statistics().repeated_unrolls, self.own.statistics().repeated_unrolls)
    self.assertGreaterEqual(agent.replay.statistics().repeated_unrolls, 2)


  def test_unrolls_that_cannot_be_right_are_not_stored(self):
    agent, stream, wrong = self.agent(self.port), _stream(), _stream()
    wrong._rows.record[2 * _INSERT + 1] = -1  # A row of unroll 2.
    both = (stream, wrong)
    for index in range(6):
      rows = tf.nest.map_structure(lambda *parts: np.concatenate(parts, axis=1), *(each.unroll(index) for each in both))
      ids = np.array([each.id for each in both])
      agent.replay.insert(tf.constant(ids), tf.constant([index, index], tf.int64),
                          tf.nest.map_structure(tf.constant, rows))
      kept = slice(1) if index == 2 else slice(2)
      self.own.insert(ids[kept], [index] * len(ids[kept]),
                      tf.nest.map_structure(lambda part, kept=kept: part[:, kept], rows))
    self.assertEqual(agent.replay.size(), self.own.size())
    self.assertEqual(agent.replay.statistics()[:3], self.own.statistics()[:3])
    self.assertEqual(agent.replay.warnings(), [
        'unrolls that the shared replay did not store: 1: level, actor, index, action or parameter version out of '
        'range, or an observation or output not finite'])
    self.assertEqual(agent.replay.warnings(), [])


class SpeedTest(JobTest):

  def _wait_until_ahead(self, agent, inserted, lead):
    """Waits until an agent waits for slower ones, inside an insert after so many that have returned."""
    waiting.wait_until(lambda: (agent.replay.lead, agent.replay.waits_for, agent.inserted) == (
        lead, 'other agents', inserted))

  def test_whoever_is_ahead_of_a_slow_agent_waits(self):
    slow, fast, late = (self.agent(self.port, tolerance=2 * _INSERT) for _ in range(3))
    streams = {agent: _stream() for agent in (slow, fast, late)}
    insert = lambda agent: agent.insert(streams[agent], agent.inserted)
    for agent in (slow, fast):
      agent.replay.size()  # It joins.
    insert(slow)
    insert(fast)
    end = replay_testing.keep_inserting(fast, streams[fast], range(1, 50))
    # The fast one is ahead by the tolerance and one insert.
    self._wait_until_ahead(fast, 3, 3 * _INSERT)
    for number in range(1, 10):
      insert(slow)
      self._wait_until_ahead(fast, 3 + number, 3 * _INSERT)
      self.assertEqual(slow.replay.waits_for, '')
    insert(late)  # It starts where the slow one is.
    insert(slow)
    insert(slow)
    self._wait_until_ahead(fast, 13, 3 * _INSERT)  # The late one is the slowest now, by one insert.
    self.assertFalse(end.ended.is_set())
    # Nobody waits for those that have left.
    slow.replay.close()
    late.replay.close()
    end()
    self.assertEqual(fast.inserted, 50)
    self.assertEqual(fast.replay.waits_for, '')

  def test_a_wait_for_slower_ones_ends_when_it_is_closed(self):
    slow, fast = (self.agent(self.port, tolerance=_INSERT) for _ in range(2))
    for agent in (slow, fast):
      agent.replay.size()  # It joins.
    slow.insert(_stream(), 0)
    end = replay_testing.keep_inserting(fast, _stream(), range(10))
    self._wait_until_ahead(fast, 2, 2 * _INSERT)
    fast.replay.close()
    with self.assertRaises(tf.errors.OutOfRangeError):
      end()
    with self.assertRaises(tf.errors.CancelledError):
      fast.replay.size()

  def test_other_settings_are_refused(self):
    self.agent(self.port).replay.size()
    address = f'localhost:{self.port}'
    for kwargs, difference in (
        (dict(capacity=800), 'replay_capacity is 400 there and 800 here'),
        (dict(settings={'levels': ['chain'], 'num_actions': 3}), r'levels is \["catch"\] there and \["chain"\] here'),
        (dict(settings={'levels': ['catch'], 'num_actions': 4}), 'num_actions is 3 there and 4 here'),
        (dict(settings={'levels': ['catch']}), 'num_actions is 3 there and "absent" here'),
        (dict(settings=replay_testing.SETTINGS | {'noop_max': 0}), 'noop_max is "absent" there and 0 here')):
      other = self.agent(self.port, **kwargs)
      with self.assertRaisesRegex(
          errors.UserError, f'^--shared_replay={address}: the replay is for agents with other settings: {difference}: '
          'give all agents the same, or start another replay$'):
        other.replay.size()
    with mock.patch.object(replay_testing, 'STACKS', replay_testing.Row(2, 1, 1)):
      other = self.agent(self.port)
    with self.assertRaisesRegex(errors.UserError, r': stacks is \[4, 1, 1\] there and \[2, 1, 1\] here: '):
      other.replay.size()

  def test_an_agent_that_does_nothing_reports_all_the_same(self):
    """Otherwise the replay would forget it, and the others would not wait for it."""
    self.enterContext(mock.patch.object(ports, 'BEAT_SECONDS', 0.05))
    reports = self.enterContext(mock.patch.object(
        shared_replay.SharedReplay, '_report', autospec=True, side_effect=shared_replay.SharedReplay._report))
    self.agent(self.port).replay.size()  # Connects.
    before = reports.call_count
    waiting.wait_until(lambda: reports.call_count > before + 2)


class WithoutReplayTest(replay_testing.TestCase):
  """There is no replay job, or not yet."""

  def setUp(self):
    super().setUp()
    self.port = self.enterContext(cluster_testing.free_port())

  def test_waits_end_when_it_is_closed(self):
    agent = self.agent(self.port)
    calls = {agent.replay.size: tf.errors.CancelledError,
             lambda: agent.insert(_stream(), 0): tf.errors.OutOfRangeError,
             lambda: agent.next(0): tf.errors.OutOfRangeError}
    ends = {waiting.start(call): error for call, error in calls.items()}
    self.wait_until_said(agent, rf'no replay at localhost:{self.port} for \d+ s: Connection refused')
    self.assertEqual(agent.replay.waits_for, 'replay')
    self.assertFalse(any(end.ended.is_set() for end in ends))
    agent.replay.close()
    for end, error in ends.items():
      with self.assertRaises(error):
        end()

  def test_the_first_agent_decides_what_the_replay_holds(self):
    agents = [self.agent(self.port, capacity=capacity) for capacity in (100, 200)]
    ends = [waiting.start(agent.replay.size) for agent in agents]
    for agent in agents:
      self.wait_until_said(agent, 'no replay at .* Connection refused')
    with replay_testing.folder() as folder, replay_testing.job(self.port, folder):
      outcomes = []
      for end in ends:
        try:
          outcomes.append(end())
        except errors.UserError as error:
          outcomes.append(re.search('replay_capacity is .* here', str(error))[0])
      self.assertIn(outcomes, ([0, 'replay_capacity is 100 there and 200 here'],
                               ['replay_capacity is 200 there and 100 here', 0]))
      self.wait_until_said(agents[outcomes.index(0)], f'the replay at localhost:{self.port} answers again')

  def test_a_silent_agent_is_forgotten_and_joins_again(self):
    self.enterContext(mock.patch.object(ports, 'BEAT_SECONDS', 1e6))
    silent, other = (self.agent(self.port, tolerance=0) for _ in range(2))
    streams = _stream(), _stream()
    with replay_testing.folder() as folder, replay_testing.job_that_forgets(self.port, folder):
      silent.insert(streams[0], 0)
      other.insert(streams[1], 0)
      for index in range(1, 6):  # Each insert waits until the silent one is forgotten.
        other.insert(streams[1], index)
      silent.insert(streams[0], 1)
      self.assertEqual(silent.replay.lead, 0)
      end = replay_testing.keep_inserting(other, streams[1], [6])
      waiting.wait_until(lambda: other.replay.lead == _INSERT or end.ended.is_set())
      silent.insert(streams[0], 2)
      end()


if __name__ == '__main__':
  with ending.abrupt_end():
    absltest.main()
