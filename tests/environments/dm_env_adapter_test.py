"""Tests of environments/dm_env_adapter.py, and of levels with arguments, with environments that are made here."""

import os
import subprocess
import sys
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import dm_env
from dm_env import specs
from dm_env import test_utils
import numpy as np

from scalable_agents.environments import catch
from scalable_agents.environments import dm_env_adapter
from scalable_agents.environments import registry
from scalable_agents.processes import python_path

_HERE = 'scalable_agents.tests.environments.dm_env_adapter_test'


class _Task(dm_env.Environment):
  """Observes the number of the step, and ends after `length` steps with the discount `end`."""

  def __init__(self, spec=None, actions=None, length=3, end=0., frames_per_step=1):
    self.frames_per_step = frames_per_step
    self._spec = spec or specs.Array((2,), np.float64)
    self._actions = actions or specs.DiscreteArray(3)
    self._length, self._end = length, end
    self.closed = False

  def observation_spec(self):
    return self._spec

  def action_spec(self):
    return self._actions

  def _observation(self):
    if isinstance(self._spec, dict):
      return {name: np.full(spec.shape, self._step, spec.dtype) for name, spec in self._spec.items()}
    return np.full(self._spec.shape, self._step, self._spec.dtype)

  def reset(self):
    self._step = 0
    return dm_env.restart(self._observation())

  def step(self, action):
    self._actions.validate(action)
    self._step += 1
    is_last = self._step == self._length
    return dm_env.TimeStep(dm_env.StepType.LAST if is_last else dm_env.StepType.MID, 10 * action,
                           self._end if is_last else 0.99, self._observation())

  def close(self):
    self.closed = True


def make(seed, **arguments):
  return _Task(**arguments) if seed >= 0 else None


def make_catch(seed):
  return catch.Catch(seed=seed)


def make_failing(seed, error):
  raise {'value': ValueError, 'import': ImportError}[error](f'no size\nat seed {seed}')


def make_with_arguments(seed, **arguments):
  make_with_arguments.got = arguments
  return _Task()


NO_FUNCTION = 3


class ContractTest(test_utils.EnvironmentTestMixin, absltest.TestCase):

  def make_object_under_test(self):
    return dm_env_adapter.DmEnv(f'{_HERE}:make', seed=0)


class DmEnvTest(parameterized.TestCase):

  def test_plays_like_the_environment(self):
    theirs, ours = catch.Catch(seed=4), registry.make(f'dm_env:{_HERE}:make_catch', seed=4)
    self.assertEqual(ours.action_spec().num_values, theirs.action_spec().num_values)
    random = np.random.RandomState(0)
    for _ in range(100):
      action = random.randint(3)
      want, got = theirs.step(action), ours.step(action)
      self.assertEqual((got.step_type, got.reward, got.discount), (want.step_type, want.reward, want.discount))
      np.testing.assert_array_equal(got.observation['pixels'], want.observation['pixels'])
    np.testing.assert_array_equal(ours.render(), theirs.render())

  @parameterized.parameters(0., 1.)
  def test_the_last_discount_tells_a_time_limit_from_an_end(self, end):
    adapter = dm_env_adapter.DmEnv(f'{_HERE}:make', seed=0, end=end)
    adapter.reset()
    steps = [adapter.step(2) for _ in range(4)]
    self.assertEqual([step.step_type.name for step in steps], ['MID', 'MID', 'LAST', 'FIRST'])
    self.assertEqual([step.discount for step in steps[:3]], [0.99, 0.99, end])
    self.assertEqual([step.reward for step in steps[:3]], [20., 20., 20.])
    np.testing.assert_array_equal([step.observation['vector'][0] for step in steps], [1, 2, 3, 0])

  @parameterized.parameters(
      (specs.DiscreteArray(4), 'vector', (4,)), (specs.BoundedArray((), np.int32, -1, 3), 'vector', (5,)),
      ({'place': specs.Array((2, 3), np.float32), 'name': specs.StringArray(())}, 'vector', (6,)),
      (specs.BoundedArray((5, 4, 3), np.uint8, 0, 255), 'pixels', (5, 4, 3)))
  def test_observations(self, spec, name, shape):
    adapter = dm_env_adapter.DmEnv(f'{_HERE}:make', seed=0, spec=spec)
    self.assertEqual({key: each.shape for key, each in adapter.observation_spec().items()}, {name: shape})

  @parameterized.parameters(
      # A wrapper that scales pixels and keeps the spec; one that forgets to clip; another order of the axes.
      (specs.Array((5, 4, 3), np.uint8), np.full((5, 4, 3), 0.9), 'want whole .*, got float64 with'),
      (specs.Array((5, 4, 3), np.uint8), np.full((5, 4, 3), np.nan), 'want whole .*, got float64 with'),
      (specs.Array((5, 4, 3), np.uint8), np.full((5, 4, 3), 300), 'want whole .*, got int64 with'),
      (specs.Array((5, 4, 3), np.uint8), np.zeros((4, 5, 3), np.uint8), r'want the shape \(5, 4, 3\) of its spec, got'),
      (specs.Array((3, 4, 5), np.uint8), np.zeros((4, 5, 3), np.uint8), r'want the shape \(3, 4, 5\) of its spec, got'),
      (specs.Array((2, 3), np.float32), np.zeros((3, 2), np.float32), r'want the shape \(2, 3\) of its spec, got'),
      (specs.BoundedArray((), np.int32, 1, 4), 0, 'want an integer from 1 to 4, got 0$'),
      (specs.BoundedArray((), np.int32, 1, 4), 5, 'want an integer from 1 to 4, got 5$'),
      (specs.BoundedArray((), np.int32, 1, 4), 2.7, 'want an integer from 1 to 4, got 2.7$'),
      (specs.BoundedArray((), np.int32, 1, 4), np.array([2]), r'want an integer from 1 to 4, got \[2\]$'))
  def test_an_observation_that_contradicts_its_spec_is_no_other_observation(self, spec, observation, message):
    adapter = dm_env_adapter.DmEnv(f'{_HERE}:make', seed=0, spec=spec)
    with mock.patch.object(adapter._environment, '_observation', return_value=observation):
      with self.assertRaisesRegex(ValueError, f'^observation: {message}'):
        adapter.reset()

  def test_pixels_of_another_type_with_the_same_values(self):
    adapter = dm_env_adapter.DmEnv(f'{_HERE}:make', seed=0, spec=specs.Array((5, 4, 3), np.uint8))
    with mock.patch.object(adapter._environment, '_observation', return_value=np.full((5, 4, 3), 200)):
      np.testing.assert_array_equal(adapter.reset().observation['pixels'], np.full((5, 4, 3), 200, np.uint8))

  def test_a_large_number_of_states_needs_little_memory(self):
    spec = specs.BoundedArray((), np.int64, 0, 10**6)  # A table of all states would have terabytes.
    adapter = dm_env_adapter.DmEnv(f'{_HERE}:make', seed=0, spec=spec)
    vector = adapter.reset().observation['vector']
    self.assertEqual((vector.shape, vector.sum(), vector[0]), ((10**6 + 1,), 1., 1.))

  @parameterized.parameters(0, -2, 2.5, 'two')
  def test_frames_per_step_are_counted(self, frames):
    with self.assertRaisesRegex(
        ValueError, f'^dm_env:{_HERE}:make: frames_per_step: want a whole number of at least 1, got {frames}$'):
      dm_env_adapter.DmEnv(f'{_HERE}:make', seed=0, frames_per_step=frames)
    self.assertEqual(dm_env_adapter.DmEnv(f'{_HERE}:make', seed=0, frames_per_step=np.int64(4)).frames_per_step, 4)

  @parameterized.parameters(
      (None, 'None'), (np.zeros((8, 8), np.uint8), r'uint8 \[8, 8\]'),
      (np.zeros((8, 8, 4), np.uint8), r'uint8 \[8, 8, 4\]'), (np.full((8, 8, 3), 0.5), r'float64 \[8, 8, 3\]'))
  def test_what_is_no_picture_is_one_line(self, drawn, got):
    adapter = dm_env_adapter.DmEnv(f'{_HERE}:make', seed=0)
    adapter._environment.render = lambda: drawn
    with self.assertRaisesRegex(ValueError, rf'^render: want a picture as uint8 \[H, W, 3\], got {got}'):
      adapter.render()

  @parameterized.parameters(
      ('make', dict(actions=specs.BoundedArray((2,), np.float32, 0, 1)), 'want an action of specs.DiscreteArray'),
      ('make', dict(spec=specs.StringArray(())), 'want an array of numbers or a dict with one, got StringArray'),
      ('make', dict(spec=specs.BoundedArray((), np.int32, 0, 2**31 - 1)), 'want an integer with at most 1,048,576 val'),
      ('make_failing', dict(error='value'), 'no size at seed 0$'),
      ('nothing', {}, 'the module .*dm_env_adapter_test has no function nothing; it is .*/dm_env_adapter_test.py$'),
      ('NO_FUNCTION', {},
       'the module .*dm_env_adapter_test has no function NO_FUNCTION; it is .*/dm_env_adapter_test.py$'),
      ('', {}, 'want dm_env:MODULE:FUNCTION$'))
  def test_what_cannot_be_used_is_one_line(self, function, arguments, message):
    with self.assertRaisesRegex(ValueError, f'^dm_env:{_HERE}:{function}: {message}'):
      dm_env_adapter.DmEnv(f'{_HERE}:{function}', seed=0, **arguments)

  def test_a_package_that_is_missing_is_one_line(self):
    with self.assertRaisesRegex(ImportError, f'^dm_env:{_HERE}:make_failing: no size at seed 0$'):
      dm_env_adapter.DmEnv(f'{_HERE}:make_failing', seed=0, error='import')

  def test_what_is_no_environment_is_one_line(self):
    with self.assertRaisesRegex(ValueError, 'want a dm_env.Environment, got NoneType$'):
      dm_env_adapter.DmEnv(f'{_HERE}:make', seed=-1)

  def test_an_environment_without_pictures_says_so_and_close_closes(self):
    adapter = dm_env_adapter.DmEnv(f'{_HERE}:make', seed=0)
    with self.assertRaisesRegex(ValueError, f'^dm_env:{_HERE}:make: this environment draws no pictures'):
      adapter.render()
    adapter.close()
    self.assertTrue(adapter._environment.closed)


class LevelTest(parameterized.TestCase):

  @parameterized.parameters(
      ('a=1&b=-2.5&c=text', {'a': 1, 'b': -2.5, 'c': 'text'}),
      ('a=True&b=false&c=None&d=null', {'a': True, 'b': False, 'c': None, 'd': None}),
      ("a='1'&b=[3]&c=x%26y&d=", {'a': '1', 'b': [3], 'c': 'x&y', 'd': ''}),
      ('a=[3,4]&b={"c": [1, 2]}&path=x+y', {'a': [3, 4], 'b': {'c': [1, 2]}, 'path': 'x+y'}))
  def test_arguments_are_literals_or_strings(self, query, arguments):
    level = f'dm_env:{_HERE}:make_with_arguments?{query}'
    self.assertEqual(registry.expand(f'{level},pong'), (level, 'pong'))
    registry.check(level)
    with mock.patch.dict(sys.modules, {_HERE: sys.modules[__name__]}):
      registry.make(level, seed=3)
    self.assertEqual(make_with_arguments.got, arguments)

  @parameterized.parameters(
      *((query, r'want arguments as \?name=value&name=value') for query in ('?a', '?a=1&', '?a=1&b')),
      ('?a=1&a=2', 'want each argument once'),
      ('?a=1&seed=3', 'leave out seed: the program sets it, to another number for each environment'))
  def test_other_arguments_are_one_line(self, query, message):
    for function in (registry.check, lambda name: registry.make(name, seed=0)):
      with self.assertRaisesRegex(ValueError, rf'^dm_env:\S+: {message}$'):
        function(f'dm_env:{_HERE}:make{query}')

  def test_a_module_in_the_current_folder_is_found_and_the_message_says_where(self):
    folder = self.create_tempdir()
    folder.create_file('my_tasks.py', content=(
        'from scalable_agents.environments import catch\ndef caught(seed):\n  return catch.Catch(seed=seed)\n'))
    folder.create_file('my_broken.py', content='import my_missing_library\n')
    program = ('from scalable_agents.environments import registry\n'
               'registry.make("dm_env:my_tasks:caught", seed=0).reset()\n'
               'for module in "my_broken", "my_typo":\n'
               '  try:\n'
               '    registry.check(f"dm_env:{module}:make")\n'
               '  except ImportError as error:\n'
               '    print(error)\n')
    # Without a module or a script, Python would search the current folder itself.
    script = self.create_tempdir().create_file('program.py', content=program).full_path
    here = {'BUILD_WORKING_DIRECTORY': folder.full_path}
    for settings in (dict(cwd=folder.full_path, env=python_path.environment()),
                     dict(cwd=os.path.dirname(script), env=python_path.environment() | here)):
      printed = subprocess.run([sys.executable, script], check=True, capture_output=True, text=True, **settings).stdout
      self.assertRegex(printed, r"^dm_env:my_broken:make: No module named 'my_missing_library'\n"
                                rf'dm_env:my_typo:make: no module my_typo: looked in {folder.full_path}, in PYTHONPATH')


if __name__ == '__main__':
  absltest.main()
