"""Tests of environments/atari57.py."""

from absl.testing import absltest

from scalable_agents.environments import atari
from scalable_agents.environments import atari57


class Atari57Test(absltest.TestCase):

  def test_has_57_levels_with_distinct_scores(self):
    self.assertLen(atari57.LEVELS, 57)
    self.assertLen(set(atari57.LEVELS), 57)
    self.assertEqual(tuple(atari57.SCORES), atari57.LEVELS)
    for level, scores in atari57.SCORES.items():
      self.assertNotEqual(scores.random, scores.human, level)

  def test_scores_of_some_games(self):
    self.assertEqual(atari57.SCORES['pong'], (-20.7, 14.6))
    self.assertEqual(atari57.SCORES['breakout'], (1.7, 30.5))
    self.assertEqual(atari57.SCORES['alien'].random, 227.8)
    self.assertEqual(atari57.SCORES['alien'].human, 7127.7)

  def test_video_pinball_has_the_papers_random_score(self):
    self.assertEqual(atari57.SCORES['video_pinball'], (0.0, 17667.9))

  def test_regression_every_game_has_the_same_observation_and_all_18_actions_if_asked(self):
    """The emulator's own list for skiing had 9 actions."""
    settings = atari.AtariSettings(full_action_set=True, noop_max=0)
    for level in atari57.LEVELS:
      environment = atari.Atari(level, seed=0, settings=settings)
      self.assertEqual(environment.observation_spec()['pixels'].shape, (84, 84, 4), level)
      self.assertEqual(environment.render().shape, (210, 160, 3), level)
      self.assertEqual(environment.action_spec().num_values, 18, level)
      # The minimal action set, read from the emulator because loading each game again takes long.
      self.assertBetween(len(environment._emulator.getMinimalActionSet()), 3, 18, level)
      environment.reset()
      for action in range(18):
        environment.step(action)


if __name__ == '__main__':
  absltest.main()
