"""Tests of environments/chain.py."""

from absl.testing import absltest
from dm_env import test_utils
import numpy as np

from scalable_agents.environments import chain

_STATES = 9


def _documented_model():
  """Returns the transition matrices [action, from, to] and rewards [to] of the class's docstring."""
  transition = np.zeros((2, _STATES, _STATES))
  transition[:, 0, 0] = transition[:, 8, 8] = 1.0
  for state in range(1, 8):
    transition[0, state, state - 1] = transition[1, state, state + 1] = 0.9
    transition[0, state, state + 1] = transition[1, state, state - 1] = 0.1
  reward = np.zeros(_STATES)
  reward[0], reward[8] = 0.1, 1.0
  return transition, reward


def _values(backup, sweeps=2000):
  """Returns undiscounted values [state] after repeated backups of the action values [action, state]."""
  transition, reward = _documented_model()
  running = np.ones(_STATES)
  running[[0, 8]] = 0.0
  values = np.zeros(_STATES)
  for _ in range(sweeps):
    values = running * backup(transition @ (reward + running * values))
  return values


def _returns(environment, policy, episodes):
  returns = []
  for _ in range(episodes):
    time_step = environment.reset()
    total = 0.0
    while not time_step.last():
      time_step = environment.step(policy(time_step.observation['vector']))
      total += time_step.reward
    returns.append(total)
  return np.array(returns)


class ContractTest(test_utils.EnvironmentTestMixin, absltest.TestCase):

  def make_object_under_test(self):
    return chain.Chain(seed=0)


class ChainTest(absltest.TestCase):

  def test_value_iteration_on_the_documented_model_gives_the_stated_returns(self):
    optimal = _values(lambda action_values: action_values.max(axis=0))
    self.assertAlmostEqual(optimal[2], chain.Chain.optimal_return, places=9)
    self.assertAlmostEqual(optimal[2], 0.98889, places=5)
    always_right = _values(lambda action_values: action_values[1])
    np.testing.assert_allclose(always_right, optimal, atol=1e-9)
    uniform = _values(lambda action_values: action_values.mean(axis=0))
    self.assertAlmostEqual(uniform[2], chain.Chain.random_return, places=9)
    self.assertAlmostEqual(uniform[2], 0.325)

  def test_simulation_agrees_with_the_stated_returns(self):
    environment = chain.Chain(seed=1)
    random = np.random.RandomState(1)
    for policy, expected in ((lambda vector: 1, chain.Chain.optimal_return),
                             (lambda vector: random.randint(2), chain.Chain.random_return)):
      returns = _returns(environment, policy, episodes=1500)
      self.assertCountEqual(set(returns), {0.1, 1.0})
      self.assertAlmostEqual(returns.mean(), expected, delta=4 * returns.std() / np.sqrt(len(returns)))

  def test_moves_as_documented(self):
    transition, reward = _documented_model()
    environment = chain.Chain(seed=2)
    random = np.random.RandomState(2)
    counts = np.zeros_like(transition)
    time_step = environment.reset()
    for _ in range(20_000):
      if time_step.last():
        time_step = environment.reset()
        self.assertEqual(time_step.observation['vector'].argmax(), 2)
      state, action = time_step.observation['vector'].argmax(), random.randint(2)
      time_step = environment.step(action)
      next_state = time_step.observation['vector'].argmax()
      np.testing.assert_array_equal(time_step.observation['vector'], np.eye(_STATES)[next_state])
      counts[action, state, next_state] += 1
      self.assertEqual(time_step.reward, reward[next_state])
      self.assertEqual(time_step.last(), next_state in (0, 8))
      self.assertEqual(time_step.discount, 0.0 if time_step.last() else 1.0)
    visits = counts.sum(axis=2, keepdims=True)[:, 1:8]
    self.assertGreater(visits.min(), 100)
    error = np.abs(counts[:, 1:8] / visits - transition[:, 1:8])
    np.testing.assert_array_less(error, 4 * np.sqrt(0.09 / visits) * np.ones(_STATES))

  def test_the_seed_decides_the_slips(self):
    def positions(seed):
      environment = chain.Chain(seed=seed)
      return [int(environment.step(1).observation['vector'].argmax()) for _ in range(60)]
    self.assertEqual(positions(3), positions(3))
    self.assertNotEqual(positions(3), positions(4))

  def test_render_lights_the_position(self):
    environment = chain.Chain(seed=5)
    environment.reset()
    picture = environment.render()
    self.assertEqual((picture.shape, picture.dtype), ((32, 288, 3), np.uint8))
    np.testing.assert_array_equal(picture[0, ::32, 0], [0, 0, 255, 0, 0, 0, 0, 0, 0])


if __name__ == '__main__':
  absltest.main()
