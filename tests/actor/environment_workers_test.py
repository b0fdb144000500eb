"""Tests of starting, replacing and ending worker processes, and of what they leave behind: nothing."""

import os
import resource
import signal
import struct
import subprocess
import sys
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import psutil

from scalable_agents.actor import environment_workers
from scalable_agents.actor import shared_memory
from scalable_agents.tests.actor import waiting

_ENVIRONMENTS = 'scalable_agents.tests.actor.test_environments'
_DIARY = f'{_ENVIRONMENTS}:Diary'
_FAILING = {'fault_step': None, 'faulty_below': 1000}  # In the constructor.

# A program that starts two workers and prints their process ids. The second one hangs in C, and says so; then comes an
# interrupt from the terminal.
_PROGRAM = f'''
import signal, struct, sys, time
from scalable_agents.actor import environment_worker
from scalable_agents.actor import environment_workers
interrupted = []
signal.signal(signal.SIGINT, lambda *unused: interrupted.append(True))
workers = environment_workers.EnvironmentWorkers(
    '{_DIARY}', [{{'seed': 0}}, {{'seed': 1, 'fault': 'hang in C', 'faulty_below': 2}}], 2)
workers[1].connection.send(struct.pack('<I', 0))
print(workers[0].process.pid, workers[1].process.pid, flush=True)
while not interrupted:
  time.sleep(0.01)
workers[0].connection.setblocking(True)
workers[0].connection.send(struct.pack('<I', 0))
print(struct.unpack('<I', workers[0].connection.recv(100)), workers[1].process.poll(), flush=True)
workers.close()
'''


def _runs(pid):
  """Whether there is such a process; one that has ended and that nobody has waited for does not count."""
  try:
    return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
  except psutil.NoSuchProcess:
    return False


def _workers(environments, num_workers=1, constructor=_DIARY, **options):
  environments = [{'seed': seed, **arguments} for seed, arguments in enumerate(environments)]
  return environment_workers.EnvironmentWorkers(constructor, environments, num_workers, **options)


def _traces():
  """What this process holds that workers bring along: children and open descriptors."""
  return psutil.Process().children(recursive=True), len(os.listdir('/proc/self/fd'))


class EnvironmentWorkersTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    before = _traces()
    self.addCleanup(lambda: waiting.wait_until(lambda: _traces() == before))

  def _start(self, *args, **kwargs):
    workers = _workers(*args, **kwargs)
    self.addCleanup(workers.close)
    return workers

  def test_environments_are_spread_over_workers(self):
    workers = self._start([{}] * 5, num_workers=2)
    self.assertLen(workers, 2)
    self.assertEqual(workers.actor_ids, [[0, 2, 4], [1, 3]])
    self.assertEqual(workers.specification, environment_workers.Specification(
        num_actions=5, frames_per_step=4, frame_stacks={'pixels': 2},
        observation={'record': ['int64', [4]], 'pixels': ['uint8', [3, 2]]}))
    for number, slots in enumerate((3, 2)):
      self.assertEqual(os.fstat(workers[number].memory).st_size, shared_memory.block_bytes(workers.layout, slots))

  def test_workers_are_processes_of_their_own(self):
    worker = self._start([{}])[0]
    process = psutil.Process(worker.process.pid)
    self.assertEqual(process.ppid(), os.getpid())
    self.assertEqual(os.getpgid(process.pid), process.pid)
    self.assertEqual(os.getsid(process.pid), os.getsid(0))  # They share its part of the processors, see sched(7).
    self.assertEqual(process.environ()['OMP_NUM_THREADS'], '1')
    self.assertEqual(os.readlink(f'/proc/{process.pid}/fd/0'), '/dev/null')
    areas = {area.path for area in process.memory_maps()}
    self.assertEmpty([path for path in areas if path.startswith('/dev/shm')])  # What it shares has no name,
    self.assertNotEmpty([path for path in areas if path.startswith('/memfd:environments')])  # nor outlives it.
    descriptors = [os.readlink(f'/proc/{process.pid}/fd/{number}') for number in range(3, 20)
                   if os.path.exists(f'/proc/{process.pid}/fd/{number}')]
    self.assertLessEqual(sum('socket' in name for name in descriptors), 1)  # Not our end of the socket.

  def test_nobody_listens(self):
    self._start([{}] * 2, num_workers=2)
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
      self.assertEmpty([c for c in process.net_connections('inet') if c.status == psutil.CONN_LISTEN])
      self.assertEmpty([c for c in process.net_connections('unix') if c.laddr])  # No address: nobody can connect.

  def test_regression_many_environments_in_one_worker(self):
    workers = self._start([{'fault': 'x' * 500}] * 1000)  # Half a megabyte of arguments.
    self.assertEqual(os.fstat(workers[0].memory).st_size, shared_memory.HEADER_BYTES + 1000 * workers.layout.slot_bytes)

  def test_replacements_have_other_seeds(self):
    workers = self._start([{'fault': 'raise', 'fault_step': None, 'faulty_below': 0}] * 3, num_workers=2)
    old = workers[1]
    new = workers.replace(1)
    self.assertIs(workers[1], new)
    self.assertFalse(_runs(old.process.pid))
    self.assertTrue(_runs(new.process.pid))
    # Seed 1 of the first stream, 1 + 3 of the second, 1 + 6 of the third, which is below the limit no more.
    failing = self._start([{}, {'fault': 'raise', 'fault_step': 3, 'faulty_below': 5}], num_workers=2)
    for _ in range(2):
      failing.replace(1)

  def test_replaced_workers_leave_nothing(self):
    workers = self._start([{}])
    before = len(os.listdir('/proc/self/fd'))
    for _ in range(3):
      workers.replace(0)
    waiting.wait_until(lambda: len(os.listdir('/proc/self/fd')) == before)
    self.assertLen(psutil.Process().children(recursive=True), 1)

  @parameterized.parameters(0, 3)
  def test_every_worker_has_an_environment(self, num_workers):
    with self.assertRaisesRegex(
        ValueError, f'num_workers: want 1 to 2, the number of environments, got {num_workers}'):
      _workers([{}] * 2, num_workers)

  @parameterized.parameters(
      ('raise', '(?s)^environment 1 could not be made: RuntimeError: the emulator has crashed\nTraceback .*crashed\n$'),
      ('exit', '^environment 1 could not be made: its process ended with exit code 3$'),
      ('kill', '^environment 1 could not be made: its process was ended by SIGKILL, perhaps out of memory$'))
  def test_an_environment_that_cannot_be_made(self, fault, message):
    with self.assertRaisesRegex(environment_workers.WorkerError, message):
      _workers([{}, {'fault': fault, **_FAILING}, {}], num_workers=3)

  def test_a_worker_that_hangs_at_its_start_is_replaced_once(self):
    first_process_only = {'fault': 'hang', 'fault_step': None, 'faulty_below': 1}
    workers = self._start([first_process_only], timeout_seconds=10.)
    self.assertEqual(workers.early_deaths, 1)

  def test_what_the_first_environment_rules_out_does_not_wait_for_the_others(self):
    check = mock.Mock(side_effect=ValueError('too large'))
    with self.assertRaisesRegex(ValueError, '^too large$'):
      _workers([{}, {'fault': 'hang', **_FAILING}], num_workers=2, timeout_seconds=3600., check=check)
    check.assert_called_once()
    self.assertIsInstance(check.call_args.args[0], environment_workers.Specification)

  @parameterized.parameters('hang', 'hang in C')
  def test_an_environment_that_takes_too_long(self, fault):
    with self.assertRaisesRegex(
        environment_workers.WorkerError, '^environment 0 could not be made: no answer for 0.5 s '
        r'\(--environment_timeout_seconds\)'):
      _workers([{'fault': fault, **_FAILING}], timeout_seconds=0.5)

  @parameterized.parameters(
      ('no_such_module:Diary', "No module named 'no_such_module'"), (f'{_ENVIRONMENTS}:Dairy', "no attribute 'Dairy'"))
  def test_no_such_constructor(self, constructor, message):
    with self.assertRaisesRegex(environment_workers.WorkerError, message):
      _workers([{}], constructor=constructor)

  @parameterized.parameters(
      (1, '^environment 1 could not be made: ValueError: the environments of a run must have the same specification: '),
      (2, r'^the environments of a run must have the same specification: got .*\[2, 3\].* for environment 0 and '
       r'.*\[3, 2\].* for environment 1$'))
  def test_environments_must_be_alike(self, num_workers, message):
    start = environment_workers._start_process
    spawn = self.enter_context(absltest.mock.patch.object(environment_workers, '_start_process', wraps=start))
    self.addCleanup(lambda: self.assertEqual(spawn.call_count, num_workers))  # None is replaced.
    with self.assertRaisesRegex(environment_workers.WorkerError, message):
      _workers([{'shape': [2, 3]}, {'shape': [3, 2]}], num_workers, constructor=f'{_ENVIRONMENTS}:Constant')

  def test_a_process_that_cannot_be_started(self):
    self.enter_context(absltest.mock.patch.object(sys, 'executable', '/no/such/python'))
    with self.assertRaisesRegex(environment_workers.WorkerError, 'cannot start a worker process: .*/no/such/python'):
      _workers([{}])

  def test_a_thread_that_cannot_be_started(self):
    self.enter_context(absltest.mock.patch.object(
        environment_workers.worker_stderr, 'WorkerStderr', side_effect=RuntimeError("can't start new thread")))
    with self.assertRaisesRegex(environment_workers.WorkerError, "cannot start a worker process: can't start new"):
      _workers([{}])

  def test_the_limit_of_open_files_is_raised(self):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
    used = len(os.listdir('/proc/self/fd'))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 8, limits[1]))
    self._start([{}] * 8, num_workers=8)
    self.assertGreaterEqual(resource.getrlimit(resource.RLIMIT_NOFILE)[0], used + 8 * 5)

  def test_more_workers_than_open_files(self):
    self.enter_context(absltest.mock.patch.multiple(
        resource, getrlimit=lambda _: (64, 128), setrlimit=absltest.mock.DEFAULT))
    with self.assertRaisesRegex(environment_workers.WorkerError, r'^1000 environment workers need \d+ open files, and '
                                r'this process may have 128 \(ulimit -Hn\): raise this limit, or choose a smaller --'):
      _workers([{}] * 1000, num_workers=1000)

  def test_a_replacement_that_cannot_be_started_is_tried_again(self):
    workers = self._start([{}])
    with absltest.mock.patch.object(sys, 'executable', '/no/such/python'):
      for _ in range(2):
        with self.assertRaisesRegex(environment_workers.WorkerError, 'cannot start a worker process'):
          workers.replace(0)
    self.assertTrue(_runs(workers.replace(0).process.pid))

  def test_a_killed_worker_leaves_no_reason(self):
    workers = self._start([{}, {}])
    workers[0].process.kill()
    workers[0].process.wait()
    self.assertEqual(workers.explain(0, 'failed', 'unknown'),
                     'an environment failed: its process was ended by SIGKILL, perhaps out of memory')

  def test_regression_a_number_that_a_crashing_worker_has_written_names_no_environment(self):
    workers = self._start([{}, {}])
    for number in (3, -1):
      os.pwrite(workers[0].memory, struct.pack('<q', number), 8 * shared_memory.AT_WORK)
      self.assertEqual(workers.explain(0, 'failed', 'no answer'), 'an environment failed: no answer')

  @parameterized.parameters(None, 'hang', 'hang in C')
  def test_close(self, fault):
    if fault == 'hang':  # It leaves when it is told to, whenever it comes to hear of it.
      self.enter_context(absltest.mock.patch.object(environment_workers, '_LEAVE_SECONDS', waiting.PATIENCE_SECONDS))
    workers = self._start([{'fault': fault, 'faulty_below': 1000}] * 2, num_workers=2)
    processes = [workers[0].process, workers[1].process]
    for worker in (workers[0], workers[1]):
      worker.connection.send(bytes(4))
    workers.close()
    workers.close()
    codes = {process.returncode for process in processes}
    self.assertContainsSubset(codes, {0, -signal.SIGKILL})
    if fault == 'hang':
      self.assertEqual(codes, {0})

  def test_giving_up_ends_workers_and_later_starts(self):
    workers = self._start([{}] * 2, num_workers=2)
    processes = [workers[0].process, workers[1].process]
    workers.give_up()
    for process in processes:
      self.assertEqual(process.wait(waiting.PATIENCE_SECONDS), 0)
    with self.assertRaises(environment_workers.WorkerError):
      workers.replace(0)

  def test_many_cycles_leave_nothing(self):
    for _ in range(5):  # Held against the beginning in the end.
      _workers([{}] * 2, num_workers=2).close()


class ParentTest(absltest.TestCase):
  """What becomes of workers when something happens to the process that started them."""

  def setUp(self):
    super().setUp()
    # What workers print comes through the program's stderr.
    self.parent = subprocess.Popen([sys.executable, '-c', _PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True, start_new_session=True)
    self.addCleanup(self.parent.stdout.close)
    self.addCleanup(self.parent.stderr.close)
    self.addCleanup(self.parent.wait)
    self.addCleanup(self.parent.kill)
    self.assertEqual(waiting.start(self.parent.stderr.readline)(), 'hangs\n')
    self.pids = [int(pid) for pid in waiting.start(self.parent.stdout.readline)().split()]
    self.assertTrue(all(_runs(pid) for pid in self.pids))

  def test_workers_do_not_outlive_a_killed_parent(self):
    self.parent.kill()
    self.parent.wait()
    waiting.wait_until(lambda: not any(_runs(pid) for pid in self.pids))

  def test_workers_do_not_outlive_a_terminated_parent(self):
    self.parent.terminate()
    self.parent.wait()
    waiting.wait_until(lambda: not any(_runs(pid) for pid in self.pids))

  def test_the_terminals_interrupt_is_for_the_parent_alone(self):
    os.killpg(self.parent.pid, signal.SIGINT)
    self.assertEqual(waiting.start(self.parent.stdout.readline)(), '(0,) None\n')  # Both are there, one answers.
    self.assertEqual(self.parent.wait(waiting.PATIENCE_SECONDS), 0)
    waiting.wait_until(lambda: not any(_runs(pid) for pid in self.pids))


if __name__ == '__main__':
  absltest.main()
