"""Tests of environments/catch_variants.py."""

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from scalable_agents.environments import catch
from scalable_agents.environments import catch_variants

_GOALS = {
    catch.Catch: lambda ball: ball,
    catch_variants.Mirror: lambda ball: 4 - ball,
    catch_variants.Shift: lambda ball: (2, 3, 4, 0, 1)[ball],
}
_GREYS = {catch.Catch: (0, 255), catch_variants.Mirror: (80, 255), catch_variants.Shift: (255, 0)}  # Background, ball.


def _cells(observation):
  return observation['pixels'].reshape(5, 4, 5, 4)[:, 0, :, 0]


def _play(environment, goal):
  """Plays one episode in which the paddle moves to `goal(column of the ball)`. Returns the rewards."""
  time_step, rewards = environment.reset(), []
  while not time_step.last():
    board = _cells(time_step.observation) == _GREYS[type(environment)][1]
    paddle, ball = int(board[-1].argmax()), int(board[:-1].max(axis=0).argmax())
    time_step = environment.step(1 + np.sign(goal(ball) - paddle))
    rewards.append(time_step.reward)
  return rewards


class CatchVariantsTest(parameterized.TestCase):

  @parameterized.product(task=list(_GOALS), other=list(_GOALS))
  def test_each_task_needs_its_own_policy(self, task, other):
    environment = task(seed=1)
    rewards = np.array([_play(environment, _GOALS[other]) for _ in range(100)])
    np.testing.assert_array_equal(rewards[:, :-1], np.zeros([100, 3]))
    if task == other:
      np.testing.assert_array_equal(rewards[:, -1], np.full(100, task.optimal_return))
    else:
      self.assertLess(rewards[:, -1].mean(), 0.)

  @parameterized.parameters(*_GOALS)
  def test_the_greys_show_the_task(self, task):
    board = _cells(task(seed=0).reset().observation)
    background, ball = _GREYS[task]
    self.assertCountEqual(board.ravel().tolist(), [background] * 23 + [ball] * 2)


if __name__ == '__main__':
  absltest.main()
