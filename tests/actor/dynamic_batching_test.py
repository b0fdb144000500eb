"""Tests dynamic batching from Python. Its ops have tests in tests/ops/ops_test.py, its core in batcher_test.cc."""

import gc
import inspect
import threading
from unittest import mock
import weakref

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from scalable_agents.actor import dynamic_batching
from scalable_agents.tests.actor import waiting

_A_SHORT_WHILE = 0.05  # Seconds, for what must not happen.


def _sizes(x):
  """[n, ...] -> for every row the size of the batch that it was in."""
  return tf.fill(tf.shape(x)[:1], tf.shape(x)[0])


class DynamicBatchingTest(parameterized.TestCase):

  def _batch(self, function, **options):
    batched = dynamic_batching.batch_fn_with_options(**options)(function)
    self.addCleanup(batched.close)
    return batched

  def test_one_caller_gets_its_row(self):
    @dynamic_batching.batch_fn
    def add(a, b):
      """Adds."""
      return a + b

    self.addCleanup(add.close)
    np.testing.assert_array_equal(add(tf.constant([[1, 2]]), tf.constant([[30, 40]])), [[31, 42]])
    np.testing.assert_array_equal(add(np.array([[5, 6]], np.int32), np.array([[0, 1]], np.int32)), [[5, 7]])
    self.assertEqual(add.__name__, 'add')
    self.assertEqual(add.__doc__, 'Adds.')

  @parameterized.parameters(2, 7)
  def test_callers_are_merged(self, callers):
    f = self._batch(lambda x: (2 * x, _sizes(x)), minimum_batch_size=callers, timeout_ms=None)
    results = [waiting.start(f, tf.constant([i])) for i in range(callers)]
    for i, result in enumerate(results):
      doubled, size = result()
      np.testing.assert_array_equal(doubled, [2 * i])
      np.testing.assert_array_equal(size, [callers])

  def test_the_minimum_is_awaited_without_a_timeout(self):
    f = self._batch(_sizes, minimum_batch_size=2, timeout_ms=None)
    first = waiting.start(f, tf.constant([1]))
    self.assertFalse(first.ended.wait(_A_SHORT_WHILE))
    second = waiting.start(f, tf.constant([2]))
    self.assertEqual([first().numpy().tolist(), second().numpy().tolist()], [[2], [2]])

  def test_the_timeout_ends_the_wait_for_the_minimum(self):
    f = self._batch(_sizes, minimum_batch_size=100, timeout_ms=20)
    for _ in range(3):
      self.assertEqual(waiting.start(f, tf.constant([1]))().numpy(), [1])

  def test_a_timeout_of_zero_takes_whoever_is_there(self):
    f = self._batch(_sizes, minimum_batch_size=100, timeout_ms=0)
    for _ in range(3):
      self.assertEqual(waiting.start(f, tf.constant([1]))().numpy(), [1])

  def test_the_maximum_is_never_exceeded(self):
    f = self._batch(_sizes, minimum_batch_size=1, maximum_batch_size=3)
    results = [waiting.start(f, tf.constant([i])) for i in range(20)]
    self.assertLessEqual(max(result().numpy()[0] for result in results), 3)

  def test_the_released_defaults(self):
    seen = []

    @dynamic_batching.batch_fn
    def f(x):
      seen.append(x.shape)
      return x

    self.addCleanup(f.close)
    f(tf.zeros([1, 3]))
    self.assertEqual([shape.as_list() for shape in seen], [[None, 3]])
    parameters = inspect.signature(dynamic_batching.batch_fn_with_options).parameters.values()
    self.assertEqual([parameter.default for parameter in parameters], [1, 1024, 100])

  @parameterized.parameters((3, 3, None, 3), (3, 3, 100, None), (2, 3, None, None))
  def test_the_batch_size_is_static_where_it_is_known(self, minimum, maximum, timeout_ms, expected):
    seen = []

    def f(x):
      seen.append(x.shape.as_list())
      return tf.reduce_sum(x, axis=1)

    f = self._batch(f, minimum_batch_size=minimum, maximum_batch_size=maximum, timeout_ms=timeout_ms)
    results = [waiting.start(f, tf.fill([1, 2], i)) for i in range(3)]
    self.assertEqual([result().numpy().tolist() for result in results], [[0], [2], [4]])
    self.assertEqual(seen, [[expected, 2]])

  def test_nests_of_many_types(self):
    def f(x, y):
      return {'text': tf.strings.join([x['text'], '!']), 'rest': (tf.logical_not(x['flag']), y[0] + 1, y[1] * 2.)}

    f = self._batch(f, minimum_batch_size=2, timeout_ms=None)
    texts = ['a', 'a long text that lies on the heap because it is too long to lie anywhere else']
    results = [
        waiting.start(f, {'text': tf.constant([text]), 'flag': tf.constant([[True, i == 0]])},
                      [tf.constant([i], tf.int64), tf.constant([[i / 2]], tf.float64)])
        for i, text in enumerate(texts)]
    for i, result in enumerate(results):
      got = result()
      self.assertEqual(got['text'].numpy().tolist(), [texts[i].encode() + b'!'])
      flag, integer, number = got['rest']
      self.assertEqual(flag.numpy().tolist(), [[False, i != 0]])
      self.assertEqual((integer.dtype, integer.numpy().tolist()), (tf.int64, [i + 1]))
      self.assertEqual((number.dtype, number.numpy().tolist()), (tf.float64, [[float(i)]]))

  def test_regression_variables_are_read_when_the_batch_is_there(self):
    variable = tf.Variable(0)
    f = self._batch(lambda x: x + variable)
    for i in range(20):
      variable.assign(10 * i)
      self.assertEqual(f(tf.constant([1])).numpy(), [10 * i + 1])

  def test_in_a_graph(self):
    f = self._batch(lambda x: (2. * x, _sizes(x)))

    @tf.function
    def go(x):
      doubled, _ = f(x)
      self.assertEqual(doubled.shape.as_list(), [1, 3])
      return doubled

    np.testing.assert_array_equal(go(tf.ones([1, 3])), 2 * np.ones([1, 3]))
    np.testing.assert_array_equal(f(tf.ones([1, 3]))[0], 2 * np.ones([1, 3]))

  def test_regression_calls_in_one_graph_wait_side_by_side(self):
    f = self._batch(lambda x: (2 * x, _sizes(x)), minimum_batch_size=3, timeout_ms=None)
    go = tf.function(lambda x: [f(x + i) for i in range(3)])
    result = waiting.start(go, tf.constant([10]))
    self.assertEqual([(int(d[0]), int(s[0])) for d, s in result()], [(20, 3), (22, 3), (24, 3)])

  def test_many_threads_many_times(self):
    f = self._batch(lambda x: (x * x, _sizes(x)), minimum_batch_size=4, timeout_ms=5)
    go = tf.function(f)

    def call(caller):
      sizes = []
      for i in range(40):
        number = 100 * caller + i
        square, size = (go if caller % 2 else f)(tf.constant([number]))
        self.assertEqual(square.numpy(), [number * number])
        sizes.append(int(size[0]))
      return sizes

    results = [waiting.start(call, caller) for caller in range(8)]
    for result in results:
      result()

  def test_two_functions_are_independent(self):
    inner = self._batch(lambda x: x + 1)
    outer = self._batch(lambda x: 10 * tf.map_fn(lambda row: inner(row[tf.newaxis])[0], x, parallel_iterations=1))
    np.testing.assert_array_equal(outer(tf.constant([4])), [50])
    outer.close()
    np.testing.assert_array_equal(inner(tf.constant([4])), [5])
    with self.assertRaises(tf.errors.CancelledError):
      outer(tf.constant([4]))

  @parameterized.parameters((0, 1), (2, 1), (-1, -1))
  def test_bad_sizes(self, minimum, maximum):
    with self.assertRaisesRegex(ValueError, f'got {minimum} and {maximum}'):
      dynamic_batching.batch_fn_with_options(minimum, maximum)


class DynamicBatchingEndTest(parameterized.TestCase):
  """Errors and the end."""

  def _batch(self, function, **options):
    batched = dynamic_batching.batch_fn_with_options(**options)(function)
    self.addCleanup(batched.close)
    return batched

  def test_an_error_in_the_function_ends_every_call(self):
    started = threading.Event()
    go_on = threading.Event()

    def fail(x):
      started.set()
      go_on.wait(waiting.PATIENCE_SECONDS)
      raise ValueError(f'cannot do {x.numpy()[0]}')

    f = self._batch(lambda x: tf.py_function(fail, [x], tf.int32), maximum_batch_size=1)
    results = [waiting.start(f, tf.constant([7]))]
    started.wait(waiting.PATIENCE_SECONDS)  # One call is under way, the others are queued.
    results += [waiting.start(f, tf.constant([8])) for _ in range(3)]
    results += [waiting.start(tf.function(lambda: f(tf.constant([8])))) for _ in range(2)]
    go_on.set()
    for number, result in enumerate(results):
      with self.assertRaises(tf.errors.CancelledError) as raised:
        result()
      self.assertIn('ValueError: cannot do 7', raised.exception.message)
      if number < 4:  # Called eagerly.
        self.assertRegex(raised.exception.message, '^(Compute was cancelled|Batcher is closed): ')
    with self.assertRaises(tf.errors.CancelledError) as raised:
      f(tf.constant([9]))
    self.assertStartsWith(raised.exception.message, 'Batcher is closed: ')
    self.assertIn('ValueError: cannot do 7', raised.exception.message)

  def test_the_message_is_the_released_one_and_the_cause(self):
    def f(x):
      with tf.control_dependencies([tf.debugging.assert_less(x, 10, message='too large')]):
        return tf.identity(x)

    f = self._batch(f)
    self.assertEqual(f(tf.constant([3])).numpy(), [3])
    with self.assertRaises(tf.errors.CancelledError) as raised:
      f(tf.constant([30]))
    self.assertStartsWith(raised.exception.message, 'Compute was cancelled: assertion failed: [too large]')
    self.assertNotIn('{{', raised.exception.message)
    self.assertNotIn('[Op:', raised.exception.message)

  def test_an_error_while_tracing_is_the_callers(self):
    def f(x):
      if x.dtype == tf.float32:
        raise TypeError('no floats')
      return x

    f = self._batch(f)
    with self.assertRaisesRegex(TypeError, 'no floats'):
      f(tf.constant([1.]))
    self.assertEqual(f(tf.constant([1])).numpy(), [1])

  @parameterized.named_parameters(('vector', [1, 2], '2'), ('empty', [], '0'), ('scalar', 3, 'a scalar'))
  def test_callers_bring_one_row(self, value, size):
    f = self._batch(lambda x: x)
    message = f'^Batcher requires batch size 1 but was {size}$'
    with self.assertRaises(tf.errors.InvalidArgumentError) as raised:
      f(tf.constant(value, tf.int32))
    self.assertRegex(raised.exception.message, message)
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, f'Batcher requires batch size 1 but was {size}'):
      tf.function(f)(tf.constant(value, tf.int32))
    self.assertEqual(f(tf.constant([5])).numpy(), [5])  # The others are not concerned.

  def test_a_first_call_that_fails_leaves_nothing_behind(self):
    f = self._batch(lambda x: x if x.shape.rank == 2 else (x, None))
    no_row = tf.errors.InvalidArgumentError
    for wrong, error in (([[1., 2.]], no_row), (tf.zeros([2, 3]), no_row), (tf.zeros([1]), TypeError)):
      with self.assertRaises(error):
        f(wrong)
    np.testing.assert_array_equal(f(tf.ones([1, 2])), [[1., 1.]])

  def test_gradients_do_not_flow(self):
    f, x = self._batch(lambda x: 2. * x), tf.ones([1])
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = f(x)
    self.assertIsNone(tape.gradient(y, x))

  def test_another_shape_than_the_first_callers(self):
    f = self._batch(tf.identity)
    f(tf.zeros([1, 2]))
    with self.assertRaises(tf.errors.InvalidArgumentError) as raised:
      f(tf.zeros([1, 3]))
    self.assertStartsWith(raised.exception.message, 'Shapes of inputs must be equal')
    f(tf.zeros([1, 2]))

  def test_another_type_or_structure_than_the_first_callers(self):
    f = self._batch(lambda x, y: x + y)
    f(tf.zeros([1]), tf.zeros([1]))
    with self.assertRaisesRegex(ValueError, 'want float32 as in the first call, got int32'):
      f(tf.zeros([1]), tf.zeros([1], tf.int32))
    with self.assertRaisesRegex(ValueError, 'same nested structure'):
      f(tf.zeros([1]))
    with self.assertRaisesRegex(ValueError, 'same nested structure'):
      f(tf.zeros([1]), [tf.zeros([1])])
    f(tf.zeros([1]), tf.zeros([1]))

  def test_unequal_shapes_in_a_batch(self):
    f = self._batch(lambda x: tf.reduce_sum(x, 1), minimum_batch_size=2, timeout_ms=None)
    call = tf.function(f, input_signature=[tf.TensorSpec([1, None])])
    results = [waiting.start(call, tf.zeros([1, size])) for size in (2, 3)]
    for result in results:
      with self.assertRaisesRegex(tf.errors.CancelledError, 'Compute was cancelled: Shapes of inputs must be equal'):
        result()

  def test_an_output_without_a_batch_dimension(self):
    f = self._batch(tf.reduce_sum)
    with self.assertRaises(tf.errors.CancelledError) as raised:
      f(tf.constant([1]))
    self.assertEqual(raised.exception.message,
                     'Compute was cancelled: Output must have a batch dimension, got a scalar')

  def test_an_output_with_another_batch_dimension(self):
    f = self._batch(lambda x: tf.concat([x, x], 0))
    with self.assertRaises(tf.errors.CancelledError) as raised:
      f(tf.constant([1]))
    self.assertEqual(raised.exception.message, 'Compute was cancelled: Output must have the same batch dimension as '
                     'the input batch: want 1, got 2')

  def test_close_ends_waiting_calls_and_the_loop(self):
    before = threading.active_count()
    started, go_on = threading.Event(), threading.Event()

    def wait(x):
      started.set()
      go_on.wait(waiting.PATIENCE_SECONDS)
      return x

    f = self._batch(lambda x: tf.py_function(wait, [x], tf.int32), maximum_batch_size=1)
    eager = waiting.start(f, tf.constant([1]))
    started.wait(waiting.PATIENCE_SECONDS)  # Its batch is under way.
    others = [waiting.start(f, tf.constant([1])), waiting.start(tf.function(lambda: f(tf.constant([1]))))]
    for other in others:
      self.assertFalse(other.ended.wait(_A_SHORT_WHILE))
    f.close()
    f.close()
    with self.assertRaises(tf.errors.CancelledError) as raised:
      eager()
    self.assertEqual(raised.exception.message, 'Compute was cancelled: close() was called')
    for other in others:
      with self.assertRaisesRegex(tf.errors.CancelledError, '(Compute was cancelled|Batcher is closed): close'):
        other()
    with self.assertRaises(tf.errors.CancelledError) as raised:
      f(tf.constant([1]))
    self.assertEqual(raised.exception.message, 'Batcher is closed: close() was called')
    go_on.set()
    waiting.wait_until(lambda: threading.active_count() <= before)

  def test_a_function_that_is_deleted_leaves_nothing(self):
    hook = self.enterContext(mock.patch.object(threading, 'excepthook'))
    before, deleted = threading.active_count(), []
    for number in range(3):
      f = dynamic_batching.batch_fn(lambda x: 2 * x)
      self.assertEqual(f(tf.constant([number])).numpy(), [2 * number])
      weakref.finalize(f, deleted.append, number)
    del f
    waiting.wait_until(lambda: gc.collect() >= 0 and threading.active_count() <= before)
    self.assertEqual(deleted, [0, 1, 2])
    hook.assert_not_called()

  def test_close_before_the_first_call(self):
    f = self._batch(tf.identity)
    f.close()
    with self.assertRaisesRegex(tf.errors.CancelledError, 'Batcher is closed'):
      f(tf.constant([1]))

  def test_close_while_everybody_is_busy(self):
    f = self._batch(lambda x: 2 * x, minimum_batch_size=2, timeout_ms=1)
    done = threading.Event()

    def call_until_closed(number):
      calls = 0
      while True:
        try:
          self.assertEqual(f(tf.constant([number])).numpy(), [2 * number])
        except tf.errors.CancelledError:
          return calls
        calls += 1
        if calls == 20:
          done.set()

    callers = [waiting.start(call_until_closed, number) for number in range(6)]
    done.wait(waiting.PATIENCE_SECONDS)
    f.close()
    self.assertGreaterEqual(max(caller() for caller in callers), 20)


if __name__ == '__main__':
  absltest.main()
