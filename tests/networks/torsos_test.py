"""Tests networks/torsos.py against naive NumPy networks and the papers' parameter counts."""

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from scalable_agents.networks import networks
from scalable_agents.networks import torsos

_CENTRES = ('none', 'mean', 'median')


def _count(module):
  return sum(int(np.prod(v.shape)) for v in module.trainable_variables)


def _pixels(*shape, seed=0):
  return np.random.RandomState(seed).randint(0, 256, shape).astype(np.uint8)


def _centre(image, kind):
  """Returns what is subtracted from an image: the mean of its pixels, or a median of at least 10x10 places, or 0."""
  step = max(min(image.shape[:2]) // 10, 1)
  rows, columns = (range(0, length, step) for length in image.shape[:2])
  brightness = sorted(image[y, x].mean() for y in rows for x in columns)
  return {'none': 0., 'mean': image.mean(), 'median': brightness[len(brightness) // 2]}[kind]


def _preprocessed(pixels, centre, scaled):
  """Returns the pixels as networks process them: minus a centre of each image, and if `scaled` over 255."""
  return np.stack([image - _centre(image, centre) for image in pixels / (255.0 if scaled else 1.0)])


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
      ('deep_4x', (84, 84, 4), 5_517_376),
      # DQN's network (Mnih et al. 2015) has 1,693,362 parameters with 18 actions, and a value adds 513.
      ('dqn', (84, 84, 4), 1_684_128))
  def test_number_of_parameters(self, name, shape, want):
    torso = torsos.TORSOS[name](networks.Seeds(1))
    self.assertEqual(torso(_pixels(2, *shape)).shape, (2, 512 if name == 'dqn' else 256))
    self.assertEqual(_count(torso), want)

  @parameterized.product(torso=(('shallow', (30, 36), (4, 2)), ('dqn', (36, 44), (4, 2, 1))),
                         centre_pixels=_CENTRES, scale_pixels=(False, True))
  def test_plain_convolutions_match_their_definition(self, torso, centre_pixels, scale_pixels):
    name, size, strides = torso
    torso = torsos.TORSOS[name](networks.Seeds(1), centre_pixels=centre_pixels, scale_pixels=scale_pixels)
    pixels = _pixels(2, *size, 2)
    torso(pixels)
    _randomise_biases(torso)
    v = {variable.name.removeprefix(f'{name}_torso/')[:-2]: variable.numpy() for variable in torso.trainable_variables}
    x = _preprocessed(pixels, centre_pixels, scale_pixels)
    for i, stride in enumerate(strides, 1):
      x = _relu(_convolve(x, v[f'conv{i}/w'], v[f'conv{i}/b'], stride, same=False))
    want = _relu(x.reshape(2, -1) @ v['linear/w'] + v['linear/b'])
    np.testing.assert_allclose(torso(pixels), want, rtol=1e-4, atol=1e-5 if scale_pixels else 1e-5 * 255)

  @parameterized.product(centre_pixels=_CENTRES, scale_pixels=(False, True))
  def test_deep_matches_its_definition(self, centre_pixels, scale_pixels):
    torso = torsos.DeepTorso(networks.Seeds(1), centre_pixels=centre_pixels, scale_pixels=scale_pixels)
    pixels = _pixels(2, 11, 16, 2)
    torso(pixels)
    _randomise_biases(torso)
    v = {variable.name.removeprefix('deep_torso/')[:-2]: variable.numpy() for variable in torso.trainable_variables}
    x = _preprocessed(pixels, centre_pixels, scale_pixels)
    for section in ('section0', 'section1', 'section2'):
      x = _max_pool(_convolve(x, v[f'{section}/conv/w'], v[f'{section}/conv/b'], 1, same=True))
      for block in (f'{section}/block0', f'{section}/block1'):
        y = _convolve(_relu(x), v[f'{block}/conv1/w'], v[f'{block}/conv1/b'], 1, same=True)
        x = x + _convolve(_relu(y), v[f'{block}/conv2/w'], v[f'{block}/conv2/b'], 1, same=True)
    want = _relu(_relu(x).reshape(2, -1) @ v['linear/w'] + v['linear/b'])
    np.testing.assert_allclose(torso(pixels), want, rtol=1e-4, atol=1e-5 if scale_pixels else 1e-5 * 255)

  def test_deep_4x_has_four_times_the_channels(self):
    """Schmitt et al. 2020 (LASER), section 5.1: 64, 128 and 128 channels, and nothing else is changed."""
    shapes = {}
    for name in ('deep', 'deep_4x'):
      torso = torsos.TORSOS[name](networks.Seeds(1))
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
    torso = torsos.VectorTorso(networks.Seeds(1))
    x = np.random.RandomState(0).randn(3, 5).astype(np.float32)
    torso(x)
    _randomise_biases(torso)
    v = {variable.name.removeprefix('vector_torso/')[:-2]: variable.numpy() for variable in torso.trainable_variables}
    self.assertEqual(v['linear1/w'].shape, (5, 256))
    self.assertEqual(v['linear2/w'].shape, (256, 256))
    want = _relu(_relu(x @ v['linear1/w'] + v['linear1/b']) @ v['linear2/w'] + v['linear2/b'])
    np.testing.assert_allclose(torso(x), want, rtol=1e-4, atol=1e-5)

  @parameterized.product(name=('shallow', 'dqn', 'deep'), centre_pixels=_CENTRES)
  def test_bfloat16_is_close_and_its_parameters_are_float32(self, name, centre_pixels):
    pixels = _pixels(64, 36, 36, 4)
    results = []
    for dtype in (tf.float32, tf.bfloat16):
      torso = torsos.TORSOS[name](networks.Seeds(1), dtype, centre_pixels)
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

  def test_is_a_function_of_the_seed(self):
    def variables(seed):
      torso = torsos.DeepTorso(networks.Seeds(seed))
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


if __name__ == '__main__':
  absltest.main()
