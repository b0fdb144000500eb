"""Tests which settings are refused because the machine has too little memory for them."""

import itertools
from unittest import mock

from absl.testing import absltest
import tensorflow as tf

from scalable_agents.actor import environment_workers
from scalable_agents.agents import configs
from scalable_agents.experience import memory
from scalable_agents.processes import machine
from scalable_agents.records import errors

_UNROLL = {'pixels': tf.TensorSpec([21, 84, 84, 4], tf.uint8), 'reward': tf.TensorSpec([21], tf.float32)}
_UNROLL_BYTES = 21 * (84 * 84 * 4 + 4)
_SENT = [tf.TensorSpec([500_000], tf.float32)]  # In place of an unroll: larger, as a gradient may be.
_SENT_BYTES = 2_000_000
_PARAMETERS = [tf.TensorSpec([1000], tf.float32), tf.TensorSpec([], tf.float32)]


class MemoryTest(absltest.TestCase):

  def _with(self, size):
    return mock.patch.object(machine, 'memory_bytes', lambda: size)

  def test_unrolls_and_parameters_are_counted(self):
    config = configs.ImpalaConfig(batch_size=3, queue_size=2, policy_lag=4)
    needed = (5 + 2) * _UNROLL_BYTES + (2 + 2 * 2 * 3) * _SENT_BYTES + (1 + 4) * 4004
    with self._with(needed):
      memory.check(_UNROLL, _SENT, _PARAMETERS, config, num_environments=5, num_learners=2)
    with self._with(needed - 1), self.assertRaisesRegex(
        errors.UserError, '^--unroll_length=20, --batch_size=3, --queue_size=2, --policy_lag=4, 5 environments: up to '
        '7 unrolls of 0.6 MB in the actors, 14 times 2.0 MB in the queue and in batches, and 5 copies of 0.0 MB of '
        'parameters need 0.0 GB of memory, .*$'):
      memory.check(_UNROLL, _SENT, _PARAMETERS, config, num_environments=5, num_learners=2)

  def test_an_actor_host_has_no_batches_and_one_copy(self):
    config, needed = configs.ImpalaConfig(policy_lag=9), (5 + 1) * _UNROLL_BYTES + _SENT_BYTES + 4004
    with self._with(needed):
      memory.check(_UNROLL, _SENT, _PARAMETERS, config, num_environments=5, num_learners=0)
    with self._with(needed - 1), self.assertRaises(errors.UserError):
      memory.check(_UNROLL, _SENT, _PARAMETERS, config, num_environments=5, num_learners=0)

  def test_copies_that_workers_hold_are_counted(self):
    config, needed = configs.ImpalaConfig(), (5 + 1) * _UNROLL_BYTES + _SENT_BYTES + (1 + 3) * 4004
    with self._with(needed):
      memory.check(_UNROLL, _SENT, _PARAMETERS, config, num_environments=5, num_learners=0, held=3)
    with self._with(needed - 1), self.assertRaises(errors.UserError):
      memory.check(_UNROLL, _SENT, _PARAMETERS, config, num_environments=5, num_learners=0, held=3)

  def test_environments_are_counted_before_they_are_made(self):
    with self._with(23_000_000_000):
      memory.check_environments(['rooms_watermaze'], 100)
      memory.check_environments(['catch'], 10_000)
      memory.check_environments(['pong'], 10_000)
      with self.assertRaisesRegex(errors.UserError, '^--num_environments=101: they need at least 23.2 GB of memory'):
        memory.check_environments(['rooms_watermaze'], 101)

  def test_a_replay_and_two_batches_are_counted(self):
    with self._with(1_000_000_000):
      memory.check_replay(800_000_000, 100, 'agent steps', 100_000_000, 8)
      with self.assertRaises(errors.UserError) as caught:
        memory.check_replay(800_000_001, 100, 'agent steps', 100_000_000, 8)
    self.assertEqual(
        str(caught.exception),
        '--replay_capacity=100, --batch_size=8: a full replay of 100 agent steps takes 0.8 GB and two batches take 0.2 '
        'GB, but the machine has 1.0 GB of memory: --replay_capacity=79 would fit')

  def test_the_capacity_that_would_fit_does(self):
    for bytes_per_step, batch_bytes in itertools.product((1, 7_056, 50_000_000), (0, 1, 300_000_000)):
      with self._with(1_000_000_000), self.assertRaises(errors.UserError) as caught:
        memory.check_replay(bytes_per_step * 2 * 10**9, 2 * 10**9, 'agent steps', batch_bytes)
      capacity = int(str(caught.exception).rpartition('--replay_capacity=')[2].split()[0])
      with self._with(1_000_000_000):
        memory.check_replay(bytes_per_step * capacity, capacity, 'agent steps', batch_bytes)
      # It leaves a fifth for everything else, and has two digits that are not 0.
      self.assertBetween(bytes_per_step * capacity / (1_000_000_000 - 2 * batch_bytes), 0.6, 0.8)

  def test_if_no_capacity_would_fit_the_batch_is_too_large(self):
    with self._with(1_000_000_000), self.assertRaisesRegex(
        errors.UserError, '^--replay_capacity=100: a full replay of 100 sequences takes 0.0 GB and two batches take '
        '2.0 GB, but the machine has 1.0 GB of memory: choose smaller numbers$'):
      memory.check_replay(1000, 100, 'sequences', 1_000_000_000)

  def test_frames_of_a_replay_are_counted_when_the_first_environment_is_made(self):
    lab = environment_workers.Specification(
        15, {'pixels': ('uint8', [72, 96, 3]), 'instruction': ('uint8', [128])}, 4, {})
    game = environment_workers.Specification(18, {'pixels': ('uint8', [84, 84, 4])}, 4, {'pixels': 4})
    with self._with(30_000_000_000):
      memory.check_stored_frames(game, 4_000_000, 100_000)
      memory.check_stored_frames(lab, 0, 100_000)
      with self.assertRaisesRegex(errors.UserError, '^--replay_capacity=100000: a full replay of 100,000 times 40 agent'
                                  ' steps takes 83.5 GB, but the machine has 30.0 GB of memory: '
                                  '--replay_capacity=28000 would fit$'):
        memory.check_stored_frames(lab, 4_000_000, 100_000)
      with self.assertRaisesRegex(errors.UserError, ' 10,000,000 agent steps takes 208.6 GB, '):
        memory.check_stored_frames(lab, 10_000_000, 10_000_000)

  def test_the_new_unrolls_of_an_update_are_counted(self):
    with self._with(1_000_000_000):
      memory.check_replay(600_000_000, 100, 'sequences', 100_000_000, 8, 200_000_000, 'many')
      for new_bytes, message in ((300_000_000, '0.6 GB and two batches take 0.2 GB and many take 0.3 GB, but .*=66 .*'),
                                 (900_000_000, '0.6 GB and .* and many take 0.9 GB, but .*: choose smaller numbers')):
        with self.assertRaisesRegex(errors.UserError, f'^--replay_capacity=100, .* 100 sequences takes {message}$'):
          memory.check_replay(600_000_000, 100, 'sequences', 100_000_000, 8, new_bytes, 'many')


if __name__ == '__main__':
  absltest.main()
