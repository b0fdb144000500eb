"""Tests of learner/popart.py by comparison with the paper's equations in a NumPy loop."""

from absl.testing import absltest
from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
import numpy as np
import tensorflow as tf

from scalable_agents.learner import popart

_DECAY = 3e-4


def _loop(mean, second, targets, level_ids, decay, of_squares=False):
  """Equation 6 as printed, one rollout after the other, in float64. Non-finite rollouts are left out."""
  mean, second = np.array(mean, np.float64), np.array(second, np.float64)
  for rollout, level in zip(np.float64(targets).T, level_ids):
    target = np.mean(rollout)
    square = np.mean(rollout**2) if of_squares else target**2
    if np.isfinite(target) and np.isfinite(square):
      mean[level] = (1 - decay) * mean[level] + decay * target
      second[level] = (1 - decay) * second[level] + decay * square
  return mean, second


def _sigma(mean, second):
  return np.clip(np.sqrt(np.maximum(second - mean**2, 0.)), 1e-4, 1e6)


def _moments(mean, second):
  return popart.Moments(tf.constant(mean, tf.float64), tf.constant(second, tf.float64))


def _update(statistics, targets, level_ids, decay=_DECAY, second_moment='literal'):
  rollouts = popart.rollout_moments(tf.cast(targets, tf.float32), second_moment)
  return popart.update(statistics, rollouts, tf.cast(level_ids, tf.int32), decay)


# Compiled, as in a learner on a GPU.
_compiled_rescale = tf.function(popart.rescale, jit_compile=True, autograph=False)


@st.composite
def _any_targets(draw):
  steps, batch, levels = draw(st.integers(1, 4)), draw(st.integers(1, 8)), draw(st.integers(1, 4))
  largest = draw(st.sampled_from([1., 1e4, 2.**60, float(np.finfo(np.float32).max)]))
  return {
      'targets': draw(hnp.arrays(np.float32, (steps, batch), elements=st.one_of(
          st.floats(-largest, largest, width=32), st.sampled_from([np.nan, np.inf, -np.inf])))),
      'level_ids': draw(hnp.arrays(np.int32, batch, elements=st.integers(0, levels - 1))),
      'mean': draw(hnp.arrays(np.float64, levels, elements=st.floats(-1e4, 1e4))),
      'deviation': draw(hnp.arrays(np.float64, levels, elements=st.floats(0, 1e4))),
      'decay': draw(st.sampled_from([0., _DECAY, 0.3, 1.])),
      'of_squares': draw(st.booleans()),
  }


class PopArtTest(parameterized.TestCase):

  def test_known_numbers(self):
    new = _update(popart.initial_moments(1), [[10.]], [0])
    np.testing.assert_allclose([new.first[0], new.second[0], popart.scale(new)[0]], [.003, 1.0297, 1.014737], rtol=1e-6)
    weights, biases = popart.rescale(tf.ones([1, 1]), tf.zeros([1]), popart.initial_moments(1), new)
    np.testing.assert_allclose(weights, [[.985477]], rtol=1e-6)
    np.testing.assert_allclose(biases, [-.003 / 1.014737], rtol=1e-6)

  @hypothesis.given(_any_targets())
  @hypothesis.settings(deadline=None, max_examples=100, derandomize=True)
  def test_equals_the_loop(self, case):
    second = case['mean']**2 + case['deviation']**2
    got = _update(_moments(case['mean'], second), case['targets'], case['level_ids'], case['decay'],
                  'mean_of_squares' if case['of_squares'] else 'literal')
    with np.errstate(all='ignore'):
      mean, second = _loop(case['mean'], second, case['targets'], case['level_ids'], case['decay'], case['of_squares'])
    # The mean may be a small difference of large targets.
    finite = case['targets'][np.isfinite(case['targets'])]
    largest = max(np.max(np.abs(finite), initial=0.), np.max(np.abs(case['mean'])))
    # TensorFlow may replace float32 numbers below 1.2e-38 by 0.
    np.testing.assert_allclose(got.first, mean, rtol=1e-12, atol=1e-14 * float(largest) + 1.2e-38)
    np.testing.assert_allclose(got.second, second, rtol=1e-12, atol=1e-75)
    self.assertTrue(np.all(np.isfinite(popart.scale(got))))
    sigma = _sigma(got.first.numpy(), got.second.numpy())
    # The variance is a small difference of large numbers.
    rounding = 1e-15 * np.minimum(got.second.numpy(), 1e100)
    np.testing.assert_array_less(np.abs(popart.scale(got)**2 - sigma**2), 1e-12 * sigma**2 + rounding)

  def test_many_rollouts_in_one_step_equal_many_steps(self):
    random = np.random.RandomState(0)
    targets, level_ids = 100 * random.randn(5, 64), random.randint(3, size=64)
    at_once = single = popart.initial_moments(3)
    at_once = tf.function(_update, jit_compile=True, autograph=False)(
        at_once, tf.constant(targets), tf.constant(level_ids))
    for rollout, level in zip(targets.T, level_ids):
      single = _update(single, rollout[:, np.newaxis], [level])
    np.testing.assert_allclose(at_once.first, single.first, rtol=1e-12)
    np.testing.assert_allclose(at_once.second, single.second, rtol=1e-12)

  def test_the_order_of_rollouts_matters_within_a_level_only(self):
    targets = [[1., 2., 3., 4.]]
    first, swapped_levels, swapped_targets = (
        _update(popart.initial_moments(2), rollouts, ids, decay=0.3) for rollouts, ids in (
            (targets, [0, 0, 1, 1]), ([[1., 3., 2., 4.]], [0, 1, 0, 1]), ([[2., 1., 3., 4.]], [0, 0, 1, 1])))
    np.testing.assert_allclose(first.first, swapped_levels.first, rtol=1e-14)
    self.assertGreater(abs(first.first[0] - swapped_targets.first[0]), 1e-3)
    self.assertEqual(first.first[1], swapped_targets.first[1])

  def test_second_moment_of_means_or_of_targets(self):
    """With targets ±3 in each rollout, the mean is 0: the paper's text gives sigma = 0, and the option gives 3."""
    targets = np.tile([[3.], [-3.]], [1, 1000])
    literal, of_squares = (
        popart.scale(_update(popart.initial_moments(1), targets, [0] * 1000, 0.1, which))[0]
        for which in popart.SECOND_MOMENTS)
    self.assertAlmostEqual(float(literal), 1e-4)
    self.assertAlmostEqual(float(of_squares), 3., places=6)

  @parameterized.parameters(*popart.SECOND_MOMENTS)
  def test_only_steps_that_count_enter_a_rollouts_moments(self, second_moment):
    random = np.random.RandomState(0)
    targets, counts = 100 * random.randn(6, 4).astype(np.float32), random.uniform(size=(6, 4)) < 0.6
    counts[:, 1], counts[:, 2] = False, True
    got = popart.rollout_moments(tf.constant(targets), second_moment, tf.constant(counts))
    for b in (0, 2, 3):
      its = np.float64(targets[counts[:, b], b])
      np.testing.assert_allclose(got.first[b], its.mean(), rtol=1e-12)
      second = its.mean()**2 if second_moment == 'literal' else np.mean(its**2)
      np.testing.assert_allclose(got.second[b], second, rtol=1e-12)
    self.assertTrue(np.isnan(got.first[1]) and np.isnan(got.second[1]))
    statistics = _moments([5., 7.], [30., 60.])  # A rollout in which no step counts changes nothing.
    new = popart.update(statistics, popart.Moments(got.first[1:2], got.second[1:2]), tf.constant([0]), 0.3)
    tf.nest.map_structure(np.testing.assert_array_equal, new, statistics)

  def test_all_steps_count_by_default(self):
    targets = tf.constant(np.random.RandomState(0).randn(6, 4), tf.float32)
    for second_moment in popart.SECOND_MOMENTS:
      tf.nest.map_structure(np.testing.assert_array_equal, popart.rollout_moments(targets, second_moment),
                            popart.rollout_moments(targets, second_moment, tf.ones([6, 4], tf.bool)))

  def test_converges_to_the_distribution_of_the_targets(self):
    random = np.random.RandomState(1)
    statistics = popart.initial_moments(2)
    for _ in range(300):
      level_ids = random.randint(2, size=200)
      targets = np.where(level_ids, 7000 + 20 * random.randn(200), 0.05 * random.randn(200))[np.newaxis]
      statistics = _update(statistics, targets, level_ids, decay=1e-3)
    np.testing.assert_allclose(statistics.first[1], 7000, rtol=1e-3)
    np.testing.assert_allclose(popart.scale(statistics), [0.05, 20.], rtol=0.1)

  def test_sigma_is_clipped(self):
    statistics = _moments([0., 5., 0.], [0., 20., 1e30])  # In the second one, rounding made the variance negative.
    np.testing.assert_allclose(popart.scale(statistics), [1e-4, 1e-4, 1e6])

  @hypothesis.given(st.floats(-4, 6), st.floats(-6, 6), st.floats(-3, 3), st.floats(-3, 3), st.booleans(),
                    st.integers(0, 1000))
  @hypothesis.example(0., 6., 1., 1., True, 0)
  @hypothesis.example(0., 6., 1., 1., False, 0)
  @hypothesis.example(2., -6., 1., 1., True, 0)
  @hypothesis.example(2., -6., 1., 1., False, 0)
  @hypothesis.settings(deadline=None, max_examples=100, derandomize=True)
  def test_outputs_are_preserved(self, log_sigma, log_ratio, mean, shift, is_large, seed):
    """Ratios of sigma from 1e-6 to 1e6. The shift of mu is some of the smaller or some of the larger sigma.

    After a large shift, mu may be far larger than the values. The error is then relative to mu.
    """
    old_sigma = 10**log_sigma
    new_sigma = np.clip(old_sigma * 10**log_ratio, 1e-4, 1e6)
    old_mu = mean * old_sigma
    new_mu = old_mu + shift * (max if is_large else min)(old_sigma, new_sigma)
    old, new = (_moments([mu, 0.], [mu**2 + sigma**2, 1.]) for mu, sigma in ((old_mu, old_sigma), (new_mu, new_sigma)))
    random = np.random.RandomState(seed)
    features = random.randn(50, 16).astype(np.float32)
    weights, biases = random.randn(16, 2).astype(np.float32), random.randn(2).astype(np.float32)
    new_weights, new_biases = _compiled_rescale(weights, biases, old, new)
    values = np.float64(features) @ np.float64(weights)[:, 0] + biases[0]
    values = popart.scale(old)[0] * values + old_mu
    new_values = features @ new_weights.numpy()[:, 0] + new_biases.numpy()[0]
    new_values = np.float32(popart.scale(new)[0]) * new_values + np.float32(new_mu)
    self.assertEqual(new_values.dtype, np.float32)
    largest = max(np.max(np.abs(values)), is_large * abs(new_mu))
    np.testing.assert_allclose(new_values, values, rtol=0, atol=1e-5 * largest)
    np.testing.assert_array_equal(new_weights[:, 1], weights[:, 1])  # The other level's statistics did not change.
    np.testing.assert_array_equal(new_biases[1], biases[1])

  def test_select(self):
    values = np.arange(24.).reshape(2, 3, 4)
    np.testing.assert_array_equal(popart.select(tf.constant(values), tf.constant([3, 0, 2])),
                                  values[:, [0, 1, 2], [3, 0, 2]])

  def test_unknown_second_moment(self):
    with self.assertRaisesRegex(ValueError, "want one of literal, mean_of_squares, got 'third'"):
      popart.rollout_moments(tf.zeros([1, 1]), 'third')


if __name__ == '__main__':
  absltest.main()
