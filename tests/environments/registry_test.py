"""Tests of environments/registry.py."""

import contextlib
import dataclasses
import io
import json
import subprocess
import sys
import time
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import gymnasium
import numpy as np

from scalable_agents.environments import atari
from scalable_agents.environments import atari57
from scalable_agents.environments import dmlab
from scalable_agents.environments import dmlab30
from scalable_agents.environments import registry
from scalable_agents.processes import python_path
from scalable_agents.tests.environments import lab_module  # noqa: F401  # Finds deepmind_lab.


def _run(script):
  return subprocess.run([sys.executable, '-c', script], env=python_path.environment(), capture_output=True, text=True,
                        check=True).stdout.split()


class RegistryTest(parameterized.TestCase):

  def test_levels_are_the_suites_and_the_built_in_tasks(self):
    self.assertEqual(registry.levels(), (
        *atari57.LEVELS, *dmlab.LEVELS, 'catch', 'recall', 'recall_late', 'chain', 'obey_ball', 'obey_side',
        'obey_nothing', 'catch_mirror', 'catch_shift', 'harvest', 'quiz'))
    self.assertContainsSubset({*dmlab30.LEVELS, *dmlab30.TEST_LEVELS, 'seekavoid_arena_01'}, set(registry.levels()))
    self.assertLen(set(registry.levels()), len(registry.levels()))

  @parameterized.parameters(
      ('pong', 4, 6, 'pixels', (84, 84, 4)), ('catch', 1, 3, 'pixels', (20, 20, 1)),
      ('rooms_watermaze', 4, 9, 'pixels', (72, 96, 3)), ('seekavoid_arena_01', 4, 9, 'instruction', (128,)),
      ('recall', 1, 2, 'vector', (3,)), ('chain', 1, 2, 'vector', (9,)), ('obey_ball', 1, 3, 'instruction', (128,)),
      ('obey_side', 1, 3, 'instruction', (128,)), ('obey_nothing', 1, 3, 'pixels', (20, 20, 1)),
      ('catch_mirror', 1, 3, 'pixels', (20, 20, 1)), ('catch_shift_x10000', 1, 3, 'pixels', (20, 20, 1)),
      ('harvest', 1, 2, 'vector', (5,)), ('quiz', 1, 10, 'vector', (48,)), ('chain_x0.001', 1, 2, 'vector', (9,)),
      ('gymnasium:CartPole-v1', 1, 2, 'vector', (4,)))
  def test_makes_every_kind_of_level(self, level, frames_per_step, num_actions, name, shape):
    registry.check(level)
    environment = registry.make(level, seed=0)
    self.addCleanup(environment.close)
    self.assertEqual(environment.frames_per_step, frames_per_step)
    self.assertEqual(environment.action_spec().num_values, num_actions)
    self.assertEqual(environment.reset().observation[name].shape, shape)

  @parameterized.parameters(('catch_x100', 100), ('catch_x0.25', 0.25), ('harvest_x1000000', 1e6))
  def test_rewards_of_a_built_in_task_can_be_multiplied(self, level, factor):
    task = registry.make(level.partition('_x')[0], seed=0)
    scaled = registry.make(level, seed=0)
    steps = [(task.step(0).reward, scaled.step(0).reward) for _ in range(50)]
    rewards = [pair for pair in steps if pair[0]]
    self.assertNotEmpty(rewards)
    for plain, multiplied in rewards:
      self.assertEqual(multiplied, factor * plain)

  @parameterized.parameters('pong_x10', 'catch_x', 'catch_x-1', 'catch_x1e3', 'catch_x10_x10', 'catch_x.5', 'catch_x0',
                            'catch_x0.00')
  def test_other_factors_and_levels_are_unknown(self, level):
    with self.assertRaisesRegex(ValueError, f'unknown level {level!r}'):
      registry.check(level)

  def test_every_level_passes_the_check(self):
    for level in registry.levels():
      registry.check(level)

  @parameterized.parameters('pong', 'rooms_watermaze', 'catch', 'recall', 'chain', 'obey_ball', 'catch_x100',
                            'gymnasium:CartPole-v1')
  def test_the_seed_reaches_the_environment(self, level):
    def play(seed):
      environment = registry.make(level, seed=seed)
      self.addCleanup(environment.close)
      return np.stack([next(iter(environment.step(1).observation.values())) for _ in range(60)])
    np.testing.assert_array_equal(play(1), play(1))
    self.assertTrue((play(1) != play(2)).any())

  def test_atari_settings_reach_the_emulator(self):
    settings = atari.AtariSettings(action_repeats=2, full_action_set=True, height=42, width=42)
    environment = registry.make('pong', seed=0, atari=settings)
    self.assertEqual(environment.frames_per_step, 2)
    self.assertEqual(environment.action_spec().num_values, 18)
    self.assertEqual(environment.observation_spec()['pixels'].shape, (42, 42, 4))

  def test_settings_that_came_as_json_reach_the_emulator(self):
    settings = json.loads(json.dumps(dataclasses.asdict(atari.AtariSettings(action_repeats=2, full_action_set=True))))
    environment = registry.make_from_json('pong', 0, {'atari': settings})
    self.assertEqual(environment.frames_per_step, 2)
    self.assertEqual(environment.action_spec().num_values, 18)

  def test_names_of_several_levels(self):
    self.assertEqual(registry.expand('atari57'), atari57.LEVELS)
    self.assertEqual(registry.expand('dmlab30'), dmlab30.LEVELS)
    self.assertEqual(registry.expand('pong, breakout'), ('pong', 'breakout'))
    for level in (*registry.levels(), 'gymnasium:CartPole-v1', 'of nobody'):
      self.assertEqual(registry.expand(level), (level,))
    self.assertEqual(registry.expand('''dm_env:a:b?c={"d": (1,2)}&e='f,g',dm_env:a:b?c=it's, pong'''),
                     ('''dm_env:a:b?c={"d": (1,2)}&e='f,g\'''', "dm_env:a:b?c=it's", 'pong'))
    for names in ('pong,pong', 'pong,', ''):
      with self.assertRaisesRegex(ValueError, 'want different levels with commas between them, got a repeated or'):
        registry.expand(names)
    with self.assertRaisesRegex(ValueError, r'^.dm_env:a:b.c="d.ne".: want one line of text$'):
      registry.expand('dm_env:a:b?c="d\ne"')  # A line of episodes.csv has a level's name.
    with self.assertRaisesRegex(ValueError, '^.dmlab30,pong.: dmlab30 is a suite; want either one suite'):
      registry.expand('dmlab30,pong')

  def test_dmlab_settings_reach_lab(self):
    settings = dmlab.DmlabSettings(action_repeats=2, action_set='popart', height=36, width=48)
    as_json = json.loads(json.dumps(dataclasses.asdict(settings)))
    for environment in (registry.make('rooms_watermaze', seed=0, dmlab=settings),
                        registry.make_from_json('rooms_watermaze', 0, {'dmlab': as_json})):
      self.assertEqual(environment.frames_per_step, 2)
      self.assertEqual(environment.action_spec().num_values, 15)
      self.assertEqual(environment.observation_spec()['pixels'].shape, (36, 48, 3))
      environment.close()

  def test_a_level_of_dmlab_without_dmlab_fails_the_check_as_it_fails_the_making(self):
    with mock.patch.object(dmlab.importlib.util, 'find_spec', return_value=None), mock.patch.dict(sys.modules):
      sys.modules.pop('deepmind_lab', None)
      with self.assertRaisesRegex(ImportError, '^rooms_watermaze: DeepMind Lab, .* is not installed'):
        registry.check('rooms_watermaze')
    with mock.patch.dict(sys.modules, {'deepmind_lab': None}):
      with self.assertRaisesRegex(ImportError, '^rooms_watermaze: DeepMind Lab, .* is not installed'):
        registry.make('rooms_watermaze', seed=0)

  def test_settings_are_checked_before_a_level_is_made(self):
    for level, path, message in (
        ('psychlab_continuous_recognition', '', '^psychlab_continuous_recognition: dataset_path: this level needs '),
        ('rooms_collect_good_objects_test', 'dummy', '^rooms_collect_good_objects_test: this level is for testing ')):
      with self.assertRaisesRegex(ValueError, message):
        registry.check_settings(level, {'dmlab': {'dataset_path': path}})
    registry.check_settings('psychlab_continuous_recognition', {'dmlab': {'dataset_path': 'dummy'}})
    for level in ('rooms_watermaze', 'catch', 'pong'):
      registry.check_settings(level, {'dmlab': {'dataset_path': '/no/such/folder'}})
      registry.check_settings(level, {})

  def test_an_atari_game_without_ale_py_fails_the_check_as_it_fails_the_making(self):
    message = r'^pong: Atari games need ale-py \(.*ale_py.*\): pip install ale-py$'
    with mock.patch.dict(sys.modules, {'ale_py': None}):
      with self.assertRaisesRegex(ImportError, message):
        registry.check('pong')
      with self.assertRaisesRegex(ImportError, message):
        registry.make('pong', seed=0)

  @parameterized.parameters(
      ('rooms_watermase', 'did you mean rooms_watermaze?'), ('lasertag_one_opponent', 'lasertag_one_opponent_small or'),
      ('contributed/dmlab30/skymaze_irreversible_path_hard', 'skymaze_irreversible_path_hard'),
      ('lasertag', 'did you mean lasertag_'),
      ('atari5', 'did you mean atari57'), ('pnog', 'did you mean pong?'), ('MsPacman', 'did you mean ms_pacman?'),
      ('Breakout-v5', 'did you mean breakout'),
      ('catsh', 'did you mean catch or catch_shift?'), ('zzz', 'want an Atari game in snake_case'),
      ('', 'want an Atari game'),
      ('CartPole-v1', 'gymnasium:ID'))
  def test_an_unknown_level_is_one_line_with_the_closest_names(self, level, hint):
    for function in (registry.check, lambda name: registry.make(name, seed=0)):
      with self.assertRaises(ValueError) as raised:
        function(level)
      self.assertStartsWith(str(raised.exception), f'unknown level {level!r}: ')
      self.assertIn(hint, str(raised.exception))
      self.assertNotIn('\n', str(raised.exception))

  @parameterized.parameters((RuntimeError('the game has\nno licence'), 'RuntimeError: the game has no licence'),
                            (SystemExit(0), 'SystemExit: 0'))
  def test_an_environment_of_the_users_that_fails_is_one_line(self, error, text):
    def fail():
      raise error
    level = f'gymnasium:registry_test/Failing{type(error).__name__}-v0'
    gymnasium.register(level.partition(':')[2], fail)
    with self.assertRaisesRegex(ValueError, f'^{level} cannot be made: {text}$'):
      registry.check(level)

  def test_an_environment_of_the_users_may_need_a_reset_before_its_close(self):
    def make():
      environment = gymnasium.make('CartPole-v1')
      environment.close = mock.Mock(side_effect=AttributeError('process'))
      return environment
    gymnasium.register('registry_test/Closing-v0', make)
    registry.check('gymnasium:registry_test/Closing-v0')

  def test_an_environment_of_the_users_that_takes_long_is_named(self):
    def wait():
      deadline = time.monotonic() + 60.
      while not screen.getvalue().endswith('\n') and time.monotonic() < deadline:
        time.sleep(0.01)

    def make(is_slow):
      if is_slow:
        wait()
      environment = gymnasium.make('CartPole-v1')
      environment.close = wait
      return environment

    gymnasium.register('registry_test/Slow-v0', make)
    for level in ('gymnasium:registry_test/Slow-v0?is_slow=True', 'gymnasium:registry_test/Slow-v0?is_slow=False'):
      with contextlib.redirect_stderr(io.StringIO()) as screen, mock.patch.object(registry, '_PATIENCE_SECONDS', 0.1):
        registry.check(level)
      self.assertEqual(screen.getvalue(), f'{level} is not made, and closed again, after 0.1 s: waiting for it\n')

  def test_a_suite_is_no_level(self):
    for suite in ('atari57', 'dmlab30'):
      with self.assertRaisesRegex(ValueError, f'^{suite} is a suite: want one of its levels$'):
        registry.check(suite)

  @parameterized.parameters(('gymnasium:CartPol-v1', 'CartPole-v1'), ('gymnasium:Pendulum-v1', 'Discrete action space'))
  def test_an_unusable_gymnasium_level_fails_the_check_as_it_fails_the_making(self, level, expected):
    for function in (registry.check, lambda name: registry.make(name, seed=0)):
      with self.assertRaisesRegex(ValueError, f'^{level}: .*{expected}'):
        function(level)


class LightnessTest(absltest.TestCase):

  def test_importing_and_checking_loads_no_emulator_and_no_framework(self):
    heavy = _run('import sys\n'
                 'from scalable_agents.environments import registry\n'
                 'registry.check("pong")\n'
                 'registry.check("rooms_watermaze")\n'
                 'registry.make("catch", seed=0).reset()\n'
                 'print(*({"tensorflow", "ale_py", "cv2", "gymnasium", "deepmind_lab"} & set(sys.modules)))')
    self.assertEmpty(heavy)

  def test_no_environment_loads_tensorflow(self):
    heavy = _run('import sys\n'
                 'from scalable_agents.environments import registry\n'
                 'for level in ("pong", "rooms_watermaze", "catch", "recall", "chain", "obey_ball",\n'
                 '              "gymnasium:CartPole-v1"):\n'
                 '  registry.make(level, seed=0).reset()\n'
                 'print(*({"tensorflow", "ale_py"} & set(sys.modules)))')
    self.assertEqual(heavy, ['ale_py'])


if __name__ == '__main__':
  absltest.main()
