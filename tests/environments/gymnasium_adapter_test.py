"""Tests of environments/gymnasium_adapter.py with CartPole and with environments that are registered here."""

import os
import sys
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
from dm_env import test_utils
import gymnasium
from gymnasium import spaces
import numpy as np

from scalable_agents.environments import gymnasium_adapter


class _Task(gymnasium.Env):
  """Its observations are filled with the number of the step. They are always the same array."""

  metadata = {'render_modes': []}

  def __init__(self, observation_space, action_space=spaces.Discrete(3), length=5):
    self.observation_space, self.action_space, self._length = observation_space, action_space, length
    self.seeds, self.actions, self.closed = [], [], False
    self._steps = 0
    if not isinstance(observation_space, spaces.Dict):
      self._array = np.zeros(observation_space.shape or (), observation_space.dtype)

  def _observe(self):
    if isinstance(self.observation_space, spaces.Discrete):
      return self.observation_space.start + self._steps % self.observation_space.n
    self._array[...] = self._steps
    return self._array

  def reset(self, *, seed=None, options=None):
    super().reset(seed=seed)
    self.seeds.append(seed)
    self._steps = 0
    return self._observe(), {}

  def step(self, action):
    self.actions.append(action)
    self._steps += 1
    return self._observe(), np.float32(-2.5 * self._steps), self._steps == self._length, False, {}

  def close(self):
    self.closed = True


class _Picture(_Task):
  """Draws a red picture if it was made with a render mode."""

  metadata = {'render_modes': ['human', 'rgb_array']}

  def __init__(self, missing=None, render_mode=None):
    super().__init__(spaces.Discrete(2))
    self.render_mode, self._missing = render_mode, missing

  def render(self):
    if self._missing:
      raise self._missing
    return np.full((8, 16, 3), (255, 0, 0), np.uint8)


def _missing_package(**_):
  raise gymnasium.error.DependencyNotInstalled('Physics is not installed,\n run `pip install physics`')


def _fails(**_):
  raise ImportError("No module named 'physics'")


_NEXT_ID = iter(range(1000))


def _adapter(entry_point, seed=0, max_episode_steps=None, **kwargs):
  """Registers an environment under a new id and adapts it. Returns (adapter, the environment in it)."""
  environment_id = f'adapter_test/Task{next(_NEXT_ID)}-v0'
  gymnasium.register(environment_id, entry_point, max_episode_steps=max_episode_steps, kwargs=kwargs)
  adapter = gymnasium_adapter.Gymnasium(environment_id, seed=seed)
  return adapter, adapter._environment.unwrapped


class ContractTest(test_utils.EnvironmentTestMixin, absltest.TestCase):

  def make_object_under_test(self):
    return gymnasium_adapter.Gymnasium('CartPole-v1', seed=0)


class CartPoleTest(absltest.TestCase):

  def test_plays_gymnasiums_own_episodes(self):
    adapter = gymnasium_adapter.Gymnasium('CartPole-v1', seed=7)
    theirs = gymnasium.make('CartPole-v1')
    random = np.random.RandomState(0)
    for episode in range(5):
      observation, _ = theirs.reset(seed=7 if episode == 0 else None)
      time_step = adapter.reset()
      self.assertTrue(time_step.first())
      terminated = False
      while not terminated:
        self.assertEqual(time_step.observation['vector'].dtype, np.float32)
        np.testing.assert_array_equal(time_step.observation['vector'], observation)
        action = random.randint(2)
        observation, reward, terminated, _, _ = theirs.step(action)
        time_step = adapter.step(action)
        self.assertEqual(time_step.reward, reward)
        self.assertEqual(time_step.last(), terminated)
        self.assertEqual(time_step.discount, 0.0 if terminated else 1.0)

  def test_the_time_limit_is_a_truncation(self):
    adapter = gymnasium_adapter.Gymnasium('CartPole-v1', seed=0)
    time_step = adapter.reset()
    length = 0
    while not time_step.last() and length < 600:
      # This policy balances the pole for ever: it pushes in the direction of the pole's fall and the cart's drift.
      position, velocity, angle, angular_velocity = time_step.observation['vector']
      time_step = adapter.step(int(angle + 0.3 * angular_velocity + 0.05 * position + 0.1 * velocity > 0))
      length += 1
    self.assertEqual(length, 500)
    self.assertEqual(time_step.discount, 1.0)
    self.assertTrue(adapter.step(0).first())


class ObservationTest(parameterized.TestCase):

  @parameterized.parameters(
      (spaces.Box(0, 255, (6, 7, 3), np.uint8), 'pixels', (6, 7, 3), np.uint8),
      (spaces.Box(0, 255, (6, 7), np.uint8), 'pixels', (6, 7, 1), np.uint8),
      (spaces.Box(0, 255, (6,), np.uint8), 'vector', (6,), np.float32),
      (spaces.Box(-1, 1, (4,), np.float64), 'vector', (4,), np.float32),
      (spaces.Box(-9, 9, (2, 2), np.int64), 'vector', (4,), np.float32),
      (spaces.Box(-1, 1, (), np.float32), 'vector', (1,), np.float32))
  def test_boxes(self, space, name, shape, dtype):
    adapter, _ = _adapter(_Task, observation_space=space)
    spec = adapter.observation_spec()
    self.assertEqual(list(spec), [name])
    self.assertEqual((spec[name].shape, spec[name].dtype), (shape, dtype))
    observations = [adapter.reset().observation[name]] + [adapter.step(0).observation[name] for _ in range(3)]
    for step, observation in enumerate(observations):  # Without a copy, all would show step 3.
      spec[name].validate(observation)
      np.testing.assert_array_equal(observation, np.full(shape, step))

  def test_pixels_keep_their_places(self):
    image = np.arange(60, dtype=np.uint8).reshape(5, 4, 3)
    adapter, task = _adapter(_Task, observation_space=spaces.Box(0, 255, (5, 4, 3), np.uint8))
    with mock.patch.object(task, '_observe', return_value=image):
      np.testing.assert_array_equal(adapter.reset().observation['pixels'], image)

  def test_channels_that_come_first_go_last(self):
    """Gymnasium's own wrappers stack gray frames in this way."""
    frames = np.arange(60, dtype=np.uint8).reshape(3, 4, 5)
    adapter, task = _adapter(_Task, observation_space=spaces.Box(0, 255, (3, 4, 5), np.uint8))
    self.assertEqual(adapter.observation_spec()['pixels'].shape, (4, 5, 3))
    with mock.patch.object(task, '_observe', return_value=frames):
      pixels = adapter.reset().observation['pixels']
    for channel in range(3):
      np.testing.assert_array_equal(pixels[..., channel], frames[channel])

  def test_regression_an_image_with_more_channels_than_rows_stays_as_it_is(self):
    """MiniGrid's OneHotPartialObsWrapper has such images."""
    image = np.arange(7 * 7 * 20).astype(np.uint8).reshape(7, 7, 20)
    adapter, task = _adapter(_Task, observation_space=spaces.Box(0, 255, (7, 7, 20), np.uint8))
    self.assertEqual(adapter.observation_spec()['pixels'].shape, (7, 7, 20))
    with mock.patch.object(task, '_observe', return_value=image):
      np.testing.assert_array_equal(adapter.reset().observation['pixels'], image)

  @parameterized.parameters(
      # As MiniGrid's: an image, a direction, and a text.
      (dict(image=spaces.Box(0, 255, (7, 7, 3), np.uint8), direction=spaces.Discrete(4), mission=spaces.Text(9)),
       'image', 'pixels', (7, 7, 3)),
      (dict(image=spaces.Box(0, 255, (7, 7), np.uint8), speed=spaces.Box(-1, 1, (2,))), 'image', 'pixels', (7, 7, 1)),
      (dict(place=spaces.Box(-1, 1, (2,)), mission=spaces.Text(9)), 'place', 'vector', (2,)))
  def test_a_dict_is_its_image_or_its_only_vector(self, entries, name, kind, shape):
    adapter, task = _adapter(_Task, observation_space=spaces.Dict(entries))
    self.assertEqual({key: spec.shape for key, spec in adapter.observation_spec().items()}, {kind: shape})
    observed = spaces.Dict(entries).sample()
    with mock.patch.object(task, '_observe', return_value=observed):
      np.testing.assert_array_equal(adapter.reset().observation[kind], observed[name].reshape(shape))

  @parameterized.parameters(spaces.MultiBinary(4), spaces.MultiDiscrete([2, 3]))
  def test_other_numbers_are_a_vector(self, space):
    adapter, task = _adapter(_Task, observation_space=space)
    observed = space.sample()
    with mock.patch.object(task, '_observe', return_value=observed):
      np.testing.assert_array_equal(adapter.reset().observation['vector'], observed)

  def test_discrete_observations_are_one_hot_from_their_start(self):
    adapter, _ = _adapter(_Task, observation_space=spaces.Discrete(3, start=-1))
    self.assertEqual(adapter.observation_spec()['vector'].shape, (3,))
    seen = [adapter.step(0).observation['vector'] for _ in range(4)]
    np.testing.assert_array_equal(seen, np.eye(3)[[0, 1, 2, 0]])
    self.assertEqual(seen[0].dtype, np.float32)
    seen[0][:] = 7
    np.testing.assert_array_equal(adapter.reset().observation['vector'], [1, 0, 0])

  @parameterized.parameters(
      (spaces.Tuple((spaces.Discrete(2), spaces.Discrete(2))), spaces.Discrete(2), 'want an array of numbers .*Tuple'),
      (spaces.Dict(x=spaces.Discrete(2)), spaces.Discrete(2), 'want a dict .*, got neither: flatten it in a wrapper$'),
      (spaces.Dict(x=spaces.Box(-1, 1, (2,)), y=spaces.Box(-1, 1, (3,))), spaces.Discrete(2),
       'want a dict .* with one image .* or one vector, got 2 of them: x, y: flatten it in a wrapper$'),
      (spaces.Box(0, 1, (8, 8, 3), np.float32), spaces.Discrete(2), r'want images as uint8 .*, got float32 \[8, 8, 3'),
      (spaces.Box(0, 255, (4, 8, 8, 3), np.uint8), spaces.Discrete(2), r'want images as .*, got uint8 \[4, 8, 8, 3\]'),
      (spaces.Discrete(2), spaces.Box(-1, 1, (1,)), 'want a Discrete action space, got Box'),
      (spaces.Discrete(2), spaces.MultiDiscrete([2, 2]), 'want a Discrete action space, got MultiDiscrete'))
  def test_other_spaces_are_refused_by_name(self, observation_space, action_space, message):
    with self.assertRaisesRegex(ValueError, f'^gymnasium:adapter_test/Task[0-9]+-v0: {message}'):
      _adapter(_Task, observation_space=observation_space, action_space=action_space)


class StepTest(absltest.TestCase):

  def test_actions_count_from_the_spaces_start(self):
    adapter, task = _adapter(_Task, observation_space=spaces.Discrete(2), action_space=spaces.Discrete(3, start=5))
    self.assertEqual(adapter.action_spec().num_values, 3)
    adapter.reset()
    for action in (0, 2, 1):
      adapter.step(action)
    self.assertEqual(task.actions, [5, 7, 6])

  def test_only_the_first_reset_is_seeded(self):
    adapter, task = _adapter(_Task, seed=11, observation_space=spaces.Discrete(2))
    for _ in range(3):
      adapter.reset()
    self.assertEqual(task.seeds, [11, None, None])

  def test_rewards_are_raw_floats_and_termination_is_the_last_step(self):
    adapter, _ = _adapter(_Task, observation_space=spaces.Discrete(2), length=3)
    adapter.reset()
    time_steps = [adapter.step(0) for _ in range(4)]
    self.assertEqual([time_step.step_type.name for time_step in time_steps], ['MID', 'MID', 'LAST', 'FIRST'])
    self.assertEqual([time_step.reward for time_step in time_steps[:3]], [-2.5, -5.0, -7.5])
    self.assertEqual([time_step.discount for time_step in time_steps[:3]], [1.0, 1.0, 0.0])
    self.assertIs(type(time_steps[0].reward), float)

  def test_what_is_no_reward_is_one_line(self):
    adapter, task = _adapter(_Task, observation_space=spaces.Discrete(2))
    adapter.reset()
    for reward, got in ((None, 'None'), (np.zeros(2), r'\[0\. 0\.\]')):
      with mock.patch.object(task, 'step', return_value=(0, reward, False, False, {})):
        with self.assertRaisesRegex(ValueError, f'^reward: want a number, got {got}$'):
          adapter.step(0)

  def test_truncation_is_the_last_step_with_discount_1(self):
    adapter, _ = _adapter(_Task, max_episode_steps=2, observation_space=spaces.Discrete(2))
    adapter.reset()
    self.assertTrue(adapter.step(0).mid())
    time_step = adapter.step(0)
    self.assertTrue(time_step.last())
    self.assertEqual(time_step.discount, 1.0)

  def test_a_termination_in_the_last_step_before_the_time_limit_is_one(self):
    adapter, _ = _adapter(_Task, max_episode_steps=2, observation_space=spaces.Discrete(2), length=2)
    adapter.reset()
    adapter.step(0)
    time_step = adapter.step(0)
    self.assertTrue(time_step.last())
    self.assertEqual(time_step.discount, 0.0)

  def test_close_closes(self):
    adapter, task = _adapter(_Task, observation_space=spaces.Discrete(2))
    adapter.close()
    self.assertTrue(task.closed)


class RenderTest(parameterized.TestCase):

  def test_draws_what_the_environment_draws(self):
    adapter, _ = _adapter(_Picture)
    adapter.reset()
    picture = adapter.render()
    self.assertEqual((picture.shape, picture.dtype), ((8, 16, 3), np.uint8))
    np.testing.assert_array_equal(picture[0, 0], [255, 0, 0])

  def test_what_is_no_picture_is_one_line(self):
    adapter, task = _adapter(_Picture)
    adapter.reset()
    with mock.patch.object(task, 'render', return_value=None):
      with self.assertRaisesRegex(ValueError, r'^render: want a picture as uint8 \[H, W, 3\], got None$'):
        adapter.render()

  def test_says_that_an_environment_draws_nothing(self):
    adapter, _ = _adapter(_Task, observation_space=spaces.Discrete(2))
    adapter.reset()
    with self.assertRaisesRegex(ValueError, "gymnasium:.*-v0: this environment draws no pictures"):
      adapter.render()

  def test_regression_an_environment_that_takes_no_render_mode_can_be_played(self):
    class Modest(_Task):
      metadata = {'render_modes': ['rgb_array']}

    adapter, _ = _adapter(Modest, observation_space=spaces.Discrete(2))
    adapter.reset()
    with self.assertRaisesRegex(ValueError, r'this environment draws no pictures \(TypeError: .*render_mode'):
      adapter.render()

  @parameterized.parameters(ImportError('no pygame'), gymnasium.error.DependencyNotInstalled('no\npygame'))
  def test_says_what_drawing_lacks(self, error):
    adapter, _ = _adapter(_Picture, missing=error)
    adapter.reset()
    with self.assertRaisesRegex(ImportError, '^gymnasium:.*-v0: no pygame$'):
      adapter.render()


class MakingTest(parameterized.TestCase):

  def test_arguments_reach_the_environment(self):
    gymnasium.register('adapter_test/Argued-v0', _Task, kwargs=dict(observation_space=spaces.Discrete(2)))
    adapter = gymnasium_adapter.Gymnasium('adapter_test/Argued-v0', seed=0, length=2, max_episode_steps=9)
    adapter.reset()
    self.assertEqual([adapter.step(0).last() for _ in range(2)], [False, True])
    with self.assertRaisesRegex(TypeError, "unexpected keyword argument 'size'"):
      gymnasium_adapter.Gymnasium('adapter_test/Argued-v0', seed=0, size=2)

  @parameterized.parameters(
      ('CartPol-v1', 'CartPole-v1'), ('CartPole-v99', 'CartPole-v1'), ('NoSuchTaskAtAll-v0', "doesn't exist"),
      ('', 'Malformed environment ID'), ('two words', 'Malformed environment ID'),
      ('a:b:c', 'want gymnasium:ID or gymnasium:PACKAGE:ID'))
  def test_an_unknown_id_is_one_line_with_the_closest(self, environment_id, expected):
    with self.assertRaisesRegex(ValueError, f'^gymnasium:{environment_id}: .*{expected}.*$') as raised:
      gymnasium_adapter.Gymnasium(environment_id, seed=0)
    self.assertNotIn('\n', str(raised.exception))

  def test_an_error_of_an_environment_with_a_package_has_no_other_id(self):
    def fail():
      raise ValueError('want an odd size')
    gymnasium.register('adapter_test/Odd-v0', fail)
    with self.assertRaisesRegex(ValueError, '^gymnasium:math:adapter_test/Odd-v0: want an odd size$'):
      gymnasium_adapter.Gymnasium('math:adapter_test/Odd-v0', seed=0)

  def test_the_render_mode_is_not_for_the_user(self):
    with self.assertRaisesRegex(ValueError, '^gymnasium:CartPole-v1: leave out render_mode: it is rgb_array, '):
      gymnasium_adapter.Gymnasium('CartPole-v1', seed=0, render_mode='human')

  def test_a_missing_package_is_one_line(self):
    with self.assertRaisesRegex(ImportError, '^gymnasium:.*-v0: Physics is not installed, run `pip install physics`$'):
      _adapter(_missing_package)
    with self.assertRaisesRegex(ImportError, "^gymnasium:.*-v0: No module named 'physics'$"):
      _adapter(_fails)
    with self.assertRaisesRegex(
        ImportError, f'^gymnasium:no_such_package:Task-v0: no module no_such_package: looked in {os.getcwd()}, in PY'):
      gymnasium_adapter.Gymnasium('no_such_package:Task-v0', seed=0)

  def test_gymnasium_itself_missing(self):
    with mock.patch.dict(sys.modules, {'gymnasium': None}):
      with self.assertRaisesRegex(ImportError, 'gymnasium:CartPole-v1: gymnasium is not installed .*pip install gym'):
        gymnasium_adapter.Gymnasium('CartPole-v1', seed=0)


if __name__ == '__main__':
  absltest.main()
