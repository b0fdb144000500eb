"""Tests of R2D2's network: its size, its heads and what its LSTM hears."""

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from scalable_agents.actor import acting
from scalable_agents.agents import configs
from scalable_agents.networks import q_networks

_ATARI = {'pixels': tf.TensorSpec([84, 84, 4], tf.uint8)}
_VECTOR = {'vector': tf.TensorSpec([4], tf.float32)}
_NUM_ACTIONS = 5


def _network(observation, num_actions=_NUM_ACTIONS, name='online', **settings):
  return q_networks.QNetwork(observation, num_actions, configs.R2d2Config(seed=1, **settings), name)


class QNetworkTest(parameterized.TestCase):

  @parameterized.parameters((False, 8_125_107), (True, 4_357_299))
  def test_number_of_parameters(self, dense_before_lstm, want):
    network = _network(_ATARI, 18, dense_before_lstm=dense_before_lstm)
    self.assertEqual(sum(int(np.prod(v.shape)) for v in network.trainable_variables), want)

  def test_the_convolutions_are_those_of_dqn(self):
    shapes = [v.shape.as_list() for v in _network(_ATARI).trainable_variables if v.shape.rank == 4]
    self.assertEqual(shapes, [[8, 8, 4, 32], [4, 4, 32, 64], [3, 3, 64, 64]])
    torso = _network(_ATARI, use_lstm=False)
    encoded = torso.encode(acting.example_input({'pixels': tf.TensorSpec([84, 84, 4], tf.uint8)}))
    self.assertEqual(encoded.shape, [1, 7 * 7 * 64])

  @parameterized.parameters(False, True)
  def test_the_values_are_the_papers_equation(self, dense_before_lstm):
    """Wang et al. 2016, equation 9, with random weights and biases."""
    network, random = _network(_VECTOR, dense_before_lstm=dense_before_lstm, use_lstm=False), np.random.RandomState(0)
    weights = {}
    for variable in network.trainable_variables:
      variable.assign(random.randn(*variable.shape) / np.sqrt(variable.shape[0]))
      weights[variable.name.removesuffix(':0').removeprefix('online/')] = np.float64(variable)
    layer = lambda x, name: x @ weights.pop(f'{name}/w') + weights.pop(f'{name}/b')
    relu = lambda x: np.maximum(x, 0.)
    vector = random.randn(6, 4)
    features = relu(layer(relu(layer(vector, 'vector_torso/linear1')), 'vector_torso/linear2'))
    if dense_before_lstm:
      features = relu(layer(features, 'dense'))
    value = layer(relu(layer(features, 'dueling_head/value_hidden')), 'dueling_head/value')
    advantage = layer(relu(layer(features, 'dueling_head/advantage_hidden')), 'dueling_head/advantage')
    self.assertEmpty(weights)  # No other layer has a say.
    inputs = acting.example_input(_VECTOR)._replace(observation={'vector': tf.constant(vector, tf.float32)})
    np.testing.assert_allclose(
        network.step(inputs, ())[0], value + advantage - advantage.mean(axis=1, keepdims=True), rtol=1e-4, atol=1e-5)

  def test_pixels_are_centred_if_wanted(self):
    pixels = np.random.RandomState(0).randint(100, size=[1, 84, 84, 4]).astype(np.uint8)
    inputs = acting.example_input(_ATARI)
    for centre, is_same in (('median', True), ('none', False)):
      network = _network(_ATARI, centre_pixels=centre)
      dark, light = (network.step(inputs._replace(observation={'pixels': tf.constant(pixels + more)}),
                                  network.initial_state(1))[0] for more in (0, 100))
      self.assertEqual(np.allclose(dark, light, atol=1e-4), is_same)

  def test_the_core_hears_of_the_raw_reward_and_the_last_action(self):
    network = _network(_VECTOR)
    inputs = acting.example_input(_VECTOR)._replace(done=tf.constant([False]), observation={'vector': tf.ones([1, 4])})
    step = lambda reward, action: network.step(
        inputs._replace(last_action=tf.constant([action]), reward=tf.constant([reward])), network.initial_state(1))[0]
    self.assertFalse(np.allclose(step(5., 0), step(1., 0), atol=1e-4))  # Not clipped to 1.
    self.assertFalse(np.allclose(step(1., 1), step(1., 0), atol=1e-4))

  def test_the_same_seed_gives_the_same_values(self):
    for one, other in zip(_network(_ATARI, name='online').variables, _network(_ATARI, name='target').variables):
      np.testing.assert_array_equal(one, other)

  @parameterized.parameters(
      ({'pixels': tf.TensorSpec([20, 40, 1], tf.uint8)}, '--torso=dqn: want images of at least 36x36 pixels, got 20x4'),
      ({'sound': tf.TensorSpec([4])}, "want 'pixels' or 'vector', got .'sound'."))
  def test_refuses_what_it_cannot_see(self, observation, message):
    with self.assertRaisesRegex(ValueError, message):
      _network(observation)


if __name__ == '__main__':
  absltest.main()
