"""Tests of a replay of sequences that several processes share. One process has the replay; this one has the others."""

import contextlib
import math
import multiprocessing
import os
import signal
import subprocess
import sys
from unittest import mock

from absl.testing import absltest
import numpy as np
import tensorflow as tf

from scalable_agents.processes import parent_death
from scalable_agents.processes import ports
from scalable_agents.processes import python_path
from scalable_agents.processes import sessions
from scalable_agents.replay import replay_rows
from scalable_agents.replay import sequence_replay
from scalable_agents.replay import sharing
from scalable_agents.tests.actor import waiting
from scalable_agents.tests.cluster import cluster_testing
from scalable_agents.tests.suites import ending

_ROW = {'done': tf.TensorSpec([], tf.bool), 'frame': tf.TensorSpec([2], tf.uint8)}
_GEOMETRY = sequence_replay.Geometry(burn_in=2, length=4, period=2)
_LIMIT = sequence_replay.RateLimit(samples_per_insert=2., tolerance=4., minimum_size=3)


def _make(capacity=100, name='', priority_exponent=1., row=_ROW):
  return sequence_replay.SequenceReplay(
      row, tf.TensorSpec([3]), _GEOMETRY, capacity, done=lambda row: row['done'],
      frame_stacks={name: 1 if name == 'done' else 3 for name in row}, priority_exponent=priority_exponent,
      max_times_sampled=0 if priority_exponent else 2,
      rate_limit=sequence_replay.RateLimit() if priority_exponent else _LIMIT, shared_name=name)


def _make_first():
  return _make(name='first')


def _make_first_in_other_words():
  return _make(np.int64(100), 'first', row=dict(reversed(_ROW.items())))


def _make_lossy():
  return _make(name='lossy')


def _make_limited():
  return _make(name='limited', priority_exponent=0.)


def _serve(address, is_ready, may_end):
  """Has three replays until may_end."""
  parent_death.signal_at_parents_end(signal.SIGKILL)
  sharing.serve(address, lambda: [_make_first(), _make_limited(), _make_lossy()])
  is_ready.set()
  may_end.wait()


def _unrolls(stream_id, number):
  """Unrolls of five steps of episodes of seven steps."""
  random = np.random.RandomState(stream_id)
  num_rows = 5 * number + 1
  rows = [{'done': row % 7 == 0, 'frame': random.randint(256, size=2).astype(np.uint8)} for row in range(num_rows)]
  states = random.rand(num_rows, 1, 3).astype(np.float32)
  for index in range(number):
    of_unroll = rows[5 * index:5 * index + 6]
    batch = {name: np.stack([row[name] for row in of_unroll])[:, np.newaxis] for name in _ROW}
    yield ([stream_id], [index], [5 * index % 7], batch['done'], batch, states[5 * index:5 * index + 6])


class SharingTest(absltest.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    # As on many clusters. Nothing answers there.
    cls.enterClassContext(mock.patch.dict(os.environ, {'http_proxy': 'http://127.0.0.1:9'}))
    context = multiprocessing.get_context('spawn')
    is_ready, cls.may_end = context.Event(), context.Event()
    cls.address = f'localhost:{cls.enterClassContext(cluster_testing.free_port())}'
    cls.server = context.Process(target=_serve, args=(cls.address, is_ready, cls.may_end), daemon=True)
    cls.server.start()
    cls.addClassCleanup(cls.server.join)
    cls.addClassCleanup(cls.server.kill)  # Before the join.
    assert is_ready.wait(waiting.PATIENCE_SECONDS)

  def _connect(self, make):
    shared = sharing.RemoteReplay(self.address, make)
    self.addCleanup(shared.close)
    return shared

  def test_it_has_what_all_have_inserted(self):
    """The same calls to a replay of this process give the same results."""
    own, shared = _make(), [self._connect(make) for make in (_make_first, _make_first_in_other_words)]
    for stream_id, writer in enumerate(shared):
      for unroll in _unrolls(stream_id, 6):
        want, got = own.insert(*unroll), writer.insert(*unroll)
        tf.nest.map_structure(np.testing.assert_array_equal, got, want)
        again = writer.insert(*unroll)  # As if the first answer had been lost.
        np.testing.assert_array_equal(again.key, own.insert(*unroll).key)
        np.testing.assert_array_equal(again.key, got.key)
        priorities = np.arange(len(got.key)) + 1.
        own.update(want.key, priorities)
        writer.update(got.key, priorities)
    for reader in shared:
      self.assertEqual(reader.statistics()._replace(sampled=0), own.statistics()._replace(sampled=0))
      for batch_size in (3, 8, 3):
        tf.nest.map_structure(np.testing.assert_array_equal, reader.sample(batch_size, 5), own.sample(batch_size, 5))

  def test_one_process_waits_for_the_other(self):
    actor, learner = self._connect(_make_limited), self._connect(_make_limited)
    now = [0.]
    with (mock.patch.object(learner, '_is_available', wraps=learner._is_available) as asks,
          mock.patch.object(replay_rows, 'time') as time):
      time.monotonic.side_effect = lambda: now[0]
      time.sleep.side_effect = lambda seconds: now.append(now.pop() + seconds)
      with self.assertRaisesRegex(sequence_replay.TimedOutError, '^the replay has no sequence to sample yet$'):
        learner.sample(4, 1, timeout_seconds=0.09)
    self.assertEqual(asks.call_count, 5)  # Every 20 ms.
    sample = waiting.start(learner.sample, 4, 1, math.inf)
    writer = actor.writer(unroll_length=5)

    def write():
      for row in range(101):
        writer.append({'done': row % 7 == 0, 'frame': np.array([row, row], np.uint8)}, np.full(3, row))

    def is_held():
      try:
        actor.insert(*next(_unrolls(9, 1)))
      except sequence_replay.TimedOutError as error:
        self.assertRegex(str(error), 'inserting is ahead of sampling: .* and 4 sampled$')
        return True
      return False

    written = waiting.start(write)
    drawn = sample()
    waiting.wait_until(is_held)
    self.assertFalse(written.ended.is_set())
    seed = 0
    while not written.ended.is_set():  # Whoever is ahead waits, so this comes to an end.
      with contextlib.suppress(sequence_replay.TimedOutError):  # After the last row, nobody inserts any more.
        learner.sample(4, seed, timeout_seconds=0.1)
      seed += 1
    written()
    self.assertEqual(drawn.trains.shape, (4, 4))
    states, first = drawn.states[0], drawn.stream_row + drawn.padding
    has_state = drawn.padding == 0
    np.testing.assert_array_equal(states[has_state, 0], first[has_state])
    np.testing.assert_array_equal(drawn.rows['frame'][drawn.padding, np.arange(4), 0], first)

  def test_a_client_closes_and_ends(self):
    program = ('import sys\n'
               'from scalable_agents.replay import sharing\n'
               'from scalable_agents.tests.replay import sharing_test\n'
               'replay = sharing.RemoteReplay(sys.argv[1], sharing_test._make_first)\n'
               'replay.close()\n'
               'try:\n'
               '  replay.statistics()\n'
               'except RuntimeError:\n'
               '  print("closed")\n')
    done = subprocess.run([sys.executable, '-c', program, self.address], env=python_path.environment(),
                          capture_output=True, text=True, check=False)
    self.assertEqual((done.returncode, done.stdout), (0, 'closed\n'), done.stderr)

  def test_nothing_is_lost_when_answers_are(self):
    self.addCleanup(os.kill, self.server.pid, signal.SIGCONT)
    shared = sharing.RemoteReplay(self.address, _make_lossy, answer_seconds=5.)
    self.addCleanup(shared.close)
    own, writer = _make(), shared.writer(unroll_length=5)
    own_writer, keys, num_lost = own.writer(unroll_length=5), [], 0

    def is_answered(call, *arguments):
      try:
        keys.extend(key for inserted in call(*arguments) for key in inserted.key)
      except tf.errors.DeadlineExceededError:
        return False
      return True

    for number in range(41):
      if number in (13, 28):  # An unroll ends two rows later.
        os.kill(self.server.pid, signal.SIGSTOP)
      row = {'done': number % 7 == 0, 'frame': np.array([number, number], np.uint8)}, np.full(3, number)
      own_writer.append(*row)
      if not is_answered(writer.append, *row):
        num_lost += 1
        os.kill(self.server.pid, signal.SIGCONT)
    waiting.wait_until(lambda: is_answered(writer.flush))
    self.assertGreaterEqual(num_lost, 2)
    self.assertEqual(keys, list(range(own.statistics().inserted)))
    statistics = sharing.RemoteReplay(self.address, _make_lossy).statistics()
    self.assertEqual((statistics.inserted, statistics.gaps), (len(keys), 0))

  def test_says_what_is_wrong(self):
    other = {'done': tf.TensorSpec([], tf.bool), 'frame': tf.TensorSpec([2], tf.int8)}  # Rows have as many bytes.
    renamed = {'done': _ROW['done'], 'pixels': _ROW['frame']}
    for make, message in (
        (lambda: _make(capacity=101, name='first'), "the replay 'first' has other settings: capacity is 100 there and "
         '101 here$'),
        (lambda: _make(name='first', row=other), "the replay 'first' has other settings: .* and .*int8"),
        (lambda: _make(name='first', row=renamed), "the replay 'first' has other settings: contents is .*pixels"),
        (lambda: _make(name='third'), "there is no replay of the name 'third', but 'first', 'limited', 'lossy'$")):
      with self.assertRaisesRegex(ValueError, f'^{self.address}: {message}'):
        sharing.RemoteReplay(self.address, make)
    with self.assertRaisesRegex(ValueError, '^shared_name: want a name'):
      sharing.RemoteReplay(self.address, _make)
    with mock.patch.object(sharing, '_TASK', '/job:replay/replica:0/task:0'), self.assertRaisesRegex(
        sessions.NotReadyError, f'^{self.address}: the process there serves no replays of sequences$'):
      sharing.RemoteReplay(self.address, _make_first)
    with self.assertRaisesRegex(ports.PortError, f'^{self.address}: port .* another replay\\? .* another port$'):
      sharing.serve(self.address, _make_first)
    with cluster_testing.free_port() as port, self.assertRaises(OSError):
      sharing.RemoteReplay(f'localhost:{port}', _make_first)
    with self.assertRaisesRegex(ValueError, 'want HOST:PORT'):
      sharing.RemoteReplay('localhost', _make_first)

  def test_z_an_end_of_the_process_is_an_error(self):  # The last test: it ends the process.
    shared = sharing.RemoteReplay(self.address, _make_first, answer_seconds=5.)
    self.may_end.set()
    self.server.kill()
    self.server.join()
    with self.assertRaises(tf.errors.OpError):
      shared.sample(3, 1, timeout_seconds=math.inf)


if __name__ == '__main__':
  with ending.abrupt_end():
    absltest.main()
