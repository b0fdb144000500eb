"""Tests networks/networks.py against naive NumPy networks and the paper's parameter counts."""

from absl.testing import absltest
from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st
import numpy as np
import tensorflow as tf

from scalable_agents.networks import networks


def _count(module):
  return sum(int(np.prod(v.shape)) for v in module.trainable_variables)


def _pixels(*shape, seed=0):
  return np.random.RandomState(seed).randint(0, 256, shape).astype(np.uint8)


def _scaled(pixels, centred):
  """Returns the pixels as networks process them: in [0, 1], and if `centred` minus the mean of their image."""
  return np.stack([image - image.mean() if centred else image for image in pixels / 255.0])


def _convolve(images, kernel, bias, stride, same):
  """Convolves [N, H, W, C] by the definition of a convolution, in float64."""
  size = kernel.shape[0]
  if same:  # Output positions 0, stride, ... see the padding split evenly, the odd row at the end.
    padding = [(0, 0), (0, 0)]
    for length in images.shape[1:3]:
      total = max((-(-length // stride) - 1) * stride + size - length, 0)
      padding.insert(-1, (total // 2, total - total // 2))
    images = np.pad(images, padding)
  rows, columns = ((length - size) // stride + 1 for length in images.shape[1:3])
  outputs = np.zeros((len(images), rows, columns, kernel.shape[-1]))
  for i in range(rows):
    for j in range(columns):
      patch = images[:, i * stride:i * stride + size, j * stride:j * stride + size]
      outputs[:, i, j] = np.tensordot(patch, kernel, axes=3) + bias
  return outputs


def _max_pool(images):
  """Max pooling of 3x3 with stride 2 and SAME padding, by its definition."""
  rows, columns = (-(-length // 2) for length in images.shape[1:3])
  padding = [(0, 0), (0, 0)]
  for length, out in zip(images.shape[1:3], (rows, columns)):
    total = max((out - 1) * 2 + 3 - length, 0)
    padding.insert(-1, (total // 2, total - total // 2))
  images = np.pad(images, padding, constant_values=-np.inf)
  return np.stack([np.stack([images[:, 2 * i:2 * i + 3, 2 * j:2 * j + 3].max((1, 2)) for j in range(columns)], 1)
                   for i in range(rows)], 1)


def _relu(x):
  return np.maximum(x, 0.0)


def _sigmoid(x):
  return 1.0 / (1.0 + np.exp(-x))


def _randomise_biases(module):
  for i, variable in enumerate(module.trainable_variables):
    if variable.name.endswith('b:0'):
      variable.assign(tf.random.stateless_normal(variable.shape, (7, i), stddev=0.1))


class TorsoTest(parameterized.TestCase):

  @parameterized.parameters(
      # With LSTM (601,088), language (41,760) and heads (2,570) the agents of the paper's figure have 1,230,426 and
      # 1,628,010 parameters. With heads for 18 actions (4,883) the Atari agents have 681,027 and 1,094,115.
      ('shallow', (72, 96, 3), 585_008),
      ('deep', (72, 96, 3), 982_592),
      ('shallow', (84, 84, 4), 676_144),
      ('deep', (84, 84, 4), 1_089_232),
      # LASER's network has 5,522,259 parameters with 18 actions.
      ('deep_4x', (84, 84, 4), 5_517_376))
  def test_number_of_parameters(self, name, shape, want):
    torso = networks.TORSOS[name](networks.Seeds(1))
    self.assertEqual(torso(_pixels(2, *shape)).shape, (2, 256))
    self.assertEqual(_count(torso), want)

  @parameterized.parameters(False, True)
  def test_shallow_matches_its_definition(self, centre_pixels):
    torso = networks.ShallowTorso(networks.Seeds(1), centre_pixels=centre_pixels)
    pixels = _pixels(2, 30, 36, 2)
    torso(pixels)
    _randomise_biases(torso)
    v = {variable.name.removeprefix('shallow_torso/')[:-2]: variable.numpy() for variable in torso.trainable_variables}
    x = _scaled(pixels, centre_pixels)
    x = _relu(_convolve(x, v['conv1/w'], v['conv1/b'], 4, same=False))
    x = _relu(_convolve(x, v['conv2/w'], v['conv2/b'], 2, same=False))
    want = _relu(x.reshape(2, -1) @ v['linear/w'] + v['linear/b'])
    np.testing.assert_allclose(torso(pixels), want, rtol=1e-4, atol=1e-5)

  @parameterized.parameters(False, True)
  def test_deep_matches_its_definition(self, centre_pixels):
    torso = networks.DeepTorso(networks.Seeds(1), centre_pixels=centre_pixels)
    pixels = _pixels(2, 11, 16, 2)
    torso(pixels)
    _randomise_biases(torso)
    v = {variable.name.removeprefix('deep_torso/')[:-2]: variable.numpy() for variable in torso.trainable_variables}
    x = _scaled(pixels, centre_pixels)
    for section in ('section0', 'section1', 'section2'):
      x = _max_pool(_convolve(x, v[f'{section}/conv/w'], v[f'{section}/conv/b'], 1, same=True))
      for block in (f'{section}/block0', f'{section}/block1'):
        y = _convolve(_relu(x), v[f'{block}/conv1/w'], v[f'{block}/conv1/b'], 1, same=True)
        x = x + _convolve(_relu(y), v[f'{block}/conv2/w'], v[f'{block}/conv2/b'], 1, same=True)
    want = _relu(_relu(x).reshape(2, -1) @ v['linear/w'] + v['linear/b'])
    np.testing.assert_allclose(torso(pixels), want, rtol=1e-4, atol=1e-5)

  def test_deep_4x_has_four_times_the_channels(self):
    """Schmitt et al. 2020 (LASER), section 5.1: 64, 128 and 128 channels, and nothing else is changed."""
    shapes = {}
    for name in ('deep', 'deep_4x'):
      torso = networks.TORSOS[name](networks.Seeds(1))
      self.assertEqual(torso(_pixels(2, 24, 24, 3)).shape, (2, 256))
      shapes[name] = {variable.name: variable.shape.as_list() for variable in torso.trainable_variables}
    self.assertEqual(set(shapes['deep']), set(shapes['deep_4x']))
    for name, shape in shapes['deep'].items():
      if 'linear' not in name:
        inputs = [3 if name.endswith('section0/conv/w:0') else 4 * shape[-2]] if len(shape) > 1 else []
        self.assertEqual(shapes['deep_4x'][name], [*shape[:-2], *inputs, 4 * shape[-1]], name)
    outputs = [shape[-1] for name, shape in shapes['deep_4x'].items() if name.endswith('/conv/w:0')]
    self.assertEqual(outputs, [64, 128, 128])

  def test_vector_matches_its_definition(self):
    torso = networks.VectorTorso(networks.Seeds(1))
    x = np.random.RandomState(0).randn(3, 5).astype(np.float32)
    torso(x)
    _randomise_biases(torso)
    v = {variable.name.removeprefix('vector_torso/')[:-2]: variable.numpy() for variable in torso.trainable_variables}
    self.assertEqual(v['linear1/w'].shape, (5, 256))
    self.assertEqual(v['linear2/w'].shape, (256, 256))
    want = _relu(_relu(x @ v['linear1/w'] + v['linear1/b']) @ v['linear2/w'] + v['linear2/b'])
    np.testing.assert_allclose(torso(x), want, rtol=1e-4, atol=1e-5)

  @parameterized.product(name=('shallow', 'deep'), centre_pixels=(False, True))
  def test_bfloat16_is_close_and_its_parameters_are_float32(self, name, centre_pixels):
    pixels = _pixels(64, 36, 36, 4)
    results = []
    for dtype in (tf.float32, tf.bfloat16):
      torso = networks.TORSOS[name](networks.Seeds(1), dtype, centre_pixels)
      with tf.GradientTape() as tape:
        features = torso(pixels)
        total = tf.reduce_sum(features)
      self.assertEqual(features.dtype, tf.float32)
      for variable in torso.trainable_variables:
        self.assertEqual(variable.dtype, tf.float32)
      results.append([features, *tape.gradient(total, torso.trainable_variables)])
    for exact, rounded in zip(*results):
      # bfloat16 has a relative precision of 1/256, and the gradient of noise around zero is a small sum of large
      # numbers. In an earlier version the gradients of biases had half of their true value.
      np.testing.assert_array_less(np.linalg.norm(exact - rounded), 0.1 * np.linalg.norm(exact))


class InitialValuesTest(parameterized.TestCase):

  @parameterized.parameters(((8, 8, 4, 64), 256), ((2592, 256), 2592))
  def test_truncated_normal(self, shape, fan_in):
    weights = networks.TruncatedNormal((1, 1))(shape, tf.float32).numpy()
    deviation = 1.0 / np.sqrt(fan_in)
    self.assertLess(np.abs(weights).max(), 2.0 * deviation)
    self.assertGreater(np.abs(weights).max(), 1.9 * deviation)
    np.testing.assert_allclose(weights.std(), 0.88 * deviation, rtol=0.03)  # Truncation takes 12 % off.
    np.testing.assert_allclose(weights.mean(), 0.0, atol=0.03 * deviation)

  def test_glorot_uniform_over_the_whole_matrix(self):
    weights = networks.GlorotUniform((1, 1))((330 + 256, 1024), tf.float32).numpy()
    np.testing.assert_allclose(np.abs(weights).max(), 0.0610, atol=1e-4)
    np.testing.assert_allclose(weights.std(), 0.0352, atol=1e-4)

  def test_is_a_function_of_the_seed(self):
    def variables(seed):
      torso = networks.DeepTorso(networks.Seeds(seed))
      torso(_pixels(1, 16, 16, 4))
      return {v.name: v.numpy() for v in torso.trainable_variables}

    first, again, other = variables(3), variables(3), variables(4)
    self.assertEqual(list(first), list(again))
    for name, value in first.items():
      np.testing.assert_array_equal(value, again[name])
      if name.endswith('b:0'):
        np.testing.assert_array_equal(value, np.zeros_like(value))
      else:
        self.assertGreater(np.abs(value - other[name]).min(), 0.0)

  def test_layers_of_one_shape_differ(self):
    seeds = networks.Seeds(1)
    layers = [networks.Linear(4, seeds, 'a'), networks.Linear(4, seeds, 'b')]
    for layer in layers:
      layer(tf.zeros([1, 4]))
    self.assertGreater(np.abs(layers[0].w - layers[1].w).min(), 0.0)


class ProductTest(absltest.TestCase):

  def test_rows_with_time_are_one_product_and_so_is_the_gradient(self):
    random = np.random.RandomState(0)
    inputs, weights = tf.constant(random.randn(5, 3, 4), tf.float32), tf.Variable(random.randn(4, 2), dtype=tf.float32)
    factors = random.randn(5, 3, 2)

    @tf.function(autograph=False)
    def gradient(inputs):
      with tf.GradientTape() as tape:
        outputs = networks.product(inputs, weights)
        loss = tf.reduce_sum(outputs * tf.constant(factors, tf.float32))
      return outputs, tape.gradient(loss, weights)

    outputs, of_weights = gradient(inputs)
    np.testing.assert_allclose(outputs, np.einsum('tbd,de->tbe', inputs, weights), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(of_weights, np.einsum('tbd,tbe->de', inputs, factors), rtol=1e-5, atol=1e-6)
    operations = {operation.type for operation in gradient.get_concrete_function(inputs).graph.get_operations()}
    self.assertIn('MatMul', operations)
    self.assertNotIn('BatchMatMulV2', operations)
    self.assertEqual(networks.product(inputs[0], weights).shape, [3, 2])


class LSTMCoreTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    random = np.random.RandomState(0)
    self.core = networks.LSTMCore(5, 4, networks.Seeds(1))
    self.core.bias.assign(random.randn(16).astype(np.float32))
    self.inputs = random.randn(9, 3, 5).astype(np.float32)
    self.done = random.rand(9, 3) < 0.3
    self.state = networks.LSTMState(*random.randn(2, 3, 4).astype(np.float32))

  def _reference(self, inputs, done, state):
    """The LSTM as its docstring defines it, row by row and actor by actor."""
    kernel, bias = self.core.kernel.numpy(), self.core.bias.numpy()
    outputs = np.zeros((*inputs.shape[:2], 4))
    for b in range(inputs.shape[1]):
      h, c = np.float64(state.hidden[b]), np.float64(state.cell[b])
      for t in range(inputs.shape[0]):
        if done[t, b]:
          h, c = np.zeros(4), np.zeros(4)
        i, g, f, o = np.split(np.concatenate([inputs[t, b], h]) @ kernel + bias, 4)
        c = _sigmoid(f + 1.0) * c + _sigmoid(i) * np.tanh(g)
        h = _sigmoid(o) * np.tanh(c)
        outputs[t, b] = h
    return outputs

  def test_number_of_parameters_and_initial_values(self):
    core = networks.LSTMCore(330, 256, networks.Seeds(1))
    self.assertEqual(_count(core), 601_088)
    np.testing.assert_array_equal(core.bias, np.zeros(1024))  # The forget bias is a constant and no part of it.
    self.assertLess(np.abs(core.kernel).max(), 0.0611)

  def test_unroll_resets_inside_the_unroll_before_the_row(self):
    got, state = self.core.unroll(self.inputs, self.done, self.state)
    want = self._reference(self.inputs, self.done, self.state)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(state.hidden, want[-1], rtol=1e-4, atol=1e-6)

  def test_a_reset_forgets_all_that_was_before(self):
    self.done[:] = False
    self.done[4, 1] = True
    before, _ = self.core.unroll(self.inputs, self.done, self.state)
    self.inputs[:4] += 1.0
    after, _ = self.core.unroll(self.inputs, self.done, networks.LSTMState(self.state.hidden + 1, self.state.cell + 1))
    np.testing.assert_array_equal(before[4:, 1], after[4:, 1])
    self.assertGreater(np.abs(before[4:, 0] - after[4:, 0]).max(), 1e-3)

  def test_step_is_a_row_of_unroll(self):
    want, last = self.core.unroll(self.inputs, self.done, self.state)
    state = self.state
    for t in range(9):
      got, state = self.core.step(self.inputs[t], self.done[t], state)
      np.testing.assert_allclose(got, want[t], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(state.cell, last.cell, rtol=1e-5, atol=1e-6)

  def test_initial_state_is_zero(self):
    state = self.core.initial_state(3)
    np.testing.assert_array_equal(state.hidden, np.zeros([3, 4]))
    np.testing.assert_array_equal(state.cell, np.zeros([3, 4]))

  def test_gradient_agrees_with_differences_and_under_xla(self):
    def gradient():
      with tf.GradientTape() as tape:
        outputs, _ = self.core.unroll(self.inputs, self.done, self.state)
        total = tf.reduce_sum(outputs**2)
      return tape.gradient(total, [self.core.kernel, self.core.bias])

    plain = tf.function(gradient, autograph=False)()
    compiled = tf.function(gradient, autograph=False, jit_compile=True)()
    for a, b in zip(plain, compiled):
      np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    kernel = self.core.kernel.numpy()
    for index in ((0, 0), (3, 7), (6, 5), (8, 15)):
      losses = []
      for sign in (1, -1):
        moved = kernel.copy()
        moved[index] += sign * 1e-3
        self.core.kernel.assign(moved)
        losses.append(np.sum(self._reference(self.inputs, self.done, self.state)**2))
      self.assertAlmostEqual(float(plain[0][index]), (losses[0] - losses[1]) / 2e-3, places=2)


  @parameterized.parameters(1, 2, 9)
  def test_gradient_is_that_of_single_rows(self, rows):
    """TensorFlow's gradient through `step`, row by row, must be what `unroll` computes by its own formulas."""
    inputs, done = tf.constant(self.inputs[:rows]), self.done[:rows]
    first = tf.nest.map_structure(tf.constant, self.state)
    weights = np.random.RandomState(1).randn(rows + 2, 3, 4).astype(np.float32)

    def unrolled():
      outputs, last = self.core.unroll(inputs, done, first)
      return [*tf.unstack(outputs), last.hidden, last.cell]

    def row_by_row():
      state, outputs = first, []
      for t in range(rows):
        output, state = self.core.step(inputs[t], done[t], state)
        outputs.append(output)
      return [*outputs, state.hidden, state.cell]

    gradients = []
    for values in (unrolled, row_by_row):
      with tf.GradientTape() as tape:
        tape.watch([inputs, *first])
        total = tf.add_n([tf.reduce_sum(weight * value) for weight, value in zip(weights, values(), strict=True)])
      gradients.append(tape.gradient(total, [inputs, *first, self.core.kernel, self.core.bias]))
    for got, want in zip(*gradients, strict=True):
      np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)

  def test_bfloat16_is_close_over_many_rows(self):
    # Sums over rows must not be in bfloat16, whose eight bits lose what is added to a large sum.
    random = np.random.RandomState(0)
    inputs, done = random.randn(200, 8, 32).astype(np.float32), random.rand(200, 8) < 0.02
    results = []
    for dtype in (tf.float32, tf.bfloat16):
      core = networks.LSTMCore(32, 64, networks.Seeds(1), dtype)
      with tf.GradientTape() as tape:
        outputs, last = core.unroll(inputs, done, core.initial_state(8))
        total = tf.reduce_sum(outputs * inputs[..., :1])
      results.append([outputs, *last, *tape.gradient(total, core.trainable_variables)])
      for value in (*results[-1], *core.variables):
        self.assertEqual(value.dtype, tf.float32)
    for exact, rounded in zip(*results, strict=True):
      difference = np.linalg.norm(exact - rounded) / np.linalg.norm(exact)
      self.assertBetween(difference, 1e-4, 0.02)


def _as_bytes(texts, length=64):
  """Returns texts as instructions: uint8 [N, length], padded with zeros."""
  return np.array([text.encode() for text in texts], f'S{length}').reshape(-1, 1).view(np.uint8)


class LanguageTest(parameterized.TestCase):

  def test_words_are_hashed_as_in_the_release(self):
    words = networks.instruction_words(tf.constant(_as_bytes(['pick the red balloon', '', 'balloon']))).numpy()
    self.assertEqual(words[:, :5].tolist(), [[763, 354, 910, 352, -1], [-1] * 5, [352, -1, -1, -1, -1]])
    self.assertEqual(words.shape, (3, networks.INSTRUCTION_WORDS))
    self.assertTrue((words[:, 5:] == -1).all())

  @hypothesis.settings(deadline=None, derandomize=True, max_examples=50)
  @hypothesis.given(texts=st.lists(st.text('aB_?7\u00e9 \t', max_size=40), min_size=1, max_size=6))
  def test_words_are_tensorflows(self, texts):
    got = networks.instruction_words(tf.constant(_as_bytes(texts, length=100)))
    for row, text in zip(got.numpy(), texts):
      words = text.split()[:networks.INSTRUCTION_WORDS]
      if text[:1].strip():  # An instruction begins with a word.
        want = [int(tf.strings.to_hash_bucket_fast(word, 1000)) for word in words]
        self.assertEqual(row.tolist(), want + [-1] * (networks.INSTRUCTION_WORDS - len(want)))

  def test_leading_dimensions_are_kept(self):
    texts = tf.constant(_as_bytes(['a b', '', 'c', 'd e f', '', 'g']).reshape(2, 3, 64))
    flat = networks.instruction_words(tf.reshape(texts, [6, 64]))
    words = networks.instruction_words(texts)
    self.assertEqual(words.shape, (2, 3, networks.INSTRUCTION_WORDS))
    np.testing.assert_array_equal(tf.reshape(words, flat.shape), flat)

  def test_encoder_matches_its_definition(self):
    encoder = networks.LanguageEncoder(networks.Seeds(1))
    self.assertEqual(_count(encoder), 20_000 + 21_760)
    embedding, kernel = encoder.embedding.numpy(), next(
        v.numpy() for v in encoder.trainable_variables if v.name.endswith('kernel:0'))
    self.assertBetween(embedding.std(), 0.8 / np.sqrt(1000), 1 / np.sqrt(1000))
    texts = ['pick the red balloon', '', 'cake', 'a ' * 30]
    words = networks.instruction_words(tf.constant(_as_bytes(texts))).numpy()
    got = encoder(tf.constant(words)).numpy()
    for row, output in zip(words, got):
      hidden, cell = np.zeros(64), np.zeros(64)
      for word in row[row >= 0]:
        i, g, f, o = np.split(np.concatenate([embedding[word], hidden]) @ kernel, 4)
        cell = _sigmoid(f + 1) * cell + _sigmoid(i) * np.tanh(g)
        hidden = _sigmoid(o) * np.tanh(cell)
      np.testing.assert_allclose(output, hidden, rtol=1e-4, atol=1e-7)
    np.testing.assert_array_equal(got[1], np.zeros(64))


class PixelControlHeadTest(parameterized.TestCase):

  @parameterized.parameters((20, 20), (18, 24), (4, 6))
  def test_is_a_dueling_transposed_convolution(self, rows, columns):
    head = networks.PixelControlHead((rows, columns), 3, networks.Seeds(1))
    features = np.random.RandomState(0).randn(2, 10).astype(np.float32)
    got = head(tf.constant(features)).numpy()
    self.assertEqual(got.shape, (2, rows, columns, 3))
    weights = {variable.name.removeprefix('pixel_control/'): variable.numpy() for variable in head.variables}
    hidden = np.maximum(features @ weights['linear/w:0'] + weights['linear/b:0'], 0)
    hidden = hidden.reshape(2, rows // 2 - 1, columns // 2 - 1, 32)
    outputs = np.zeros((2, rows, columns, 4)) + weights['b:0']  # The value, and the advantages of three actions.
    for y, x in np.ndindex(*hidden.shape[1:3]):  # Each input adds to 4x4 outputs, 2 apart.
      outputs[:, 2 * y:2 * y + 4, 2 * x:2 * x + 4] += np.einsum('ni,yxio->nyxo', hidden[:, y, x], weights['w:0'])
    value, advantages = outputs[..., :1], outputs[..., 1:]
    np.testing.assert_allclose(got, value + advantages - advantages.mean(-1, keepdims=True), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got.mean(-1), value[..., 0], rtol=1e-4, atol=1e-5)


if __name__ == '__main__':
  absltest.main()
