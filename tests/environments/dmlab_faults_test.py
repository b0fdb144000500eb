"""Tests Lab's failures in real worker processes: each is counted, and its worker is replaced.

No unroll mixes two episodes, and no process or file is left over. The fake module
(tests/environments/fake_deepmind_lab) fails on demand.
"""

import contextlib
import dataclasses
import glob
import os
import tempfile
import time
from typing import NamedTuple
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import psutil
import tensorflow as tf

from scalable_agents.actor import actor_pool
from scalable_agents.actor import environment_workers
from scalable_agents.environments import dmlab
from scalable_agents.tests.actor import waiting
from scalable_agents.tests.environments import lab_module

_ENVIRONMENT = 'scalable_agents.environments.registry:make_from_json'
_LEVELS = ('explore_goal_locations_small', 'language_select_located_object')
_EPISODE_STEPS = 30
_UNROLL_LENGTH = 5


class _Output(NamedTuple):
  action: tf.Tensor  # [n] int32.


class _Pool:
  """Plays two levels of Lab in two workers with a random policy. A context manager."""

  def __init__(self, timeout_seconds=60., start_seconds=60., **settings):
    settings = dataclasses.asdict(dmlab.DmlabSettings(**settings))
    arguments = [{'level_name': level, 'seed': seed, 'protocol': {'dmlab': settings}}
                 for seed, level in enumerate(_LEVELS)]
    self.workers = environment_workers.EnvironmentWorkers(_ENVIRONMENT, arguments, 2, start_seconds)
    self.reports = []
    self.pool = actor_pool.ActorPool(
        self.workers, _UNROLL_LENGTH, _Output(tf.TensorSpec([], tf.int32)), (), [0, 1], completed_capacity=4,
        environment_timeout_seconds=timeout_seconds, report=self.reports.append)
    self._take = tf.function(self.pool.next_unroll)

  def __enter__(self):
    self.pool.start()

    def act():
      batch = self.pool.next_batch()
      action = tf.random.uniform(tf.shape(batch.last_action), 0, 9, tf.int32, seed=1)
      self.pool.complete_batch(batch.id, tf.constant(0, tf.int64), _Output(action), ())

    self._acting = waiting.start(actor_pool.endless(act))
    return self

  def __exit__(self, *unused_exception):
    self.pool.close()
    with contextlib.suppress(tf.errors.CancelledError):
      self._acting()
    self.workers.close()

  def take(self):
    """Waits for an unroll and returns it."""
    return tf.nest.map_structure(lambda tensor: tensor.numpy(), waiting.start(self._take)())


def _folders():
  return glob.glob(os.path.join(tempfile.gettempdir(), 'dmlab_*'))


@absltest.skipIf(lab_module.IS_REAL, 'only the fake module fails on demand')
class FaultTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.watch = lab_module.Watch(self)
    self.addCleanup(lambda: waiting.wait_until(lambda: not _folders()))

  def _check(self, unroll):
    """Checks what must hold for every unroll, also after failures of its worker."""
    output = unroll.environment_output
    self.assertEqual(unroll.level_id, unroll.actor_id)
    speaks = output.observation['instruction'].any(axis=1)
    np.testing.assert_array_equal(speaks, [unroll.level_id == 1] * (_UNROLL_LENGTH + 1))
    lengths = output.episode_length[output.done]
    self.assertContainsSubset(set(lengths.tolist()), {0, 4 * _EPISODE_STEPS})  # Every episode has its end.
    for before, after, done in zip(output.episode_length, output.episode_length[1:], output.done[1:]):
      if not done:
        self.assertEqual(after, (0 if before == 4 * _EPISODE_STEPS else before) + 4)

  def _play_past(self, pool, restarts, actor_ids=(0, 1)):
    """Takes unrolls until there were this many restarts, and each actor has finished an episode after them."""
    left = set(actor_ids)
    while pool.pool.restarts < restarts or left:
      if pool.pool.restarts < restarts:
        time.sleep(0.05)  # So that the other worker does not play at full speed until a hang is noticed.
      unroll = pool.take()
      self._check(unroll)
      if pool.pool.restarts >= restarts and unroll.environment_output.episode_length[1:].max() == 4 * _EPISODE_STEPS:
        left.discard(int(unroll.actor_id))

  def _check_faults(self, pool, reasons):
    """Plants one fault after the other, each once all actors play again, and checks its report."""
    for restarts, (fault, reason) in enumerate(reasons.items(), start=1):
      self._play_past(pool, restarts - 1)
      self.watch.plant(fault)
      self._play_past(pool, restarts)
      self.assertEqual(pool.pool.restarts, restarts, fault)
      self.assertIsNone(pool.pool.failure)
      self.assertLen(pool.reports, restarts)
      self.assertRegex(
          pool.reports[-1].splitlines()[0],
          rf'^environment worker ([01]) is replaced: environment \1 \(({"|".join(_LEVELS)})\) failed: {reason}')
      waiting.wait_until(lambda: len(self.watch.records()) == 2 + pool.pool.restarts)

  @mock.patch.object(actor_pool, 'EARLY_END_SECONDS', -60.)  # No end is early: one worker may have all the faults.
  @mock.patch.object(environment_workers, '_LAST_WORDS_SECONDS', 60.)  # What Lab printed may come late.
  def test_each_fault_is_counted_and_its_worker_replaced(self):
    with _Pool() as pool:
      self._check_faults(pool, {
          'raise_in_step': 'RuntimeError: the engine has crashed$',
          'raise_in_reset': 'RuntimeError: Failed to start environment - "the engine has crashed stack traceback: ',
          'no_zip_in_reset': 'RuntimeError: Failed to start environment - "Failed to compile map. stack .*'
                             '; on stderr: sh: 1: zip: not found$',
          'exit_in_step': 'its process ended with exit code 1; on stderr: ERROR: the engine ends$',
          'exit_in_reset': 'its process ended with exit code 1; on stderr: ERROR: the engine ends$',
          'abort_in_step': r'its process was ended by SIGABRT; on stderr: Check failed: result.ok\(\) the engine has '
                           'crashed / stack traceback:$',
          # Lab ends like this if a cache gives it a map that it cannot read.
          'bad_map_in_reset': "its process ended with exit code 1; on stderr: Didn't find map "})

  def test_a_fault_at_the_start_of_a_replacement_is_another_restart(self):
    with _Pool() as pool:
      self._play_past(pool, 0)
      self.watch.plant('exit_in_init')
      self.watch.plant('raise_in_step')
      self._play_past(pool, 2)
      self.assertEqual(pool.pool.restarts, 2)
    self.assertRegex(pool.reports[1], r'environment [01] \(\w+\) could not be made: its process ended with exit code 1')

  @mock.patch.object(environment_workers, 'LONG_WORK_FACTOR', 1)
  def test_a_hang_is_counted_and_its_worker_replaced(self):
    with _Pool(timeout_seconds=5.) as pool:
      self._check_faults(pool, {
          'hang_in_step': r'no answer for 5 s \(--environment_timeout_seconds\)$',
          'hang_in_reset': r'no answer for 5 s \(--environment_timeout_seconds\)$',
          'compile_in_reset': r'no answer for 5 s \(long work, 1 times --environment_timeout_seconds\)$'})

  @parameterized.parameters((('exit_in_init', 'abort_in_init'), 60.), (('hang_in_init',), 20.))
  def test_each_crash_at_the_very_start_is_another_restart(self, faults, start_seconds):
    for fault in faults:
      self.watch.plant(fault)
    with _Pool(start_seconds=start_seconds) as pool:
      self._play_past(pool, len(faults))
      self.assertEqual(pool.pool.restarts, len(faults))

  def test_what_lab_has_to_say_at_the_very_start_is_told(self):
    self.watch.plant('raise_in_init')
    with self.assertRaisesRegex(
        environment_workers.WorkerError, r'^environment [01] \(\w+\) could not be made: RuntimeError: Failed to init '
        'environment - "the engine has crashed stack traceback: .*\nTraceback '):
      _Pool()

  def test_a_bad_cached_map_ends_nothing(self):
    """Lab ends with exit code 1 on a damaged map. The cache prevents this."""
    folder = self.create_tempdir().full_path
    with _Pool(level_cache=folder) as pool:
      self._play_past(pool, 0)
      for path in glob.glob(os.path.join(folder, '*.map')):
        with open(path, 'r+b') as file:
          file.truncate(100)
      for _ in range(3):
        self._play_past(pool, 0)
      self.assertEqual(pool.pool.restarts, 0)

  def test_a_worker_has_no_socket_but_ours_and_no_tensorflow_and_its_folder_goes_when_it_is_killed(self):
    with _Pool() as pool:
      self._play_past(pool, 0)
      for worker in (0, 1):
        process = psutil.Process(pool.workers[worker].process.pid)
        self.assertEmpty(process.net_connections('inet'))
        self.assertEqual([c.laddr for c in process.net_connections('unix')], [''])
        self.assertEmpty([area.path for area in process.memory_maps() if 'tensorflow' in area.path])
      for record in self.watch.records():
        self.assertEqual(record['config']['appendCommand'], '+set net_enabled 0')
      mine, = [record['temp_folder'] for record in self.watch.records() if _LEVELS[0] in record['level']]
      self.assertTrue(os.path.isdir(mine))
      pool.workers[0].process.kill()
      self._play_past(pool, 1)
      waiting.wait_until(lambda: not os.path.exists(mine))

  def test_regression_a_map_compiler_holds_nothing_of_its_worker(self):
    """Otherwise the death of a worker would be noticed only when its map compiler ends."""
    with _Pool() as pool:
      self._play_past(pool, 0)
      self.watch.plant('compile_in_reset')
      note = os.path.join(self.watch.folder, 'compiler')
      taking = waiting.start(lambda: self._play_past(pool, 1))
      waiting.wait_until(lambda: os.path.exists(note) and os.path.getsize(note))
      with open(note, encoding='ascii') as file:
        shell = psutil.Process(int(file.read()))
      files = [os.readlink(f'/proc/{shell.pid}/fd/{number}') for number in os.listdir(f'/proc/{shell.pid}/fd')]
      self.assertEmpty([name for name in files if name.startswith(('socket', '/memfd'))])
      shell.parent().kill()
      taking()


if __name__ == '__main__':
  absltest.main()
