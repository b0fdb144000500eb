"""The decisions of appendix F: who is copied, and how often and how far hyper-parameters move."""

import collections

from absl.testing import absltest
from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st
import numpy as np

from scalable_agents.population import pbt

_SEEDS = st.integers(0, 2**32 - 1)
_POINTS = st.floats(-1e6, 1e6)


class PbtTest(parameterized.TestCase):

  @parameterized.parameters((20., 25., False), (20., 25.1, True), (20., 15., False), (-40., -34., True),
                            (20., float('nan'), False))
  def test_a_member_is_copied_that_is_more_than_5_points_better(self, fitness, other, wanted):
    self.assertEqual(pbt.is_exploited(fitness, other), wanted)

  @hypothesis.settings(deadline=None, derandomize=True)
  @hypothesis.given(_POINTS, _POINTS)
  def test_of_two_members_at_most_one_copies(self, one, other):
    self.assertFalse(pbt.is_exploited(one, other) and pbt.is_exploited(other, one))

  def test_a_partner_is_any_of_the_others_equally_likely(self):
    random = np.random.RandomState(1)
    counts = collections.Counter(pbt.partner([0, 2, 5], random) for _ in range(6000))
    self.assertEqual(set(counts), {0, 2, 5})
    for count in counts.values():
      self.assertBetween(count, 1850, 2150)  # Four standard deviations are 146.

  def test_without_others_there_is_no_partner(self):
    self.assertIsNone(pbt.partner([], np.random.RandomState(1)))

  @hypothesis.settings(deadline=None, derandomize=True)
  @hypothesis.given(st.dictionaries(st.text('abc'), st.floats(1e-8, 1e3)), _SEEDS)
  def test_each_value_stays_or_moves_one_step(self, values, seed):
    explored = pbt.explore(values, np.random.RandomState(seed))
    self.assertEqual(list(explored), list(values))
    for name, value in values.items():
      step = explored[name] / value
      self.assertTrue(any(abs(step - wanted) < 1e-12 for wanted in (1, 1.2, 1 / 1.2)), step)

  def test_values_move_with_probability_33_percent_either_way_and_independently(self):
    random = np.random.RandomState(1)
    steps = np.array([list(pbt.explore({'a': 1., 'b': 1., 'c': 1.}, random).values()) for _ in range(10_000)])
    # Four standard deviations: of 30,000 draws with 33 % 0.011, of 9,900 with one half 0.02.
    self.assertAlmostEqual(np.mean(steps != 1), 0.33, delta=0.011)
    self.assertAlmostEqual(np.mean(steps[steps != 1] > 1), 0.5, delta=0.02)
    # Of a correlation of 10,000 pairs 0.04.
    self.assertLess(np.abs(np.corrcoef(np.log(steps).T) - np.eye(3)).max(), 0.04)

  @hypothesis.settings(deadline=None, derandomize=True)
  @hypothesis.given(_SEEDS)
  def test_a_seed_determines_all(self, seed):
    one, other = (np.random.RandomState(seed) for _ in range(2))
    values = {'learning_rate': 1e-3, 'entropy_cost': 1e-2}
    self.assertEqual(pbt.partner(range(9), one), pbt.partner(range(9), other))
    self.assertEqual(pbt.explore(values, one), pbt.explore(values, other))


if __name__ == '__main__':
  absltest.main()
