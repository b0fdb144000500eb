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

  def test_a_seed_determines_the_actions(self):
    for select in (acting.sample, lambda preferences, seed: acting.epsilon_greedy(preferences, 0.5, seed)):
      draw = lambda number: select(self.preferences, tf.constant([7, number], tf.int64)).numpy()  # pylint: disable=cell-var-from-loop
      first, again, other = draw(1), draw(1), draw(2)
      np.testing.assert_array_equal(first, again)
      self.assertTrue(np.any(first != other))


if __name__ == '__main__':
  absltest.main()
