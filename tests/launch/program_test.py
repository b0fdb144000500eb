"""Tests the binary from the user's side: what it refuses, what it prints, and how it ends."""

import collections
import dataclasses
import functools
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from scalable_agents.actor import acting
from scalable_agents.actor import actor_host
from scalable_agents.actor import environment_workers
from scalable_agents.agents import a2c
from scalable_agents.agents import a3c
from scalable_agents.agents import configs
from scalable_agents.agents import impala
from scalable_agents.agents import impala_atari57
from scalable_agents.agents import laser
from scalable_agents.agents import r2d2
from scalable_agents.agents import registry
from scalable_agents.agents import sweeps
from scalable_agents.environments import atari57
from scalable_agents.launch import atari57_protocol
from scalable_agents.launch import dmlab30_protocol
from scalable_agents.launch import program
from scalable_agents.processes import machine
from scalable_agents.processes import python_path
from scalable_agents.processes import run_flags
from scalable_agents.records import errors
from scalable_agents.records import run_directory
from scalable_agents.tests.training import faulty_environments
from scalable_agents.tests.training import training
from scalable_agents.training import definition
from scalable_agents.training import run_config


def _files(folder):
  """Returns path -> content of all files below a folder."""
  paths = (os.path.join(parent, name) for parent, _, names in os.walk(folder) for name in names)
  return {os.path.relpath(path, folder): open(path, 'rb').read() for path in paths}


def _main(*arguments):
  return training.run_in_this_process(impala.IMPALA, configs.ImpalaConfig(), atari57_protocol.Protocol(), *arguments)


class TrainModeTest(parameterized.TestCase):

  def test_a_resumed_run_another_learner_and_a_run_of_another_seed_begin_with_other_episodes(self):
    seeds, second = [], ('--job_name=learner', '--learner_addresses=a:1,b:1', '--task=1')
    for checkpoints, seed, flags in ((0, 7, ()), (1, 7, ()), (0, 8, ()), (0, 7, second)):
      logdir = self.create_tempdir().full_path
      _, checkpointer = training.make_run(logdir, configs.ImpalaConfig(level_name='catch', torso='shallow', seed=seed))
      for _ in range(checkpoints):
        checkpointer.save()
      with mock.patch.object(program.actor_host, 'ActorHost',
                             side_effect=environment_workers.WorkerError('for the test')) as host, \
           mock.patch.object(program, '_join_learners', return_value=(None, None)), \
           mock.patch.object(program.devices, 'configure_tensorflow'):  # It is too late for it in this process.
        with self.assertRaisesRegex(errors.UserError, 'for the test'):
          _main(f'--logdir={logdir}', '--level_name=catch', '--torso=shallow', f'--seed={seed}', *flags)
      seeds.append(host.call_args.args[3])
    self.assertGreater(min(np.diff(sorted(seeds))), 1 << 12)  # More than one machine has environments.
    self.assertLess(max(seeds), 1 << 29)

  def test_a_resumed_run_keeps_the_kinds_of_its_free_settings(self):
    atari, lab = atari57_protocol.Protocol(), dmlab30_protocol.Protocol()
    stops = mock.patch.object(program.devices, 'configure_tensorflow', side_effect=errors.UserError('for the test'))
    images = self.create_tempdir().full_path
    for protocol, first, second, message in (
        (atari, (), ('--job_name=learner', '--learner_addresses=a:1'), '^for the test$'),
        (atari, (), ('--job_name=learner', '--learner_addresses=a:1,b:1', '--task=0'),
         '^--learner_addresses: /[^ ]*/run was started with 1 learner and has 2 learners now: continue it as it was '
         'started, or use another --logdir$'),
        (atari, ('--job_name=learner', '--learner_addresses=a:1,b:1', '--task=0'), (), '2 learners and has 1 learner '),
        (atari, ('--shared_replay=a:1',), ('--shared_replay=b:2',), '^for the test$'),
        (atari, ('--shared_replay=a:1',), (), 'run was started with a shared replay and has no shared replay now: '),
        (atari, (), ('--shared_replay=a:1',), '^--shared_replay: /[^ ]*/run was started with no shared replay and '),
        (lab, (), (f'--dataset_path={images}',), '^for the test$'),
        (lab, (), ('--dataset_path=dummy',), 'run was started with images or none and has plain colours now: '),
        (lab, ('--dataset_path=dummy',), (f'--dataset_path={images}',), '^--dataset_path: .* with plain colours and ')):
      logdir = os.path.join(self.create_tempdir().full_path, 'run')
      resume = functools.partial(
          training.run_in_this_process, laser.LASER, configs.LaserConfig(), protocol, '--level_name=catch',
          f'--logdir={logdir}')
      with stops, self.assertRaisesRegex(errors.UserError, '^for the test$'):
        with mock.patch.object(run_directory.Run, 'undo'):  # It would remove a run that has not learned yet.
          resume(*first)
      pathlib.Path(logdir, run_directory.METRICS).touch()
      before = _files(logdir)
      with stops, self.assertRaisesRegex((errors.UserError, run_directory.RunDirectoryError), message):
        with mock.patch.object(run_directory.Run, 'undo'):
          resume(*second)
      self.assertEqual(_files(logdir), before)

  def test_unrolls_of_a2c_begin_with_new_parameters(self):
    for refresh, message in (('7', '^--parameter_refresh=7: want auto, paper, unroll, or a divisor of 20, so that '),
                             ('40', '^--parameter_refresh=40: .*: a2c does not correct for stale ones$'),
                             ('10', 'for the test'), ('unroll', 'for the test')):
      with mock.patch.object(program.devices, 'configure_tensorflow', side_effect=errors.UserError('for the test')):
        with self.assertRaisesRegex(errors.UserError, message):
          training.run_in_this_process(
              a2c.A2C, configs.A2cConfig(), atari57_protocol.Protocol(), '--level_name=catch',
              f'--parameter_refresh={refresh}', f'--logdir={self.create_tempdir().full_path}/run')

  @parameterized.parameters(
      (a2c.A2C, configs.A2cConfig(), '5', 5), (a2c.A2C, configs.A2cConfig(), 'auto', 0),
      (r2d2.R2D2, configs.R2d2Config(replay_capacity=1_000, replay_minimum_size=100), 'paper', 100))
  def test_actors_beside_the_learner_take_new_parameters_as_often_as_the_flag_says(self, agent, config, flag, steps):
    with mock.patch.object(program.devices, 'configure_tensorflow'), \
         mock.patch.object(program.actor_host, 'ActorHost'), \
         mock.patch.object(program.train_loop, 'Trainer', side_effect=errors.UserError('for the test')) as trainer, \
         self.assertRaisesRegex(errors.UserError, 'for the test'):
      training.run_in_this_process(
          agent, config, atari57_protocol.Protocol(), '--level_name=catch', f'--parameter_refresh={flag}',
          f'--logdir={self.create_tempdir().full_path}/run')
    self.assertEqual(trainer.call_args.args[1].refresh_steps(), steps)

  def test_a_free_setting_in_config_json_that_is_damaged(self):
    logdir = self.create_tempdir().full_path
    training.make_run(logdir, configs.ImpalaConfig(level_name='catch', torso='shallow'))
    pathlib.Path(logdir, run_directory.METRICS).touch()
    file = pathlib.Path(logdir, run_directory.CONFIG)
    file.write_text(file.read_text().replace('"learner_addresses": ""', '"learner_addresses": 7'))
    with mock.patch.object(program.devices, 'configure_tensorflow', side_effect=errors.UserError('for the test')):
      with self.assertRaisesRegex(errors.UserError, 'config.json: --learner_addresses=7: want text'):
        _main(f'--logdir={logdir}', '--level_name=catch', '--torso=shallow')

  def test_xla_is_a_flag(self):
    with mock.patch.object(definition.Definition, 'make_learner',
                           side_effect=errors.UserError('for the test')) as make, \
         mock.patch.object(program.devices, 'configure_tensorflow'):  # It is too late for it in this process.
      with self.assertRaisesRegex(errors.UserError, 'for the test'):
        _main(f'--logdir={self.create_tempdir().full_path}/run', '--level_name=catch', '--torso=shallow',
              '--num_environments=1', '--xla=never')
    self.assertEqual(make.call_args.args[2], 'never')

  @parameterized.parameters(((), True), (('--notf32',), False), (('--notf32', '--job_name=actor'), False),
                            (('--notf32', '--mode=test'), False))
  def test_tf32_is_a_flag(self, flags, wanted):
    logdir = self.create_tempdir().full_path
    training.make_run(logdir, configs.ImpalaConfig(level_name='catch', torso='shallow'))
    if '--job_name=actor' in flags:
      flags = (*flags, '--learner_addresses=a:1')
    with mock.patch.object(program.devices, 'configure_tensorflow',
                           side_effect=errors.UserError('for the test')) as configure:
      with self.assertRaisesRegex(errors.UserError, 'for the test'):
        _main(f'--logdir={logdir}', '--level_name=catch', '--torso=shallow', *flags)
    self.assertEqual(configure.call_args.args[0], wanted)

  @parameterized.parameters(
      (laser.LASER, configs.LaserConfig(), (), 6),
      (laser.LASER, configs.LaserConfig(), ('--replay_share=0.5', '--batch_size=64'), None),
      (laser.LASER, configs.LaserConfig(), ('--num_kernel_threads=2',), 2),
      (laser.LASER, configs.LaserConfig(), ('--job_name=actor', '--learner_addresses=a:1'), None),
      (r2d2.R2D2, configs.R2d2Config(), (), None),
      (r2d2.R2D2, configs.R2d2Config(), ('--job_name=learner', '--learner_addresses=a:1', '--num_environments=0'), 6))
  def test_kernels_use_all_cores_where_learning_takes_most_of_the_time(self, agent, config, flags, threads):
    with mock.patch.object(program.devices, 'configure_tensorflow',
                           side_effect=errors.UserError('for the test')) as configure, \
         mock.patch.object(machine, 'num_cores', lambda: 6):
      with self.assertRaisesRegex(errors.UserError, 'for the test'):
        training.run_in_this_process(agent, config, atari57_protocol.Protocol(), '--level_name=catch',
                                     f'--logdir={self.create_tempdir().full_path}/run', *flags)
    self.assertEqual(configure.call_args.args[1], threads)


class ActorHostTest(parameterized.TestCase):

  def _made(self, *flags):
    """Returns the call that makes the environments."""
    with mock.patch.object(program.actor_host, 'ActorHost',
                           side_effect=environment_workers.WorkerError('for the test')) as host, \
         mock.patch.object(program.devices, 'configure_tensorflow'):
      with self.assertRaisesRegex(errors.UserError, 'for the test'):
        _main(*flags)
    return host.call_args

  @parameterized.parameters((2, 128), (64, 4), (1, 256))
  def test_the_actors_of_all_hosts_have_the_epsilons_of_one_ladder(self, num_hosts, num_environments):
    epsilons = []
    for task in range(num_hosts):
      with mock.patch.object(program.actor_host, 'ActorHost',
                             side_effect=environment_workers.WorkerError('for the test')) as host, \
           mock.patch.object(program.devices, 'configure_tensorflow'):  # It is too late for it in this process.
        with self.assertRaisesRegex(errors.UserError, 'for the test'):
          training.run_in_this_process(
              r2d2.R2D2, configs.R2d2Config(), atari57_protocol.Protocol(), '--level_name=catch', '--job_name=actor',
              '--learner_addresses=a:1', f'--task={task}', f'--num_environments={num_environments}', '--num_actors=256')
      call = host.call_args
      places = actor_host.places_of([0] * num_environments, call.args[5], call.kwargs['place_offset'])
      epsilons += acting.ladder(places, 0.4, 7., 256).numpy().tolist()
    np.testing.assert_allclose(sorted(epsilons, reverse=True), 0.4 ** (1 + 7 * np.arange(256) / 255), rtol=1e-4)

  @parameterized.parameters((5, 36, 30, [6]), (8, 32, 30, [8, 9]))
  def test_levels_are_spread_evenly_over_hosts(self, num_hosts, num_environments, num_levels, want):
    played = collections.Counter(dict.fromkeys(range(num_levels), 0))
    for task in range(num_hosts):
      call = self._made('--level_name=catch', '--job_name=actor', '--learner_addresses=a:1', f'--task={task}',
                        f'--num_environments={num_environments}')
      played.update((call.kwargs['first_level'] + number) % num_levels for number in range(num_environments))
    self.assertEqual(sorted(set(played.values())), want)

  def test_no_two_hosts_and_no_two_starts_play_the_same_episodes(self):
    seeds = [self._made('--level_name=catch', '--job_name=actor', '--learner_addresses=a:1', f'--task={task}').args[3]
             for task in (0, 1, 0)]
    self.assertGreater(min(np.diff(sorted(seeds))), 64)  # The environments of a host have neighbouring seeds.

  @parameterized.parameters((a3c.A3C, configs.A3cConfig(), 1, 1), (impala.IMPALA, configs.ImpalaConfig(), None, 20))
  def test_how_often_parameters_come_and_that_gradients_are_sent_one_by_one(self, agent, config, largest_push, steps):
    """Gradients would become stale while they wait for others. The papers say how old parameters may be."""
    with mock.patch.object(program.act_loop.remote_learner, 'RemoteLearner',
                           side_effect=errors.UserError('for the test')) as learner, \
         mock.patch.object(program.devices, 'configure_tensorflow'):
      with self.assertRaisesRegex(errors.UserError, 'for the test'):
        training.run_in_this_process(
            agent, config, atari57_protocol.Protocol(), '--level_name=catch', '--torso=shallow', '--job_name=actor',
            '--learner_addresses=a:1', '--num_environments=1')
    self.assertEqual(learner.call_args.kwargs['largest_push'], largest_push)
    with mock.patch.object(actor_host.ActorHost, 'refresh_is_due') as is_due:
      self.assertIs(learner.call_args.args[6](), is_due.return_value)
    is_due.assert_called_once_with(steps)

  def test_a_host_has_no_more_environments_than_it_has_actor_ids(self):
    with mock.patch.object(program.actor_host, 'ActorHost') as host, \
         mock.patch.object(program.devices, 'configure_tensorflow'):
      with self.assertRaisesRegex(errors.UserError, '^--num_environments=4097: want at most 4096 in a process of a '):
        _main('--level_name=catch', '--job_name=actor', '--learner_addresses=a:1', '--num_environments=4097')
    host.assert_not_called()
    host.side_effect = errors.UserError('for the test')
    for levels, environments in (('catch', 4096), ('catch,catch_mirror,catch_shift', 4095)):
      with mock.patch.object(program.actor_host, 'ActorHost', host), \
           mock.patch.object(program.actor_host.machine, 'num_cores', return_value=192), \
           mock.patch.object(program.memory, 'check_environments'), \
           mock.patch.object(program.devices, 'configure_tensorflow'):
        with self.assertRaisesRegex(errors.UserError, 'for the test'):
          _main(f'--level_name={levels}', '--job_name=actor', '--learner_addresses=a:1')
      self.assertEqual(host.call_args.args[2].num_environments, environments)

  @parameterized.parameters(
      (r2d2.R2D2, configs.R2d2Config(), '100,000 times 40 agent steps takes 83.5 GB'),
      (laser.LASER, registry.PRESETS['laser_dmlab30'].config, '10,000,000 agent steps takes 208.6 GB'))
  def test_a_replay_that_is_too_large_is_refused_when_the_first_environment_is_made(self, agent, config, what):
    specification = environment_workers.Specification(
        15, {'pixels': ('uint8', [72, 96, 3]), 'instruction': ('uint8', [128])}, 4, {})
    with mock.patch.object(program.actor_host, 'ActorHost',
                           side_effect=lambda *_, check, **unused: check(specification)), \
         mock.patch.object(program.devices, 'configure_tensorflow'), \
         mock.patch.object(machine, 'memory_bytes', lambda: 24_000_000_000):
      with self.assertRaisesRegex(errors.UserError, f'^--replay_capacity=.*: a full replay of {what}, but the machine '
                                  r'has 24\.0 GB of memory: --replay_capacity=\d+ would fit$'):
        training.run_in_this_process(agent, config, atari57_protocol.Protocol(), '--level_name=catch',
                                     f'--logdir={self.create_tempdir().full_path}/run')

  def test_r2d2_on_lost_lives_that_end_nothing(self):
    with self.assertRaisesRegex(errors.UserError, '^--reset_on_life_loss: want --episode_end_on_life_loss as well: '):
      training.run_in_this_process(r2d2.R2D2, configs.R2d2Config(), atari57_protocol.Protocol(), '--level_name=pong',
                                   '--reset_on_life_loss', '--episode_end_on_life_loss=False')

  def test_regression_programs_without_the_flag_that_ends_episodes_do_not_ask_for_it(self):
    with mock.patch.object(program, '_train'):
      training.run_in_this_process(r2d2.R2D2, configs.R2d2Config(), dmlab30_protocol.Protocol(), '--level_name=catch',
                                   '--reset_on_life_loss', f'--logdir={self.create_tempdir().full_path}/run')

  def test_regression_a_preset_whose_config_is_not_its_agents_is_one_line(self):
    with self.assertRaisesRegex(errors.UserError, '^the preset has a config of R2d2Config: want one of ImpalaConfig, '
                                'the config class of impala$'):
      training.run_in_this_process(impala.IMPALA, configs.R2d2Config(), atari57_protocol.Protocol())

  def test_more_levels_than_a_default_name_can_hold(self):
    with self.assertRaisesRegex(errors.UserError, '^no --logdir is given: .*/runs/alien_amid.*: the path is too long'):
      _main('--level_name=' + ','.join(atari57.LEVELS[:40]))


class RunTest(parameterized.TestCase):

  def test_regression_a_thread_that_waits_for_the_network_does_not_crash_the_end(self):
    """Python's normal end would wait for some threads, and a session call that returns meanwhile would abort it."""
    calls = mock.Mock(**{'main.return_value': 143})
    with mock.patch.object(run_flags, 'run_main', lambda main: main()), \
         mock.patch.object(program, 'main', calls.main), mock.patch.object(program.quiet, 'leave', calls.leave):
      preset = registry.PRESETS['impala_atari57']
      program.run(preset)
    self.assertEqual(calls.mock_calls, [mock.call.main(preset, impala.IMPALA), mock.call.leave(143)])

  def test_an_actor_host_ends_with_the_code_of_its_loop(self):
    with mock.patch.object(program, '_make_host'), mock.patch.object(program.devices, 'configure_tensorflow'), \
         mock.patch.object(program.act_loop, 'ActLoop') as loop:
      loop.return_value.act.return_value = 143
      self.assertEqual(_main('--job_name=actor', '--learner_addresses=a:1'), 143)

  def test_processes_of_a_cluster_have_the_same_kind_of_replay(self):
    none, here, there = (program._common(training.job(
        laser.LASER, configs.LaserConfig(shared_replay=address), run_config.RunConfig(), atari57_protocol.Protocol()))
                         for address in ('', 'a:1', 'b:2'))
    self.assertEqual(here, there)
    self.assertEqual({name for name in none if none[name] != here[name]}, {'--shared_replay'})

  @parameterized.parameters(
      (atari57_protocol.Protocol(noop_max=7), {
          'action_repeats': 4, 'noop_max': 7, 'episode_end_on_life_loss': True, 'full_action_set': False,
          'sticky_actions': False, 'max_episode_frames': 108_000}),
      (dmlab30_protocol.Protocol(dataset_path='/images'), {
          'action_repeats': 4, 'action_set': 'impala', 'dataset_path': 'images or none'}),
      (dmlab30_protocol.Protocol(dataset_path='dummy'), {
          'action_repeats': 4, 'action_set': 'impala', 'dataset_path': 'plain colours'}))
  def test_what_agents_that_share_experience_must_have_in_common(self, protocol, wanted):
    job = training.job(impala.IMPALA, configs.ImpalaConfig(), run_config.RunConfig(), protocol)
    self.assertEqual(job.shared_protocol(), wanted)


class TestModeTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls._made = {}  # Settings -> a run directory with them, which tests copy.

  def _make_run(self, **settings):
    """Makes a run directory with a checkpoint of an untrained agent. Returns the directory and its flags."""
    settings = dict(level_name='catch', torso='shallow') | settings
    key = str(settings)
    if key not in self._made:
      self._made[key] = self.enterClassContext(tempfile.TemporaryDirectory())
      _, checkpointer = training.make_run(self._made[key], configs.ImpalaConfig(**settings))
      checkpointer.save()
    logdir = os.path.join(self.create_tempdir().full_path, 'run')
    shutil.copytree(self._made[key], logdir)
    return logdir, run_directory.read_config(logdir)['flags']

  def _evaluate(self, logdir, *flags):
    """Evaluates a run in another process. Returns what it prints."""
    with training.Training(logdir, '--mode=test', *flags) as test:
      self.assertEqual(test.end()[0], 0, test.screen())
      return test.screen()

  def test_games_played_at_random_score_as_the_paper_says(self):
    games = ('breakout', 'qbert', 'seaquest', 'space_invaders')
    logdir, _ = self._make_run(level_name=','.join(games))
    screen = self._evaluate(logdir, '--test_num_episodes=2')
    self.assertRegex(screen, f'(?m)^2 episodes of each of {len(games)} levels after 0 frames of training')
    evaluation = json.loads(_files(logdir)[run_directory.EVALUATION])
    self.assertEqual(tuple(evaluation['levels']), games)
    for game, result in evaluation['levels'].items():
      self.assertLen(result['episode_returns'], 2)
      # A random policy has 0 on average, and these are means of two episodes. The lowest score of Space Invaders, of
      # 0 points, is -9.7; no other of these games goes lower.
      self.assertBetween(result['human_normalised'], -10, 25, game)
    protocol = evaluation['protocol']
    self.assertEqual((protocol['num_actions'], protocol['atari']['noop_max']), (18, 30))

  def test_evaluates_with_the_runs_flags_beside_its_trainer(self):
    logdir, stored = self._make_run(unroll_length=7, use_lstm=True)
    before = _files(logdir)
    with run_directory.open_run(logdir, stored, run_config.FREE_FLAGS):  # As a trainer does.
      before['.lock'] = _files(logdir)['.lock']
      done = subprocess.run([sys.executable, '-m', impala_atari57.__name__, '--mode=test', f'--logdir={logdir}',
                             '--test_num_episodes=3'], env=python_path.environment(), text=True, capture_output=True,
                            check=False)
    self.assertEqual(done.returncode, 0, done.stderr)
    self.assertRegex(done.stdout, r'^catch: 3 episodes after 0 frames of training \(0 updates\)\n'
                                  r'  mean return +-?\d\.\d\d\n'
                                  r'  median return +-?1\.00\n'
                                  r'  mean length +4\.00 frames\n$')
    self.assertRegex(training.SLOW_START.sub('', done.stderr),
                     r'^acts on the CPU(: the .*)?\n'
                     r'(\d of 3 episodes, [\d,]+ frames/s\n)*3 of 3 episodes, [\d,]+ frames/s\n$')
    after = _files(logdir)
    evaluation = json.loads(after.pop(run_directory.EVALUATION))
    self.assertLen(evaluation['levels']['catch']['episode_returns'], 3)
    for name in (run_directory.LIBRARY_LOG, '.evaluation_lock'):
      after.pop(name)
    self.assertEqual(after, before)

  def test_what_environments_print_stays_off_the_screen(self):
    logdir, _ = self._make_run(level_name=faulty_environments.level(faulty_environments.Talkative))
    video = os.path.join(self.create_tempdir().full_path, 'episode.gif')
    screen = self._evaluate(logdir, '--test_num_episodes=3', f'--video={video}')
    self.assertRegex(screen, '(?m)^gymnasium:')
    self.assertNotRegex(screen, 'hello|step|picture')
    self.assertTrue(os.path.exists(video))
    with open(run_directory.path(logdir, run_directory.LIBRARY_LOG), encoding='utf-8') as log:
      self.assertIn('hello from the game\n', log.read())

  def test_ctrl_c_ends_it_at_once_and_writes_nothing(self):
    logdir, _ = self._make_run()
    with training.Training(logdir, '--mode=test', '--test_num_episodes=1000000', '--log_interval_seconds=0.1') as test:
      test.wait_until(lambda: 'of 1,000,000 episodes' in test.screen(), 'episodes')
      workers = test.workers()
      self.assertNotEmpty(workers)
      self.assertEqual(test.end(signal.SIGINT)[0], 130)
      self.assertRegex(test.screen(), r'^acts on the CPU(: the .*)?\n'
                                      r'([\d,]+ of 1,000,000 episodes, [\d,]+ frames/s\n)+$')
    self.assertEmpty(training.still_alive(workers))
    self.assertNotIn(run_directory.EVALUATION, os.listdir(logdir))

  def test_contradicting_flags_are_named(self):
    logdir, _ = self._make_run()
    before = _files(logdir)
    with self.assertRaisesRegex(run_directory.RunDirectoryError,
                                '--learning_rate [^;]*0.0006[^;]*0.1[^;]*; --torso [^;]*"shallow"[^;]*"deep"'):
      _main('--mode=test', f'--logdir={logdir}', '--torso=deep', '--learning_rate=0.1')
    self.assertEqual(_files(logdir), before)

  def test_the_stored_flags_complete_those_that_are_given(self):
    """A batch of 2 sequences does not go with the default number of samples per period."""
    config = configs.R2d2Config(level_name='catch', batch_size=2, samples_per_period=2.)
    logdir = os.path.join(self.create_tempdir().full_path, 'run')
    stored = dataclasses.asdict(config) | {'parameter_precision': 'bfloat16', 'num_learners': 2}
    run_directory.open_run(logdir, stored, run_config.FREE_FLAGS).close()
    with mock.patch.object(program, '_test') as test:
      training.run_in_this_process(r2d2.R2D2, configs.R2d2Config(), atari57_protocol.Protocol(), '--mode=test',
                                   f'--logdir={logdir}', '--batch_size=2')
    job = test.call_args.args[0]
    self.assertEqual(job.config, config)
    self.assertEqual((job.cluster.parameter_precision, job.cluster.num_learners), ('bfloat16', 2))

  def test_a_sample_of_a_sweep_is_evaluated_as_it_was_trained(self):
    logdir, stored = self._make_run(sweep_index=7, **sweeps.IMPALA.draw(7))
    with mock.patch.object(program, '_test') as test:
      _main('--mode=test', f'--logdir={logdir}')
    config = test.call_args.args[0].config
    self.assertEqual((config.sweep_index, config.learning_rate), (7, stored['learning_rate']))
    with self.assertRaisesRegex(run_directory.RunDirectoryError, '--sweep_index was 7 and is 8 now'):
      _main('--mode=test', f'--logdir={logdir}', '--sweep_index=8')

  @parameterized.parameters(
      ('batch_size', [32], r'\[32\]: want a whole number from 1 to 10000'),
      ('learning_rate', 'fast', 'fast: want a finite number of at least 0'),
      ('learning_rate', 'nan', 'nan: want a finite number of at least 0'),
      ('discount', 1.00000000001, '1.00000000001: want a number from 0 to 1'),
      ('use_lstm', 1, '1: want true or false'),
      ('level_name', None, 'None: want text in UTF-8'),
      ('level_name', 'a\0b', '.*: want text in UTF-8'),
      ('noop_max', True, 'True: want a whole number .*'),
      ('population_size', {'a': 1}, '.*: want a whole number .*'),
      ('num_learners', 'two', 'two: want a whole number .*'))
  def test_a_setting_of_another_type_is_refused(self, name, value, wanted):
    logdir, stored = self._make_run()
    file = os.path.join(logdir, run_directory.CONFIG)
    with open(file, 'w', encoding='utf-8') as stream:
      json.dump({'flags': stored | {name: value}}, stream)
    before = _files(logdir)
    with self.assertRaisesRegex(errors.UserError, f'^{file}: --{name}={wanted}: put the file back, or .*$'):
      _main('--mode=test', f'--logdir={logdir}')
    with self.assertRaisesRegex(run_directory.RunDirectoryError, f'^{logdir} belongs to another .*--{name} was '):
      _main(f'--logdir={logdir}', '--level_name=catch', '--torso=shallow')
    self.assertEqual(_files(logdir), before)

  @parameterized.parameters('[]', '{"flags": []}', '{"flags": null}', '7', '', '{"flags": {"a": ', 100_000 * '[',
                            '{"flags": {"a": 1' + 5000 * '0' + '}}', '{"flags": {"a": 1e999}}',
                            '{"flags":\n {"a": NaN}}', '\udcff')
  def test_a_config_that_is_none_is_refused(self, text):
    logdir, _ = self._make_run()
    with open(os.path.join(logdir, run_directory.CONFIG), 'w', encoding='utf-8', errors='surrogateescape') as stream:
      stream.write(text)
    before = _files(logdir)
    for mode in ('train', 'test'):
      with self.assertRaisesRegex(run_directory.RunDirectoryError,
                                  r'^[^\n]*config.json(, line \d+)? is damaged [^\n]*$'):
        _main(f'--mode={mode}', f'--logdir={logdir}', '--level_name=catch', '--torso=shallow')
    self.assertEqual(_files(logdir), before)

  @parameterized.parameters('train', 'test')
  def test_a_run_from_before_a_flag_existed_goes_on_with_its_default(self, mode):
    logdir, stored = self._make_run()
    del stored['episode_end_on_life_loss'], stored['policy_lag']
    run_directory.write_json(os.path.join(logdir, run_directory.CONFIG), {'flags': stored})
    flags = (f'--mode={mode}', f'--logdir={logdir}', '--level_name=catch', '--torso=shallow')
    with mock.patch.object(program.devices, 'configure_tensorflow', side_effect=errors.UserError('it was opened')):
      with self.assertRaisesRegex(errors.UserError, 'it was opened'):
        _main(*flags)
      with self.assertRaisesRegex(run_directory.RunDirectoryError, '--policy_lag was 0 by default and is 3 now'):
        _main(*flags, '--policy_lag=3')

  def test_another_agents_directory_is_refused(self):
    logdir = self.create_tempdir().full_path
    stored = {'level_name': 'pong', 'replay_ratio': 0.5}
    run_directory.open_run(logdir, stored, run_config.FREE_FLAGS).close()
    before = _files(logdir)
    with self.assertRaisesRegex(run_directory.RunDirectoryError, f'^{logdir} belongs to another .*--replay_ratio'):
      _main('--mode=test', f'--logdir={logdir}')
    self.assertEqual(_files(logdir), before)

  def test_regression_an_evaluation_with_another_agents_program_names_the_agent(self):
    """It named flags that nobody had given."""
    logdir = os.path.join(self.create_tempdir().full_path, 'run')
    stored = dataclasses.asdict(configs.ImpalaConfig(level_name='catch'))
    run_directory.open_run(logdir, stored, run_config.FREE_FLAGS, 'impala').close()
    with self.assertRaisesRegex(run_directory.RunDirectoryError, f'^{logdir} is a run of another agent, impala: use '):
      training.run_in_this_process(r2d2.R2D2, configs.R2d2Config(), atari57_protocol.Protocol(), '--mode=test',
                                   f'--logdir={logdir}')

  def test_a_directory_without_a_run_is_refused(self):
    logdir = os.path.join(self.create_tempdir().full_path, 'missing')
    with self.assertRaisesRegex(run_directory.RunDirectoryError, f'^{logdir}.*config.json'):
      _main('--mode=test', f'--logdir={logdir}')
    self.assertFalse(os.path.exists(logdir))

  def test_training_records_no_video(self):
    logdir = os.path.join(self.create_tempdir().full_path, 'new')
    with self.assertRaisesRegex(errors.UserError, '^--video: only with --mode=test$'):
      _main(f'--logdir={logdir}', '--level_name=catch', '--video=/tmp/catch.mp4')
    self.assertFalse(os.path.exists(logdir))


class SweepAndPopulationTest(parameterized.TestCase):

  @parameterized.parameters(
      (['--sweep_index=24'], '--sweep_index=24: want 0 to 23, or -1 for no sample'),
      (['--sweep_index=-2'], '--sweep_index=-2: want a whole number from -1 to 2147483647'),
      (['--sweep_index=3', '--entropy_cost=0.01'],
       '--entropy_cost: --sweep_index=3 draws it; leave one of the two out'),
      (['--population_size=0'], '--population_size=0: want a whole number from 1 to 1024'),
      (['--population_size=30', '--sweep_index=200'],  # A member may have any sample.
       '--learning_rate_decay: only the population may change the learning rate; add '
       '--nolearning_rate_decay'),
      (['--population_size=2', '--job_name=learner', '--learner_addresses=a:1,b:1', '--task=0'],
       '--population_size: all learners of a member are in one process; give one address in --learner_addresses, and '
       '--num_learners for several'))
  def test_what_is_refused(self, arguments, wanted):
    logdir = os.path.join(self.create_tempdir().full_path, 'new')
    with self.assertRaisesRegex(errors.UserError, f'^{re.escape(wanted)}$'):
      _main(f'--logdir={logdir}', '--level_name=catch', *arguments)
    self.assertFalse(os.path.exists(logdir))

  @parameterized.parameters('catch', 'member_3', 'member_04')
  def test_a_member_has_a_place_in_its_population(self, name):
    logdir = os.path.join(self.create_tempdir().full_path, name)
    wanted = f'--logdir={logdir}: want member_00 to member_03 in a folder that the 4 members share'
    with self.assertRaisesRegex(errors.UserError, f'^{re.escape(wanted)}$'):
      _main(f'--logdir={logdir}', '--level_name=catch', '--population_size=4', '--nolearning_rate_decay')
    self.assertFalse(os.path.exists(logdir))


if __name__ == '__main__':
  absltest.main()
