"""Tests that the samples of a sweep have the ranges and the distributions of table D.1 and are always the same."""

import collections
import functools

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from scalable_agents.agents import configs
from scalable_agents.agents import sweeps
from scalable_agents.records import runtime_config


@functools.cache
def _samples():
  return [sweeps.IMPALA.draw(index) for index in range(4000)]


class SweepTest(parameterized.TestCase):

  def test_a_sample_is_always_the_same(self):
    # Golden values of samples 0 and 23. If they changed, old commands would give other sweeps.
    for index, want in ((0, (2.3335869216585813e-05, 0.0013620839244519434, 0.1)),
                        (23, (1.421303295482556e-05, 0.00045505642549765026, 0.1))):
      self.assertEqual(list(sweeps.IMPALA.draw(index)), ['learning_rate', 'entropy_cost', 'rmsprop_epsilon'])
      np.testing.assert_allclose(list(sweeps.IMPALA.draw(index).values()), want, rtol=1e-12)

  def test_samples_differ(self):
    self.assertLen({tuple(sweeps.IMPALA.draw(index).values()) for index in range(100)}, 100)

  def test_what_samples_may_have_is_within(self):
    for sample in _samples()[:50]:
      self.assertEqual(tuple(sample), tuple(sweeps.IMPALA.ranges))
      for name, value in sample.items():
        self.assertTrue(value in sweeps.IMPALA.ranges[name], (name, value))
    for name, value in (('learning_rate', 4.9e-6), ('learning_rate', 5.1e-3), ('entropy_cost', 4.9e-5),
                        ('entropy_cost', 0.011), ('rmsprop_epsilon', 1e-2), ('rmsprop_epsilon', 0.0)):
      self.assertFalse(value in sweeps.IMPALA.ranges[name], (name, value))

  @parameterized.parameters(('learning_rate', 5e-6, 5e-3), ('entropy_cost', 5e-5, 1e-2))
  def test_log_uniform(self, name, least, most):
    shares = np.sort([np.log(sample[name] / least) / np.log(most / least) for sample in _samples()])
    self.assertBetween(shares[0], 0, 0.01)
    self.assertBetween(shares[-1], 0.99, 1)
    # Kolmogorov-Smirnov test: with probability 0.001 the largest difference is more than 1.95 / sqrt(4000) = 0.031.
    self.assertLess(np.abs(shares - np.linspace(0, 1, 4000)).max(), 0.031)

  def test_epsilon_is_one_of_four_equally_likely(self):
    counts = collections.Counter(sample['rmsprop_epsilon'] for sample in _samples())
    self.assertEqual(set(counts), {1e-1, 1e-3, 1e-5, 1e-7})
    for count in counts.values():
      self.assertBetween(count, 890, 1110)  # Four standard deviations are 110.

  def test_values_are_drawn_independently(self):
    drawn = np.log([list(sample.values()) for sample in _samples()])
    # Four standard deviations of a correlation are 4 / sqrt(4000).
    self.assertLess(np.abs(np.corrcoef(drawn.T) - np.eye(3)).max(), 0.064)

  def test_agents_can_take_every_sample(self):
    for index in range(sweeps.IMPALA.num_samples):
      configs.validate_impala(configs.ImpalaConfig(sweep_index=index, **sweeps.IMPALA.draw(index)))

  def test_there_is_no_sample_before_the_first(self):
    with self.assertRaises(ValueError):
      sweeps.IMPALA.draw(runtime_config.NO_SAMPLE)


if __name__ == '__main__':
  absltest.main()
