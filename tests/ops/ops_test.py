"""Tests of how the ops are loaded and how their resources go away, and of what the batcher's loop never asks of it."""

import gc
import importlib.util
import os
import time
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import tensorflow as tf

from scalable_agents.ops import ops
from scalable_agents.tests.actor import waiting


class _Owner:
  """Holds a resource."""


class OpsTest(absltest.TestCase):

  def test_names_are_unique(self):
    names = {ops.unique_name('pool') for _ in range(100)}
    self.assertLen(names, 100)
    for name in names:
      self.assertStartsWith(name, 'pool_')

  def test_a_resource_goes_with_its_owner(self):
    handle = ops.parameter_snapshot(shared_name=ops.unique_name('test'))
    owner = _Owner()
    ops.delete_with(owner, handle)
    ops.parameter_snapshot_publish(handle, 1, [tf.constant(1)])
    del owner
    gc.collect()
    with self.assertRaises(tf.errors.NotFoundError):
      ops.parameter_snapshot_publish(handle, 1, [tf.constant(1)])

  def test_regression_a_resource_goes_amid_the_tracing_of_a_graph(self):
    """Where the garbage collector likes to run. The deletion was built into the graph, or waited for its lock."""
    handle = ops.parameter_snapshot(shared_name=ops.unique_name('test'))
    owners = [_Owner()]
    ops.delete_with(owners[0], handle)

    @tf.function
    def trace():
      owners.clear()
      gc.collect()
      return tf.constant(1)

    self.assertLen(trace.get_concrete_function().graph.get_operations(), 2)  # The constant and its return.
    with self.assertRaises(tf.errors.NotFoundError):
      ops.parameter_snapshot_publish(handle, 1, [tf.constant(1)])

  def test_regression_a_resource_goes_while_a_graph_is_built_by_hand(self):
    """As TensorFlow does to export a model. The deletion failed, and the resource stayed for ever."""
    handle = ops.parameter_snapshot(shared_name=ops.unique_name('test'))
    owners = [_Owner()]
    ops.delete_with(owners[0], handle)
    with tf.Graph().as_default() as graph:
      owners.clear()
      gc.collect()
    self.assertEmpty(graph.get_operations())
    with self.assertRaises(tf.errors.NotFoundError):
      ops.parameter_snapshot_publish(handle, 1, [tf.constant(1)])

  def test_regression_a_wait_does_not_keep_its_resource(self):
    """Else a thread of the resource may delete it, which ends the process: the deletion waits for this thread."""
    wait = tf.function(lambda handle: ops.dynamic_batcher_get_inputs(handle, input_types=[tf.int32]))
    ended = None
    while not isinstance(ended, tf.errors.CancelledError):
      handle = ops.dynamic_batcher(minimum_batch_size=1, maximum_batch_size=2, timeout_ms=-1,
                                   shared_name=ops.unique_name('test'))
      owner = _Owner()
      ops.delete_with(owner, handle)
      result = waiting.start(wait, handle)
      time.sleep(0.05)
      del owner
      with self.assertRaises((tf.errors.CancelledError, tf.errors.NotFoundError)) as raised:
        result()
      ended = raised.exception  # NotFoundError: the deletion came before the wait.
    self.assertIn('Batcher is closed: the batcher was deleted', ended.message)

  def test_a_missing_or_old_library(self):
    specification = importlib.util.find_spec(ops.__name__)
    module = importlib.util.module_from_spec(specification)
    with mock.patch.object(os.path, 'exists', return_value=False):
      with self.assertRaisesRegex(ImportError, '_ops.so is missing: build it with `make setup`'):
        specification.loader.exec_module(module)
    with mock.patch.object(tf, 'load_op_library', return_value=object()):
      with self.assertRaisesRegex(ImportError, '_ops.so is older than this code: run `make setup`$'):
        specification.loader.exec_module(module)


def _fail():
  raise ValueError('on demand')


class DynamicBatcherOpsTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self._batcher = ops.dynamic_batcher(minimum_batch_size=1, maximum_batch_size=2, timeout_ms=-1,
                                        shared_name=ops.unique_name('test'))
    self.addCleanup(lambda: ops.dynamic_batcher_close(self._batcher, 'the test ends'))

  def _compute(self, value):
    def compute():
      result, = ops.dynamic_batcher_compute(self._batcher, [tf.constant([value])], output_types=[tf.string])
      return result.numpy().tolist()
    return waiting.start(compute)

  def _get_inputs(self, types=(tf.int32,)):
    return ops.dynamic_batcher_get_inputs(self._batcher, input_types=types)

  def _set_outputs(self, batch_id, texts):
    ops.dynamic_batcher_set_outputs(self._batcher, batch_id, [tf.constant(texts, tf.string)])

  def test_results_may_come_out_of_order(self):
    results, batches = {}, {}
    for value in (10, 20, 30):
      results[value] = self._compute(value)
      batch_id, (values,) = self._get_inputs()
      batches[value] = int(batch_id)
      self.assertEqual(values.numpy().tolist(), [value])
    self.assertEqual(batches, {10: 0, 20: 1, 30: 2})
    for value in (30, 10, 20):
      self.assertFalse(results[value].ended.is_set())
      self._set_outputs(batches[value], [str(value)])
      self.assertEqual(results[value](), [str(value).encode()])

  def test_an_unknown_id_ends_everything(self):
    result = self._compute(1)
    self._get_inputs()
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, 'Invalid computation id. Id: 42'):
      self._set_outputs(42, ['x'])
    with self.assertRaisesRegex(tf.errors.CancelledError, 'Compute was cancelled: Invalid computation id. Id: 42'):
      result()
    with self.assertRaisesRegex(tf.errors.CancelledError, 'Batcher is closed: Invalid computation id. Id: 42'):
      self._get_inputs()

  def test_an_id_is_good_once(self):
    result = self._compute(1)
    batch_id, _ = self._get_inputs()
    self._set_outputs(batch_id, ['x'])
    result()
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, 'Invalid computation id. Id: 0'):
      self._set_outputs(batch_id, ['x'])

  def test_inputs_of_another_type_or_number(self):
    result = self._compute(1)
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, 'Types of inputs must be equal'):
      self._get_inputs([tf.float32])
    with self.assertRaisesRegex(tf.errors.CancelledError, 'Compute was cancelled: Types of inputs must be equal'):
      result()

  @parameterized.parameters(([tf.int32], 'int32'), ([tf.string, tf.string], 'string, string'))
  def test_outputs_of_another_type_or_number(self, types, got):
    result = self._compute(1)
    batch_id, _ = self._get_inputs()
    ops.dynamic_batcher_set_outputs(self._batcher, batch_id, [tf.zeros([1], dtype) for dtype in types])
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, f'outputs: want {got}, got string'):
      result()

  def test_a_cancelled_get_inputs_ends_everything(self):
    batcher = ops.dynamic_batcher(minimum_batch_size=2, maximum_batch_size=2, timeout_ms=-1,
                                  shared_name=ops.unique_name('test'))

    @tf.function
    def go():
      tf.py_function(_fail, [], [])  # Whereupon everything else in the graph is cancelled.
      return ops.dynamic_batcher_get_inputs(batcher, input_types=[tf.int32])

    def cancel():
      with self.assertRaises(tf.errors.OpError):
        waiting.start(go)()
      return compute.ended.is_set()

    compute = waiting.start(
        lambda: ops.dynamic_batcher_compute(batcher, [tf.constant([1])], output_types=[tf.int32]))
    waiting.wait_until(cancel)  # The failure may come before get_inputs begins, which is then left out.
    with self.assertRaisesRegex(tf.errors.CancelledError, 'GetInputs operation was cancelled'):
      compute()

  def test_a_cancelled_compute_leaves_its_batch_alone(self):
    @tf.function
    def go():
      tf.py_function(_fail_once_computing, [], [])
      return ops.dynamic_batcher_compute(self._batcher, [tf.constant([5])], output_types=[tf.string])

    batches = []
    def _fail_once_computing():
      batches.append(self._get_inputs())
      _fail()

    with self.assertRaises(tf.errors.OpError):
      waiting.start(go)()
    (batch_id, (values,)), = batches
    self.assertEqual(values.numpy().tolist(), [5])
    self._set_outputs(batch_id, ['nobody is interested'])
    result = self._compute(6)
    batch_id, (values,) = self._get_inputs()
    self.assertEqual(values.numpy().tolist(), [6])
    self._set_outputs(batch_id, ['good'])
    self.assertEqual(result(), [b'good'])

  @parameterized.parameters((0, 1), (3, 2))
  def test_sizes_are_checked(self, minimum, maximum):
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, f'got {minimum} and {maximum}'):
      ops.dynamic_batcher(minimum_batch_size=minimum, maximum_batch_size=maximum, timeout_ms=0,
                          shared_name=ops.unique_name('test'))

  def test_a_timeout_that_cannot_be_measured_is_refused(self):
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, 'timeout_ms: want at most 2147483647, got 2147483648'):
      ops.dynamic_batcher(minimum_batch_size=1, maximum_batch_size=1, timeout_ms=2**31,
                          shared_name=ops.unique_name('test'))


if __name__ == '__main__':
  absltest.main()
