"""The torsos: what turns an observation's pixels, or its vector, into features.

Espeholt et al. 2018 (IMPALA), figure 3 and section 5.3.2. The layers and their initial values are those of networks.py.

To add a torso, write a module like ShallowTorso. Add it to TORSOS and to the choices of `torso` in agents/configs.py,
where R2D2 has its own.
"""

import functools

import sonnet as snt
import tensorflow as tf

from scalable_agents.networks import networks

_LEAST_PLACES = 10  # In a row of the grid of `background`.


def background(pixels: tf.Tensor) -> tf.Tensor:
  """Returns the median brightness of each observation: in most games, that of the background.

  Brightness is the mean of the channels. The median is over a grid of at least 10x10 places, because all would take
  long to sort; of a smaller image it is over all. Of an even number, it is the higher one of the two in the middle.

  Args:
    pixels: [N, H, W, C], of any type that has 0 to 255.
  Returns:
    float32 [N, 1, 1, 1].
  """
  height, width = pixels.shape[1:3]
  step = max(1, min(height, width) // _LEAST_PLACES)
  brightness = tf.reduce_mean(tf.cast(pixels[:, ::step, ::step], tf.float32), axis=-1)
  brightness = tf.reshape(brightness, [-1, brightness.shape[1] * brightness.shape[2]])
  return tf.sort(brightness, axis=-1)[:, brightness.shape[1] // 2, tf.newaxis, tf.newaxis, tf.newaxis]


_CENTRES = {  # The values of --centre_pixels but none.
    'mean': lambda pixels: tf.reduce_mean(pixels, axis=[1, 2, 3], keepdims=True), 'median': background}


def _cast_pixels(pixels, dtype, centre):
  """Casts pixels uint8 [N, H, W, C] to `dtype`, and subtracts `centre` of each observation: see ShallowTorso."""
  pixels = tf.cast(pixels, dtype)
  # Differs from the paper if a centre is subtracted: see ActorCriticConfig.centre_pixels.
  return pixels if centre == 'none' else pixels - tf.cast(_CENTRES[centre](pixels), dtype)


def _input_scale(scale_pixels):
  """The number by which the first layer multiplies pixels. Without `scale_pixels`: see ActorCriticConfig."""
  return 1.0 / 255.0 if scale_pixels else 1.0


def _check_size(torso, pixels, least):
  height, width = pixels.shape[1:3]
  if min(height, width) < least:
    raise ValueError(f'--torso={torso}: want images of at least {least}x{least} pixels, got {height}x{width}; '
                     '--torso=deep accepts any size')


class ShallowTorso(snt.Module):
  """Figure 3, left: 16 channels 8x8/4, 32 channels 4x4/2, fully connected 256, with a ReLU after each layer."""

  def __init__(self, seeds: networks.Seeds, dtype: tf.DType = tf.float32, centre_pixels: str = 'none',
               scale_pixels: bool = True, name: str = 'shallow_torso'):
    """Makes the layers.

    Args:
      seeds: seeds of the initial values.
      dtype: type to compute in, float32 or bfloat16.
      centre_pixels: what to subtract from the pixels of each observation: 'none', their 'mean', or their 'median',
        see `background`.
      scale_pixels: whether to divide pixels by 255.
      name: name of the module.
    """
    super().__init__(name)
    self._dtype = dtype
    self._centre_pixels = centre_pixels
    self._conv1 = networks.Convolution(16, 8, 4, 'VALID', seeds, 'conv1', _input_scale(scale_pixels))
    self._conv2 = networks.Convolution(32, 4, 2, 'VALID', seeds, 'conv2')
    self._linear = networks.Linear(256, seeds, 'linear')

  def __call__(self, pixels: tf.Tensor) -> tf.Tensor:
    """Computes features.

    Args:
      pixels: uint8 [N, H, W, C].
    Returns:
      float32 [N, 256].
    Raises:
      ValueError: H or W is less than 20.
    """
    return self.layers(pixels)[-1]

  def layers(self, pixels: tf.Tensor) -> list[tf.Tensor]:
    """Returns the outputs of each layer's ReLU: of the convolutions, [N, H', W', C'], and the features."""
    _check_size('shallow', pixels, 20)
    first = tf.nn.relu(self._conv1(_cast_pixels(pixels, self._dtype, self._centre_pixels)))
    second = tf.nn.relu(self._conv2(first))
    return [first, second, tf.cast(tf.nn.relu(self._linear(snt.flatten(second))), tf.float32)]


class DqnTorso(snt.Module):
  """DQN's convolutions: 32 channels 8x8/4, 64 channels 4x4/2, 64 channels 3x3/1, with a ReLU after each layer.

  Mnih et al. 2015; Kapturowski et al. 2019 (R2D2), appendix, "Hyper-parameters". With DQN's fully connected layer of
  512 units, this is the other reading of IMPALA's shallow network on Atari, "which features three convolutional layers"
  (section 5.3.2).
  """

  def __init__(self, seeds: networks.Seeds, dtype: tf.DType = tf.float32, centre_pixels: str = 'none',
               scale_pixels: bool = True, name: str = 'dqn_torso', is_dense: bool = False):
    """Makes the layers.

    Args:
      seeds, dtype, centre_pixels, scale_pixels, name: see ShallowTorso.
      is_dense: whether DQN's fully connected layer follows, with a ReLU.
    """
    super().__init__(name)
    self._dtype = dtype
    self._centre_pixels = centre_pixels
    self._convolutions = [
        networks.Convolution(32, 8, 4, 'VALID', seeds, 'conv1', _input_scale(scale_pixels)),
        networks.Convolution(64, 4, 2, 'VALID', seeds, 'conv2'),
        networks.Convolution(64, 3, 1, 'VALID', seeds, 'conv3'),
    ]
    self._linear = networks.Linear(512, seeds, 'linear') if is_dense else None

  def __call__(self, pixels: tf.Tensor) -> tf.Tensor:
    """Computes features.

    Args:
      pixels: uint8 [N, H, W, C].
    Returns:
      float32 [N, 512] with the fully connected layer; [N, D] without, where D is 3,136 for 84x84 pixels.
    Raises:
      ValueError: H or W is less than 36.
    """
    return self.layers(pixels)[-1]

  def layers(self, pixels: tf.Tensor) -> list[tf.Tensor]:
    """Returns the outputs of each layer's ReLU: of the convolutions, [N, H', W', C'], and the features."""
    _check_size('dqn', pixels, 36)
    outputs = [_cast_pixels(pixels, self._dtype, self._centre_pixels)]
    for convolution in self._convolutions:
      outputs.append(tf.nn.relu(convolution(outputs[-1])))
    features = snt.flatten(outputs[-1])
    if self._linear:
      features = tf.nn.relu(self._linear(features))
    return [*outputs[1:], tf.cast(features, tf.float32)]


class _ResidualBlock(snt.Module):
  """ReLU, convolution 3x3, ReLU, convolution 3x3; the input is added to the result."""

  def __init__(self, channels, seeds, name):
    super().__init__(name)
    self._conv1 = networks.Convolution(channels, 3, 1, 'SAME', seeds, 'conv1')
    self._conv2 = networks.Convolution(channels, 3, 1, 'SAME', seeds, 'conv2')

  def __call__(self, features):
    return features + self._conv2(tf.nn.relu(self._conv1(tf.nn.relu(features))))


class _ResidualSection(snt.Module):
  """Convolution 3x3, max-pooling 3x3/2, two residual blocks."""

  def __init__(self, channels, seeds, name, input_scale=1.0):
    super().__init__(name)
    self._conv = networks.Convolution(channels, 3, 1, 'SAME', seeds, 'conv', input_scale)
    self._blocks = [_ResidualBlock(channels, seeds, f'block{i}') for i in range(2)]

  def __call__(self, features):
    features = tf.nn.max_pool2d(self._conv(features), 3, 2, 'SAME')
    for block in self._blocks:
      features = block(features)
    return features


class DeepTorso(snt.Module):
  """Figure 3, right: three residual sections, ReLU, fully connected 256, ReLU."""

  def __init__(self, seeds: networks.Seeds, dtype: tf.DType = tf.float32, centre_pixels: str = 'none',
               scale_pixels: bool = True, name: str = 'deep_torso', channels: tuple[int, ...] = (16, 32, 32)):
    """Makes the layers. `channels` are those of the sections. The other arguments are those of ShallowTorso."""
    super().__init__(name)
    self._dtype = dtype
    self._centre_pixels = centre_pixels
    self._sections = [_ResidualSection(number, seeds, f'section{i}', 1.0 if i else _input_scale(scale_pixels))
                      for i, number in enumerate(channels)]
    self._linear = networks.Linear(256, seeds, 'linear')

  def __call__(self, pixels: tf.Tensor) -> tf.Tensor:
    """Maps pixels uint8 [N, H, W, C] to features float32 [N, 256]."""
    features = _cast_pixels(pixels, self._dtype, self._centre_pixels)
    for section in self._sections:
      features = section(features)
    return tf.cast(tf.nn.relu(self._linear(tf.nn.relu(snt.flatten(features)))), tf.float32)


class VectorTorso(snt.Module):
  """Two fully connected layers of 256 units with ReLU, for vector observations."""

  def __init__(self, seeds: networks.Seeds, name: str = 'vector_torso'):
    super().__init__(name)
    self._linear1 = networks.Linear(256, seeds, 'linear1')
    self._linear2 = networks.Linear(256, seeds, 'linear2')

  def __call__(self, vector: tf.Tensor) -> tf.Tensor:
    """Maps vectors float32 [N, D] to features float32 [N, 256]."""
    return tf.nn.relu(self._linear2(tf.nn.relu(self._linear1(vector))))


TORSOS = {  # The values of --torso.
    'shallow': ShallowTorso, 'dqn': functools.partial(DqnTorso, is_dense=True), 'deep': DeepTorso,
    'deep_4x': functools.partial(DeepTorso, channels=(64, 128, 128))}  # LASER, section 5.1.
