"""Tests of the worker process from the other end of its socket, where this file plays the pool."""

import itertools
import mmap
import os
import select
import subprocess
import sys
import time
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from scalable_agents.actor import environment_worker
from scalable_agents.actor import environment_workers
from scalable_agents.actor import shared_memory
from scalable_agents.environments import registry
from scalable_agents.processes import machine
from scalable_agents.tests.actor import test_environments
from scalable_agents.tests.actor import waiting

_DIARY = 'scalable_agents.tests.actor.test_environments:Diary'
_LIVES = 'scalable_agents.tests.actor.test_environments:Lives'


class _Worker:
  """One worker process with environments of these arguments."""

  def __init__(self, *arguments, constructor=_DIARY, **options):
    self.workers = environment_workers.EnvironmentWorkers(constructor, list(arguments), num_workers=1, **options)
    self._listen(self.workers[0])

  def _listen(self, worker):
    self.process, self.connection = worker.process, worker.connection
    self.layout = self.workers.layout
    self._memory = mmap.mmap(worker.memory, shared_memory.block_bytes(self.layout, len(self.workers.actor_ids[0])))

  def replace(self):
    self._memory.close()
    self._listen(self.workers.replace(0))

  def __enter__(self):
    return self

  def __exit__(self, *unused_exception):
    self._memory.close()
    self.workers.close()

  def ask(self, *slots):
    self.connection.send(np.array(slots, np.uint32).tobytes())

  def answer(self):
    """Waits for a packet; None at the end of the connection."""
    if not select.select([self.connection], [], [], waiting.PATIENCE_SECONDS)[0]:
      raise TimeoutError('no answer')
    try:
      packet = self.connection.recv(1000)
    except ConnectionResetError:
      return None
    return np.frombuffer(packet, np.uint32).tolist() or None

  def act(self, slot, action):
    shared_memory.ACTION.pack_into(self._memory, self._start(slot), action)
    self.ask(slot)
    return self.answer()

  def row(self, slot):
    """The slot's values by name."""
    fields = self.layout.scalars + self.layout.observation
    return {field.name: np.ndarray(field.shape, field.dtype, self._memory, self._start(slot) + field.offset).tolist()
            for field in fields}

  def number(self, place):
    return shared_memory.read_number(self._memory, place)

  def _start(self, slot):
    return shared_memory.HEADER_BYTES + slot * self.layout.slot_bytes


class EnvironmentWorkerTest(parameterized.TestCase):

  def test_rows(self):
    with _Worker({'seed': 0}, constructor=_LIVES) as worker:
      rows = []
      for _ in range(5):
        self.assertEqual(worker.act(0, 1), [0])
        rows.append([worker.row(0)[name] for name in (
            'reward', 'discount', 'done', 'episode_return', 'episode_length')])
    self.assertEqual(rows, [
        [0., 0., True, 0., 0],
        [1., 1., False, 1., 4],
        [2., 0., False, 3., 8],   # A lost life: the statistics go on.
        [4., 0., True, 7., 12],   # The end: what was reached, and a new episode's first observation.
        [1., 1., False, 1., 4]])

  def test_a_time_limit_shows_the_last_observation_before_the_reset(self):
    with _Worker({'seed': 0, 'end': 0.7}, constructor=_LIVES) as worker:
      rows = []
      for _ in range(6):
        self.assertEqual(worker.act(0, 1), [0])
        rows.append(list(worker.row(0).values()))
    self.assertEqual(rows[2:], [
        [2., 0., False, 3., 8, [2, 2]],
        [4., 1., False, 7., 12, [3, 3]],
        [0., 1., True, 7., 12, [0, 0]],   # The reset, whatever the action.
        [1., 1., False, 1., 4, [1, 1]]])

  def test_regression_what_is_too_large_for_float32_is_infinite(self):
    with _Worker({'seed': 0, 'factor': 1.5e38}, constructor=_LIVES) as worker:
      rows = []
      for _ in range(5):
        self.assertEqual(worker.act(0, 1), [0])
        rows.append([worker.row(0)[name] for name in ('reward', 'episode_return')])
    largest = [float(np.float32(factor * 1.5e38)) for factor in (1, 2)]
    self.assertEqual(rows, [[0., 0.], [largest[0]] * 2, [largest[1], np.inf], [np.inf] * 2, [largest[0]] * 2])

  def test_regression_an_episode_of_more_frames_than_an_int32_holds(self):
    with _Worker({'seed': 0, 'frames_per_step': 2**30}, constructor=_LIVES) as worker:
      lengths = []
      for _ in range(4):
        self.assertEqual(worker.act(0, 1), [0])
        lengths.append(worker.row(0)['episode_length'])
    self.assertEqual(lengths, [0, 2**30, 2**31 - 1, 2**31 - 1])

  def test_actions_and_observations_pass_through_the_slots(self):
    with _Worker({'seed': 7}, {'seed': 8}) as worker:
      worker.ask(1, 0)
      self.assertEqual(worker.answer(), [1, 0])
      self.assertEqual(worker.row(0)['record'], [7, 0, 0, -1])
      self.assertEqual(worker.row(1)['record'], [8, 0, 0, -1])
      seen = []
      for i in range(30):
        self.assertEqual(worker.act(1, i % 5), [1])
        seen.append(worker.row(1)['record'])
        self.assertEqual(worker.row(1)['pixels'], [seen[-1][1:3]] * 3)
      self.assertEqual(worker.row(0)['record'], [7, 0, 0, -1])
    self.assertEqual([record[3] for record in seen], [i % 5 for i in range(30)])
    lengths = [len(test_environments.Story(8).episode(number)[0]) for number in range(30)]
    steps = [(number, step) for number in range(30) for step in range(lengths[number])]
    self.assertEqual([tuple(record[1:3]) for record in seen], steps[1:31])

  def test_an_atari_game_writes_into_its_slot(self):
    arguments = dict(level_name='pong', protocol={'atari': {'noop_max': 0}})
    environments = [registry.make_from_json(**arguments, seed=seed) for seed in range(2)]
    with _Worker(*(arguments | {'seed': seed} for seed in range(2)),
                 constructor='scalable_agents.environments.registry:make_from_json') as worker:
      for step in range(5):
        for slot, environment in enumerate(environments):
          want = environment.step(step).observation['pixels']
          worker.act(slot, step)
          np.testing.assert_array_equal(worker.row(slot)['pixels'], want)

  def test_time_spent_stepping_grows(self):
    with _Worker({'seed': 0}) as worker:
      times = [worker.number(shared_memory.STEPPING_NS)]
      for _ in range(5):
        worker.act(0, 0)
        times.append(worker.number(shared_memory.STEPPING_NS))
    self.assertEqual(times[0], 0)
    self.assertTrue(np.all(np.diff(times) > 0))

  def test_leaves_when_the_other_end_is_closed(self):
    with _Worker({'seed': 0}) as worker:
      worker.act(0, 0)
      worker.connection.close()
      self.assertEqual(worker.process.wait(waiting.PATIENCE_SECONDS), 0)

  def test_leaves_though_a_step_hangs(self):
    with _Worker({'seed': 0, 'fault': 'hang', 'faulty_below': 1}) as worker:
      worker.ask(0)
      worker.connection.close()
      self.assertEqual(worker.process.wait(waiting.PATIENCE_SECONDS), 0)

  @parameterized.parameters(None, 'raise', 'hang')
  def test_all_environments_are_closed_before_it_leaves(self, fault):
    folder = self.create_tempdir().full_path
    arguments = [{'seed': seed, 'file': os.path.join(folder, str(seed)), 'fault': fault} for seed in range(2)]
    # It leaves when it is told to, whenever it comes to hear of it.
    with mock.patch.object(environment_workers, '_LEAVE_SECONDS', waiting.PATIENCE_SECONDS):
      with _Worker(*arguments, constructor='scalable_agents.tests.actor.test_environments:Closing') as worker:
        worker.act(0, 0)
    self.assertEqual(worker.process.returncode, 0)
    self.assertCountEqual(os.listdir(folder), ['0'] if fault == 'hang' else ['0', '1'])

  @parameterized.parameters('make', 'reset')
  def test_after_an_error_all_environments_are_closed(self, fault):
    folder = self.create_tempdir().full_path
    arguments = [{'seed': seed, 'file': os.path.join(folder, str(seed)), 'fault': fault if seed == 1 else None}
                 for seed in range(2)]
    with self.assertRaisesRegex((environment_workers.WorkerError, AssertionError), f'emulator cannot {fault}'):
      with _Worker(*arguments, constructor='scalable_agents.tests.actor.test_environments:Closing') as worker:
        worker.ask(0, 1)
        self.assertIsNone(worker.answer())
        self.fail(worker.workers.explain(0, 'failed', 'unknown'))
    self.assertCountEqual(os.listdir(folder), ['0'] if fault == 'make' else ['0', '1'])

  def test_the_memory_that_it_shares_cannot_be_cut_off(self):
    with _Worker({'seed': 0}, constructor='scalable_agents.tests.actor.test_environments:Truncating') as worker:
      for _ in range(3):
        self.assertEqual(worker.act(0, 0), [0])
        self.assertEqual(worker.row(0)['episode_return'], 0.)  # Else this process would end here.

  @parameterized.parameters(
      ('raise', 'RuntimeError: the emulator has crashed'), ('broken pipe', 'BrokenPipeError: the emulator has ended'))
  def test_an_error_leaves_its_traceback(self, fault, error):
    with _Worker({'seed': 0}, {'seed': 1, 'fault': fault, 'fault_step': 1, 'faulty_below': 2}) as worker:
      worker.ask(0, 1)
      self.assertEqual(worker.answer(), [0, 1])
      worker.ask(0, 1)
      self.assertIsNone(worker.answer())
      self.assertEqual(worker.process.wait(waiting.PATIENCE_SECONDS), 1)
      self.assertRegex(worker.workers.explain(0, 'failed', 'unknown'),
                       f'(?s)^environment 1 failed: {error}\nTraceback .*{error}\n$')

  def test_long_work_has_more_time_and_keeps_its_seed(self):
    with _Worker({'seed': 7, 'fault': 'long work', 'fault_step': 1, 'faulty_below': 1000}) as worker:

      def begin_long_work():
        self.assertEqual(worker.act(0, 0), [0])
        self.assertEqual(worker.number(shared_memory.LONG_WORK), 0)
        worker.ask(0)
        waiting.wait_until(lambda: worker.number(shared_memory.LONG_WORK))

      def take_too_long():
        begin_long_work()
        with mock.patch.object(environment_workers, 'LONG_WORK_FACTOR', 20), self.assertRaises(TimeoutError):
          worker.workers.receive(0, timeout_seconds=0.05)

      began = time.monotonic()
      take_too_long()
      self.assertGreater(time.monotonic() - began, 20 * 0.05)
      worker.replace()
      begin_long_work()
      self.assertEqual(worker.row(0)['record'][0], 7)
      worker.process.kill()  # Not a matter of patience.
      worker.process.wait()
      worker.replace()
      for seed in (8, 8, 9):  # The seed of work that takes too long twice may be at fault.
        take_too_long()
        self.assertEqual(worker.row(0)['record'][0], seed)
        worker.replace()

  def test_the_time_restarts_when_long_work_ends(self):
    with _Worker({'seed': 0, 'fault': 'hang', 'faulty_below': 1}) as worker:
      worker.ask(0)
      at_long_work = mock.Mock(side_effect=[True] * 5 + [False] * 99)
      seconds = mock.Mock(monotonic=mock.Mock(side_effect=itertools.count()))
      with mock.patch.object(worker.workers, '_is_at_long_work', at_long_work), \
          mock.patch.object(machine, 'processor_wait_seconds', lambda process_id: 0.), \
          mock.patch.multiple(environment_workers, time=seconds, _LOOK_SECONDS=0.001), \
          self.assertRaises(TimeoutError):
        worker.workers.receive(0, timeout_seconds=3.)
      self.assertEqual(at_long_work.call_count, 5 + 4)  # At the fourth look after it, more than three seconds.

  def test_time_without_a_processor_does_not_count(self):
    with _Worker({'seed': 0, 'fault': 'hang', 'faulty_below': 1}) as worker:
      worker.ask(0)
      starved = mock.Mock(side_effect=[*(time.monotonic() + 1000 * looks for looks in range(30)), *[0.] * 1000])
      with mock.patch.object(machine, 'processor_wait_seconds', starved), self.assertRaises(TimeoutError):
        worker.workers.receive(0, timeout_seconds=0.01)
      self.assertEqual(starved.call_count, 31)
      self.assertEqual(worker.number(shared_memory.PROCESS_ID), worker.process.pid)

  @parameterized.parameters((0, 4), (2, 0))
  def test_it_gives_way_to_a_process_without_a_niceness_once_the_environments_are_made(self, own, added):
    before = os.getpriority(os.PRIO_PROCESS, 0)

    def see_niceness():  # In a thread, whose niceness the worker inherits.
      os.nice(own)
      with _Worker({'seed': 0}, constructor='scalable_agents.tests.actor.test_environments:Weighed',
                   niceness=4) as worker:
        waiting.wait_until(lambda: os.getpriority(os.PRIO_PROCESS, worker.process.pid) == before + own + added)
        worker.act(0, 0)
        return worker.row(0)['pixels']

    if before:
      self.skipTest('whoever runs this test has chosen a niceness')
    self.assertEqual(waiting.start(see_niceness)(), [before + own, before + own + added])
    self.assertEqual(os.getpriority(os.PRIO_PROCESS, 0), before)

  @parameterized.parameters(0, 2)
  def test_an_observation_of_another_shape(self, fault_step):
    with _Worker({'seed': 0, 'fault': 'wrong shape', 'fault_step': fault_step, 'faulty_below': 1}) as worker:
      for _ in range(fault_step):
        self.assertEqual(worker.act(0, 0), [0])
      self.assertIsNone(worker.act(0, 0))
      self.assertEqual(worker.process.wait(waiting.PATIENCE_SECONDS), 1)
      self.assertStartsWith(worker.workers.explain(0, 'failed', 'unknown'),
                            "environment 0 failed: ValueError: observation 'record': want shape (4,), got (1,)\n")

  @parameterized.parameters(
      ('catch', set()), ('gymnasium:CartPole-v1', {'gymnasium', 'farama_notifications', 'typing_extensions'}))
  def test_imports_only_packages_that_the_level_needs(self, level, needed):
    program = f'''
import sys
import {environment_worker.__name__}
from scalable_agents.environments import registry
registry.make('{level}', seed=0).reset()
packages = {{name for name, module in sys.modules.items() if 'site-packages' in (getattr(module, '__file__', 0) or '')}}
print(*{{name.split('.')[0] for name in packages if not name.startswith('_')}})'''
    answer = subprocess.run([sys.executable, '-c', program], stdout=subprocess.PIPE, check=True, text=True,
                            timeout=waiting.PATIENCE_SECONDS)
    self.assertEqual(set(answer.stdout.split()) - {'scalable_agents'}, {'numpy', 'dm_env'} | needed)

  def test_the_process_of_a_worker_loads_no_library_but_numpy(self):
    with _Worker({'level_name': 'catch', 'seed': 0, 'protocol': {}},
                 constructor='scalable_agents.environments.registry:make_from_json') as worker:
      with open(f'/proc/{worker.process.pid}/maps', encoding='ascii') as maps:
        packages = {line.rpartition('/site-packages/')[2].split('/')[0] for line in maps if '/site-packages/' in line}
    self.assertContainsSubset(packages, {'numpy', 'numpy.libs'})
    self.assertIn('numpy', packages)


if __name__ == '__main__':
  absltest.main()
