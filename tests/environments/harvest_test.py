"""Tests of environments/harvest.py."""

import itertools

from absl.testing import absltest
from dm_env import test_utils
import numpy as np

from scalable_agents.environments import harvest
from scalable_agents.tests.environments import playing


class ContractTest(test_utils.EnvironmentTestMixin, absltest.TestCase):

  def make_object_under_test(self):
    return harvest.Harvest(seed=0)


def _play(actions):
  return playing.play(harvest.Harvest(seed=0), actions)


class HarvestTest(absltest.TestCase):

  def test_every_episode(self):
    true_returns, clipped_returns, environment = {}, {}, harvest.Harvest(seed=0)
    for actions in itertools.product((0, 1), repeat=4):
      rewards, _ = playing.play(environment, actions)
      self.assertEqual(rewards, [float(action == 0) for action in actions[:-1]]
                       + [20. if sum(actions) == 4 else float(actions[-1] == 0)])
      true_returns[actions], clipped_returns[actions] = sum(rewards), sum(np.clip(rewards, -1, 1))
    best_clipped = max(clipped_returns, key=clipped_returns.get)
    self.assertEqual(max(true_returns.values()), harvest.Harvest.optimal_return)
    self.assertEqual(true_returns[best_clipped], harvest.Harvest.clipped_return)
    self.assertEqual(np.mean(list(true_returns.values())), harvest.Harvest.random_return)
    self.assertEqual(max(true_returns, key=true_returns.get), (1, 1, 1, 1))
    self.assertEqual(best_clipped, (0, 0, 0, 0))

  def test_observations(self):
    np.testing.assert_array_equal(
        _play([1, 0, 1, 1])[1],
        [[1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 1, 0, 1], [0, 0, 0, 1, 1], [0, 0, 0, 1, 1]])


if __name__ == '__main__':
  absltest.main()
