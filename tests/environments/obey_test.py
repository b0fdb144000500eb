"""Tests of environments/obey.py."""

import itertools

from absl.testing import absltest
from absl.testing import parameterized
from dm_env import test_utils
import numpy as np

from scalable_agents.environments import catch
from scalable_agents.environments import obey

_SENTENCES = {obey.ObeyBall: {'catch the ball', 'avoid the ball'}, obey.ObeySide: {'go left', 'go right'},
              obey.ObeyNothing: {''}}
_LEVELS = tuple(_SENTENCES)


def _sentence(observation):
  return bytes(observation['instruction']).rstrip(b'\0').decode()


def _ball_and_paddle(observation):
  """Returns the columns of ball and paddle, before the ball arrives."""
  board = observation['pixels'][::4, ::4, 0]
  return int(board[:-1].max(axis=0).argmax()), int(board[-1].argmax())


def _play(environment, policy):
  """Plays an episode. `policy` maps sentence and columns to an action. Returns (sentences, rewards)."""
  time_step = environment.reset()
  sentences, rewards = [_sentence(time_step.observation)], []
  while not time_step.last():
    action = policy(sentences[-1], *_ball_and_paddle(time_step.observation))
    time_step = environment.step(action)
    sentences.append(_sentence(time_step.observation))
    rewards.append(time_step.reward)
  return sentences, rewards


def _towards(column, paddle):
  return 1 + int(np.sign(column - paddle))


def _obedient(sentence, ball, paddle):
  """A policy that follows the instruction."""
  column = {'catch the ball': ball, '': ball, 'avoid the ball': (ball + 2) % 5, 'go left': 0, 'go right': 4}[sentence]
  return _towards(column, paddle)


class ContractTest(test_utils.EnvironmentTestMixin, absltest.TestCase):

  def make_object_under_test(self):
    return obey.ObeyBall(seed=0)


class ObeyTest(parameterized.TestCase):

  @parameterized.parameters(*_LEVELS)
  def test_who_does_as_told_reaches_the_optimal_return(self, level):
    environment = level(seed=1)
    for _ in range(100):
      _, rewards = _play(environment, _obedient)
      self.assertEqual(rewards, [0.0, 0.0, 0.0, level.optimal_return])

  def test_the_words_decide_what_is_rewarded(self):
    for level in (obey.ObeyBall, obey.ObeySide):
      environment = level(seed=2)
      for column in 20 * list(range(5)):  # The column to which the paddle moves.
        balls = []
        def go(sentence, ball, paddle):
          balls.append(ball)
          return _towards(column, paddle)
        (sentence, *_), rewards = _play(environment, go)
        wanted = {'catch the ball': column == balls[0], 'avoid the ball': column != balls[0],
                  'go left': column in (0, 1), 'go right': column in (3, 4)}[sentence]
        self.assertEqual(rewards, [0.0, 0.0, 0.0, 1.0 if wanted else -1.0], (sentence, column, balls))

  @parameterized.parameters(obey.ObeyBall, obey.ObeySide)
  def test_no_policy_that_does_not_listen_beats_chance(self, level):
    # Any deterministic policy that ignores the words is equivalent to a last column of the paddle for each column of
    # the ball.
    best = -1.0
    for columns in itertools.product((0, 2, 4), repeat=2):
      environment = level(seed=3)
      returns = [_play(environment, lambda sentence, ball, paddle: _towards(columns[ball % 2], paddle))[1][-1]
                 for _ in range(400)]
      best = max(best, np.mean(returns))
    # The tolerance is four standard errors of 1 / sqrt(400) = 0.05.
    self.assertAlmostEqual(best, level.uninstructed_return, delta=0.2)

  @parameterized.parameters(*_LEVELS)
  def test_random_return_is_the_stated_one(self, level):
    environment = level(seed=4)
    random = np.random.RandomState(4)
    returns = [_play(environment, lambda *_: random.randint(3))[1][-1] for _ in range(2000)]
    # The tolerance is four standard errors of at most 1 / sqrt(2000) = 0.022.
    self.assertAlmostEqual(np.mean(returns), level.random_return, delta=0.09)

  @parameterized.parameters(*_LEVELS)
  def test_every_sentence_is_said_throughout_its_episodes(self, level):
    environment = level(seed=5)
    said = []
    for _ in range(40):
      sentences, _ = _play(environment, lambda *_: 1)
      self.assertLen(set(sentences), 1)
      said.append(sentences[0])
    self.assertEqual(set(said), _SENTENCES[level])
    for sentence in set(said):
      self.assertGreaterEqual(said.count(sentence), 8)

  def test_all_levels_are_alike_and_look_like_catch(self):
    specs = [level(seed=0).observation_spec() for level in _LEVELS]
    self.assertEqual(specs, specs[:1] * 3)
    plain = catch.Catch(seed=0)
    self.assertEqual(specs[0]['pixels'], plain.observation_spec()['pixels'])
    self.assertNotIn('instruction', plain.observation_spec())
    for level in _LEVELS:
      self.assertEqual(level(seed=0).action_spec(), plain.action_spec())

  @parameterized.parameters(obey.ObeyBall, obey.ObeySide)
  def test_the_seed_decides_the_words(self, level):
    def said(seed):
      environment = level(seed=seed)
      return [_sentence(environment.reset().observation) for _ in range(30)]
    self.assertEqual(said(6), said(6))
    self.assertNotEqual(said(6), said(7))


if __name__ == '__main__':
  absltest.main()
