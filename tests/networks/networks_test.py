"""Tests networks/networks.py against NumPy, differences and the papers' numbers."""

from absl.testing import absltest
from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st
import numpy as np
import tensorflow as tf

from scalable_agents.networks import networks


def _count(module):
  return sum(int(np.prod(v.shape)) for v in module.trainable_variables)


def _sigmoid(x):
  return 1.0 / (1.0 + np.exp(-x))


class InitialValuesTest(parameterized.TestCase):

  @parameterized.parameters(((8, 8, 4, 64), 256), ((2592, 256), 2592))
  def test_truncated_normal(self, shape, fan_in):
    weights = networks.truncated_normal(shape, (1, 1)).numpy()
    deviation = 1.0 / np.sqrt(fan_in)
    self.assertLess(np.abs(weights).max(), 2.0 * deviation)
    self.assertGreater(np.abs(weights).max(), 1.9 * deviation)
    np.testing.assert_allclose(weights.std(), 0.88 * deviation, rtol=0.03)  # Truncation takes 12 % off.
    np.testing.assert_allclose(weights.mean(), 0.0, atol=0.03 * deviation)

  def test_glorot_uniform_over_the_whole_matrix(self):
    weights = networks.glorot_uniform((330 + 256, 1024), (1, 1)).numpy()
    np.testing.assert_allclose(np.abs(weights).max(), 0.0610, atol=1e-4)
    np.testing.assert_allclose(weights.std(), 0.0352, atol=1e-4)

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
