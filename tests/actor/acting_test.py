"""Tests how actions are selected: with which frequencies, and that a seed determines them."""

from absl.testing import absltest
import numpy as np
import tensorflow as tf

from scalable_agents.actor import acting

_DRAWS = 20_000
_PREFERENCES = np.array([0.5, -1., 2., 0.], np.float32)


def _frequencies(actions):
  return np.bincount(actions, minlength=len(_PREFERENCES)) / len(actions)


def _assert_drawn_from(probabilities, actions):
  """Asserts that each frequency is within five standard deviations of its probability."""
  deviation = np.sqrt(probabilities * (1 - probabilities) / len(actions))
  np.testing.assert_array_less(np.abs(_frequencies(actions) - probabilities), 5 * deviation + 1e-9)


class ActingTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.preferences = tf.tile(_PREFERENCES[tf.newaxis], [_DRAWS, 1])
    self.seed = tf.constant([7, 1], tf.int64)

  def test_sampled_actions_have_the_probabilities_of_the_softmax(self):
    actions = acting.sample(self.preferences, self.seed).numpy()
    self.assertEqual(actions.dtype, np.int32)
    _assert_drawn_from(np.exp(_PREFERENCES) / np.exp(_PREFERENCES).sum(), actions)

  def test_an_action_of_probability_0_is_never_sampled(self):
    logits = tf.where(tf.range(4) == 2, -np.inf, self.preferences)
    self.assertEqual(_frequencies(acting.sample(logits, self.seed).numpy())[2], 0)

  def test_the_greedy_action_is_the_preferred_one(self):
    actions = acting.greedy(tf.constant([[0., 3., -1.], [5., 3., 6.]]))
    self.assertEqual((actions.dtype, actions.numpy().tolist()), (tf.int32, [1, 2]))

  def test_epsilon_greedy_actions_are_random_with_probability_epsilon(self):
    actions = acting.epsilon_greedy(self.preferences, 0.3, self.seed).numpy()
    _assert_drawn_from(0.3 / 4 + 0.7 * np.array([0., 0., 1., 0.]), actions)

  def test_each_actor_may_have_its_own_epsilon(self):
    epsilon = tf.cast(tf.range(_DRAWS) % 2, tf.float32)  # 0, 1, 0, 1, ...
    actions = acting.epsilon_greedy(self.preferences, epsilon, self.seed).numpy()
    self.assertEqual(set(actions[::2]), {2})
    _assert_drawn_from(np.full(4, 0.25), actions[1::2])

  def test_selects_as_it_is_told(self):
    select = lambda *selection: acting.select(self.preferences, acting.Selection(*selection), self.seed).numpy()
    sampled = acting.sample(self.preferences, self.seed)
    np.testing.assert_array_equal(select(acting.TRAINING), sampled)
    np.testing.assert_array_equal(select(acting.SAMPLED), sampled)
    self.assertEqual(set(select(acting.GREEDY)), {2})
    np.testing.assert_array_equal(select(acting.EPSILON, 0.3),
                                  acting.epsilon_greedy(self.preferences, 0.3, self.seed))

  def test_selects_by_values_as_it_is_told(self):
    select = lambda *selection: acting.select_by_value(
        self.preferences, acting.Selection(*selection), 0.5, self.seed).numpy()
    for epsilon, selection in ((0.5, (acting.TRAINING,)), (0.3, (acting.EPSILON, 0.3)), (0., (acting.GREEDY,))):
      np.testing.assert_array_equal(select(*selection), acting.epsilon_greedy(self.preferences, epsilon, self.seed))

  def test_a_seed_determines_the_actions(self):
    for select in (acting.sample, lambda preferences, seed: acting.epsilon_greedy(preferences, 0.5, seed)):
      draw = lambda number: select(self.preferences, tf.constant([7, number], tf.int64)).numpy()
      first, again, other = draw(1), draw(1), draw(2)
      np.testing.assert_array_equal(first, again)
      self.assertTrue(np.any(first != other))

  def test_an_actor_that_plays_alone_has_a_discount_of_0_where_an_episode_starts(self):
    inputs = acting.lone_inputs({}, tf.constant([1, 2]), tf.constant([3., np.nan]), tf.constant([False, True]))
    self.assertEqual(inputs.discount.numpy().tolist(), [1., 0.])
    self.assertEqual(inputs.reward.numpy().tolist(), [3., 0.])

  def test_the_ends_of_the_ladder(self):
    # 0.4 to the power of 1 and of 8; actor 128 of 256 has 1 + 7 * 128 / 255.
    epsilons = acting.ladder(tf.constant([0., 1., 128 / 255]), 0.4, 7.)
    np.testing.assert_allclose(epsilons, [0.4, 6.5536e-4, 0.015989], rtol=1e-3)

  def test_the_ladder_of_a_whole_cluster(self):
    # Each place is that of the middle of a rung.
    np.testing.assert_allclose(acting.ladder((tf.range(256.) + 0.5) / 256, 0.4, 7., 256),
                               0.4 ** (1 + 7 * np.arange(256) / 255), rtol=1e-4)
    # One process takes them in their order.
    np.testing.assert_allclose(acting.ladder(tf.linspace(0., 1., 5), 0.4, 7., 5),
                               0.4 ** (1 + 7 * np.arange(5) / 4), rtol=1e-5)
    np.testing.assert_allclose(acting.ladder(tf.zeros([1]), 0.4, 7., 1), [0.4], rtol=1e-6)


if __name__ == '__main__':
  absltest.main()
