"""Tests that all of the paper's numbers are present, and that the suites have their levels."""

from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents.environments import scores
from scalable_agents.tables.results import published


class PublishedTest(parameterized.TestCase):

  @parameterized.parameters('dmlab30', 'atari57')
  def test_every_level_is_one_of_the_suite(self, suite):
    for agent, means in published.LEVEL_SCORES[suite].items():
      self.assertContainsSubset(means, scores.SUITES[suite].test_levels)
      self.assertLen(means, 44 if agent == 'ACKTR' else len(scores.SUITES[suite].test_levels), agent)

  def test_every_agent_is_in_the_table_of_its_suite(self):
    for name, agent in published.AGENTS.items():
      self.assertIn(name, published.SUMMARIES[agent.suite])

  def test_fixed_points(self):
    self.assertEqual(published.SUMMARIES['dmlab30']['IMPALA, deep, PBT'], {'mean_capped': 49.4})
    self.assertEqual(published.SUMMARIES['atari57']['IMPALA, deep, experts'], {'median': 191.8, 'mean': 957.6})
    self.assertEqual(published.SUMMARIES['atari57']['Reactor, experts'], {'median': 187.0})
    self.assertEqual(published.LEVEL_SCORES['dmlab30']['IMPALA, deep, PBT']['language_select_described_object'], 593.1)
    self.assertEqual(published.LEVEL_SCORES['dmlab30']['IMPALA-Experts, deep']['language_execute_random_task'], -49.9)
    self.assertEqual(published.LEVEL_SCORES['atari57']['IMPALA, deep, multi-task']['zaxxon'], 6497.0)
    self.assertEqual(published.LEVEL_SCORES['atari57']['IMPALA, shallow, experts']['pong'], 20.4)


if __name__ == '__main__':
  absltest.main()
