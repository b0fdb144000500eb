"""Tests that all numbers of the LASER paper are present, and what its rows give when they are summarised."""

from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents.agents import sweeps
from scalable_agents.environments import scores
from scalable_agents.tables.results import laser_published

_PAPER = laser_published.PAPER


class LaserPublishedTest(parameterized.TestCase):

  def test_every_agent_has_every_game(self):
    self.assertLen(_PAPER.level_scores['atari57'], 4)
    for agent, means in _PAPER.level_scores['atari57'].items():
      self.assertCountEqual(means, scores.SUITES['atari57'].levels, agent)

  def test_every_number_of_table_1(self):
    self.assertEqual([row.printed for row in laser_published.ROWS],
                     [287.6, 73.5, 85.5, 77.6, 431, 233, 95.4, 79.6, 370, 97.2, 81.7, 448])
    for row in laser_published.ROWS:
      if row.ours:
        agent = laser_published.AGENTS[row.ours]
        self.assertEqual((agent.suite, agent.frames), (row.suite, row.frames))
        self.assertEqual(_PAPER.summaries[row.suite][row.ours][row.measure], row.printed)
    self.assertCountEqual(laser_published.AGENTS, {row.ours for row in laser_published.ROWS if row.ours})

  @parameterized.parameters(
      (laser_published.SHARED_200M, 412.40, 2046.04), (laser_published.SINGLE_200M, 454.91, 1741.43),
      (laser_published.SHARED_50M, 364.96, 1383.64), (laser_published.RAINBOW, 230.99, 874.03))
  def test_what_the_rows_of_table_2_give(self, agent, median, mean):
    found = scores.summarise(_PAPER.level_scores['atari57'][agent])
    self.assertAlmostEqual(found.median, median, delta=0.005)
    self.assertAlmostEqual(found.mean, mean, delta=0.005)

  def test_fixed_points(self):
    games = _PAPER.level_scores['atari57']
    self.assertEqual([games[agent]['zaxxon'] for agent in games], [50486., 106862., 41118., 22209.5])
    self.assertEqual(games[laser_published.SINGLE_200M]['kung_fu_master'], 607443.)

  def test_sweeps_have_the_papers_number_of_agents(self):
    self.assertEqual(laser_published.AGENTS[laser_published.SHARED_DMLAB].population, sweeps.LASER.num_samples)
    self.assertEqual({agent.population for agent in _PAPER.agents if agent.suite == 'atari57'}, {1, 9})


if __name__ == '__main__':
  absltest.main()
