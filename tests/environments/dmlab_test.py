"""Tests of environments/dmlab.py with the real module if it is installed, else with the fake one."""

import dataclasses
import json
import os
import tempfile
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
from dm_env import test_utils
import numpy as np
import psutil

from scalable_agents.environments import dmlab
from scalable_agents.environments import dmlab30
from scalable_agents.tests.environments import lab_module

_LEVEL = 'rooms_watermaze'
_COMPILED = 'explore_goal_locations_small'
_SPEAKING = 'language_select_described_object'
# The papers' integer vectors: look left/right, look down/up, strafe, move, fire, jump, crouch.
_IMPALA = [
    (0, 0, 0, 1, 0, 0, 0), (0, 0, 0, -1, 0, 0, 0), (0, 0, -1, 0, 0, 0, 0), (0, 0, 1, 0, 0, 0, 0),
    (-20, 0, 0, 0, 0, 0, 0), (20, 0, 0, 0, 0, 0, 0), (-20, 0, 0, 1, 0, 0, 0), (20, 0, 0, 1, 0, 0, 0),
    (0, 0, 0, 0, 1, 0, 0)]
_POPART = [
    (0, 0, 0, 1, 0, 0, 0), (0, 0, 0, -1, 0, 0, 0), (0, 0, -1, 0, 0, 0, 0), (0, 0, 1, 0, 0, 0, 0),
    (-10, 0, 0, 0, 0, 0, 0), (10, 0, 0, 0, 0, 0, 0), (-60, 0, 0, 0, 0, 0, 0), (60, 0, 0, 0, 0, 0, 0),
    (0, 10, 0, 0, 0, 0, 0), (0, -10, 0, 0, 0, 0, 0), (-10, 0, 0, 1, 0, 0, 0), (10, 0, 0, 1, 0, 0, 0),
    (-60, 0, 0, 1, 0, 0, 0), (60, 0, 0, 1, 0, 0, 0), (0, 0, 0, 0, 1, 0, 0)]
_fake_only = absltest.skipIf(lab_module.IS_REAL, 'asks the fake module what it was given')

class _Calls:
  """A wrapper around a Lab that records its calls."""

  def __init__(self, lab):
    self.lab, self.steps, self.seeds = lab, [], []

  def reset(self, episode=-1, seed=None):
    self.seeds.append(seed)
    return self.lab.reset(episode=episode, seed=seed)

  def step(self, action, num_steps=1):
    self.steps.append((action, num_steps))
    return self.lab.step(action, num_steps=num_steps)

  def __getattr__(self, name):
    return getattr(self.lab, name)


class _TestCase(lab_module.TestCase):

  def spied(self, **arguments):
    """Returns an environment and the calls that its Lab gets."""
    environment = self.make(**arguments)
    environment._lab = calls = _Calls(environment._lab)
    return environment, calls


class ContractTest(test_utils.EnvironmentTestMixin, absltest.TestCase):

  def make_object_under_test(self):
    return dmlab.Dmlab('rooms_select_nonmatching_object', seed=0)

  def make_action_sequence(self):
    return [8] * 200  # This is more than one episode.


class SettingsTest(parameterized.TestCase):

  def test_the_papers_protocol_is_the_default_and_travels_as_json(self):
    settings = dmlab.DmlabSettings()
    self.assertEqual((settings.width, settings.height, settings.action_repeats), (96, 72, 4))
    self.assertEqual((settings.action_set, settings.renderer, settings.hold_out), ('impala', 'software', False))
    self.assertEqual(dmlab.DmlabSettings(**json.loads(json.dumps(dataclasses.asdict(settings)))), settings)

  @parameterized.parameters(
      ('width', 95, 'width: want a positive multiple of 4, got 95'),
      ('width', 0, 'width: want a positive multiple of 4, got 0'),
      ('height', -4, 'height: want a positive multiple of 4, got -4'),
      ('action_repeats', 0, 'action_repeats: want at least 1, got 0'),
      ('action_set', 'r2d2', "action_set: want one of impala, popart, got 'r2d2'"),
      ('renderer', 'gpu', "renderer: want one of software, hardware, got 'gpu'"))
  def test_values_out_of_range_are_named(self, name, value, message):
    with self.assertRaisesRegex(ValueError, f'^{message}$'):
      dmlab.DmlabSettings(**{name: value})


class ActionTest(_TestCase):

  @parameterized.parameters(('impala', _IMPALA), ('popart', _POPART))
  def test_actions_are_the_papers_integer_vectors(self, action_set, expected):
    environment, calls = self.spied(action_set=action_set, action_repeats=3)
    self.assertEqual(environment.action_spec().num_values, len(expected))
    environment.reset()
    for action in range(len(expected)):
      environment.step(np.int32(action))
    self.assertEqual([tuple(action.tolist()) for action, _ in calls.steps], expected)
    for action, num_steps in calls.steps:  # Otherwise Lab would misread or reject them.
      self.assertTrue(action.flags.c_contiguous)
      self.assertEqual(action.dtype, np.intc)
      self.assertTrue(action.dtype.isnative)
      self.assertEqual(num_steps, 3)

  def test_an_agent_step_is_so_many_frames(self):
    self.assertEqual(self.make().frames_per_step, 4)
    environment, calls = self.spied(action_repeats=2)
    self.assertEqual(environment.frames_per_step, 2)
    environment.reset()
    environment.step(0)
    environment.step(0)
    self.assertEqual(calls.num_steps(), 4)

  @parameterized.parameters(-1, 9)
  def test_other_actions_do_not_exist(self, action):
    environment = self.make()
    environment.reset()
    with self.assertRaisesRegex(ValueError, r'action: want an integer in \[0, 9\)'):
      environment.step(action)


class ConfigurationTest(_TestCase):

  @_fake_only
  def test_what_lab_is_given(self):
    self.make()
    record, = self.watch.records()
    self.assertEqual(record.pop('config'), {
        'width': '96', 'height': '72', 'logLevel': 'WARN', 'appendCommand': '+set net_enabled 0'})
    folder = record.pop('temp_folder')
    self.assertEqual(record, {
        'level': 'contributed/dmlab30/rooms_watermaze', 'observations': ['RGB_INTERLEAVED', 'INSTR'],
        'renderer': 'software', 'has_level_cache': True, 'lp_num_threads': '0'})
    self.assertStartsWith(folder, os.path.join(tempfile.gettempdir(), 'dmlab_'))

  @_fake_only
  def test_settings_reach_lab_as_strings(self):
    folder = self.create_tempdir().full_path
    self.make(width=32, height=24, renderer='hardware', hold_out=True, dataset_path=folder,
              level_cache=os.path.join(folder, 'maps'))
    record, = self.watch.records()
    self.assertEqual(record['config'], {
        'width': '32', 'height': '24', 'logLevel': 'WARN', 'appendCommand': '+set net_enabled 0',
        'datasetPath': folder, 'allowHoldOutLevels': 'true', 'mixerSeed': '1611489005'})
    self.assertEqual(record['renderer'], 'hardware')
    self.assertTrue(record['has_level_cache'])

  @_fake_only
  def test_the_level_that_is_not_in_the_suite_lies_elsewhere(self):
    self.make('seekavoid_arena_01')
    self.assertEqual(self.watch.records()[0]['level'], 'seekavoid_arena_01')

  def test_regression_a_relative_data_set_is_found_from_anywhere(self):
    folder = self.create_tempdir().full_path
    os.mkdir(os.path.join(folder, 'images'))
    here = os.getcwd()
    self.addCleanup(os.chdir, here)
    os.chdir(folder)
    config = dmlab._config(dmlab.DmlabSettings(dataset_path='images'))
    self.assertEqual(config['datasetPath'], os.path.join(os.getcwd(), 'images'))

  def test_no_socket_is_opened(self):
    environment = self.make()
    environment.reset()
    environment.step(0)
    self.assertEmpty(psutil.Process().net_connections('inet'))

  def test_all_levels_of_the_suite_can_be_made(self):
    self.assertLen(dmlab.LEVELS, 33)
    for level in dmlab30.LEVELS:
      self.make(level, dataset_path='dummy').close()
    for level in dmlab30.TEST_LEVELS:
      self.make(level, dataset_path='dummy', hold_out=True).close()

  @parameterized.parameters('rooms_collect_good_objects', 'rooms_exploit_deferred_effects')
  def test_test_levels_are_for_tests(self, level):
    with self.assertRaisesRegex(ValueError, f'^{level}_test: this level is for testing .* train on {level}_train$'):
      self.make(f'{level}_test')

  @parameterized.parameters('psychlab_arbitrary_visuomotor_mapping', 'psychlab_continuous_recognition')
  def test_two_levels_need_a_data_set(self, level):
    with self.assertRaisesRegex(ValueError, f'^{level}: dataset_path: this level needs the images of Brady'):
      self.make(level)
    environment = self.make(level, dataset_path='dummy')
    environment.reset()
    environment.step(0)

  def test_a_data_set_that_lacks_an_image(self):
    folder = self.create_tempdir().full_path
    for name in dmlab._IMAGES:
      with open(os.path.join(folder, name), 'x', encoding='utf-8'):
        pass
    settings = dmlab.DmlabSettings(dataset_path=folder)
    dmlab.check_level('psychlab_continuous_recognition', settings)
    os.remove(os.path.join(folder, '0042.png'))
    with self.assertRaisesRegex(ValueError, f'^psychlab_continuous_recognition: dataset_path: {folder} has no 0042.png:'
                                ' this level needs the images .* 0001.png to 2400.png; .*$'):
      dmlab.check_level('psychlab_continuous_recognition', settings)
    dmlab.check_level(_LEVEL, settings)  # This level needs no data set.

  def test_a_data_set_that_is_not_there(self):
    with self.assertRaisesRegex(ValueError, '^psychlab_continuous_recognition: dataset_path: /no/such/folder is not a '
                                'folder: this level needs the images '):
      # Lab itself would end the process minutes later.
      self.make('psychlab_continuous_recognition', dataset_path='/no/such/folder')
    self.make(dataset_path='/no/such/folder').reset()  # This level needs no data set.

  def test_an_unknown_level(self):
    with self.assertRaisesRegex(ValueError, '^rooms_watermase: DMLab-30 has no such level$'):
      self.make('rooms_watermase')


class EpisodeTest(_TestCase):

  def test_observations(self):
    environment = self.make()
    spec = environment.observation_spec()
    self.assertEqual({name: (part.shape, part.dtype) for name, part in spec.items()},
                     {'pixels': ((72, 96, 3), np.uint8), 'instruction': ((128,), np.uint8)})
    first = environment.reset().observation
    before = first['pixels'].copy()
    for action in (4, 4, 0, 2):
      observation = environment.step(action).observation
      spec['pixels'].validate(observation['pixels'])
      spec['instruction'].validate(observation['instruction'])
    self.assertTrue((observation['pixels'] != before).any())
    np.testing.assert_array_equal(first['pixels'], before)  # Lab does not write to this array again.
    np.testing.assert_array_equal(first['instruction'], np.zeros(128))

  def test_other_sizes(self):
    self.assertEqual(self.make(width=32, height=24).reset().observation['pixels'].shape, (24, 32, 3))

  def test_renders_what_the_agent_sees(self):
    environment = self.make()
    pixels = environment.reset().observation['pixels']
    picture = environment.render()
    np.testing.assert_array_equal(picture, pixels)
    picture[:] = 0
    self.assertTrue(environment.render().any())

  def test_the_instruction_is_what_lab_says(self):
    environment, calls = self.spied(level=_SPEAKING)
    for _ in range(3):
      text = bytes(environment.reset().observation['instruction'])
      self.assertNotEmpty(text.rstrip(b'\0'))
      self.assertEqual(text.rstrip(b'\0').decode(), calls.observations()['INSTR'])

  def test_an_episode_ends_and_another_begins(self):
    environment, calls = self.spied(level='rooms_select_nonmatching_object')
    for _ in range(2):
      time_steps = [environment.reset() if not calls.seeds else environment.step(0)]
      self.assertTrue(time_steps[0].first())
      while not time_steps[-1].last():
        self.assertTrue(calls.is_running())
        time_steps.append(environment.step(len(time_steps) % 9))
      self.assertFalse(calls.is_running())
      self.assertEqual({time_step.discount for time_step in time_steps[1:-1]}, {1.0})
      self.assertEqual(time_steps[-1].discount, 0.0)
      self.assertLen(time_steps, 181 if lab_module.IS_REAL else 31)
      np.testing.assert_array_equal(time_steps[-1].observation['pixels'], time_steps[-2].observation['pixels'])
    self.assertLen(calls.seeds, 2)

  def test_rewards_are_labs_own_sums_and_the_last_one_is_in(self):
    environment, calls = self.spied()
    rewards = iter([3., 0., -2.5, 10.])
    calls.step = lambda action, num_steps: next(rewards)
    calls.observations = lambda: {'RGB_INTERLEAVED': np.zeros((72, 96, 3), np.uint8), 'INSTR': ''}
    environment.reset()
    self.assertEqual([environment.step(0).reward for _ in range(3)], [3., 0., -2.5])
    calls.is_running = lambda: False
    time_step = environment.step(0)
    self.assertTrue(time_step.last())
    self.assertEqual((time_step.reward, time_step.discount), (10., 0.))

  def test_a_reset_amid_an_episode_starts_another(self):
    environment, calls = self.spied()
    environment.reset()
    environment.step(0)
    self.assertTrue(environment.reset().first())
    self.assertLen(calls.seeds, 2)

  def test_every_episode_has_a_seed_of_its_own_from_the_environments(self):
    def seeds(seed):
      environment, calls = self.spied(seed=seed)
      for _ in range(3):
        environment.reset()
      environment.close()
      return calls.seeds
    first = seeds(1)
    self.assertEqual(first, seeds(1))
    self.assertLen({*first, *seeds(2), *seeds(2**40 + 3)}, 9)
    for seed in first:
      self.assertIs(type(seed), int)
      self.assertBetween(seed, 0, 2**31 - 1)

  def test_one_seed_gives_one_game(self):
    def play(seed):
      environment = self.make(_COMPILED, seed)
      pixels = [environment.step(i % 9).observation['pixels'] for i in range(40)]
      environment.close()
      return np.stack(pixels)
    np.testing.assert_array_equal(play(1), play(1))
    self.assertTrue((play(1) != play(2)).any())

  def test_held_out_episodes_differ_from_those_of_training(self):
    training = self.make(_SPEAKING, seed=1)
    test = self.make(_SPEAKING, seed=1, hold_out=True)
    pairs = [(training.reset().observation, test.reset().observation) for _ in range(6)]
    self.assertTrue(any((one['pixels'] != other['pixels']).any() for one, other in pairs))

  @_fake_only
  def test_the_fake_can_be_learned_and_not_by_chance(self):
    def play(level, policy):
      environment, calls = self.spied(level=level, seed=1)
      total, time_step = 0., environment.reset()
      for _ in range(600):
        time_step = environment.step(policy(calls.lab))
        total += time_step.reward or 0.
      return total
    sees = lambda lab: 2 if lab._sides[0] == lab._wanted else 3
    random = np.random.RandomState(0)
    for level in (_LEVEL, _SPEAKING):
      self.assertGreater(play(level, sees), 100)
      self.assertLess(abs(play(level, lambda _: random.randint(9))), 30)
    # Ignoring the instruction, the left column is correct half of the time.
    self.assertLess(abs(play(_SPEAKING, lambda _: 2)), 50)


class CacheTest(_TestCase):

  def test_maps_are_compiled_once(self):
    folder = os.path.join(self.create_tempdir().full_path, 'new', 'maps')
    first = self.make(_COMPILED, seed=3, level_cache=folder)
    pixels = first.reset().observation['pixels']
    self.assertLen(os.listdir(folder), 1)
    second = self.make(_COMPILED, seed=3, level_cache=folder)
    with mock.patch.object(dmlab.level_cache, '_is_map', side_effect=AssertionError('compiled again')):
      np.testing.assert_array_equal(second.reset().observation['pixels'], pixels)

  def test_damaged_maps_are_compiled_again(self):
    folder = self.create_tempdir().full_path
    self.make(_COMPILED, seed=3, level_cache=folder).reset()
    name, = os.listdir(folder)
    path = os.path.join(folder, name)
    with open(path, 'rb') as file:
      whole = file.read()
    for damaged in (b'', b'rubbish', whole[:-1], whole[:-40] + b'\xff' + whole[-39:]):
      with open(path, 'wb') as file:
        file.write(damaged)
      self.make(_COMPILED, seed=3, level_cache=folder).reset()  # With a damaged map, Lab would end this process.
      with open(path, 'rb') as file:
        self.assertNotEqual(file.read(), damaged)


if __name__ == '__main__':
  absltest.main()
