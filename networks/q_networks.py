"""The networks of R2D2: convolutions, an LSTM and dueling heads. Kapturowski et al. 2019, section 2.3 and appendix.

The layers and their initial values are those of networks.py.
"""

from collections.abc import Mapping
from typing import Any

import sonnet as snt
import tensorflow as tf

from scalable_agents.actor import acting
from scalable_agents.networks import networks
from scalable_agents.networks import torsos

_HIDDEN = 512


TORSOS = torsos.TORSOS | {'dqn': torsos.DqnTorso}  # The values of --torso. The LSTM follows the convolutions.


class DuelingHead(snt.Module):
  """Action values from two streams of 512 hidden units: Q = V + A - mean of A. Wang et al. 2016, equation 9."""

  def __init__(self, num_actions: int, seeds: networks.Seeds, name: str = 'dueling_head'):
    super().__init__(name)
    self._value_hidden = networks.Linear(_HIDDEN, seeds, 'value_hidden')
    self._value = networks.Linear(1, seeds, 'value')
    self._advantage_hidden = networks.Linear(_HIDDEN, seeds, 'advantage_hidden')
    self._advantage = networks.Linear(num_actions, seeds, 'advantage')

  def __call__(self, features: tf.Tensor) -> tf.Tensor:
    """Maps features [..., D] to action values [..., A]."""
    value = self._value(tf.nn.relu(self._value_hidden(features)))
    advantage = self._advantage(tf.nn.relu(self._advantage_hidden(features)))
    return value + advantage - tf.reduce_mean(advantage, axis=-1, keepdims=True)


class QNetwork(snt.Module):
  """Torso, LSTM of 512 units and dueling heads. The LSTM's inputs include the last reward and the last action.

  Attributes:
    core: the LSTM; None if there is none.
    input_size: D, the number of inputs of the LSTM.
    head: the dueling heads.
  """

  def __init__(self, observation: Mapping[str, tf.TensorSpec], num_actions: int, config: Any, name: str):
    """Creates the variables.

    Args:
      observation: specs of the observations: 'pixels' or 'vector', and perhaps 'instruction'.
      num_actions: A.
      config: configs.R2d2Config: the seed, and the settings of the network.
      name: name of the module.
    Raises:
      ValueError: neither 'pixels' nor 'vector' is observed, or the image is too small for the torso.
    """
    super().__init__(name)
    seeds = networks.Seeds(config.seed)
    self._num_actions = num_actions
    if 'pixels' in observation:
      self._observed = 'pixels'
      self._torso = TORSOS[config.torso](seeds, networks.compute_type(config.torso_precision), config.centre_pixels)
    elif 'vector' in observation:
      self._observed = 'vector'
      self._torso = torsos.VectorTorso(seeds)
    else:
      raise ValueError(f"observation_spec: want 'pixels' or 'vector', got {sorted(observation)}")
    self._dense = networks.Linear(_HIDDEN, seeds, 'dense') if config.dense_before_lstm else None
    self._language = networks.LanguageEncoder(seeds) if 'instruction' in observation else None
    # The first call of a layer creates its variables.
    features = self._features(self.prepare(acting.example_input(observation).observation))
    self.input_size = features.shape[-1] + 1 + num_actions
    self.core = (networks.LSTMCore(self.input_size, _HIDDEN, seeds, networks.compute_type(config.lstm_precision))
                 if config.use_lstm else None)
    self.head = DuelingHead(num_actions, seeds)
    self.head(tf.zeros([1, _HIDDEN]) if config.use_lstm else features)

  def initial_state(self, batch_size: int | tf.Tensor) -> Any:
    """The LSTM's state at an episode's start: an LSTMState of [batch_size, 512], or () without an LSTM."""
    return self.core.initial_state(batch_size) if self.core else ()

  def step(self, inputs: acting.ActorInput, state: Any) -> tuple[tf.Tensor, Any]:
    """Processes one row.

    Args:
      inputs: of [B, ...]; observations are prepared (`prepare`). Where `done`, the state is reset before the row.
      state: from `initial_state` or a call before.
    Returns:
      Action values [B, A] float32, and the new state.
    """
    features = self.encode(inputs)
    if self.core:
      features, state = self.core.step(features, inputs.done, state)
    return self.head(features), state

  def unroll(self, inputs: acting.ActorInput, state: Any) -> tuple[tf.Tensor, Any]:
    """Processes T rows, `inputs` of [T, B, ...], as `step` does. Returns values [T, B, A] and the last state."""
    features = snt.BatchApply(self.encode)(inputs)
    if self.core:
      features, state = self.core.unroll(features, inputs.done, state)
    return self.head(features), state

  def encode(self, inputs: acting.ActorInput) -> tf.Tensor:
    """Returns the inputs of the LSTM or, without an LSTM, of the heads: [B, D]. The argument is that of `step`."""
    features = self._features(inputs.observation)
    if not self.core:
      return features
    last_action = tf.one_hot(inputs.last_action, self._num_actions)
    return tf.concat([features, inputs.reward[..., tf.newaxis], last_action], axis=-1)

  def prepare(self, observation: Mapping[str, tf.Tensor]) -> Mapping[str, tf.Tensor]:
    """Turns 'instruction' into 'words', which `step` and `unroll` take: XLA has no strings."""
    return networks.with_words(observation, self._observed)

  def _features(self, observation):
    features = self._torso(observation[self._observed])
    if self._dense:
      features = tf.nn.relu(self._dense(features))
    return tf.concat([features, self._language(observation['words'])], axis=-1) if self._language else features
