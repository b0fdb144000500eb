"""Tests of what replays store of unrolls, and how unrolls are made of it again."""

from absl.testing import absltest
import numpy as np
import tensorflow as tf

from scalable_agents.experience import stored_unrolls
from scalable_agents.tests.experience import streams as streams_lib
from scalable_agents.tests.training import stacked_environment

_LENGTH = 4


def _batch():
  """Unrolls of two streams, of levels 1 and 0 and actors 3 and 4."""
  return streams_lib.batch(
      [streams_lib.Stream(stream_id).unroll(5, _LENGTH, np.float32([1., 2.])) for stream_id in (3, 4)])


class StoredUnrollsTest(absltest.TestCase):

  def test_every_component_has_rows(self):
    unroll = _batch()
    stored = stored_unrolls.of_unroll(unroll)
    for values in tf.nest.flatten(stored):
      self.assertEqual(values.shape[:2], [_LENGTH + 1, 2])
    np.testing.assert_array_equal(stored.level_id, [[1, 0]] * (_LENGTH + 1))
    np.testing.assert_array_equal(stored.actor_id, [[3, 4]] * (_LENGTH + 1))
    self.assertEqual((stored.agent_state, stored.earlier_frames, stored.stream_id, stored.index), ((), {}, (), ()))
    tf.nest.map_structure(np.testing.assert_array_equal, stored.environment_output, unroll.environment_output)
    tf.nest.map_structure(np.testing.assert_array_equal, stored.agent_output, unroll.agent_output)

  def test_specs_are_those_of_the_tensors(self):
    spec = streams_lib.Stream(3).spec(_LENGTH, np.float32([1., 2.]))
    row, stacks = stored_unrolls.spec_and_stacks(stored_unrolls.of_unroll(spec), streams_lib.FRAME_STACKS)
    stored = stored_unrolls.of_unroll(_batch())
    same = lambda one, values: self.assertEqual((one.shape, one.dtype), (values.shape[2:], values.dtype))
    tf.nest.map_structure(same, row, stored)
    tf.nest.assert_same_structure(stacks, row)
    self.assertEqual(stacks.environment_output.observation,
                     {'pixels': stacked_environment.STACK, 'record': 1, 'vector': 1})
    self.assertEqual(set(tf.nest.flatten(stacks._replace(environment_output=()))), {1})

  def test_earlier_frames_have_their_names(self):
    self.assertEqual(stored_unrolls.earlier_frames({'wide': 2, 'pixels': 4, 'vector': 1}, ['those of pixels', 'wide']),
                     {'pixels': 'those of pixels', 'wide': 'wide'})

  def test_rewards_that_are_not_finite_become_0(self):
    unroll = _batch()
    reward = unroll.environment_output.reward.numpy()
    want = reward.copy()
    reward[1, 0], reward[2, 1], reward[3, 1] = np.nan, np.inf, -np.inf
    want[[1, 2, 3], [0, 1, 1]] = 0
    stored = stored_unrolls.of_unroll(unroll._replace(
        environment_output=unroll.environment_output._replace(reward=tf.constant(reward))))
    np.testing.assert_array_equal(stored.environment_output.reward, want)

  def test_unrolls_are_made_again(self):
    unroll = _batch()
    exists = tf.constant([[True, True], [True, True], [True, False], [True, False], [True, False]])
    stored = stored_unrolls.of_unroll(unroll)
    zeros = tf.nest.map_structure(  # As replays return rows of padding.
        lambda x: tf.where(tf.reshape(exists, [5, 2] + [1] * (len(x.shape) - 2)), x, tf.zeros_like(x)), stored)
    made = stored_unrolls.as_unroll(
        zeros, exists, 0, unroll.stream_id, unroll.index, unroll.agent_state, unroll.earlier_frames)
    for name in ('level_id', 'actor_id', 'stream_id', 'index', 'agent_state'):
      np.testing.assert_array_equal(getattr(made, name), getattr(unroll, name))
    np.testing.assert_array_equal(made.earlier_frames['pixels'], unroll.earlier_frames['pixels'])
    np.testing.assert_array_equal(made.parameter_version[:, 0], np.arange(20, 25))
    np.testing.assert_array_equal(made.parameter_version[:, 1], [20, 21, 20, 20, 20])  # Else padding would seem old.
    np.testing.assert_array_equal(made.environment_output.reward[:, 0], unroll.environment_output.reward[:, 0])
    # The row that always exists need not be the first one.
    made = stored_unrolls.as_unroll(zeros, tf.reverse(exists, [0]), 1, *[unroll.stream_id] * 2, (), {})
    np.testing.assert_array_equal(made.parameter_version[:, 1], [21, 21, 21, 0, 0])


if __name__ == '__main__':
  absltest.main()
