"""Tests of environments/quiz.py."""

from absl.testing import absltest
from dm_env import test_utils
import numpy as np

from scalable_agents.environments import quiz
from scalable_agents.tests.environments import playing


class ContractTest(test_utils.EnvironmentTestMixin, absltest.TestCase):

  def make_object_under_test(self):
    return quiz.Quiz(seed=0)


def _play(actions):
  return playing.play(quiz.Quiz(seed=0), actions)


class QuizTest(absltest.TestCase):

  def test_right_and_wrong_answers(self):
    rewards, observations = _play(quiz.ANSWERS)
    self.assertEqual(rewards, [1.] * 8)
    np.testing.assert_array_equal(observations, np.eye(8)[[*range(8), 7]])
    self.assertEqual(sum(rewards), quiz.Quiz.optimal_return)
    for question, answer in enumerate(quiz.ANSWERS):
      for wrong in set(range(1, 10)) - {answer}:
        rewards, _ = _play([*quiz.ANSWERS[:question], wrong, *quiz.ANSWERS[question + 1:]])
        self.assertEqual(rewards, [-1.25 if index == question else 1. for index in range(8)])

  def test_leaving_ends_the_episode(self):
    for question in range(8):
      rewards, observations = _play([*quiz.ANSWERS[:question], 0])
      self.assertEqual(rewards, [1.] * question + [0.])
      np.testing.assert_array_equal(observations[-1], np.eye(8)[question])

  def test_random_return(self):
    random = np.random.RandomState(0)
    environment = quiz.Quiz(seed=0)
    returns = []
    for _ in range(5_000):
      time_step, total = environment.reset(), 0.
      while not time_step.last():
        time_step = environment.step(random.randint(10))
        total += time_step.reward
      returns.append(total)
    error = np.std(returns) / len(returns)**0.5
    self.assertLess(abs(np.mean(returns) - quiz.Quiz.random_return), 4 * error)


if __name__ == '__main__':
  absltest.main()
