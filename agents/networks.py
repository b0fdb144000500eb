"""The networks of IMPALA: torsos, the LSTM core and the two heads.

Espeholt et al. 2018 (IMPALA), figure 3 and section 5.3.2. Everything starts from the released initial values:
weights from a normal distribution of standard deviation 1/sqrt(fan-in), truncated at two deviations, and zero
biases; the LSTM's kernel from a Glorot uniform distribution over the whole matrix.
"""

import math
from typing import NamedTuple

import sonnet as snt
import tensorflow as tf


INSTRUCTION_WORDS = 16  # The longest of DMLab-30 has 8.
LANGUAGE_SIZE = 64
_BUCKETS = 1000
_EMBEDDING = 20
_NO_WORD = -1


class LSTMState(NamedTuple):
  """The recurrent state of LSTMCore."""
  hidden: tf.Tensor  # [B, H] float32.
  cell: tf.Tensor    # [B, H] float32.


class TruncatedNormal(snt.initializers.Initializer):
  """Normal of standard deviation 1/sqrt(fan-in), truncated at two deviations, drawn from a seed of its own."""

  def __init__(self, seed):
    self._seed = seed

  def __call__(self, shape, dtype):
    stddev = 1.0 / math.sqrt(math.prod(shape[:-1]))
    return stddev * tf.random.stateless_truncated_normal(shape, self._seed, dtype=dtype)


class GlorotUniform(snt.initializers.Initializer):
  """Uniform in ±sqrt(6 / (fan-in + fan-out)) of a matrix, drawn from a seed of its own."""

  def __init__(self, seed):
    self._seed = seed

  def __call__(self, shape, dtype):
    limit = math.sqrt(6.0 / (shape[0] + shape[1]))
    return tf.random.stateless_uniform(shape, self._seed, -limit, limit, dtype=dtype)


class Seeds:
  """Hands out one seed per layer, in the order of construction, so that a network is a function of one number."""

  def __init__(self, seed: int):
    self._seed = seed
    self._layers = 0

  def next(self) -> tuple[int, int]:
    self._layers += 1
    return (self._seed, self._layers)


class Convolution(snt.Module):
  """A convolution of NHWC images, with bias and the released initial values."""

  def __init__(self, channels: int, kernel: int, stride: int, padding: str, seeds: Seeds, name: str,
               input_scale: float = 1.0):
    super().__init__(name)
    self._channels, self._kernel, self._stride, self._padding = channels, kernel, stride, padding
    self._input_scale = input_scale
    self._initializer = TruncatedNormal(seeds.next())

  @snt.once
  def _initialize(self, input_channels):
    shape = (self._kernel, self._kernel, input_channels, self._channels)
    self.w = tf.Variable(self._initializer(shape, tf.float32), name='w')
    self.b = tf.Variable(tf.zeros([self._channels]), name='b')

  def __call__(self, images: tf.Tensor) -> tf.Tensor:
    """[N, H, W, C] times `input_scale` -> [N, H', W', channels]; computed in the images' type."""
    self._initialize(images.shape[-1])
    # Scaling the kernel does the same as scaling the images, which would take a pass over all pixels.
    kernel = self.w if self._input_scale == 1.0 else self._input_scale * self.w
    outputs = tf.nn.conv2d(images, tf.cast(kernel, images.dtype), self._stride, self._padding)
    # Not bias_add, whose gradient sums bfloat16 in bfloat16 and comes out at half of its value.
    return outputs + tf.cast(self.b, images.dtype)


class Linear(snt.Module):
  """A fully connected layer with the released initial values."""

  def __init__(self, size: int, seeds: Seeds, name: str):
    super().__init__(name)
    self._size = size
    self._initializer = TruncatedNormal(seeds.next())

  @snt.once
  def _initialize(self, input_size):
    self.w = tf.Variable(self._initializer((input_size, self._size), tf.float32), name='w')
    self.b = tf.Variable(tf.zeros([self._size]), name='b')

  def __call__(self, inputs: tf.Tensor) -> tf.Tensor:
    """[..., D] -> [..., size]; computed in the inputs' type."""
    self._initialize(inputs.shape[-1])
    return tf.linalg.matmul(inputs, tf.cast(self.w, inputs.dtype)) + tf.cast(self.b, inputs.dtype)


def _numbers(pixels, dtype, centred):
  """uint8 [N, H, W, C] in the type to compute in; if `centred`, less the mean of each observation's pixels."""
  pixels = tf.cast(pixels, dtype)
  # Differs from the paper where it is asked for: see ImpalaConfig.centre_pixels.
  return pixels - tf.reduce_mean(pixels, axis=[1, 2, 3], keepdims=True) if centred else pixels


class ShallowTorso(snt.Module):
  """Figure 3 left: 16 channels 8x8/4, 32 channels 4x4/2, fully connected 256, a ReLU after each."""

  def __init__(self, seeds: Seeds, dtype: tf.DType = tf.float32, centre_pixels: bool = False,
               name: str = 'shallow_torso'):
    super().__init__(name)
    self._dtype, self._centre_pixels = dtype, centre_pixels
    self._conv1 = Convolution(16, 8, 4, 'VALID', seeds, 'conv1', input_scale=1.0 / 255.0)
    self._conv2 = Convolution(32, 4, 2, 'VALID', seeds, 'conv2')
    self._linear = Linear(256, seeds, 'linear')

  def __call__(self, pixels: tf.Tensor) -> tf.Tensor:
    """uint8 [N, H, W, C] -> float32 [N, 256]. ValueError: H or W is below 20."""
    height, width = pixels.shape[1:3]
    if min(height, width) < 20:
      raise ValueError(f'--torso=shallow: want images of 20x20 pixels at least, got {height}x{width}; deep takes any')
    features = tf.nn.relu(self._conv1(_numbers(pixels, self._dtype, self._centre_pixels)))
    features = tf.nn.relu(self._conv2(features))
    return tf.cast(tf.nn.relu(self._linear(snt.flatten(features))), tf.float32)


class _ResidualBlock(snt.Module):
  """ReLU, convolution 3x3, ReLU, convolution 3x3, plus the input."""

  def __init__(self, channels, seeds, name):
    super().__init__(name)
    self._conv1 = Convolution(channels, 3, 1, 'SAME', seeds, 'conv1')
    self._conv2 = Convolution(channels, 3, 1, 'SAME', seeds, 'conv2')

  def __call__(self, features):
    return features + self._conv2(tf.nn.relu(self._conv1(tf.nn.relu(features))))


class _ResidualSection(snt.Module):
  """Convolution 3x3, max-pooling 3x3/2, two residual blocks."""

  def __init__(self, channels, seeds, name, input_scale=1.0):
    super().__init__(name)
    self._conv = Convolution(channels, 3, 1, 'SAME', seeds, 'conv', input_scale)
    self._blocks = [_ResidualBlock(channels, seeds, f'block{i}') for i in range(2)]

  def __call__(self, features):
    features = tf.nn.max_pool2d(self._conv(features), 3, 2, 'SAME')
    for block in self._blocks:
      features = block(features)
    return features


class DeepTorso(snt.Module):
  """Figure 3 right: residual sections of 16, 32 and 32 channels, ReLU, fully connected 256, ReLU."""

  def __init__(self, seeds: Seeds, dtype: tf.DType = tf.float32, centre_pixels: bool = False,
               name: str = 'deep_torso'):
    super().__init__(name)
    self._dtype, self._centre_pixels = dtype, centre_pixels
    self._sections = [
        _ResidualSection(16, seeds, 'section0', input_scale=1.0 / 255.0),
        _ResidualSection(32, seeds, 'section1'),
        _ResidualSection(32, seeds, 'section2'),
    ]
    self._linear = Linear(256, seeds, 'linear')

  def __call__(self, pixels: tf.Tensor) -> tf.Tensor:
    """uint8 [N, H, W, C] -> float32 [N, 256]."""
    features = _numbers(pixels, self._dtype, self._centre_pixels)
    for section in self._sections:
      features = section(features)
    return tf.cast(tf.nn.relu(self._linear(tf.nn.relu(snt.flatten(features)))), tf.float32)


class VectorTorso(snt.Module):
  """Two fully connected layers of 256 with ReLU, for observations that are no images."""

  def __init__(self, seeds: Seeds, name: str = 'vector_torso'):
    super().__init__(name)
    self._linear1 = Linear(256, seeds, 'linear1')
    self._linear2 = Linear(256, seeds, 'linear2')

  def __call__(self, vector: tf.Tensor) -> tf.Tensor:
    """float32 [N, D] -> float32 [N, 256]."""
    return tf.nn.relu(self._linear2(tf.nn.relu(self._linear1(vector))))


TORSOS = {'shallow': ShallowTorso, 'deep': DeepTorso}


class LSTMCore(snt.Module):
  """The released LSTM: one [D + H, 4H] kernel, gates in the order input, candidate, forget, output.

  i, g, f, o = [x, h] W + b;  c' = sigmoid(f + 1) c + sigmoid(i) tanh(g);  h' = sigmoid(o) tanh(c').
  The forget bias of 1 is a constant, so that the bias variable starts at zero.
  """

  def __init__(self, input_size: int, hidden_size: int, seeds: Seeds, name: str = 'lstm'):
    super().__init__(name)
    self._input_size = input_size
    self._hidden_size = hidden_size
    shape = (input_size + hidden_size, 4 * hidden_size)
    self.kernel = tf.Variable(GlorotUniform(seeds.next())(shape, tf.float32), name='kernel')
    self.bias = tf.Variable(tf.zeros([4 * hidden_size]), name='bias')

  def initial_state(self, batch_size) -> LSTMState:
    """Zeros, [batch_size, H] each."""
    zeros = tf.zeros([batch_size, self._hidden_size])
    return LSTMState(zeros, zeros)

  def _project(self, inputs):
    return tf.linalg.matmul(inputs, self.kernel[:self._input_size]) + self.bias

  def _advance(self, projected, done, state, recurrent_kernel):
    keep = tf.cast(tf.logical_not(done), tf.float32)[:, tf.newaxis]
    gates = projected + tf.linalg.matmul(keep * state.hidden, recurrent_kernel)
    i, g, f, o = tf.split(gates, 4, axis=-1)
    cell = tf.sigmoid(f + 1.0) * (keep * state.cell) + tf.sigmoid(i) * tf.tanh(g)
    return LSTMState(tf.sigmoid(o) * tf.tanh(cell), cell)

  def step(self, inputs: tf.Tensor, done: tf.Tensor, state: LSTMState) -> tuple[tf.Tensor, LSTMState]:
    """One row: the state is reset where `done` *before* the row is processed.

    Args:
      inputs: [B, D] float32.
      done: [B] bool.
      state: LSTMState of [B, H].
    Returns:
      [B, H] float32 and the new state.
    """
    state = self._advance(self._project(inputs), done, state, self.kernel[self._input_size:])
    return state.hidden, state

  def unroll(self, inputs: tf.Tensor, done: tf.Tensor, state: LSTMState) -> tuple[tf.Tensor, LSTMState]:
    """`step` over the rows of [T, B, D] inputs and [T, B] done; returns [T, B, H] and the last state."""
    # A while loop with a known bound: a statically unrolled LSTM takes XLA a minute and a half to compile, and
    # without the bound XLA refuses the gradient. The inputs' share of the gates needs no loop; it is unstacked
    # because the gradient of a slice would be as long as the whole sequence, once per row.
    rows = inputs.shape[0]
    projected = tf.TensorArray(tf.float32, rows).unstack(self._project(inputs))
    done = tf.TensorArray(tf.bool, rows).unstack(done)
    recurrent_kernel = self.kernel[self._input_size:]
    outputs = tf.TensorArray(tf.float32, rows, element_shape=state.hidden.shape)

    def body(t, state, outputs):
      state = self._advance(projected.read(t), done.read(t), state, recurrent_kernel)
      return t + 1, state, outputs.write(t, state.hidden)

    _, state, outputs = tf.while_loop(
        lambda t, *_: t < rows, body, (0, LSTMState(*state), outputs), maximum_iterations=rows)
    return outputs.stack(), state


@tf.function(autograph=False)
def instruction_words(instruction: tf.Tensor) -> tf.Tensor:
  """The words of texts as numbers. Strings are involved: for the CPU, and not for XLA.

  Figure 3: text is split at white space, and every word hashed by TensorFlow's fast hash, which needs no vocabulary.

  Args:
    instruction: uint8 [..., L], filled up with zeros.
  Returns:
    int32 [..., INSTRUCTION_WORDS], each word's bucket; -1 after the last. Words beyond the last place are dropped.
  """
  texts = tf.reshape(instruction, [-1, instruction.shape[-1]])
  rows = tf.where(texts[:, 0] > 0)  # On most levels there is none.
  characters = tf.constant([b''] + [bytes([code]) for code in range(1, 256)])
  strings = tf.strings.reduce_join(tf.gather(characters, tf.cast(tf.gather(texts, rows[:, 0]), tf.int32)), axis=-1)
  words = tf.ragged.map_flat_values(tf.strings.to_hash_bucket_fast, tf.strings.split(strings), _BUCKETS)
  words = tf.cast(words.to_tensor(_NO_WORD, shape=[None, INSTRUCTION_WORDS]), tf.int32)
  none = tf.fill([tf.shape(texts)[0], INSTRUCTION_WORDS], _NO_WORD)
  shape = tf.concat([tf.shape(instruction)[:-1], [INSTRUCTION_WORDS]], axis=0)
  static_shape = instruction.shape[:-1].concatenate(INSTRUCTION_WORDS)
  return tf.ensure_shape(tf.reshape(tf.tensor_scatter_nd_update(none, rows, words), shape), static_shape)


class LanguageEncoder(snt.Module):
  """Figure 3: words embedded in 20 numbers each, an LSTM of 64, its output at the last word."""

  def __init__(self, seeds: Seeds, name: str = 'language'):
    super().__init__(name)
    self.embedding = tf.Variable(TruncatedNormal(seeds.next())((_BUCKETS, _EMBEDDING), tf.float32), name='embedding')
    self._lstm = LSTMCore(_EMBEDDING, LANGUAGE_SIZE, seeds)

  def __call__(self, words: tf.Tensor) -> tf.Tensor:
    """int32 [N, INSTRUCTION_WORDS], as `instruction_words` gives them -> float32 [N, LANGUAGE_SIZE]; zeros without."""
    embedded = tf.transpose(tf.gather(self.embedding, tf.maximum(words, 0)), [1, 0, 2])
    never = tf.zeros(tf.shape(embedded)[:2], tf.bool)
    never = tf.ensure_shape(never, embedded.shape[:2])
    outputs, _ = self._lstm.unroll(embedded, never, self._lstm.initial_state(tf.shape(words)[0]))
    # What the LSTM made of the places behind the last word does not count.
    is_last = (words >= 0) & (tf.pad(words[:, 1:], [[0, 0], [0, 1]], constant_values=_NO_WORD) < 0)
    return tf.einsum('wnd,nw->nd', outputs, tf.cast(is_last, tf.float32))
