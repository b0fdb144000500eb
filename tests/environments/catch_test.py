"""Tests of environments/catch.py."""

from absl.testing import absltest
from dm_env import test_utils
import numpy as np

from scalable_agents.environments import catch


def _cells(observation):
  """Returns the board [5, 5], one number per square of 4x4 pixels. Checks that each square has one colour."""
  squares = observation['pixels'].reshape(5, 4, 5, 4)
  assert (squares.min(axis=(1, 3)) == squares.max(axis=(1, 3))).all()
  return squares[:, 0, :, 0]


class ContractTest(test_utils.EnvironmentTestMixin, absltest.TestCase):

  def make_object_under_test(self):
    return catch.Catch(seed=0)


class CatchTest(absltest.TestCase):

  def test_a_player_who_only_sees_the_pixels_reaches_the_optimal_return(self):
    environment = catch.Catch(seed=1)
    for _ in range(100):
      time_step = environment.reset()
      rewards = []
      while not time_step.last():
        board = _cells(time_step.observation)
        paddle = int(board[-1].argmax())
        ball = int(board[:-1].max(axis=0).argmax())
        time_step = environment.step(1 + np.sign(ball - paddle))
        rewards.append(time_step.reward)
      self.assertEqual(rewards, [0.0, 0.0, 0.0, catch.Catch.optimal_return])
      self.assertEqual(time_step.discount, 0.0)

  def test_random_return_is_the_stated_one(self):
    environment = catch.Catch(seed=2)
    random = np.random.RandomState(2)
    returns = []
    for _ in range(4000):
      time_step = environment.reset()
      while not time_step.last():
        time_step = environment.step(random.randint(3))
      returns.append(time_step.reward)
    self.assertCountEqual(set(returns), {-1.0, 1.0})
    # The tolerance is four standard errors of 0.8 / sqrt(4000) = 0.013.
    self.assertAlmostEqual(np.mean(returns), catch.Catch.random_return, delta=0.051)
    self.assertAlmostEqual(catch.Catch.random_return, -0.6)

  def test_the_ball_falls_straight_from_every_column(self):
    environment = catch.Catch(seed=3)
    columns = set()
    for _ in range(60):
      time_step = environment.reset()
      column = int(_cells(time_step.observation)[0].argmax())
      columns.add(column)
      for row in range(1, 5):
        board = _cells(environment.step(1).observation)
        expected = np.zeros((5, 5))
        expected[row, column] = expected[4, 2] = 255
        np.testing.assert_array_equal(board, expected)
    self.assertEqual(columns, {0, 1, 2, 3, 4})

  def test_actions_move_the_paddle_and_walls_stop_it(self):
    environment = catch.Catch(seed=4)
    for action, columns in ((0, [1, 0, 0]), (1, [2, 2, 2]), (2, [3, 4, 4])):
      environment.reset()
      seen = [int(_cells(environment.step(action).observation)[-1].argmax()) for _ in range(3)]
      self.assertEqual(seen, columns)

  def test_the_seed_decides_the_columns(self):
    def columns(seed):
      environment = catch.Catch(seed=seed)
      return [int(_cells(environment.reset().observation)[0].argmax()) for _ in range(30)]
    self.assertEqual(columns(5), columns(5))
    self.assertNotEqual(columns(5), columns(6))

  def test_render_draws_what_is_observed(self):
    environment = catch.Catch(seed=7)
    observation = environment.reset().observation
    picture = environment.render()
    self.assertEqual((picture.shape, picture.dtype), ((240, 240, 3), np.uint8))
    np.testing.assert_array_equal(picture[::12, ::12, :1], observation['pixels'])


if __name__ == '__main__':
  absltest.main()
