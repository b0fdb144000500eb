"""Tests of the value rescaling, against the formulas in float64 and against numbers worked out by hand."""

from absl.testing import absltest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import tensorflow as tf

from scalable_agents.learner import value_rescaling

_REALS = st.floats(-1e5, 1e5, width=32)


def _h(x):
  """The formula as the paper writes it, in float64."""
  return np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + 1e-3 * x


def _h_inverse(x):
  root = np.sqrt(1 + 4e-3 * (np.abs(x) + 1 + 1e-3))
  return np.sign(x) * (((root - 1) / 2e-3)**2 - 1)


class ValueRescalingTest(absltest.TestCase):

  def test_by_hand(self):
    # h(1) = sqrt 2 - 1 + 0.001; h(100) = sqrt 101 - 1 + 0.1; h(-10) = -(sqrt 11 - 1) - 0.01; h(3) = 2 - 1 + 0.003.
    np.testing.assert_allclose(value_rescaling.rescale(tf.constant([0., 1., 100., -10., 3.])),
                               [0., 0.415214, 9.149876, -2.326625, 1.003], rtol=2e-6)
    np.testing.assert_allclose(value_rescaling.unrescale(tf.constant([0., 1.003, -1.003])), [0., 3., -3.], rtol=1e-6)

  @settings(deadline=None, derandomize=True)
  @given(_REALS)
  def test_agrees_with_the_papers_formulas(self, x):
    want = np.float64(np.float32(x))
    # The formulas themselves lose digits near 0: an error of 1e-16 in the second root is one of 1e-13 in the quotient.
    np.testing.assert_allclose(value_rescaling.rescale(tf.constant(x)), _h(want), rtol=1e-6, atol=1e-15)
    np.testing.assert_allclose(value_rescaling.unrescale(tf.constant(x)), _h_inverse(want), rtol=2e-6, atol=1e-12)

  @settings(deadline=None, derandomize=True)
  @given(_REALS)
  def test_the_inverse_restores_every_number(self, x):
    there_and_back = value_rescaling.unrescale(value_rescaling.rescale(tf.constant(x)))
    np.testing.assert_allclose(there_and_back, x, rtol=5e-6, atol=1e-30)
    back_and_there = value_rescaling.rescale(value_rescaling.unrescale(tf.constant(x)))
    np.testing.assert_allclose(back_and_there, x, rtol=5e-6, atol=1e-30)

  def test_small_numbers_keep_their_digits(self):
    # h'(0) = 0.501. With a difference of almost equal numbers, the result for 1e-6 would be 0 or twice as large.
    np.testing.assert_allclose(value_rescaling.rescale(tf.constant([1e-6])), [0.501e-6], rtol=1e-5)
    np.testing.assert_allclose(value_rescaling.unrescale(tf.constant([0.501e-6])), [1e-6], rtol=1e-5)


if __name__ == '__main__':
  absltest.main()
