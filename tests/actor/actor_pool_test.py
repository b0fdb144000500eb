"""Tests of the actor pool through real worker processes: what its unrolls hold, and how it bears faults."""

import contextlib
import gc
import os
import threading
import time
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import psutil
import tensorflow as tf

from scalable_agents.actor import actor_pool
from scalable_agents.actor import environment_workers
from scalable_agents.ops import ops
from scalable_agents.tests.actor import pool_testing
from scalable_agents.tests.actor import waiting


class ActorPoolTest(parameterized.TestCase):

  def test_thousands_of_unrolls_of_many_environments(self):
    with pool_testing.PlayedPool([{}] * 16, num_workers=3, unroll_length=5, completed_capacity=4) as played:
      played.start()
      checker = pool_testing.Checker(played)
      for _ in range(60):
        checker.check(played.take(50))
      while len(checker.unrolls) < 16 or min(checker.unrolls.values()) <= 50:  # Of a worker that had no processor.
        checker.check(played.take(50))
    self.assertCountEqual(checker.unrolls, range(16))
    self.assertGreater(min(checker.unrolls.values()), 50)
    self.assertEqual(checker.streams, {actor: [actor] for actor in range(16)})
    self.assertGreater(checker.episodes, 2000)
    self.assertGreater(checker.lost_lives, 1000)
    self.assertEqual(played.pool.restarts, 0)
    self.assertEmpty(played.reports)

  @parameterized.parameters((1, 1, 1, 1), (5, 2, 1, 3), (3, 3, 2, 1))
  def test_other_sizes(self, environments, workers, loops, unroll_length):
    with pool_testing.PlayedPool([{}] * environments, workers, unroll_length) as played:
      played.start(inference_loops=loops)
      checker = pool_testing.Checker(played)
      for _ in range(20):
        checker.check(played.take(5))
      while len(checker.unrolls) < environments:
        checker.check(played.take(5))
    self.assertCountEqual(checker.unrolls, range(environments))

  def test_first_unroll(self):
    with pool_testing.PlayedPool([{}], num_workers=1, unroll_length=2) as played:
      self.assertEqual(played.pool.unroll_spec.environment_output.observation['pixels'],
                       tf.TensorSpec([3, 3, 1], tf.uint8))
      self.assertEqual(played.pool.unroll_spec.earlier_frames, {'pixels': tf.TensorSpec([1, 3, 1], tf.uint8)})
      played.start()
      unrolls = played.take(1)
      pool_testing.Checker(played).check(unrolls)
    first = tf.nest.map_structure(lambda x: x[0], unrolls)
    output = first.environment_output
    values = [values[0].tolist() for values in (
        output.reward, output.discount, output.done, output.episode_return, output.episode_length,
        first.agent_output.action, first.agent_output.given, first.parameter_version)]
    self.assertEqual(values, [0., 0., True, 0., 0, 0, [0.] * 5, 0])
    self.assertEqual(first.agent_state.count, 0)
    types = tf.nest.map_structure(lambda x: x.dtype, unrolls)
    self.assertEqual(types, tf.nest.map_structure(lambda spec: spec.dtype.as_numpy_dtype, played.pool.unroll_spec))

  def test_actors_of_a_pool_with_a_barrier_wait_for_release(self):
    with pool_testing.PlayedPool([{}] * 4, 2, unroll_length=3, barrier='step') as played:
      played.start()
      checker = pool_testing.Checker(played)
      for _ in range(20):
        unrolls = played.take(4)
        self.assertEqual(unrolls.actor_id.tolist(), [0, 1, 2, 3])
        checker.check(unrolls)
        steps = played.pool.statistics().steps
        next_unrolls = waiting.start(played.take, 4)
        self.assertFalse(next_unrolls.ended.wait(0.01))
        self.assertEqual(played.pool.statistics().steps, steps)
        played.pool.release()
        checker.check(next_unrolls())
        played.pool.release()
      with self.assertRaisesRegex(tf.errors.InvalidArgumentError, 'cannot be stopped'):
        played.pool.retire(0)

  def test_environments_stand_still_while_unrolls_are_not_taken(self):
    with pool_testing.PlayedPool([{}] * 4, 2, unroll_length=2, completed_capacity=2) as played:
      played.start()
      # Each worker's two groups of one environment: two unrolls wait, and every actor fills one more.
      waiting.wait_until(lambda: played.pool.statistics().steps >= 4 * 3 + 2 * 2)
      waiting.wait_until(lambda: played.pool.statistics().blocked_ns > 5e7)
      self.assertEqual(played.pool.statistics().steps, 4 * 3 + 2 * 2)
      checker = pool_testing.Checker(played)
      checker.check(played.take(50))
      self.assertGreater(played.pool.statistics().steps, 2 * 50)

  def test_statistics(self):
    with pool_testing.PlayedPool([{}] * 4, 2, unroll_length=5) as played:
      self.assertEqual(played.pool.statistics(), actor_pool.PoolStatistics(0, 0, 0, 0, 0, 0))
      played.start()
      seen = []
      for _ in range(10):
        played.take(5)
        seen.append(played.pool.statistics())
    seen.append(played.pool.statistics())
    for before, after in zip(seen, seen[1:]):
      for name, was, now in zip(before._fields, before, after):
        self.assertGreaterEqual(now, was, name)
    last = seen[-1]
    self.assertGreater(last.steps, 5 * 5 * 10)
    self.assertLessEqual(last.rows, last.steps)
    self.assertLessEqual(last.batches, last.rows)
    self.assertGreater(last.stepping_ns, 0)
    self.assertGreater(last.inference_waiting_ns, 0)

  def test_what_a_worker_steps_is_checked(self):
    with pool_testing.PlayedPool([{}], 1) as played:
      for change, message in (
          ({'worker': [0, 1]}, r'worker: want a scalar, got \[2\]'), ({'socket': []}, 'socket: want a scalar'),
          ({'actor_ids': [[0]]}, r'actor_ids: want \[1\], got \[1,1\]'),
          ({'groups': [0, 0]}, r'groups: want \[1\], got \[2\]')):
        arguments = {'worker': 0, 'socket': -1, 'memory': -1, 'actor_ids': [0], 'level_ids': [0], 'groups': [0]}
        tensors = {name: tf.constant(value, tf.int32) for name, value in (arguments | change).items()}
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, message):
          ops.actor_pool_attach(played.pool._handle, **tensors)

  def test_outputs_of_other_types_are_refused(self):
    with pool_testing.PlayedPool([{}], 1) as played:
      with self.assertRaisesRegex(tf.errors.InvalidArgumentError, 'outputs: want int64, int32, int32, float, .*, got '):
        ops.actor_pool_next_batch(played.pool._handle, newest_frames=False, environment_types=[tf.uint8],
                                  state_types=[])
      with self.assertRaisesRegex(tf.errors.InvalidArgumentError, 'outputs: want int32, int32, int64, .*, got uint8'):
        ops.actor_pool_next_unroll(played.pool._handle, types=[tf.uint8])

  def test_a_slot_without_room_for_an_action_is_refused(self):
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, 'action: 4 bytes at 0 are not in a slot of 3'):
      ops.actor_pool(
          num_environments=1, unroll_length=1, slot_bytes=3, environment_types=[],
          environment_shapes=[], environment_offsets=[], environment_stacks=[], output_types=[tf.int32],
          output_shapes=[[]], state_types=[], state_shapes=[], completed_capacity=1, environment_timeout_ms=1,
          long_work_factor=1, barrier='none', dynamic_batching=True, shared_name=ops.unique_name('test'))

  def test_wrong_decisions_are_refused(self):
    with pool_testing.PlayedPool([{}], 1) as played:
      played.pool.start()
      batch = waiting.start(played.pool.next_batch)()
      output, state = pool_testing.policy(batch, 1)
      with self.assertRaisesRegex(tf.errors.InvalidArgumentError, 'Invalid computation id. Id: 77'):
        played.pool.complete_batch(77, 1, output, state)
      with self.assertRaisesRegex(tf.errors.InvalidArgumentError,
                                  r'agent_output, field 1: want float \[1,5\], got float \[1,4\]'):
        played.pool.complete_batch(batch.id, 1, output._replace(given=output.given[:, 1:]), state)
      with self.assertRaisesRegex(tf.errors.InvalidArgumentError, r'agent_state, field 0: want int64 \[1\], got int32'):
        played.pool.complete_batch(batch.id, 1, output, state._replace(count=tf.cast(state.count, tf.int32)))
      with self.assertRaisesRegex((ValueError, TypeError), 'structure'):
        played.pool.complete_batch(batch.id, 1, output, output)
      played.pool.complete_batch(batch.id, 1, output, state)
      self.assertEqual(waiting.start(played.pool.next_batch)().last_action.numpy(), output.action.numpy())

  def test_regression_a_batch_decided_after_the_end_is_cancelled(self):
    with pool_testing.PlayedPool([{}], 1) as played:
      played.pool.start()
      batch = waiting.start(played.pool.next_batch)()
      played.pool.close('that is all')
      with self.assertRaisesRegex(tf.errors.CancelledError, 'ActorPool is closed: that is all'):
        played.pool.complete_batch(batch.id, 1, *pool_testing.policy(batch, 1))

  def test_loops_run_on_the_cpu(self):
    """A sum of two ids would be computed on a GPU, and wait for the learner's kernels there."""
    devices = []
    actor_pool.endless(lambda: devices.append((tf.random.uniform([]) + 1.).device)).get_concrete_function()
    self.assertEqual(set(devices), {'/device:CPU:0'})

  def test_close_ends_every_wait(self):
    with pool_testing.PlayedPool([{}], 1, unroll_length=1000) as played:
      played.pool.start()
      waiting.start(played.pool.next_batch)()
      waits = [waiting.start(wait) for wait in (
          played.pool.next_batch, played.pool.next_unroll, tf.function(lambda: played.pool.next_batch()),
          tf.function(lambda: played.pool.next_unroll()))]
      for wait in waits:
        self.assertFalse(wait.ended.wait(0.02))
      played.pool.close('that is all')
      played.pool.close()
      for wait in waits:
        with self.assertRaisesRegex(tf.errors.CancelledError, 'is closed: that is all'):
          wait()
      self.assertIsNone(played.pool.failure)

  def test_nothing_is_left_behind(self):
    def traces():
      gc.collect()
      return len(os.listdir('/proc/self/fd')), threading.active_count(), psutil.Process().children(recursive=True)

    def play():
      with pool_testing.PlayedPool([{}] * 4, 2) as played:
        played.start()
        played.take(5)
        processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
        self.assertLen(processes, 3)
        for process in processes:
          self.assertEmpty([c for c in process.net_connections('inet') if c.status == psutil.CONN_LISTEN])
          self.assertEmpty([area.path for area in process.memory_maps() if area.path.startswith('/dev/shm')])

    waiting.wait_until(lambda: not traces()[-1])  # Of pools that other tests could not make.
    play()  # TensorFlow opens a few things at first use.
    before = traces()
    for _ in range(3):
      play()
    # What the first pool left may have ended since.
    waiting.wait_until(lambda: all(now <= then for now, then in zip(traces(), before)))

  @parameterized.parameters({'completed_capacity': 0}, {'unroll_length': 0}, {'unroll_length': 2**31 - 1},
                            {'completed_capacity': 2**40})
  def test_bad_sizes(self, **options):
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, 'want 1 to 2147483646, got 1, '):
      pool_testing.PlayedPool([{}], 1, **options)

  def test_regression_an_unroll_that_no_machine_has_memory_for(self):
    """Such a one crashed the process."""
    workers = environment_workers.EnvironmentWorkers(pool_testing.DIARY, [{'seed': 0}], 1)
    self.addCleanup(workers.close)
    make = lambda values: actor_pool.ActorPool(
        workers, 2**30, [tf.TensorSpec([], tf.int32), tf.TensorSpec([values], tf.float32)], (), [0])
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, 'bytes are more than can be counted'):
      make(2**31)  # 2**64 bytes.
    pool = make(2**20)  # 2**52 bytes.
    pool.start()
    with self.assertRaisesRegex(tf.errors.ResourceExhaustedError, 'not enough memory for another unroll of 1073741824'):
      tf.function(pool.next_unroll)()
    waiting.wait_until(lambda: isinstance(pool.failure, tf.errors.ResourceExhaustedError))
    pool.close()

  def test_too_little_memory_is_reported_also_if_it_is_noticed_after_the_pool_was_closed(self):
    """The watcher first waits for workers that are being started. Meanwhile, the main thread closes the pool."""
    waits, began = threading.Event(), threading.Event()

    def replace(unused_worker, unused_reason):
      began.set()
      waits.wait()

    error = tf.errors.ResourceExhaustedError(None, None, 'for the test')
    faults = mock.Mock(side_effect=[(tf.constant(0), tf.constant('for the test')), error])
    with pool_testing.PlayedPool([{}], 1) as played, mock.patch.object(played.pool, '_replace', replace), \
         mock.patch.object(actor_pool.ops, 'actor_pool_next_fault', faults):
      played.start()
      began.wait()
      closing = waiting.start(played.pool.close)
      waiting.wait_until(played.pool._closed.is_set)
      waits.set()
      closing()
      self.assertIs(played.pool.failure, error)


def _kill(workers, number, previous=None):
  """Kills a worker's process as soon as there is another than `previous`, and returns it."""
  def running():
    with contextlib.suppress(environment_workers.WorkerError):  # It is being replaced.
      process = workers[number].process
      return process if process is not previous else None
  waiting.wait_until(running)
  process = running()
  process.kill()
  return process


def _kill_with_a_faulty_successor(played, fault):
  """Kills worker 1 of two while it plays; its successors' environments have a fault in their constructor."""
  environments_of_next_streams = played.workers._environments
  environments_of_next_streams[1] = {'seed': 1, 'fault': fault, 'fault_step': None, 'faulty_below': 1000}
  played.start()
  played.take(5)
  _kill(played.workers, 1)


class FaultTest(parameterized.TestCase):
  """Actor 1's first stream has a fault; it shares a worker with actor 4."""

  def _check_until_it_restarts(self, played, checker):
    while played.pool.restarts == 0 or any(checker.streams.get(actor, [0])[-1] != actor + 6 for actor in (1, 4)):
      checker.check(played.take(10))
      time.sleep(0.01)  # The others stand still meanwhile, while a hang is waited for.
    for _ in range(10):
      checker.check(played.take(10))

  @parameterized.named_parameters(
      ('killed', 'kill', 'its process was ended by SIGKILL, perhaps out of memory$'),
      ('killed_but_not_its_child', 'fork and kill', 'its process was ended by SIGKILL, perhaps out of memory$'),
      ('crashes', 'segmentation fault',
       'its process was ended by SIGSEGV; on stderr: emulator.cc:12: the emulator is lost$'),
      ('exits', 'exit', 'its process ended with exit code 3$'),
      ('raises', 'raise', 'RuntimeError: the emulator has crashed$'),
      ('wrong_shape', 'wrong shape', r"ValueError: observation 'record': want shape \(4,\), got \(1,\)$"),
      ('hangs', 'hang', r'no answer for 5 s \(--environment_timeout_seconds\)$'),
      ('hangs_in_c', 'hang in C', r'no answer for 5 s \(--environment_timeout_seconds\)$'))
  def test_a_fault_ends_one_stream(self, fault, reason):
    environments = [{} for _ in range(6)]
    environments[1] = {'fault': fault, 'fault_step': 21, 'faulty_below': 6}
    if fault == 'segmentation fault':  # What it printed may come late.
      self.enterContext(mock.patch.object(environment_workers, '_LAST_WORDS_SECONDS', waiting.PATIENCE_SECONDS))
    with pool_testing.PlayedPool(environments, 3, timeout_seconds=5. if 'hang' in fault else 60.) as played:
      played.start()
      checker = pool_testing.Checker(played)
      self._check_until_it_restarts(played, checker)
      self.assertEqual(played.pool.restarts, 1)
      self.assertIsNone(played.pool.failure)
    self.assertLen(played.reports, 1)
    self.assertRegex(played.reports[0].splitlines()[0],
                     f'^environment worker 1 is replaced: environment 1 failed: {reason}')
    for actor in (1, 4):
      # The unrolls of the first stream may all have been under way with the fault.
      self.assertIn(checker.streams[actor], ([actor, actor + 6], [actor + 6]))
    for actor in (0, 2, 3, 5):
      self.assertEqual(checker.streams[actor], [actor])

  def test_a_traceback_is_reported(self):
    environments = [{}, {'fault': 'raise', 'fault_step': 0, 'faulty_below': 2}]
    with pool_testing.PlayedPool(environments, 2) as played:
      played.start()
      waiting.wait_until(lambda: played.reports)
    self.assertRegex(played.reports[0], '(?s)RuntimeError: the emulator has crashed\nTraceback .*in reset.*in _fail\n')

  def test_actors_start_until_their_worker_has_answered(self):
    environments = [{} for _ in range(6)]
    environments[1] = {'fault': 'long work', 'fault_step': 0, 'faulty_below': 6}
    with pool_testing.PlayedPool(environments, 3) as played:
      self.assertEmpty(played.pool.starting())
      played.start()
      waiting.wait_until(lambda: played.pool.starting() == [1, 4])
      _kill(played.workers, 1)
      waiting.wait_until(lambda: not played.pool.starting())
      _kill(played.workers, 0)
      waiting.wait_until(lambda: played.pool.restarts == 2)
      self.assertEmpty(played.pool.starting())  # Worker 0 had answered before.

  def test_kill_minus_nine(self):
    with pool_testing.PlayedPool([{}] * 6, 3) as played:
      played.start()
      checker = pool_testing.Checker(played)
      checker.check(played.take(30))
      killed = None
      for restarts in range(1, 4):
        killed = _kill(played.workers, 1, killed)
        while played.pool.restarts < restarts:
          checker.check(played.take(5))
      while any(checker.streams.get(actor, [0])[-1] != actor + 3 * 6 for actor in (1, 4)):
        checker.check(played.take(5))
    self.assertEqual(played.pool.restarts, 3)
    self.assertEqual([checker.streams[actor] for actor in (0, 2, 3, 5)], [[0], [2], [3], [5]])

  def test_too_many_early_ends_end_the_pool(self):
    environments = [{}, {'fault': 'raise', 'fault_step': 3, 'faulty_below': 1000}]
    with pool_testing.PlayedPool(environments, 2) as played:
      played.start()
      with self.assertRaises(tf.errors.CancelledError):
        while True:
          played.take(1)
      waiting.wait_until(lambda: played.pool.failure)
      self.assertIsInstance(played.pool.failure, environment_workers.WorkerError)
      self.assertRegex(str(played.pool.failure), '(?s)environment worker 1 failed 5 times, each within 120 s of '
                       'its start: .*RuntimeError: the emulator has crashed')
      self.assertEqual(played.pool.restarts, 4)

  def test_late_failures_do_not_end_the_pool(self):
    self.enter_context(absltest.mock.patch.object(actor_pool, 'EARLY_END_SECONDS', -60.))  # None is.
    environments = [{}, {'fault': 'exit', 'fault_step': 3, 'faulty_below': 1000}]
    with pool_testing.PlayedPool(environments, 2) as played:
      played.start()
      while played.pool.restarts <= actor_pool.MAXIMUM_EARLY_ENDS:
        played.take(1)
      self.assertIsNone(played.pool.failure)

  def test_too_many_hangs_end_the_pool(self):
    """However early a hang is, it is seen only after the time-out."""
    self.enter_context(absltest.mock.patch.object(actor_pool, 'EARLY_END_SECONDS', 0.9))
    environments = [{}, {'fault': 'hang', 'fault_step': 3, 'faulty_below': 1000}]
    with pool_testing.PlayedPool(environments, 2, timeout_seconds=1.) as played:
      played.start()
      waiting.wait_until(lambda: played.pool.failure, 4 * waiting.PATIENCE_SECONDS)
    self.assertRegex(str(played.pool.failure),
                     'environment worker 1 failed 5 times, .*: environment 1 failed: no answer for 1 s')

  def test_an_error_of_the_watch_ends_the_pool(self):
    with pool_testing.PlayedPool([{}, {}], 2) as played:
      played.start()
      played.take(5)
      error = OSError('too many open files')
      with absltest.mock.patch.object(played.workers, 'replace', side_effect=error):
        _kill(played.workers, 1)
        waiting.wait_until(lambda: played.pool.failure)
      self.assertIs(played.pool.failure, error)
      with self.assertRaises(tf.errors.CancelledError):
        while True:
          played.take(1)

  def test_successors_that_cannot_be_made_end_the_pool(self):
    pauses = []
    with pool_testing.PlayedPool([{}, {}], 2) as played, absltest.mock.patch.object(
        played.pool._closed, 'wait', pauses.append):
      _kill_with_a_faulty_successor(played, 'raise')
      waiting.wait_until(lambda: played.pool.failure)
    self.assertEqual(pauses, [0., 2., 4., 8.])  # Perhaps memory is short for a while.
    self.assertRegex(str(played.pool.failure), '(?s)environment worker 1 failed 5 times.*: environment 1 could not be '
                     'made: RuntimeError: the emulator has crashed')

  def test_regression_a_successor_killed_at_its_start_has_a_successor(self):
    with pool_testing.PlayedPool([{}, {}], 2) as played:
      played.start()
      replace = played.workers.replace

      def replace_and_kill(worker):
        played.workers.replace = replace
        spawn = played.workers._spawn
        with absltest.mock.patch.object(played.workers, '_spawn', lambda number: (spawn(number), _kill(
            played.workers, number))):
          replace(worker)

      played.workers.replace = replace_and_kill
      _kill(played.workers, 1)
      checker = pool_testing.Checker(played)
      while checker.streams.get(1, [0])[-1] != 1 + 2 * 2:
        checker.check(played.take(1))
    self.assertEqual(played.pool.restarts, 2)
    self.assertRegex(played.reports[1], 'could not be made: its process was ended by SIGKILL')

  def test_regression_neither_close_nor_another_worker_waits_for_a_successor(self):
    with pool_testing.PlayedPool([{}, {}], 2) as played:
      _kill_with_a_faulty_successor(played, 'hang')
      waiting.wait_until(lambda: played.pool.restarts == 1)
      _kill(played.workers, 0)
      while played.take(1).stream_id != 2:  # The second stream of actor 0.
        pass
      close = waiting.start(played.pool.close)
      self.assertTrue(close.ended.wait(30))  # Its start may take 60 s.
      self.assertIsNone(played.pool.failure)


if __name__ == '__main__':
  absltest.main()
