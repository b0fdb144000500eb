"""Tests of environments/recall.py."""

import itertools

from absl.testing import absltest
from dm_env import test_utils
import numpy as np

from scalable_agents.environments import recall


def _play(environment, policy):
  """Plays an episode. `policy` maps the list of vectors so far to an action. Returns (vectors, rewards)."""
  vectors = [environment.reset().observation['vector']]
  rewards = []
  while True:
    time_step = environment.step(policy(vectors))
    rewards.append(time_step.reward)
    if time_step.last():
      return vectors, rewards
    vectors.append(time_step.observation['vector'])


class ContractTest(test_utils.EnvironmentTestMixin, absltest.TestCase):

  def make_object_under_test(self):
    return recall.Recall(seed=0)


class RecallTest(absltest.TestCase):

  def test_shows_the_cue_once_then_nothing_then_the_question(self):
    environment = recall.Recall(seed=1)
    cues = set()
    for _ in range(20):
      vectors, _ = _play(environment, lambda vectors: 0)
      self.assertIn(tuple(vectors[0]), {(1, 0, 0), (0, 1, 0)})
      cues.add(tuple(vectors[0]))
      np.testing.assert_array_equal(vectors[1:], [[0, 0, 0]] * 4 + [[0, 0, 1]])
    self.assertLen(cues, 2)

  def test_late_questions_come_after_8_to_15_blank_steps(self):
    environment = recall.RecallLate(seed=1)
    blanks = set()
    for _ in range(200):
      vectors, rewards = _play(environment, lambda vectors: int(vectors[0].argmax()))
      np.testing.assert_array_equal(vectors[1:], [[0, 0, 0]] * (len(vectors) - 2) + [[0, 0, 1]])
      self.assertEqual(rewards, [0.0] * (len(vectors) - 1) + [1.0])
      blanks.add(len(vectors) - 2)
    self.assertEqual(blanks, set(range(8, 16)))

  def test_memory_reaches_the_optimal_return(self):
    environment = recall.Recall(seed=2)
    for _ in range(50):
      _, rewards = _play(environment, lambda vectors: int(vectors[0].argmax()))
      self.assertEqual(rewards, [0.0] * 5 + [recall.Recall.optimal_return])

  def test_no_policy_on_the_present_observation_beats_chance(self):
    # A deterministic policy without memory has one action for each of the four possible observations.
    observations = [(1, 0, 0), (0, 1, 0), (0, 0, 0), (0, 0, 1)]
    for actions in itertools.product((0, 1), repeat=4):
      table = dict(zip(observations, actions))
      environment = recall.Recall(seed=3)
      returns = [sum(_play(environment, lambda vectors: table[tuple(vectors[-1])])[1]) for _ in range(400)]
      # The tolerance is four standard errors of 1 / sqrt(400) = 0.05.
      self.assertAlmostEqual(np.mean(returns), recall.Recall.memoryless_return, delta=0.2)

  def test_a_wrong_answer_costs_one(self):
    environment = recall.Recall(seed=4)
    _, rewards = _play(environment, lambda vectors: 1 - int(vectors[0].argmax()))
    self.assertEqual(rewards[-1], -1.0)

  def test_the_seed_decides_the_cues(self):
    def cues(seed):
      environment = recall.Recall(seed=seed)
      return [int(environment.reset().observation['vector'].argmax()) for _ in range(40)]
    self.assertEqual(cues(5), cues(5))
    self.assertNotEqual(cues(5), cues(6))
    self.assertBetween(sum(cues(5)), 8, 32)

  def test_render_lights_the_cue(self):
    environment = recall.Recall(seed=7)
    vector = environment.reset().observation['vector']
    picture = environment.render()
    self.assertEqual((picture.shape, picture.dtype), ((64, 192, 3), np.uint8))
    np.testing.assert_array_equal(picture[0, ::64, 0], 255 * vector)


if __name__ == '__main__':
  absltest.main()
