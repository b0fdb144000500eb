"""The networks' modules: convolutions, fully connected layers, the LSTM core and the language encoder.

Espeholt et al. 2018 (IMPALA), figure 3 and section 5.3.2. The initial values are those of the released code. Weights
have a normal distribution with standard deviation 1/sqrt(fan-in), truncated at two standard deviations. Biases are
zero. The LSTM's kernel has a Glorot uniform distribution over the whole matrix.
"""

from collections.abc import Sequence
import math
from typing import NamedTuple

import sonnet as snt
import tensorflow as tf

from scalable_agents.processes import devices

INSTRUCTION_WORDS = 16  # DMLab-30's longest instruction has 8.
LANGUAGE_SIZE = 64
_BUCKETS = 1000
_EMBEDDING = 20
_NO_WORD = -1


class LSTMState(NamedTuple):
  """The recurrent state of LSTMCore."""
  hidden: tf.Tensor  # [B, H] float32.
  cell: tf.Tensor    # [B, H] float32.


def truncated_normal(shape: Sequence[int], seed: tuple[int, int]) -> tf.Tensor:
  """Draws from a normal distribution with standard deviation 1/sqrt(fan-in), truncated at two of these. float32."""
  stddev = 1.0 / math.sqrt(math.prod(shape[:-1]))
  return stddev * tf.random.stateless_truncated_normal(shape, seed)


def glorot_uniform(shape: Sequence[int], seed: tuple[int, int]) -> tf.Tensor:
  """Draws a matrix from the uniform distribution on ±sqrt(6 / (fan-in + fan-out)). float32."""
  limit = math.sqrt(6.0 / (shape[0] + shape[1]))
  return tf.random.stateless_uniform(shape, seed, -limit, limit)


class Seeds:
  """Gives each layer its own seed, in the order of construction. So one number determines the initial network."""

  def __init__(self, seed: int):
    self._seed = seed
    self._layers = 0

  def next(self) -> tuple[int, int]:
    """Returns the seed of the next layer, for the stateless functions of tf.random."""
    self._layers += 1
    return (self._seed, self._layers)


class Convolution(snt.Module):
  """A convolution of NHWC images, with a bias and the released code's initial values."""

  def __init__(self, channels: int, kernel: int, stride: int, padding: str, seeds: Seeds, name: str,
               input_scale: float = 1.0):
    """Makes the layer.

    Args:
      channels: number of channels of the output.
      kernel, stride: in pixels, for height and width.
      padding: 'VALID' or 'SAME'.
      seeds: seeds of the initial values.
      name: the module's name.
      input_scale: number by which the images are multiplied.
    """
    super().__init__(name)
    self._channels = channels
    self._kernel = kernel
    self._stride = stride
    self._padding = padding
    self._input_scale = input_scale
    self._seed = seeds.next()

  @snt.once
  def _initialize(self, input_channels):
    shape = (self._kernel, self._kernel, input_channels, self._channels)
    self.w = tf.Variable(truncated_normal(shape, self._seed), name='w')
    self.b = tf.Variable(tf.zeros([self._channels]), name='b')

  def __call__(self, images: tf.Tensor) -> tf.Tensor:
    """Convolves `input_scale` times the images.

    Args:
      images: [N, H, W, C] of any floating-point type.
    Returns:
      [N, H', W', channels] of the same type.
    """
    self._initialize(images.shape[-1])
    # The kernel is scaled in place of the images, because scaling these would take a pass over all pixels.
    kernel = self.w if self._input_scale == 1.0 else self._input_scale * self.w
    outputs = tf.nn.conv2d(images, tf.cast(kernel, images.dtype), self._stride, self._padding)
    # bias_add is not used: its gradient sums bfloat16 values in bfloat16, and is half of its true value.
    return outputs + tf.cast(self.b, images.dtype)


def product(inputs: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
  """Multiplies [..., D] by [D, E].

  All leading dimensions are folded into one. Otherwise TensorFlow would compute the gradient of the weights as the sum
  of one product for each time step.
  """
  if len(inputs.shape) == 2:
    return tf.linalg.matmul(inputs, weights)
  rows = tf.linalg.matmul(tf.reshape(inputs, [-1, inputs.shape[-1]]), weights)
  return tf.reshape(rows, tf.concat([tf.shape(inputs)[:-1], tf.shape(weights)[1:]], axis=0))


class Linear(snt.Module):
  """A fully connected layer with the released code's initial values."""

  def __init__(self, size: int, seeds: Seeds, name: str):
    super().__init__(name)
    self._size = size
    self._seed = seeds.next()

  @snt.once
  def _initialize(self, input_size):
    self.w = tf.Variable(truncated_normal((input_size, self._size), self._seed), name='w')
    self.b = tf.Variable(tf.zeros([self._size]), name='b')

  def __call__(self, inputs: tf.Tensor) -> tf.Tensor:
    """Maps [..., D] to [..., size] of the same floating-point type."""
    self._initialize(inputs.shape[-1])
    return product(inputs, tf.cast(self.w, inputs.dtype)) + tf.cast(self.b, inputs.dtype)


def compute_type(precision: str) -> tf.DType:
  """Returns the type of --torso_precision or --lstm_precision.

  'auto' is the faster one on the device on which variables are made now.
  """
  return tf.as_dtype(devices.fastest_precision(tf.zeros([]).device) if precision == 'auto' else precision)


class PixelControlHead(snt.Module):
  """The action values of pixel control for all cells of the picture. Jaderberg et al. 2016 (UNREAL).

  A fully connected layer gives 32 channels of the size (h / 2 - 1) x (w / 2 - 1), with a ReLU. A transposed convolution
  4x4/2 turns them into h x w cells with a value V and the advantages A of the actions: Q = V + A - mean of A.
  """

  _CHANNELS, _KERNEL, _STRIDE = 32, 4, 2

  def __init__(self, cells: tuple[int, int], num_actions: int, seeds: Seeds, name: str = 'pixel_control'):
    """Makes the layers.

    Args:
      cells: number of rows h and of columns w of cells, both even; see learner/pixel_control.py.
      num_actions: number of actions.
      seeds: seeds of the initial values.
      name: name of the module.
    """
    super().__init__(name)
    self._cells = cells
    self._size = [number // self._STRIDE - 1 for number in cells]
    self._linear = Linear(math.prod(self._size) * self._CHANNELS, seeds, 'linear')
    # Stored like the kernel of a convolution, from whose shape truncated_normal takes the fan-in, 4*4*32. Since the
    # stride is 2, only a quarter of these inputs reach a cell.
    shape = (self._KERNEL, self._KERNEL, self._CHANNELS, 1 + num_actions)
    self.w = tf.Variable(truncated_normal(shape, seeds.next()), name='w')
    self.b = tf.Variable(tf.zeros([1 + num_actions]), name='b')

  def __call__(self, features: tf.Tensor) -> tf.Tensor:
    """Maps features [N, D] float32 to action values [N, h, w, A] float32."""
    features = tf.reshape(tf.nn.relu(self._linear(features)), [-1, *self._size, self._CHANNELS])
    outputs = tf.nn.conv2d_transpose(
        features, tf.transpose(self.w, [0, 1, 3, 2]), [tf.shape(features)[0], *self._cells, self.b.shape[0]],
        self._STRIDE, 'VALID') + self.b
    value, advantages = outputs[..., :1], outputs[..., 1:]
    return value + advantages - tf.reduce_mean(advantages, axis=-1, keepdims=True)


class LSTMCore(snt.Module):
  """The released code's LSTM, with one [D + H, 4H] kernel. The order of the gates is input, candidate, forget, output.

  i, g, f, o = [x, h] W + b;  c' = sigmoid(f + 1) c + sigmoid(i) tanh(g);  h' = sigmoid(o) tanh(c').
  The forget bias of 1 is a constant, and the initial bias variable is zero.
  """

  def __init__(self, input_size: int, hidden_size: int, seeds: Seeds, dtype: tf.DType = tf.float32,
               name: str = 'lstm'):
    """Creates the variables.

    Args:
      input_size: D.
      hidden_size: H.
      seeds: seeds of the initial values.
      dtype: type of the matrix products, float32 or bfloat16. All else is float32.
      name: name of the module.
    """
    super().__init__(name)
    self._input_size = input_size
    self._hidden_size = hidden_size
    self._dtype = dtype
    shape = (input_size + hidden_size, 4 * hidden_size)
    self.kernel = tf.Variable(glorot_uniform(shape, seeds.next()), name='kernel')
    self.bias = tf.Variable(tf.zeros([4 * hidden_size]), name='bias')

  def initial_state(self, batch_size) -> LSTMState:
    """Returns an LSTMState of zeros, [batch_size, H] each."""
    zeros = tf.zeros([batch_size, self._hidden_size])
    return LSTMState(zeros, zeros)

  def _project(self, inputs):
    """Returns the inputs' part of the gates and the kernel for the state's part."""
    for_inputs, for_state = tf.split(tf.cast(self.kernel, self._dtype), [self._input_size, self._hidden_size])
    return _product_float32(inputs, for_inputs) + self.bias, for_state

  def step(self, inputs: tf.Tensor, done: tf.Tensor, state: LSTMState) -> tuple[tf.Tensor, LSTMState]:
    """Processes one row. Where `done` is True, the state is reset *before* the row is processed.

    Args:
      inputs: [B, D] float32.
      done: [B] bool.
      state: LSTMState of [B, H].
    Returns:
      The output, [B, H] float32, and the new state.
    """
    projected, kernel = self._project(inputs)
    _, state = _advance(projected, _keep(done), LSTMState(*state), kernel)
    return state.hidden, state

  def unroll(self, inputs: tf.Tensor, done: tf.Tensor, state: LSTMState) -> tuple[tf.Tensor, LSTMState]:
    """Processes T rows, as `step` does.

    Args:
      inputs: [T, B, D] float32.
      done: [T, B] bool.
      state: LSTMState of [B, H], before the first row.
    Returns:
      The outputs, [T, B, H] float32, and the state after the last row.
    """
    projected, kernel = self._project(inputs)
    outputs, hidden, cell = _recurrence(projected, _keep(done), *state, kernel)
    return outputs, LSTMState(hidden, cell)


def _keep(done):
  return tf.cast(tf.logical_not(done), tf.float32)[..., tf.newaxis]


def _product_float32(inputs, weights):
  return tf.cast(product(tf.cast(inputs, weights.dtype), weights), tf.float32)


def _advance(projected, keep, state, kernel):
  """Processes one row of an LSTM. Returns the values of its gates i, g, f, o, [B, 4H], and the new state."""
  i, g, f, o = tf.split(projected + _product_float32(keep * state.hidden, kernel), 4, axis=-1)
  i, g, f, o = tf.sigmoid(i), tf.tanh(g), tf.sigmoid(f + 1.0), tf.sigmoid(o)
  cell = f * (keep * state.cell) + i * g
  return tf.concat([i, g, f, o], axis=-1), LSTMState(o * tf.tanh(cell), cell)


@tf.custom_gradient
def _recurrence(projected, keep, hidden, cell, kernel):
  """Processes the rows of LSTMCore.unroll, and defines the gradient (backpropagation through time).

  TensorFlow's own gradient of a loop would multiply and add up a gradient of the whole kernel in each row. Here the
  loops only compute the gradient of the gates, and one product of all rows gives the kernel's.

  Args:
    projected: [T, B, 4H] float32, the inputs' part of the gates.
    keep: [T, B, 1] float32, 0 where the state is reset before the row, else 1.
    hidden, cell: [B, H] float32, the state before the first row.
    kernel: [H, 4H], for the state's part of the gates. Its type is that of the products.
  Returns:
    The outputs, [T, B, H], and the last hidden state and cell, [B, H].
  """
  # These are while loops because XLA needs a minute and a half to compile a statically unrolled LSTM.
  rows = projected.shape[0]

  def forward(t, state, gates, hiddens, cells):
    row, state = _advance(projected[t], keep[t], state, kernel)
    return t + 1, state, gates.write(t, row), hiddens.write(t, state.hidden), cells.write(t, state.cell)

  _, last, *arrays = tf.while_loop(
      lambda t, *_: t < rows, forward,
      (0, LSTMState(hidden, cell), *(tf.TensorArray(tf.float32, rows) for _ in range(3))))
  gates, hiddens, cells = (array.stack() for array in arrays)

  def gradient(d_outputs, d_hidden, d_cell):
    i, g, f, o = tf.split(gates, 4, axis=-1)
    tanh = tf.tanh(cells)
    hiddens_before, cells_before = (keep * tf.concat([first[tf.newaxis], later[:-1]], axis=0)
                                    for first, later in ((hidden, hiddens), (cell, cells)))
    # The derivatives of each row's cell (and for o, of its output) with respect to the gates' pre-activations.
    by_gates = tf.concat([g * i * (1 - i), i * (1 - g * g), cells_before * f * (1 - f), tanh * o * (1 - o)], axis=-1)
    output_by_cell, cell_by_cell = o * (1 - tanh * tanh), keep * f

    def backward(t, d_hidden, d_cell, d_gates):
      d_hidden += d_outputs[t]
      d_cell += d_hidden * output_by_cell[t]
      d_row = by_gates[t] * tf.concat([d_cell, d_cell, d_cell, d_hidden], axis=-1)
      return (t - 1, keep[t] * _product_float32(d_row, kernel_transposed), d_cell * cell_by_cell[t],
              d_gates.write(t, d_row))

    kernel_transposed = tf.transpose(kernel)  # Once, not in each row's product.
    _, d_hidden, d_cell, d_gates = tf.while_loop(
        lambda t, *_: t >= 0, backward, (rows - 1, d_hidden, d_cell, tf.TensorArray(tf.float32, rows)))
    d_gates = d_gates.stack()
    d_kernel = tf.linalg.matmul(*(tf.cast(tf.reshape(values, [-1, values.shape[-1]]), kernel.dtype)
                                  for values in (hiddens_before, d_gates)), transpose_a=True)
    return d_gates, None, d_hidden, d_cell, d_kernel

  return (hiddens, *last), gradient


@tf.function(autograph=False)
def instruction_words(instruction: tf.Tensor) -> tf.Tensor:
  """Converts instructions to word numbers. It uses strings, so it runs on the CPU and not in XLA.

  As in the released code, a text is split at white space, and every word is hashed with TensorFlow's fast hash. This
  needs no vocabulary.

  Args:
    instruction: uint8 [..., L], UTF-8 texts padded with zeros.
  Returns:
    int32 [..., INSTRUCTION_WORDS], each word's bucket, and -1 after the last word. Further words are dropped.
  """
  texts = tf.reshape(instruction, [-1, instruction.shape[-1]])
  rows = tf.where(texts[:, 0] > 0)  # Most levels have no instructions.
  characters = tf.constant([b''] + [bytes([code]) for code in range(1, 256)])
  strings = tf.strings.reduce_join(tf.gather(characters, tf.cast(tf.gather(texts, rows[:, 0]), tf.int32)), axis=-1)
  words = tf.ragged.map_flat_values(tf.strings.to_hash_bucket_fast, tf.strings.split(strings), _BUCKETS)
  words = tf.cast(words.to_tensor(_NO_WORD, shape=[None, INSTRUCTION_WORDS]), tf.int32)
  none = tf.fill([tf.shape(texts)[0], INSTRUCTION_WORDS], _NO_WORD)
  shape = tf.concat([tf.shape(instruction)[:-1], [INSTRUCTION_WORDS]], axis=0)
  static_shape = instruction.shape[:-1].concatenate(INSTRUCTION_WORDS)
  return tf.ensure_shape(tf.reshape(tf.tensor_scatter_nd_update(none, rows, words), shape), static_shape)


def with_words(observation, observed: str):
  """Replaces 'instruction', if there is one, by its 'words', since XLA has no strings. Leading dimensions may be any.

  Of the other observations, only the one named `observed` is then kept.
  """
  if 'instruction' not in observation:
    return observation
  with tf.device('/CPU:0'):
    words = instruction_words(observation['instruction'])
  return {observed: observation[observed], 'words': words}


class LanguageEncoder(snt.Module):
  """An embedding of 20 numbers per word and an LSTM of 64 units (figure 3). The last word's output is used."""

  def __init__(self, seeds: Seeds, name: str = 'language'):
    super().__init__(name)
    self.embedding = tf.Variable(truncated_normal((_BUCKETS, _EMBEDDING), seeds.next()), name='embedding')
    self._lstm = LSTMCore(_EMBEDDING, LANGUAGE_SIZE, seeds)

  def __call__(self, words: tf.Tensor) -> tf.Tensor:
    """Encodes instructions.

    Args:
      words: int32 [N, INSTRUCTION_WORDS], from `instruction_words`.
    Returns:
      float32 [N, LANGUAGE_SIZE]. An empty instruction gives zeros.
    """
    embedded = tf.transpose(tf.gather(self.embedding, tf.maximum(words, 0)), [1, 0, 2])
    never = tf.zeros(tf.shape(embedded)[:2], tf.bool)
    never.set_shape(embedded.shape[:2])
    outputs, _ = self._lstm.unroll(embedded, never, self._lstm.initial_state(tf.shape(words)[0]))
    # Outputs after the last word are not used.
    is_last = (words >= 0) & (tf.pad(words[:, 1:], [[0, 0], [0, 1]], constant_values=_NO_WORD) < 0)
    return tf.einsum('wnd,nw->nd', outputs, tf.cast(is_last, tf.float32))
