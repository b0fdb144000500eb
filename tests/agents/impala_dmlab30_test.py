"""Tests the binaries for DMLab-30 with the fake module of tests/environments, or the real one if it is installed."""

import contextlib
import dataclasses
import io
import json
import os
import sys
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import tensorflow as tf

from scalable_agents.agents import agent_file
from scalable_agents.agents import configs
from scalable_agents.agents import export
from scalable_agents.agents import filters
from scalable_agents.agents import impala_dmlab30
from scalable_agents.agents import play
from scalable_agents.agents import python_api
from scalable_agents.agents import registry
from scalable_agents.records import errors
from scalable_agents.records import run_directory
from scalable_agents.tests.environments import lab_module
from scalable_agents.tests.processes import signal_handlers
from scalable_agents.tests.training import training

_TRAINED = ('rooms_collect_good_objects_train', 'language_select_described_object')
_TESTED = ('rooms_collect_good_objects_test', 'language_select_described_object')
_SMALL = (f'--level_name={",".join(_TRAINED)}', '--torso=shallow', '--unroll_length=10', '--batch_size=2',
          '--num_environments=2', '--total_environment_frames=800')


def _run(logdir, *flags):
  """Runs the binary to its end. Returns its exit code and screen."""
  with training.Training(logdir, *flags, program=impala_dmlab30.__name__) as run:
    return run.end()[0], run.screen()


def _main(*arguments):
  """Does what the binary does in this process. Raises errors instead of printing them."""
  training.run_preset('impala_dmlab30', *arguments)


def setUpModule():
  training.configure_tensorflow()


class DefaultsTest(absltest.TestCase):

  def test_r2d2_plus_differs_from_r2d2_as_the_paper_says(self):
    changed = {name: value for name, value in dataclasses.asdict(registry.PRESETS['r2d2_plus_dmlab30'].config).items()
               if value != getattr(registry.PRESETS['r2d2_dmlab30'].config, name)}
    self.assertEqual(changed, {'torso': 'deep', 'reward_transform': 'optimistic_asymmetric', 'batch_size': 32,
                               'samples_per_period': 0.77, 'target_update_interval': 400})

  def test_defaults_are_the_papers_and_where_it_swept_the_releases(self):
    config = registry.PRESETS['impala_dmlab30'].config
    configs.validate_impala(config)
    self.assertEqual(
        (config.level_name, config.torso, config.use_lstm, config.unroll_length, config.batch_size, config.discount,
         config.baseline_cost, config.rmsprop_decay, config.rmsprop_momentum, config.learning_rate_decay),
        ('dmlab30', 'deep', True, 100, 32, 0.99, 0.5, 0.99, 0.0, True))
    self.assertEqual(
        (config.entropy_cost, config.learning_rate, config.rmsprop_epsilon, config.clip_gradient_norm,
         config.reward_transform, config.total_environment_frames),
        (0.0033391318945337044, 0.00031866995608948655, 0.1, 0.0, 'soft_asymmetric', 10**10))
    self.assertEqual(registry.PRESETS['impala_dmlab30'].run.test_num_episodes, 500)
    self.assertBetween(config.entropy_cost, 5e-5, 1e-2)    # The range in table D.1.
    self.assertBetween(config.learning_rate, 5e-6, 5e-3)

  def test_help_shows_its_flags(self):
    _, screen = _run(self.create_tempdir().full_path, '--help')
    for flag in ('action_set', 'level_cache', 'dataset_path', 'renderer', 'unroll_length', 'test_num_episodes'):
      self.assertIn(f'--{flag}:', screen.replace('[no]', ''))
    self.assertNotIn('noop_max', screen)


class MissingLabTest(absltest.TestCase):

  def test_the_message_says_what_to_install_and_what_to_try(self):
    if lab_module.IS_REAL:
      self.skipTest('DeepMind Lab is installed')
    logdir = os.path.join(self.create_tempdir().full_path, 'run')
    with mock.patch.object(sys, 'path', [path for path in sys.path if 'fake_deepmind_lab' not in path]):
      with self.assertRaisesRegex(
          errors.UserError, r'^--level_name: \w+: DeepMind Lab, .*build_pip_package.*--level_name=catch.*$'):
        _main(f'--logdir={logdir}')
    self.assertFalse(os.path.exists(logdir))


class LifeOfARunTest(absltest.TestCase):

  def test_trains_on_its_levels_and_is_tested_on_those_held_out(self):
    watch = lab_module.Watch(self)
    folder = self.create_tempdir().full_path
    logdir, cache, film = (os.path.join(folder, name) for name in ('run', 'maps', 'film.mp4'))
    code, screen = _run(logdir, *_SMALL, f'--level_cache={cache}')
    self.assertEqual(code, 0, screen)
    row = training.rows(logdir)[-1]
    self.assertEqual((row['environment_frames'], row['environment_restarts']), (800, 0))
    flags = run_directory.read_config(logdir)['flags']
    self.assertEqual((flags['action_set'], flags['unroll_length'], flags['rmsprop_epsilon']), ('impala', 10, 0.1))
    self.assertNotIn('noop_max', flags)
    if not lab_module.IS_REAL:
      records = watch.records()
      self.assertLen(records, 2)
      self.assertCountEqual(
          [record['level'] for record in records], [f'contributed/dmlab30/{name}' for name in _TRAINED])
      for record in records:
        self.assertNotIn('mixerSeed', record['config'])
        self.assertEqual(record['config']['appendCommand'], '+set net_enabled 0')
    self.assertNotEmpty(os.listdir(cache))

    with self.assertRaisesRegex(run_directory.RunDirectoryError, 'belongs to another configuration: '
                                r'--action_set was "impala" and is "popart" now\. '):
      _main(*_SMALL, f'--logdir={logdir}', '--renderer=hardware', '--action_set=popart')

    watch = lab_module.Watch(self)
    code, screen = _run(logdir, '--mode=test', '--num_environments=2', '--test_num_episodes=2', f'--video={film}')
    self.assertEqual(code, 0, screen)
    with open(run_directory.path(logdir, run_directory.EVALUATION), encoding='utf-8') as file:
      evaluation = json.load(file)
    self.assertCountEqual(evaluation['levels'], _TESTED)
    for result in evaluation['levels'].values():
      self.assertLen(result['episode_returns'], 2)
      self.assertIsNotNone(result['human_normalised'])
    self.assertIsNotNone(evaluation['suite'])
    self.assertTrue(evaluation['protocol']['dmlab']['hold_out'])
    self.assertIsNone(evaluation['protocol']['atari'])
    self.assertGreater(os.path.getsize(film), 0)
    if not lab_module.IS_REAL:
      records = watch.records()
      self.assertLen(records, 3)  # The video has a Lab of its own.
      for record in records:
        config = record['config']
        self.assertEqual((config['mixerSeed'], config['allowHoldOutLevels']), ('1611489005', 'true'))
    self._check_that_it_plays(logdir)
    self._check_that_it_plays_elsewhere(logdir)

  def _check_that_it_plays(self, logdir):
    """In this process, which has imported TensorFlow, so that Lab cannot run in it."""
    for name in ('', _TRAINED[0], _TESTED[0]):
      self._play(logdir=logdir, level_name=name)
    policy = python_api.load(logdir)
    self.assertEqual(policy.levels, _TESTED)
    self.assertLen(filters.activity(policy, _TESTED[0], 10, 1).filters, 16)

  def _play(self, **settings):
    config = play.PlayConfig(view='none', max_seconds=1., environment_timeout_seconds=600., **settings)
    with contextlib.redirect_stdout(io.StringIO()) as screen:
      play.play(config, play.load(config))
    self.assertRegex(screen.getvalue(), r'^episode 1: return so far -?[0-9.]+, 60 frames, cut after 1 s\n$')

  def _check_that_it_plays_elsewhere(self, logdir):
    """Where the folders of the machine that trained are not: plays the run and its file, and an older file."""
    file, config = run_directory.path(logdir, run_directory.CONFIG), run_directory.read_config(logdir)
    of_trainer = {'dataset_path': 'my_images', 'level_cache': 'my_maps', 'renderer': 'hardware'}
    command = [*config['command_line'], '--dataset_path=my_images', '--level_cache', 'my_maps', '--seed=1']
    run_directory.write_json(file, config | {'flags': config['flags'] | of_trainer, 'command_line': command})
    self.enterContext(contextlib.chdir(self.create_tempdir().full_path))
    watch, policy = lab_module.Watch(self), python_api.load(logdir)
    export.export_file(policy, logdir, 'agent.npz', 'float16')
    manifest = agent_file.read('agent.npz').manifest
    self.assertNotRegex(json.dumps(manifest), 'my_images|my_maps|hardware')
    self.assertEndsWith(manifest.command, ' --seed=1')
    older = manifest._replace(flags=manifest.flags | of_trainer)
    agent_file.write('older.npz', older, policy.agent.acting_variables, 'float16')
    for path in ({'logdir': logdir}, {'agent_file': 'agent.npz'}, {'agent_file': 'older.npz'}):
      self._play(**path)
    self.assertCountEqual(os.listdir(), ['agent.npz', 'older.npz'])
    if not lab_module.IS_REAL:
      records = watch.records()
      self.assertEqual({record['renderer'] for record in records}, {'software'})
      self.assertEqual({record['config'].get('datasetPath') for record in records}, {None, 'dummy'})
    self._check_that_images_are_asked_for(logdir, older, policy)

  def _check_that_images_are_asked_for(self, logdir, manifest, policy):
    """A level with photographs: it is loaded, and exported, without them, but not played."""
    level = 'psychlab_continuous_recognition'
    manifest = manifest._replace(flags=manifest.flags | {'level_name': level})
    agent_file.write('images.npz', manifest, policy.agent.acting_variables, 'float16')
    policy = python_api.load('images.npz')
    message = f'^{level}: dataset_path: this level needs the images [^\n]*$'
    for use in (lambda: self._play(agent_file='images.npz'), lambda: filters.activity(policy, level, 10, 1)):
      with self.assertRaisesRegex(errors.UserError, message):
        use()
    self._play(agent_file='images.npz', dataset_path='dummy')
    with self.assertRaisesRegex(errors.UserError, f'^{level}: dataset_path: {os.getcwd()}/else is not a folder: this'):
      self._play(agent_file='images.npz', dataset_path='else')
    os.mkdir('my_images')  # A folder of this name is here.
    with self.assertRaisesRegex(errors.UserError, f'^{level}: dataset_path: {os.getcwd()}/my_images has no 0001.png: '):
      self._play(agent_file='images.npz')
    # Plain colours belong to what was learned.
    agent_file.write('plain.npz', manifest._replace(flags=manifest.flags | {'dataset_path': 'dummy'}),
                     policy.agent.acting_variables, 'float16')
    self._play(agent_file='plain.npz')
    plain = python_api.load('plain.npz')
    self.assertEqual((plain.portable_settings['dataset_path'], plain.portable_settings['level_cache']), ('dummy', ''))
    with self.assertRaisesRegex(errors.UserError, '^--renderer=gpu: want one of software, hardware$'):
      python_api.load(logdir, renderer='gpu')

  def test_popart_learns_from_its_actions_and_from_pixel_control(self):
    signal_handlers.restore_after(self)
    logdir = self.create_tempdir().full_path
    training.run_preset(
        'popart_impala_dmlab30', *_SMALL, f'--logdir={logdir}',
        '--use_pixel_control', '--total_environment_frames=160')
    row = training.rows(logdir)[-1]
    self.assertEqual((row['environment_frames'], row['environment_restarts']), (160, 0))
    self.assertContainsSubset({'loss/pixel_control', *(f'popart/scale/{level}' for level in _TRAINED)}, row)
    latest = tf.train.load_checkpoint(os.path.join(logdir, 'checkpoints'))
    shapes = latest.get_variable_to_shape_map()
    self.assertEqual([shape for name, shape in shapes.items() if '/_policy/w/' in name], [[256, 15]])
    self.assertEqual([shape for name, shape in shapes.items() if 'agent/_baseline/w/' in name], [[256, 2]])
    # The value heads are those of the training levels, and the evaluation plays the test levels.
    training.run_preset(
        'popart_impala_dmlab30', f'--logdir={logdir}',
        '--mode=test', '--num_environments=2', '--test_num_episodes=1')
    with open(run_directory.path(logdir, run_directory.EVALUATION), encoding='utf-8') as file:
      self.assertCountEqual(json.load(file)['levels'], _TESTED)

  def test_r2d2_learns_from_single_frames_and_from_instructions(self):
    signal_handlers.restore_after(self)
    logdir = self.create_tempdir().full_path
    training.run_preset(
        'r2d2_plus_dmlab30', f'--level_name={",".join(_TRAINED)}', '--torso=shallow',
        '--burn_in=2', '--sequence_length=6', '--sequence_period=3', '--unroll_length=6', '--batch_size=2',
        '--samples_per_period=0.5', '--replay_capacity=50', '--replay_minimum_size=4', '--num_environments=2',
        '--total_environment_frames=400', f'--logdir={logdir}')
    row = training.rows(logdir)[-1]
    self.assertGreaterEqual(row['environment_frames'], 400)
    self.assertEqual((row['environment_restarts'], row['skipped_updates']), (0, 0))
    shapes = tf.train.load_checkpoint(os.path.join(logdir, 'checkpoints')).get_variable_to_shape_map().values()
    self.assertIn([512, 15], shapes)  # The advantages of 15 actions.
    # The LSTM's inputs are the 256 features of the picture, 64 of the instruction, the reward and the action.
    self.assertIn([256 + 64 + 1 + 15 + 512, 4 * 512], shapes)

  def test_laser_trains_on_lab_levels_and_replays_their_episodes(self):
    signal_handlers.restore_after(self)
    logdir = self.create_tempdir().full_path
    training.run_preset(
        'laser_dmlab30', f'--level_name={",".join(_TRAINED)}',
        '--torso=shallow', '--unroll_length=10', '--batch_size=8', '--replay_share=0.75', '--replay_capacity=1_000',
        '--replay_minimum_size=50', '--num_environments=2', '--total_environment_frames=800', f'--logdir={logdir}',
        # Those of this process, which cannot change any more.
        f'--num_kernel_threads={tf.config.threading.get_intra_op_parallelism_threads()}')
    row = training.rows(logdir)[-1]
    if not lab_module.IS_REAL:  # Its episodes are longer.
      self.assertGreaterEqual(row['replay_size'], 50)
      self.assertContainsSubset({'rejected/replayed'}, row)
    self.assertContainsSubset({'loss/pixel_control', f'popart/scale/{_TRAINED[0]}'}, row)
    self.assertEqual(row['skipped_updates'], 0)

  def test_built_in_tasks_can_be_tried_without_lab(self):
    signal_handlers.restore_after(self)
    logdir = self.create_tempdir().full_path
    _main('--level_name=catch', '--torso=shallow', '--nouse_lstm', '--unroll_length=6', '--batch_size=2',
          '--num_environments=2', '--total_environment_frames=100', f'--logdir={logdir}')
    self.assertGreaterEqual(training.rows(logdir)[-1]['environment_frames'], 100)


class BadInputTest(parameterized.TestCase):

  @parameterized.parameters(
      (('--level_name=rooms_watermase',), "--level_name: unknown level 'rooms_watermase': did you mean rooms_watermaz"),
      ((), '--level_name: psychlab_arbitrary_visuomotor_mapping: dataset_path: this level needs the images'),
      (('--level_name=rooms_watermaze', '--action_set=r2d2'), '--action_set=r2d2: want one of impala, popart'),
      (('--dataset_path=dummy', '--num_environments=29'), '--num_environments=29: want at least 30, one per level'))
  def test_is_one_line(self, arguments, message):
    logdir = os.path.join(self.create_tempdir().full_path, 'run')
    with self.assertRaises(errors.UserError) as caught:
      _main(f'--logdir={logdir}', *arguments)
    self.assertStartsWith(str(caught.exception), message)
    self.assertNotIn('\n', str(caught.exception))
    self.assertFalse(os.path.exists(logdir))


if __name__ == '__main__':
  absltest.main()
