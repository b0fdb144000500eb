"""Tests of environments/quiz.py."""

import itertools

from absl.testing import absltest
from dm_env import test_utils
import numpy as np

from scalable_agents.environments import quiz
from scalable_agents.tests.environments import playing


class ContractTest(test_utils.EnvironmentTestMixin, absltest.TestCase):

  def make_object_under_test(self):
    return quiz.Quiz(seed=0)


def _play(subject, actions):
  """Plays an episode with a subject. Returns the rewards and the numbers of the questions that were shown."""
  for seed in itertools.count():
    rewards, observations = playing.play(quiz.Quiz(seed=seed), actions)
    questions = np.argmax(observations, axis=1)
    np.testing.assert_array_equal(observations, np.eye(48)[questions])
    if questions[0] == 6 * subject:
      return rewards, list(questions - 6 * subject)


class QuizTest(absltest.TestCase):

  def test_right_and_wrong_answers(self):
    for subject, answers in enumerate(quiz.ANSWERS):
      rewards, questions = _play(subject, answers)
      self.assertEqual(rewards, [1.] * 6)
      self.assertEqual(questions, [0, 1, 2, 3, 4, 5, 5])
      self.assertEqual(sum(rewards), quiz.Quiz.optimal_return)
      for question, answer in enumerate(answers):
        wrong = answer % 9 + 1
        rewards, _ = _play(subject, [*answers[:question], wrong, *answers[question + 1:]])
        self.assertEqual(rewards, [-0.6 if index == question else 1. for index in range(6)])

  def test_another_reward_of_wrong_answers(self):
    rewards, _ = playing.play(quiz.Quiz(seed=0, wrong_reward=-0.8), [1] * 6)  # No subject has 1 six times.
    self.assertIn(-0.8, rewards)
    self.assertNotIn(-0.6, rewards)

  def test_leaving_ends_the_episode(self):
    for question in range(6):
      rewards, questions = _play(3, [*quiz.ANSWERS[3][:question], 0])
      self.assertEqual(rewards, [1.] * question + [0.])
      self.assertEqual(questions, [*range(question + 1), question])

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
