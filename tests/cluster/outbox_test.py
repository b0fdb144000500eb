"""The lanes of unrolls: the choice of the lane, the order within it, and the end of waits."""

from typing import Any, NamedTuple

from absl.testing import absltest
import numpy as np
import tensorflow as tf

from scalable_agents.cluster import outbox
from scalable_agents.tests.actor import waiting


class _Unroll(NamedTuple):
  actor_id: Any  # [] int32.
  name: Any      # [] string.


_SPEC = _Unroll(tf.TensorSpec([], tf.int32), tf.TensorSpec([], tf.string))


def _unroll(actor_id, name):
  return _Unroll(tf.constant(actor_id), tf.constant(name))


class OutboxTest(absltest.TestCase):

  def _lanes(self, count, largest_block):
    lanes = [outbox.Lane(_SPEC, largest_block) for _ in range(count)]
    for lane in lanes:
      self.addCleanup(lane.close)
    return lanes

  def test_each_actor_has_a_lane_and_its_unrolls_stay_in_order(self):
    lanes = self._lanes(3, 8)

    @tf.function(autograph=False)
    def put_all():  # Like an actor host, in a loop of a graph.
      tf.while_loop(lambda number: number < 12,
                    lambda number: [number + tf.cast(outbox.put(lanes, _Unroll(
                        70 + number % 4, tf.strings.as_string(number))), tf.int32)], [0], parallel_iterations=1)

    put_all()
    taken = {}
    for number, lane in enumerate(lanes):
      self.assertEqual(lane.size(), (3, 6, 3)[number])  # Actors 70 to 73: 70 and 73 are congruent modulo 3.
      block = lane.take()
      self.assertEqual(lane.size(), 0)
      for actor_id, name in block:
        self.assertEqual(actor_id % 3, number)
        taken.setdefault(int(actor_id), []).append(int(name))
    self.assertEqual(taken, {70 + actor: [actor, actor + 4, actor + 8] for actor in range(4)})

  def test_takes_as_many_as_there_are(self):
    lane, = self._lanes(1, 2)
    lane.put(_unroll(1, 'a'))
    self.assertEqual(lane.take(), [[1, b'a']])
    block = waiting.start(lane.take)  # Waits for an unroll.
    lane.put(_unroll(1, 'b'))
    self.assertEqual(block(), [[1, b'b']])
    for name in 'cd':
      lane.put(_unroll(1, name))
    put = waiting.start(lane.put, _unroll(1, 'e'))  # Waits for room.
    self.assertEqual(lane.take()[:2], [[1, b'c'], [1, b'd']])
    put()

  def test_a_lane_that_is_full_does_not_hold_up_another(self):
    lanes = self._lanes(2, 1)
    outbox.put(lanes, _unroll(0, 'a'))
    put = waiting.start(outbox.put, lanes, _unroll(2, 'b'))
    outbox.put(lanes, _unroll(1, 'c'))
    self.assertFalse(put.ended.is_set())
    self.assertEqual(lanes[1].take(), [[1, b'c']])
    self.assertEqual(lanes[0].take(), [[0, b'a']])
    put()

  def test_close_ends_every_wait(self):
    lanes = self._lanes(2, 1)
    take = waiting.start(lanes[1].take)
    lanes[0].put(_unroll(0, 'a'))
    put = waiting.start(outbox.put, lanes, _unroll(0, 'b'))
    for lane in lanes:
      lane.close()
    self.assertIsNone(take())
    with self.assertRaises(tf.errors.CancelledError):
      put()

  def test_arrays_are_as_they_were_put(self):
    for dtype in (tf.uint8, tf.bfloat16):
      lane = outbox.Lane(_Unroll(tf.TensorSpec([], tf.int32), tf.TensorSpec([2, 3], dtype)), 1)
      content = np.arange(6).reshape(2, 3).astype(dtype.as_numpy_dtype)
      lane.put(_Unroll(tf.constant(5), tf.constant(content)))
      (actor_id, taken), = lane.take()
      self.assertEqual(actor_id, 5)
      np.testing.assert_array_equal(taken, content)
      self.assertEqual(taken.dtype, content.dtype)


if __name__ == '__main__':
  absltest.main()
