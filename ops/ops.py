"""The TensorFlow ops of actor/cc, learner/cc and replay/cc, loaded from the library that Bazel or setup.py builds here.

The inputs, outputs and errors of each op are documented where it is registered, in actor/cc/*_ops.cc,
actor/cc/actor_pool_resource_op.cc, learner/cc/frame_stack_op.cc and replay/cc/*_ops.cc.
"""

from collections.abc import Callable
import os
from typing import Any
import uuid
import weakref

import tensorflow as tf
from tensorflow.python.framework import auto_control_deps_utils

from scalable_agents.ops import sources

_LIBRARY = os.path.join(os.path.dirname(os.path.abspath(__file__)), '_ops.so')

if not os.path.exists(_LIBRARY):
  raise sources.LibraryError(f'{_LIBRARY} is missing: build it with `make setup`, or run through Bazel')

_ops = tf.load_op_library(_LIBRARY)
sources.check(_LIBRARY, sources.OPS)

# In a tf.function, ops on one resource run one after the other, unless they are registered as read-only. Calls of a
# batcher must run concurrently, because each waits for the others. TensorFlow has no public function for this.
auto_control_deps_utils.register_read_only_resource_op('DynamicBatcherCompute')

try:
  dynamic_batcher = _ops.dynamic_batcher
  dynamic_batcher_compute = _ops.dynamic_batcher_compute
  dynamic_batcher_get_inputs = _ops.dynamic_batcher_get_inputs
  dynamic_batcher_set_outputs = _ops.dynamic_batcher_set_outputs
  dynamic_batcher_close = _ops.dynamic_batcher_close
  parameter_snapshot = _ops.parameter_snapshot
  parameter_snapshot_publish = _ops.parameter_snapshot_publish
  parameter_snapshot_latest = _ops.parameter_snapshot_latest
  parameter_snapshot_hold = _ops.parameter_snapshot_hold
  parameter_snapshot_let_go = _ops.parameter_snapshot_let_go
  actor_pool = _ops.actor_pool
  actor_pool_attach = _ops.actor_pool_attach
  actor_pool_next_batch = _ops.actor_pool_next_batch
  actor_pool_complete_batch = _ops.actor_pool_complete_batch
  actor_pool_next_unroll = _ops.actor_pool_next_unroll
  actor_pool_next_fault = _ops.actor_pool_next_fault
  actor_pool_release = _ops.actor_pool_release
  actor_pool_release_one = _ops.actor_pool_release_one
  actor_pool_retire = _ops.actor_pool_retire
  actor_pool_statistics = _ops.actor_pool_statistics
  actor_pool_close = _ops.actor_pool_close
  episode_replay = _ops.episode_replay
  episode_replay_insert = _ops.episode_replay_insert
  episode_replay_next = _ops.episode_replay_next
  episode_replay_statistics = _ops.episode_replay_statistics
  episode_replay_save = _ops.episode_replay_save
  episode_replay_restore = _ops.episode_replay_restore
  sequence_replay = _ops.sequence_replay
  sequence_replay_available = _ops.sequence_replay_available
  sequence_replay_insert = _ops.sequence_replay_insert
  sequence_replay_sample = _ops.sequence_replay_sample
  sequence_replay_update = _ops.sequence_replay_update
  sequence_replay_statistics = _ops.sequence_replay_statistics
  sequence_replay_save = _ops.sequence_replay_save
  sequence_replay_restore = _ops.sequence_replay_restore
  stack_frames = _ops.stack_frames
except AttributeError:
  raise sources.LibraryError(f'{_LIBRARY} is older than this code: run `make setup`') from None

tf.no_gradient('DynamicBatcherCompute')


def unique_name(prefix: str) -> str:
  """Returns a unique name for a resource. TensorFlow shares resources that have the same name."""
  return f'{prefix}_{uuid.uuid4().hex}'


def num_bytes(specs) -> int:
  """Returns the memory of tensors with these specs, a nest of tf.TensorSpec with known shapes."""
  return sum(spec.shape.num_elements() * spec.dtype.size for spec in tf.nest.flatten(specs))


def delete_with(owner, handle, close: Callable[[Any], None] | None = None) -> None:
  """Deletes the resource of `handle` when the Python object `owner` is deleted. TensorFlow would keep it for ever.

  Args:
    owner: the object.
    handle: the resource's handle.
    close: called with the handle before, for example to end a loop that would keep the resource.
  """
  weakref.finalize(owner, _delete, handle, close).atexit = False


def _delete(handle, close):
  # The garbage collector may call this while a graph is built. tf.init_scope would stay in a tf.Graph.
  with tf.__internal__.eager_context.eager_mode():
    if close:
      close(handle)
    tf.raw_ops.DestroyResourceOp(resource=handle, ignore_lookup_error=True)
