"""Tests of frame_stacks: both functions against a loop, with and without XLA."""

from absl.testing import absltest
import hypothesis
from hypothesis import strategies as st
import numpy as np
import tensorflow as tf

from scalable_agents.learner import frame_stacks


def _by_loop(newest, earlier, done):
  """The environment's own rule: the stack loses its oldest frame, and at an episode's start all frames."""
  stacks, frames = [], list(earlier.swapaxes(0, 1))
  for t, frame in enumerate(newest):
    frames = [np.where(done[t].reshape([-1] + [1] * (frame.ndim - 1)), 0, old).astype(frame.dtype) for old in frames]
    stacks.append(np.concatenate([*frames, frame], axis=-1))
    frames = [*frames, frame][1:]
  return np.stack(stacks)


class FrameStacksTest(absltest.TestCase):

  @hypothesis.settings(deadline=None, max_examples=60, derandomize=True)
  @hypothesis.given(
      num_rows=st.integers(1, 7), batch=st.integers(1, 3), k=st.integers(2, 5), height=st.integers(1, 6),
      channels=st.integers(1, 3), dtype=st.sampled_from([np.uint8, np.float32]), share=st.sampled_from([0., 0.3, 1.]),
      seed=st.integers(0, 2 ** 32 - 1))
  def test_stacks_are_those_of_a_loop(self, num_rows, batch, k, height, channels, dtype, share, seed):
    rng = np.random.default_rng(seed)
    newest = rng.integers(1, 256, [num_rows, batch, height, 5, channels]).astype(dtype)
    earlier = rng.integers(1, 256, [batch, k - 1, height, 5, channels]).astype(dtype)
    done = rng.random([num_rows, batch]) < share
    expected = _by_loop(newest, earlier, done)
    for function in (frame_stacks.stack, frame_stacks.stack_compiled):
      stacks = function(tf.constant(newest), tf.constant(earlier), tf.constant(done))
      self.assertEqual(stacks.dtype.as_numpy_dtype, dtype)
      np.testing.assert_array_equal(stacks, expected)

  def test_atari_with_xla_and_in_a_graph_of_unknown_sizes(self):
    rng = np.random.default_rng(1)
    newest = rng.integers(1, 256, [21, 4, 84, 84, 1], np.uint8)
    earlier = rng.integers(1, 256, [4, 3, 84, 84, 1], np.uint8)
    done = rng.random([21, 4]) < 0.1
    expected = _by_loop(newest, earlier, done)
    np.testing.assert_array_equal(tf.function(frame_stacks.stack_compiled, jit_compile=True)(newest, earlier, done),
                                  expected)
    of_any = tf.function(frame_stacks.stack, input_signature=[
        tf.TensorSpec([None, None, 84, 84, 1], tf.uint8), tf.TensorSpec([None, 3, 84, 84, 1], tf.uint8),
        tf.TensorSpec([None, None], tf.bool)])
    self.assertEqual(of_any.get_concrete_function().structured_outputs.shape[2:], [84, 84, 4])
    np.testing.assert_array_equal(of_any(newest, earlier, done), expected)

  def test_wrong_shapes(self):
    frame = tf.zeros([3, 2, 4, 4, 1], tf.uint8)
    with self.assertRaisesRegex(tf.errors.InvalidArgumentError, r'got .*\[3,2,4,4,1\], \[2,3,5,4,1\] and \[3,2\]'):
      frame_stacks.stack(frame, tf.zeros([2, 3, 5, 4, 1], tf.uint8), tf.zeros([3, 2], tf.bool))


if __name__ == '__main__':
  absltest.main()
