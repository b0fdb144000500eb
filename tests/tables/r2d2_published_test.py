"""Tests that all numbers of the R2D2 paper are present, and that the suites have their levels."""

from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents.environments import scores
from scalable_agents.tables.results import r2d2_published

_PAPER = r2d2_published.PAPER


class R2d2PublishedTest(parameterized.TestCase):

  @parameterized.parameters('dmlab30', 'atari57')
  def test_every_agent_has_every_level_of_the_suite(self, suite):
    for agent, means in _PAPER.level_scores[suite].items():
      self.assertCountEqual(means, scores.SUITES[suite].test_levels, agent)

  def test_every_agent_is_in_table_1(self):
    for agent in _PAPER.agents:
      self.assertIn(agent.name, _PAPER.summaries[agent.suite])

  def test_fixed_points(self):
    self.assertEqual(_PAPER.summaries['atari57']['R2D2'], {'median': 1920.6, 'mean': 4024.9})
    self.assertEqual(_PAPER.summaries['dmlab30']['R2D2+'], {'median': 99.5, 'mean_capped': 85.7})
    self.assertEqual(_PAPER.summaries['atari57']['Reactor'], {'median': 187.0})
    self.assertNotIn('Ape-X', _PAPER.summaries['dmlab30'])
    self.assertEqual(_PAPER.level_scores['dmlab30']['IMPALA, deep (re-run)']['explore_object_rewards_few'], 92.6)
    self.assertEqual(_PAPER.level_scores['dmlab30']['R2D2']['rooms_select_nonmatching_object'], 2.3)
    self.assertEqual(_PAPER.level_scores['atari57']['IMPALA, shallow (original)']['zaxxon'], 1148.5)
    self.assertEqual(_PAPER.level_scores['atari57']['R2D2']['ms_pacman'], 42281.7)
    self.assertEqual(r2d2_published.HUMAN['zaxxon'], 9173.3)


if __name__ == '__main__':
  absltest.main()
