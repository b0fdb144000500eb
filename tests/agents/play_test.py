"""Tests of agents/play.py, agent_file.py and trained_agents.py: every agent plays from its run and from its file."""

import dataclasses
import hashlib
import io
import json
import os
import pathlib
import re
import signal
import sys
import time
from unittest import mock
import zipfile

from absl.testing import absltest
from absl.testing import parameterized
import imageio_ffmpeg
import numpy as np
import tensorflow as tf

import scalable_agents
from scalable_agents.actor import agent as agent_lib
from scalable_agents.agents import agent_file
from scalable_agents.agents import export
from scalable_agents.agents import play
from scalable_agents.agents import registry as agents
from scalable_agents.agents import trained_agents
from scalable_agents.environments import registry
from scalable_agents.evaluation import recording
from scalable_agents.processes import python_path
from scalable_agents.records import checkpoint
from scalable_agents.records import errors
from scalable_agents.records import run_directory
from scalable_agents.tests import source_tree
from scalable_agents.tests.evaluation import evaluation_testing
from scalable_agents.training import run_config


def _config(**settings):
  config = play.PlayConfig(**settings)
  play.validate(config)
  return config


class PlayTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = self.create_tempdir().full_path

  def make_run(self, name='impala', level='catch', frames=1_234):
    """Makes the directory of a run of an agent that has learned nothing. Returns it, and the agent."""
    preset = agents.find(f'{name}_atari57')
    definition = python_path.load(preset.agent)
    config = dataclasses.replace(preset.config, level_name=level, torso='shallow', seed=3)
    logdir = os.path.join(self.folder, f'{name}_{level}')
    flags = {name: value for part in (config, preset.protocol, run_config.RunConfig(logdir=logdir))
             for name, value in dataclasses.asdict(part).items()}
    run_directory.open_run(logdir, flags, (), definition.name).close()
    environment = registry.make(level, seed=0)
    learner = tf.Module()
    spec = {name: tf.TensorSpec(array.shape, array.dtype) for name, array in environment.observation_spec().items()}
    learner.agent = definition.network(agent_lib.EnvironmentSpec(
        environment.action_spec().num_values, spec, (level,), environment.frame_stacks), config)
    learner.environment_frames = tf.Variable(frames, dtype=tf.int64)
    learner.update_steps = tf.Variable(5, dtype=tf.int64)
    checkpoint.Checkpointer(run_directory.path(logdir, run_directory.CHECKPOINTS), learner=learner).save()
    return logdir, learner.agent

  def export(self, logdir, precision='float16', name='agent.npz'):
    path = os.path.join(self.folder, name)
    sha256 = export.export_file(scalable_agents.load(logdir), logdir, path, precision)
    self.assertEqual(sha256, hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest())
    return path

  def play(self, **settings):
    """Returns what is printed, on the screen and as results."""
    config = _config(**settings)
    with mock.patch.object(sys, 'stdout', io.StringIO()) as output, mock.patch.object(sys, 'stderr', output):
      play.play(config, play.load(config))
    return output.getvalue()

  @parameterized.parameters(*agents.AGENTS)
  def test_every_agent_plays_from_its_run_and_from_its_file(self, name):
    logdir, agent = self.make_run(name)
    whole = self.play(logdir=logdir, view='none', num_episodes=2, seed=7)
    self.assertRegex(whole, rf'^{name} on catch, after 1,234 frames of training\nepisode 1: return -?1, 4 frames\n'
                            r'episode 2: return -?1, 4 frames\nmean return [-0-9.]+, median [-01]+\n$')
    path = self.export(logdir)
    loaded = scalable_agents.load(path)
    self.assertEqual((loaded.name, loaded.environment_frames, loaded.learner_steps), (name, 1_234, 5))
    self.assertEqual(loaded.config.level_name, 'catch')
    for variable, original in zip(loaded.agent.acting_variables, agent.acting_variables, strict=True):
      np.testing.assert_array_equal(variable.numpy(), original.numpy().astype(np.float16).astype(np.float32))
    self.assertLess(os.path.getsize(path), 2 * sum(int(tf.size(variable)) for variable in agent.variables) + 10_000)
    self.assertStartsWith(self.play(agent=name, agent_file=path, view='none'), f'{name} on catch')

  def test_the_same_seed_is_the_same_game_of_a_real_emulator(self):
    """Without rounding: the file has the values of float16, and so has the run."""
    logdir, agent = self.make_run(level='pong')
    for variable in agent.acting_variables:
      variable.assign(tf.cast(tf.cast(variable, tf.float16), tf.float32))
    learner = tf.Module()
    learner.agent, learner.environment_frames = agent, tf.Variable(10, dtype=tf.int64)
    learner.update_steps = tf.Variable(1, dtype=tf.int64)
    checkpoint.Checkpointer(run_directory.path(logdir, run_directory.CHECKPOINTS), learner=learner).save(2)
    path, film = self.export(logdir), os.path.join(self.folder, 'pong.gif')
    of_run = self.play(logdir=logdir, view='none', video=film, max_seconds=2.)
    of_file = self.play(agent_file=path, view='none', video=film.replace('pong.gif', 'file.gif'), max_seconds=2.)
    self.assertEqual(of_run.splitlines()[-1], 'episode 1: return so far 0, 120 frames, cut after 2 s')  # 60 per second.
    self.assertEqual(of_run, of_file.replace('file.gif', 'pong.gif'))
    self.assertEqual(pathlib.Path(film).read_bytes(), pathlib.Path(film.replace('pong', 'file')).read_bytes())
    self.assertEqual(imageio_ffmpeg.count_frames_and_secs(film)[0], 31)  # 15 per second, and the first one.

  def test_regression_episodes_that_are_cut_have_no_part_in_the_mean(self):
    logdir, _ = self.make_run()
    settings = dict(logdir=logdir, view='none', num_episodes=3, max_seconds=0.15, seed=7)
    cut = [f'episode {number}: return so far 0, 3 frames, cut after 0.15 s' for number in (1, 2, 3)]
    self.assertEqual(self.play(**settings).splitlines()[1:], [*cut, 'no mean return: none of the 3 episodes ended'])
    shown = [recording.Shown(1., 4, True), recording.Shown(9., 3, False), recording.Shown(2., 4, True)]
    with mock.patch.object(recording, 'show', side_effect=shown) as show:
      self.assertEqual(self.play(**settings).splitlines()[-1], 'mean return 1.50, median 1.5 (2 of 3 episodes ended)')
    self.assertEqual([call.args[4] for call in show.call_args_list], [7, 8, 9])  # The seeds.

  def test_the_flags_say_how_actions_are_selected(self):
    logdir, _ = self.make_run()
    how = dict(logdir=logdir, test_policy='epsilon', test_epsilon=0.25)
    self.assertEqual(play.load(_config(**how)).selection, ('epsilon', 0.25))
    config = export.ExportConfig(output=os.path.join(self.folder, 'saved'), **how)
    with mock.patch.object(export.run_flags, 'config_from_flags', return_value=config), \
         mock.patch.object(export, 'export') as made:
      export.main()
    self.assertEqual(made.call_args.args[0].selection, ('epsilon', 0.25))

  def test_int8_is_within_half_a_step_of_each_column(self):
    logdir, agent = self.make_run()
    agent.acting_variables[0].assign(tf.zeros_like(agent.acting_variables[0]))  # Columns of zeros.
    path = os.path.join(self.folder, 'agent.npz')
    manifest = agent_file.read(self.export(logdir))[1]
    agent_file.write(path, manifest, agent.acting_variables, 'int8')
    read = agent_file.read(path)
    for value, variable in zip(read.values.values(), agent.acting_variables, strict=True):
      variable = variable.numpy()
      if variable.ndim > 1:
        for column in np.ndindex(variable.shape[-1:]):
          bound = np.abs(variable[..., column]).max() / 254 * (1 + 1e-5)
          self.assertLessEqual(np.abs(value[..., column] - variable[..., column]).max(), bound)
      else:
        np.testing.assert_array_equal(value, variable.astype(np.float16))
    self.assertLess(os.path.getsize(path), 0.7 * os.path.getsize(self.export(logdir, name='f.npz')))

  def test_regression_variables_that_are_not_trained_are_stored_exactly(self):
    logdir, agent = self.make_run()
    path, manifest = os.path.join(self.folder, 'agent.npz'), agent_file.read(self.export(logdir)).manifest
    statistics = [tf.Variable([2049, 70_000], trainable=False, dtype=tf.int64, name='count'),
                  tf.Variable([[2049., 1e-9, 70_000.]], trainable=False, name='variance')]
    wanted = [variable.numpy() for variable in statistics]
    for precision in agent_file.PRECISIONS:
      agent_file.write(path, manifest, [*agent.acting_variables, *statistics], precision)
      for variable in statistics:
        variable.assign(tf.zeros_like(variable))
      agent_file.assign(agent_file.read(path), [*agent.acting_variables, *statistics])
      for variable, value in zip(statistics, wanted, strict=True):
        np.testing.assert_array_equal(variable, value)

  def test_the_manifest_names_the_command_and_an_evaluation_of_this_checkpoint(self):
    logdir, _ = self.make_run()
    result = {'mean': 1., 'median': 1., 'episode_returns': [1., 1.]}
    for frames, wanted in ((1_234, {'catch': {'mean': 1., 'median': 1., 'episodes': 2, 'actions': 'sampled'}}),
                           (1_000, None)):
      run_directory.write_json(run_directory.path(logdir, run_directory.EVALUATION), {
          'levels': {'catch': result}, 'protocol': {'environment_frames': frames, 'actions': 'sampled'}})
      manifest = agent_file.read(self.export(logdir)).manifest
      self.assertEqual(manifest.evaluation, wanted)
    self.assertStartsWith(manifest.command, 'python ')
    self.assertNotIn('logdir', manifest.flags)
    self.assertNotIn(self.folder, json.dumps(manifest))
    protocol = {'environment_frames': 1_234, 'actions': 'sampled'}
    for content in ({'a': 1}, {'protocol': protocol}, {'protocol': protocol, 'levels': {'catch': {'mean': 1.}}}):
      file = run_directory.path(logdir, run_directory.EVALUATION)
      run_directory.write_json(file, content)
      with self.assertRaisesRegex(run_directory.RunDirectoryError, rf'^{file} is damaged \("\w+": missing: [^\n]*$'):
        self.export(logdir)

  def test_a_damaged_file_is_one_line(self):
    path = self.export(self.make_run()[0])
    content = pathlib.Path(path).read_bytes()
    damaged = [content[:place] + bytes([content[place] ^ 1]) + content[place + 1:]
               for place in np.linspace(0, len(content) - 1, 40).astype(int)]
    # In some places a changed bit is without meaning; then the agent must be the same.
    values, refused = agent_file.read(path).values, 0
    for text in (b'', b'no archive', content[:-1], content[:len(content) // 2], *damaged):
      pathlib.Path(path).write_bytes(text)
      try:
        read = agent_file.read(path)
      except errors.UserError as error:
        refused += 1
        self.assertRegex(str(error), f'^{path} is damaged, or is not a trained agent [^\n]*export it again$')
      else:
        for name, value in values.items():
          np.testing.assert_array_equal(read.values[name], value)
    self.assertGreater(refused, 38)
    damaged = [bytearray(content)]  # Encrypted, as its list of files says.
    damaged[0][content.index(b'PK\1\2') + 8] |= 1
    for header in b"{'descr': ('<f2'", b'{}\n  a\n b\n':  # NumPy does not understand these.
      archive = io.BytesIO()
      with zipfile.ZipFile(archive, 'w') as file:
        file.writestr('manifest.npy', b'\x93NUMPY\1\0' + len(header).to_bytes(2, 'little') + header)
      damaged.append(archive.getvalue())
    for text in damaged:
      pathlib.Path(path).write_bytes(text)
      with self.assertRaisesRegex(errors.UserError, f'^{path} is damaged, or is not a trained agent [^\n]*again$'):
        agent_file.read(path)
    np.save(path.removesuffix('.npz'), np.zeros(3))
    os.replace(path.removesuffix('.npz') + '.npy', path)
    with self.assertRaisesRegex(errors.UserError, f'^{path} is damaged, or is not a trained agent [^\n]*again$'):
      agent_file.read(path)
    pathlib.Path(path).unlink()
    with self.assertRaisesRegex(errors.UserError, f'^{path}: No such file or directory: give a file [^\n]*$'):
      play.load(_config(agent_file=path))

  def test_what_is_inside_is_checked(self):
    path = self.export(self.make_run()[0])
    with np.load(path) as archive:
      arrays = dict(archive)
    name = list(arrays)[1]
    np.savez(path, **arrays | {name: arrays[name] + np.float16(1)})
    with self.assertRaisesRegex(errors.UserError, r'\(its SHA-256 differs from the one in its manifest\)'):
      scalable_agents.load(path)
    manifest = json.loads(arrays['manifest'].tobytes())

    def change(**fields):
      text = json.dumps(manifest | fields).encode()
      np.savez(path, **arrays | {'manifest': np.frombuffer(text, np.uint8)})

    change(flags=manifest['flags'] | {'use_lstm': True})
    with self.assertRaisesRegex(errors.UserError, r'does not fit the network: [^\n]* has shape \S+.*, want [^\n]*$'):
      scalable_agents.load(path)
    change(flags=manifest['flags'] | {'torso': 'huge'})
    with self.assertRaisesRegex(errors.UserError, f'^{path}: --torso=huge: want [^\n]*$'):
      scalable_agents.load(path)
    change(flags={name: value for name, value in manifest['flags'].items() if name != 'sticky_actions'})
    scalable_agents.load(path)  # An older version, without this setting, has exported it.
    change(agent='nobody')
    with self.assertRaisesRegex(errors.UserError, "^.*: the agent 'nobody' is not one of this project: [^\n]*$"):
      scalable_agents.load(path)
    change(environment_frames='many')
    with self.assertRaisesRegex(errors.UserError, '"environment_frames": many: want a whole number'):
      scalable_agents.load(path)

  def test_values_that_are_not_finite_are_refused(self):
    logdir, agent = self.make_run()
    manifest = agent_file.read(self.export(logdir)).manifest
    agent.acting_variables[-1].assign(tf.fill(agent.acting_variables[-1].shape, 70_000.))
    with self.assertRaisesRegex(errors.UserError, '^agent/.*: its values are too large for float16'):
      agent_file.write(os.path.join(self.folder, 'a.npz'), manifest, agent.acting_variables, 'float16')
    agent.acting_variables[0].assign(tf.fill(agent.acting_variables[0].shape, np.nan))
    for precision in agent_file.PRECISIONS:
      with self.assertRaisesRegex(errors.UserError, '^agent/.*: its values are not finite: the training has diverged'):
        agent_file.write(os.path.join(self.folder, 'a.npz'), manifest, agent.acting_variables, precision)

  def test_another_agent_or_level_is_one_line(self):
    logdir, _ = self.make_run()
    for settings, message in (
        (dict(agent='r2d2'), f'^--agent=r2d2: {logdir} has another agent, impala$'),
        (dict(level_name='recall'), f'^--level_name=recall: the agent of {logdir} was trained on catch$'),
        (dict(level_name='pomg'), "^unknown level 'pomg': did you mean pong"),
        (dict(level_name='rooms_watermaze'), '^rooms_watermaze: [^\n]*DeepMind Lab[^\n]*$'),
        (dict(agent='scalable_agents.agents.r2d2:R2D2'),
         f'^--agent=scalable_agents.agents.r2d2:R2D2: {logdir}/config.json has another agent, impala$'),
        (dict(agent='no_module:NAME'), "^--agent=no_module:NAME: [^\n]*no module no_module: [^\n]*$")):
      with self.assertRaisesRegex(errors.UserError, message):
        play.load(_config(logdir=logdir, **settings))
    with self.assertRaisesRegex(errors.UserError, 'no run has been started there'):
      play.load(_config(logdir=self.folder))

  def test_an_environment_that_is_not_there_any_more_is_one_line(self):
    logdir, _ = self.make_run()
    file, level = run_directory.path(logdir, run_directory.CONFIG), 'dm_env:no_such_module:make'
    config = run_directory.read_config(logdir)
    run_directory.write_json(file, config | {'flags': config['flags'] | {'level_name': level}})
    for load in (lambda: play.load(_config(logdir=logdir)), lambda: scalable_agents.load(logdir)):
      with self.assertRaisesRegex(errors.UserError, f'^{level}: no module no_such_module: [^\n]*$'):
        load()

  def test_wrong_flags_are_one_line(self):
    for settings, message in (
        ({}, '^want --logdir, --agent_file, or --agent and --level_name'),
        (dict(agent='impala'), '^want --logdir'),
        (dict(agent='m:A', level_name='pong'), '^want --logdir'),
        (dict(agent='impola', level_name='pong'), '^--agent=impola: want one of impala, '),
        (dict(logdir='a', agent_file='b'), '^--agent_file: want --logdir or --agent_file, not both$'),
        (dict(logdir='a', video='a.avi'), '^--video=a.avi: want a file that ends in .mp4 or .gif$'),
        (dict(logdir='a', view='big'), '^--view=big: want one of auto, window, terminal, video, none$')):
      with self.assertRaisesRegex(ValueError, message):
        _config(**settings)

  def test_without_a_window_there_is_a_video_and_in_a_terminal_characters(self):
    logdir, _ = self.make_run()
    with mock.patch.dict(os.environ, BUILD_WORKING_DIRECTORY=self.folder):
      os.environ.pop('DISPLAY', None)
      output = self.play(logdir=logdir)
      self.assertNotIn('▀', output)
      film = os.path.join(self.folder, 'impala_catch.mp4')
      self.assertIn(f'recording the first episode to {film}\n', output)
      self.assertEqual(imageio_ffmpeg.count_frames_and_secs(film)[0], 5)
      with mock.patch.object(play, '_viewers', return_value=((), ())) as make, \
           mock.patch.object(play.recording, 'show', return_value=mock.Mock(episode_return=0., length=1)):
        play.play(_config(logdir=logdir, level_name='gymnasium:a/B-v0'), play.load(_config(logdir=logdir)))
      self.assertEqual(make.call_args[0][1], 'impala_gymnasium_a_B-v0')
      screen = evaluation_testing.Terminal()
      with mock.patch.object(sys, 'stdout', screen):
        config = _config(logdir=logdir)
        play.play(config, play.load(config))
      self.assertEqual(screen.getvalue().count('impala on catch, after'), 5)
      self.assertIn('▀', screen.getvalue())
      with self.assertRaisesRegex(errors.UserError, '^no window: [^\n]+$'):
        self.play(logdir=logdir, view='window')

  def test_sigterm_leaves_no_unfinished_video(self):
    logdir, _ = self.make_run()
    films = os.path.join(self.folder, 'films')
    os.mkdir(films)
    config = _config(logdir=logdir, view='none', video=os.path.join(films, 'a.mp4'))
    policy = play.load(config)

    def leave(*arguments):
      viewer, = arguments[4]
      while not os.listdir(films):  # The encoder starts in a process of its own.
        viewer.add(np.zeros([8, 8, 3], np.uint8))
      os.kill(os.getpid(), signal.SIGTERM)
      time.sleep(60)  # The signal ends this.

    def evaluate():
      recording.record(policy, policy.selection, 'catch', policy.protocol, 0, run_config.RunConfig(video=config.video),
                       io.StringIO())

    with mock.patch.object(recording, '_play_episode', leave), \
         mock.patch.object(play.run_flags, 'config_from_flags', return_value=config):
      for program in play.main, evaluate:
        with self.assertRaises(SystemExit) as end:
          program()
        self.assertEqual(end.exception.code, 128 + signal.SIGTERM)
        self.assertEmpty(os.listdir(films))


class TrainedAgentsTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.folder = self.create_tempdir().full_path
    self.release = self.create_tempdir().full_path
    content = b'the file'
    pathlib.Path(self.release, 'impala_pong.npz').write_bytes(content)
    for patch in (mock.patch.dict(os.environ, XDG_CACHE_HOME=self.folder),
                  mock.patch.object(trained_agents, 'RELEASE_URL', f'file://{self.release}'),
                  mock.patch.dict(trained_agents.RELEASED, {'impala_pong.npz': hashlib.sha256(content).hexdigest()})):
      self.enter_context(patch)

  def test_a_file_of_the_release_is_fetched_once(self):
    for _ in range(2):
      path = trained_agents.find('impala', 'pong', self.folder)
      self.assertEqual(path, os.path.join(self.folder, 'scalable_agents', 'impala_pong.npz'))
      self.assertEqual(pathlib.Path(path).read_bytes(), b'the file')
      pathlib.Path(self.release, 'impala_pong.npz').unlink(missing_ok=True)
    pathlib.Path(path).write_bytes(b'damaged')
    with self.assertRaisesRegex(errors.UserError, '/impala_pong.npz cannot be fetched [^\n]*. To train such an '):
      trained_agents.find('impala', 'pong', self.folder)

  def test_a_file_that_is_not_the_released_one_is_refused(self):
    pathlib.Path(self.release, 'impala_pong.npz').write_bytes(b'another file')
    with self.assertRaisesRegex(errors.UserError, '^file://[^\n]* is damaged: its SHA-256 is not that of the release'):
      trained_agents.find('impala', 'pong', self.folder)
    self.assertEqual(os.listdir(self.folder), [])

  def test_a_run_of_this_name_is_used(self):
    logdir = os.path.join(self.folder, 'impala_pong')
    os.mkdir(logdir)
    self.assertEqual(trained_agents.find('impala', 'pong', self.folder), logdir)

  def test_otherwise_the_message_has_the_command_that_trains_one(self):
    for agent, level, program in (('laser', 'quiz', 'laser_atari57'), ('r2d2', 'rooms_watermaze', 'r2d2_dmlab30')):
      logdir = f'{self.folder}/{agent}_{level}'
      command = f'scalable-agents {program} --level_name={level} --logdir={logdir}'
      with self.assertRaisesRegex(errors.UserError, f'^no release has a trained agent {agent}_{level}, .*: {command}$'):
        trained_agents.find(agent, level, self.folder)
    with self.assertRaisesRegex(errors.UserError, '--level_name=rooms_collect_good_objects_train '):
      trained_agents.find('impala', 'rooms_collect_good_objects_test', self.folder)

  def test_on_pong_it_trains_as_make_train_does(self):
    makefile = (source_tree.ROOT / 'Makefile').read_text(encoding='utf-8').replace('\\\n', ' ')
    for agent in ('impala', 'r2d2'):
      flags = re.search(rf'(?m)^PONG_{agent} := (.*)$', makefile)[1].split()
      self.assertEqual(['--level_name=pong', *trained_agents.TRAINING_FLAGS[agent, 'pong'].split()], flags)

  def test_on_other_tasks_it_trains_as_the_documentation_does(self):
    for agent, level, page in (('popart_impala', 'harvest', 'play.md'), ('laser', 'catch', 'laser.md')):
      text = (source_tree.ROOT / 'docs' / page).read_text(encoding='utf-8').replace('\\\n', '')
      with self.assertRaises(errors.UserError) as error:
        trained_agents.find(agent, level, 'runs')
      command = re.search('To train one: (.*)$', str(error.exception))[1]
      self.assertIn(command, [' '.join(line.split()) for line in text.splitlines()])


if __name__ == '__main__':
  absltest.main()
