"""Tests of learner/pixel_control.py by comparison with loops in NumPy."""

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
import tensorflow as tf

from scalable_agents.learner import pixel_control


def _numpy_rewards(pixels):
  """The mean absolute change of each cell's pixels, cell by cell, of the pictures cropped to multiples of 8 pixels."""
  steps, batch, height, width, _ = pixels.shape
  steps, rows, columns = steps - 1, height // 8 * 2, width // 8 * 2
  top, left = (height - 4 * rows) // 2, (width - 4 * columns) // 2
  rewards = np.zeros([steps, batch, rows, columns])
  for t, b, row, column in np.ndindex(*rewards.shape):
    area = slice(top + 4 * row, top + 4 * row + 4), slice(left + 4 * column, left + 4 * column + 4)
    rewards[t, b, row, column] = np.mean(np.abs(pixels[t + 1, b][area] / 255. - pixels[t, b][area] / 255.))
  return rewards


def _numpy_loss(action_values, actions, pixels, done, discount, weights=None, trusted=None):
  rewards, total = _numpy_rewards(pixels), 0.
  steps, batch, rows, columns = rewards.shape
  for b, row, column in np.ndindex(batch, rows, columns):
    target = np.max(action_values[steps, b, row, column])
    for t in reversed(range(steps)):
      target = 0. if done[t, b] else rewards[t, b, row, column] + discount * target
      if trusted is not None and not trusted[t, b]:  # LASER, section 4.3: bootstraps stop here.
        target = np.max(action_values[t, b, row, column])
      weight = 1. if weights is None else weights[t, b]
      total += 0.5 * weight * (target - action_values[t, b, row, column, actions[t, b]])**2
  return total


def _inputs(height=21, width=36, channels=3, steps=5, batch=2, num_actions=4, seed=0):
  random = np.random.RandomState(seed)
  cells = pixel_control.num_cells(height, width)
  return {
      'action_values': random.randn(steps + 1, batch, *cells, num_actions).astype(np.float32),
      'actions': random.randint(num_actions, size=[steps, batch]).astype(np.int32),
      'pixels': random.randint(256, size=[steps + 1, batch, height, width, channels]).astype(np.uint8),
      'done': random.rand(steps, batch) < 0.3,
      'discount': 0.9,
  }


def _tensors(inputs):
  return {name: value if name == 'discount' else tf.constant(value) for name, value in inputs.items()}


class PixelControlTest(parameterized.TestCase):

  @parameterized.parameters((84, 84, (20, 20)), (72, 96, (18, 24)), (20, 20, (4, 4)), (16, 23, (4, 4)))
  def test_number_of_cells(self, height, width, want):
    """UNREAL crops 84x84 to 80x80, which has 20x20 cells."""
    self.assertEqual(pixel_control.num_cells(height, width), want)

  def test_pictures_that_are_too_small(self):
    with self.assertRaisesRegex(ValueError, '--use_pixel_control: want images of at least 16x16 pixels, got 84x15'):
      pixel_control.num_cells(84, 15)

  @parameterized.parameters((21, 36, 3), (16, 16, 1), (23, 31, 2))
  def test_pseudo_rewards(self, height, width, channels):
    pixels = _inputs(height, width, channels)['pixels']
    got = pixel_control.pseudo_rewards(tf.constant(pixels))
    np.testing.assert_allclose(got, _numpy_rewards(pixels), rtol=1e-5)

  def test_one_white_pixel(self):
    pixels = np.zeros([3, 1, 16, 16, 1], np.uint8)
    pixels[1, 0, 5, 10] = 255  # It appears and disappears.
    want = np.zeros([2, 1, 4, 4])
    want[:, 0, 1, 2] = 1 / 16
    np.testing.assert_allclose(pixel_control.pseudo_rewards(tf.constant(pixels)), want, rtol=1e-6)

  @parameterized.parameters(*range(3))
  def test_loss(self, seed):
    inputs = _inputs(seed=seed)
    np.testing.assert_allclose(pixel_control.loss(**_tensors(inputs)), _numpy_loss(**inputs), rtol=1e-4)

  def test_weights_of_steps(self):
    """They do not change the targets, also not with a weight of 0."""
    weights = np.random.RandomState(1).choice(np.float32([0., 0.5, 2.]), size=[5, 2])
    inputs = _inputs()
    np.testing.assert_allclose(pixel_control.loss(**_tensors(inputs), weights=weights),
                               _numpy_loss(**inputs, weights=weights), rtol=1e-4)

  @parameterized.parameters(*range(3))
  def test_targets_bootstrap_where_a_step_is_not_trusted(self, seed):
    trusted = np.random.RandomState(seed).uniform(size=[5, 2]) < 0.6
    inputs, weights = _inputs(seed=seed), np.float32(trusted)
    got = pixel_control.loss(**_tensors(inputs), weights=weights, trusted=tf.constant(trusted))
    np.testing.assert_allclose(got, _numpy_loss(**inputs, weights=weights, trusted=trusted), rtol=1e-4)

  def test_xla_computes_the_same(self):
    inputs = _tensors(_inputs()) | {'trusted': tf.constant(np.arange(10).reshape(5, 2) % 3 > 0)}
    compiled = tf.function(pixel_control.loss, jit_compile=True, autograph=False)
    np.testing.assert_allclose(compiled(**inputs), pixel_control.loss(**inputs), rtol=1e-4)

  def test_an_episodes_end_hides_what_comes_after_it(self):
    inputs = _inputs(steps=3, batch=1)
    inputs['done'] = np.array([[True], [False], [False]])
    later = {**inputs, 'pixels': inputs['pixels'].copy(), 'action_values': inputs['action_values'].copy()}
    later['pixels'][2:], later['action_values'][-1] = 0, 9.
    gradients = []
    for each in map(_tensors, (inputs, later)):
      with tf.GradientTape() as tape:
        tape.watch(each['action_values'])
        total = pixel_control.loss(**each)
      gradients.append(tape.gradient(total, each['action_values']).numpy())
    np.testing.assert_array_equal(gradients[0][0], gradients[1][0])  # The target of row 0 is the same.
    self.assertGreater(np.max(np.abs(gradients[0][1] - gradients[1][1])), 0.1)

  def test_there_is_no_reward_for_the_change_to_the_next_episode(self):
    inputs = _inputs(steps=2, batch=1)
    inputs['done'] = np.array([[True], [False]])
    other = {**inputs, 'pixels': inputs['pixels'].copy()}
    other['pixels'][0] = 0
    self.assertEqual(float(pixel_control.loss(**_tensors(inputs))), float(pixel_control.loss(**_tensors(other))))
    other['done'] = inputs['done'] = np.array([[False], [False]])
    self.assertNotEqual(float(pixel_control.loss(**_tensors(inputs))), float(pixel_control.loss(**_tensors(other))))

  def test_gradient_is_that_of_the_chosen_actions_with_constant_targets(self):
    """Finite differences of a tiny linear net. The targets must not follow the weights."""
    inputs = _inputs(16, 16, 1, steps=3, batch=2, num_actions=3)
    random = np.random.RandomState(1)
    features, start = random.randn(4, 2, 4, 4, 5), 0.1 * random.randn(5, 3)
    rest = {name: value for name, value in inputs.items() if name != 'action_values'}

    def loss(weights, target_weights):
      """The loss whose first rows have `weights`, and whose targets have `target_weights`."""
      values, target_values = features @ weights, features @ target_weights
      values[-1] = target_values[-1]  # The bootstrap value is part of the targets.
      return _numpy_loss(values, **rest)

    weights = tf.constant(start, tf.float32)
    with tf.GradientTape() as tape:
      tape.watch(weights)
      total = pixel_control.loss(tf.constant(features, tf.float32) @ weights,
                                 **{name: value for name, value in _tensors(inputs).items() if name != 'action_values'})
    got = tape.gradient(total, weights)
    for index in np.ndindex(*start.shape):
      step = np.zeros_like(start)
      step[index] = 1e-4
      want = (loss(start + step, start) - loss(start - step, start)) / 2e-4
      np.testing.assert_allclose(got[index], want, rtol=1e-3, atol=1e-3)


if __name__ == '__main__':
  absltest.main()
