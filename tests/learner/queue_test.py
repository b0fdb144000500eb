"""Tests of the unroll queue: order, layout of batches, blocking, and the end of every wait."""

from concurrent import futures
from typing import NamedTuple

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from scalable_agents.learner import queue

_PATIENCE_SECONDS = 300.
_NEVER_SECONDS = 0.2  # Time to wait for an event that must not happen.


class _Unroll(NamedTuple):
  actor_id: tf.Tensor  # [].
  state: tuple         # Of [2].
  reward: tf.Tensor    # [3].
  pixels: dict         # Of [3, 2, 2].


_SPEC = _Unroll(tf.TensorSpec([], tf.int32), (tf.TensorSpec([2], tf.float32),), tf.TensorSpec([3], tf.float32),
                {'a': tf.TensorSpec([3, 2, 2], tf.uint8)})
_TIME_MAJOR = _Unroll(False, (False,), True, {'a': True})


def _unroll(number):
  """Returns an unroll. Each of its numbers shows its position."""
  return _Unroll(np.int32(number), (np.float32([10 * number, 10 * number + 1]),),
                 np.float32(10 * number + np.arange(3)),
                 {'a': np.uint8(12 * number + np.arange(12)).reshape([3, 2, 2])})


class UnrollQueueTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.pool = self.enter_context(futures.ThreadPoolExecutor())

  def _queue(self, capacity):
    unrolls = queue.UnrollQueue(_SPEC, capacity, _TIME_MAJOR)
    self.addCleanup(unrolls.close)
    return unrolls

  @parameterized.parameters(False, True)
  def test_batches_are_in_order_and_time_major(self, in_graph):
    unrolls = self._queue(capacity=6)
    for number in range(6):
      unrolls.put(_unroll(number))
    self.assertEqual(unrolls.size(), 6)
    take = tf.function(lambda: unrolls.take_batch(2), autograph=False) if in_graph else lambda: unrolls.take_batch(2)
    for first in (0, 2, 4):
      batch = take()
      one, two = _unroll(first), _unroll(first + 1)
      np.testing.assert_array_equal(batch.actor_id, [first, first + 1])
      np.testing.assert_array_equal(batch.state[0], [one.state[0], two.state[0]])  # [B, 2].
      self.assertEqual(batch.reward.shape, [3, 2])
      self.assertEqual(batch.pixels['a'].shape, [3, 2, 2, 2])
      for row in range(3):
        np.testing.assert_array_equal(batch.reward[row], [one.reward[row], two.reward[row]])
        np.testing.assert_array_equal(batch.pixels['a'][row], [one.pixels['a'][row], two.pixels['a'][row]])
    self.assertEqual(unrolls.size(), 0)

  @parameterized.parameters(0, 1, 2)
  def test_an_unroll_is_dropped_from_a_batch_and_the_next_comes_behind_the_others(self, slot):
    unrolls = self._queue(capacity=5)
    for number in range(5):
      unrolls.put(_unroll(number))
    batch = tf.function(lambda: unrolls.drop(unrolls.take_batch(3), slot), autograph=False)()
    expected = [number for number in range(4) if number != slot]
    np.testing.assert_array_equal(batch.actor_id, expected)
    for index, number in enumerate(expected):
      np.testing.assert_array_equal(batch.state[0][index], _unroll(number).state[0])
      np.testing.assert_array_equal(batch.reward[:, index], _unroll(number).reward)
      np.testing.assert_array_equal(batch.pixels['a'][:, index], _unroll(number).pixels['a'])
    np.testing.assert_array_equal(unrolls.take().actor_id, 4)

  def test_a_batch_may_be_larger_than_the_queue(self):
    unrolls = self._queue(capacity=1)
    batch = self.pool.submit(unrolls.take_batch, 5)
    for number in range(5):
      unrolls.put(_unroll(number))
    np.testing.assert_array_equal(batch.result(_PATIENCE_SECONDS).actor_id, range(5))

  def test_putting_waits_while_the_queue_is_full(self):
    unrolls = self._queue(capacity=2)
    for number in range(2):
      unrolls.put(_unroll(number))
    third = self.pool.submit(unrolls.put, _unroll(2))
    with self.assertRaises(futures.TimeoutError):
      third.result(_NEVER_SECONDS)
    np.testing.assert_array_equal(unrolls.take_batch(1).actor_id, [0])
    third.result(_PATIENCE_SECONDS)
    np.testing.assert_array_equal(unrolls.take_batch(2).actor_id, [1, 2])

  def test_closing_ends_a_wait_for_room(self):
    unrolls = self._queue(capacity=1)
    unrolls.put(_unroll(0))
    waiting = self.pool.submit(unrolls.put, _unroll(1))
    with self.assertRaises(futures.TimeoutError):
      waiting.result(_NEVER_SECONDS)
    unrolls.close()
    with self.assertRaises(tf.errors.CancelledError):
      waiting.result(_PATIENCE_SECONDS)
    with self.assertRaises(tf.errors.CancelledError):
      unrolls.put(_unroll(2))

  def test_closing_ends_a_wait_for_a_batch(self):
    unrolls = self._queue(capacity=2)
    unrolls.put(_unroll(0))
    waiting = self.pool.submit(unrolls.take_batch, 2)
    with self.assertRaises(futures.TimeoutError):
      waiting.result(_NEVER_SECONDS)
    unrolls.close()
    with self.assertRaises(tf.errors.OutOfRangeError):
      waiting.result(_PATIENCE_SECONDS)

  def test_another_structure_is_refused(self):
    unrolls = self._queue(capacity=1)
    with self.assertRaises(ValueError):
      unrolls.put(_unroll(0)._replace(state=()))


if __name__ == '__main__':
  absltest.main()
