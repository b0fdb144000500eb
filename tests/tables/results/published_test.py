"""Tests that all numbers of the papers are present, and what their rows give when they are summarised."""

from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents.agents import sweeps
from scalable_agents.environments import scores
from scalable_agents.tables.results import laser_published
from scalable_agents.tables.results import published
from scalable_agents.tables.results import r2d2_published

_LASER = laser_published.PAPER
_PAPERS = {'impala': published.IMPALA, 'r2d2': r2d2_published.PAPER, 'laser': _LASER}


class PublishedTest(parameterized.TestCase):

  @parameterized.parameters(('impala', 'dmlab30', 2), ('impala', 'atari57', 5), ('r2d2', 'dmlab30', 4),
                            ('r2d2', 'atari57', 5), ('laser', 'atari57', 4))
  def test_every_agent_has_every_level_of_the_suite(self, paper, suite, agents):
    self.assertLen(_PAPERS[paper].level_scores[suite], agents)
    for agent, means in _PAPERS[paper].level_scores[suite].items():
      self.assertContainsSubset(means, scores.SUITES[suite].test_levels)
      self.assertLen(means, 44 if agent == 'ACKTR' else len(scores.SUITES[suite].test_levels), agent)

  @parameterized.parameters(*_PAPERS)
  def test_every_agent_is_in_the_table_of_its_suite(self, paper):
    for agent in _PAPERS[paper].agents:
      self.assertIn(agent.name, _PAPERS[paper].summaries[agent.suite])

  @parameterized.parameters(
      ('impala', 'dmlab30', 'IMPALA, deep, PBT', {'mean_capped': 49.4}),
      ('impala', 'atari57', 'IMPALA, deep, experts', {'median': 191.8, 'mean': 957.6}),
      ('impala', 'atari57', 'Reactor, experts', {'median': 187.0}),
      ('r2d2', 'atari57', 'R2D2', {'median': 1920.6, 'mean': 4024.9, 'above_human': 52.}),
      ('r2d2', 'dmlab30', 'R2D2+', {'median': 99.5, 'mean_capped': 85.7}),
      ('r2d2', 'atari57', 'Reactor', {'median': 187.0}), ('r2d2', 'dmlab30', 'Ape-X', None))
  def test_summaries(self, paper, suite, agent, printed):
    self.assertEqual(_PAPERS[paper].summaries[suite].get(agent), printed)

  @parameterized.parameters(
      ('impala', 'IMPALA, deep, PBT', 'language_select_described_object', 593.1),
      ('impala', 'IMPALA-Experts, deep', 'language_execute_random_task', -49.9),
      ('impala', 'IMPALA, deep, multi-task', 'zaxxon', 6497.0), ('impala', 'IMPALA, shallow, experts', 'pong', 20.4),
      ('r2d2', 'IMPALA, deep (re-run)', 'explore_object_rewards_few', 92.6),
      ('r2d2', 'R2D2', 'rooms_select_nonmatching_object', 2.3), ('r2d2', 'R2D2', 'ms_pacman', 42281.7),
      ('r2d2', 'IMPALA, shallow (original)', 'zaxxon', 1148.5),
      ('laser', laser_published.SHARED_50M, 'zaxxon', 50486.),
      ('laser', laser_published.SHARED_200M, 'zaxxon', 106862.),
      ('laser', laser_published.SINGLE_200M, 'zaxxon', 41118.), ('laser', laser_published.RAINBOW, 'zaxxon', 22209.5),
      ('laser', laser_published.SINGLE_200M, 'kung_fu_master', 607443.))
  def test_scores_of_levels(self, paper, agent, level, printed):
    suite = 'atari57' if level in scores.SUITES['atari57'].levels else 'dmlab30'
    self.assertEqual(_PAPERS[paper].level_scores[suite][agent][level], printed)

  def test_a_humans_score(self):
    self.assertEqual(r2d2_published.HUMAN['zaxxon'], 9173.3)

  def test_every_number_of_lasers_table_1(self):
    self.assertEqual([row.printed for row in laser_published.ROWS],
                     [287.6, 73.5, 85.5, 77.6, 431, 233, 95.4, 79.6, 370, 97.2, 81.7, 448])
    for row in laser_published.ROWS:
      if row.ours:
        agent = laser_published.AGENTS[row.ours]
        self.assertEqual((agent.suite, agent.frames), (row.suite, row.frames))
        self.assertEqual(_LASER.summaries[row.suite][row.ours][row.measure], row.printed)
    self.assertCountEqual(laser_published.AGENTS, {row.ours for row in laser_published.ROWS if row.ours})

  @parameterized.parameters(
      (laser_published.SHARED_200M, 412.40, 2046.04), (laser_published.SINGLE_200M, 454.91, 1741.43),
      (laser_published.SHARED_50M, 364.96, 1383.64), (laser_published.RAINBOW, 230.99, 874.03))
  def test_what_the_rows_of_lasers_table_2_give(self, agent, median, mean):
    found = scores.summarise(_LASER.level_scores['atari57'][agent])
    self.assertAlmostEqual(found.median, median, delta=0.005)
    self.assertAlmostEqual(found.mean, mean, delta=0.005)

  def test_lasers_sweeps_have_the_papers_number_of_agents(self):
    self.assertEqual(laser_published.AGENTS[laser_published.SHARED_DMLAB].population, sweeps.LASER.num_samples)
    self.assertEqual({agent.population for agent in _LASER.agents if agent.suite == 'atari57'}, {1, 9})


if __name__ == '__main__':
  absltest.main()
