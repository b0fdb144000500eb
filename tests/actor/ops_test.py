"""Tests of how the ops are loaded and how their resources go away."""

import gc
import importlib.util
import os
from unittest import mock

from absl.testing import absltest
import tensorflow as tf

from scalable_agents.actor import ops


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

  def test_a_missing_library(self):
    specification = importlib.util.find_spec(ops.__name__)
    module = importlib.util.module_from_spec(specification)
    with mock.patch.object(os.path, 'exists', return_value=False):
      with self.assertRaisesRegex(ImportError, '_ops.so is missing: build it with `make setup`'):
        specification.loader.exec_module(module)


if __name__ == '__main__':
  absltest.main()
