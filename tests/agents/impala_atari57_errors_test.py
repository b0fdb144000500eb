"""Tests invalid input of the training binary: one line on the screen, exit code 1, and an unchanged run directory."""

import os
import pathlib
import shutil
import socket
import tempfile
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import tensorflow as tf

from scalable_agents.agents import configs
from scalable_agents.agents import impala
from scalable_agents.launch import atari57_protocol
from scalable_agents.learner import learner_step
from scalable_agents.processes import machine
from scalable_agents.records import errors
from scalable_agents.records import run_directory
from scalable_agents.records import run_rows
from scalable_agents.tests.training import faulty_environments
from scalable_agents.tests.training import training

_CONFIG = configs.ImpalaConfig(level_name='catch', torso='shallow')
_FLAGS = ('--level_name=catch', '--torso=shallow', '--num_environments=2')
# Files that a start writes and that are not part of the run: the lock of the directory, and messages of libraries.
_UNIMPORTANT = {run_directory.LIBRARY_LOG, '.lock'}


def _make_run(logdir):
  """Makes a run directory as a trainer leaves it that has saved two checkpoints and learned nothing yet."""
  _, checkpointer = training.make_run(logdir, _CONFIG)
  for _ in range(2):
    checkpointer.save()
  (logdir / 'metrics.jsonl').write_bytes(b'')
  (logdir / 'episodes.csv').write_bytes(run_rows.EPISODES_HEADER)


def _with_half_of(pattern):
  """Returns a function that makes a run directory in which the file of this pattern is cut in half."""
  def prepare(logdir):
    _make_run(logdir)
    file, = logdir.glob(pattern)
    os.truncate(file, file.stat().st_size // 2)
  return prepare


def _without_its_checkpoints(logdir):
  _make_run(logdir)
  (logdir / 'metrics.jsonl').write_text('{"environment_frames": 80, "wall_seconds": 1}\n')
  shutil.rmtree(logdir / 'checkpoints')


# Name -> None or a function that makes the run directory, flags, and a pattern of the message; {} is that directory.
_CASES = {
    'unknown_game': (
        None, ('--level_name=pnog',), r"--level_name: unknown level 'pnog': did you mean pong\?"),
    'unknown_gymnasium_id': (None, ('--level_name=gymnasium:CartPol-v1',), r'--level_name: .*CartPole-v1.*'),
    'no_environments': (
        None, (*_FLAGS, '--num_environments=0'), '--num_environments=0: want at least 1, one per level'),
    'unknown_flag': (None, (*_FLAGS, '--learning_rat=1'), '.*learning_rat.*'),
    'other_settings': (
        _make_run, ('--level_name=catch', '--batch_size=3', '--entropy_cost=0.5'),
        '{} belongs to another configuration: --batch_size .*32.* 3 .*--entropy_cost .*0.01.* 0.5 .*--torso .*'),
    'damaged_config': (
        _with_half_of('config.json'), _FLAGS, '{}/config.json, line [0-9]+ is damaged .*use another run directory'),
    'damaged_checkpoint': (
        _with_half_of('checkpoints/ckpt-2.data*'), _FLAGS,
        'checkpoint {}/checkpoints/ckpt-2 is damaged .*to go on from ckpt-1.*'),
    'no_checkpoints': (_without_its_checkpoints, _FLAGS, '{} has metrics of a run and no checkpoint .*put .* back.*'),
    'atari_protocol': (
        None, ('--level_name=pong', '--max_episode_frames=20'),
        r'--noop_max: want an integer in \[0, max_episode_frames = 20\), got 30'),
}

_OF_FLAGS = ('unknown_flag',)  # Found before `main` can be called. run_flags_test has more of them.


def _files(logdir):
  """Returns path -> content of the files there."""
  files = [logdir, *sorted(logdir.rglob('*'))]
  return {str(file): file.read_bytes() for file in files if file.is_file() and file.name not in _UNIMPORTANT}


def setUpModule():
  training.configure_tensorflow()


class BadInputTest(parameterized.TestCase):

  def _check_unchanged(self, case, start):
    """Prepares a run directory, gets the message from `start(logdir, flags)`, and checks message and directory."""
    prepare, flags, said = case
    logdir = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()), 'run')
    if prepare:
      prepare(logdir)
    before = _files(logdir)
    self.assertRegex(start(logdir, flags), f'^{said}$'.replace('{}', str(logdir)))
    self.assertEqual(_files(logdir), before)

  @parameterized.parameters('damaged_checkpoint', *_OF_FLAGS)
  def test_the_binary_says_one_line(self, name):
    def start(logdir, flags):
      with training.Training(logdir, *flags) as run:
        self.assertEqual(run.end()[0], 1)
        self.assertRegex(run.screen(), '^error: .*\n$')
        return run.screen().removeprefix('error: ').removesuffix('\n')

    self._check_unchanged(_CASES[name], start)

  @parameterized.parameters(*(name for name in _CASES if name not in _OF_FLAGS))
  def test_what_is_wrong_is_said_and_nothing_is_changed(self, name):
    """Checks the errors of which run_flags.run_main makes one line."""
    def start(logdir, flags):
      with self.assertRaises((errors.UserError, run_directory.RunDirectoryError)) as caught:
        training.run_in_this_process(
            impala.IMPALA, configs.ImpalaConfig(), atari57_protocol.Protocol(), f'--logdir={logdir}', *flags)
      return ' '.join(str(caught.exception).split())

    self._check_unchanged(_CASES[name], start)


class NothingIsLeftTest(parameterized.TestCase):
  """Errors that are found after the run directory was made. It is removed again, with the folders made for it."""

  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    self.logdir = self.folder / 'runs' / 'catch'

  def _start(self, *flags):
    training.run_in_this_process(impala.IMPALA, configs.ImpalaConfig(), atari57_protocol.Protocol(),
                                 f'--logdir={self.logdir}',
                                 *_FLAGS, *flags)

  @parameterized.parameters(
      ([f'--level_name={faulty_environments.level(faulty_environments.SmallImages)}'],
       'gymnasium:.*: --torso=shallow: want images of at least 20x20 pixels, got 7x7'),
      (['--environment_timeout_seconds=1e-3', '--num_environment_workers=2'],
       'environment 0 .catch. could not be made: .*0.001 s'),
      (['--unroll_length=100000', '--batch_size=10000', '--queue_size=7'],
       '--unroll_length=100000, --batch_size=10000, --queue_size=7, .*: up to 9 unrolls .*, 20,007 times .* smaller'),
      (['--job_name=learner', '--learner_addresses=127.0.0.1:{port}'], '.*port [0-9]+ is in use'))
  def test_of_what_the_user_can_mend(self, flags, wanted):
    with socket.create_server(('127.0.0.1', 0)) as taken, mock.patch.object(machine, 'memory_bytes', lambda: 10**10):
      flags = [flag.replace('{port}', str(taken.getsockname()[1])) for flag in flags]
      with self.assertRaisesRegex(errors.UserError, f'^{wanted}'):
        self._start(*flags)
    self.assertEmpty(list(self.folder.iterdir()))

  def test_that_memory_is_used_up_is_one_line(self):
    said = ('Graph execution error:\n\nDetected at node f defined at (most recent call last):\n  File "a.py"\n\n'
            'OOM when allocating tensor\n\t [[{{node f}}]]\nHint: none\n [Op:__inference_f_1]')
    error = tf.errors.ResourceExhaustedError(None, None, said)
    with mock.patch.object(learner_step.Learner, 'step', side_effect=error):
      with self.assertRaisesRegex(errors.UserError, r'^memory is used up \(OOM when allocating tensor\): choose .*$'):
        self._start('--unroll_length=2', '--batch_size=1')

  def test_that_the_memory_of_a_card_is_used_up_is_one_line(self):
    error = tf.errors.InternalError(None, None, 'Failed copying input tensor: Dst tensor is not initialized.')
    with mock.patch.object(learner_step.Learner, 'step', side_effect=error):
      with self.assertRaisesRegex(errors.UserError, r'^memory is used up \(Failed copying .*\): choose .*$'):
        self._start('--unroll_length=2', '--batch_size=1')

  @parameterized.parameters(tf.errors.InvalidArgumentError, tf.errors.ResourceExhaustedError, tf.errors.InternalError)
  def test_of_an_update_that_cannot_be_made(self, error):
    """For example if XLA does not compile it. By then a first checkpoint exists."""
    raised = {tf.errors.ResourceExhaustedError: errors.UserError}.get(error, error)
    with mock.patch.object(learner_step.Learner, 'step', side_effect=error(None, None, 'no such update')):
      # The advice is for memory errors. Agents without a replay do not name its capacity.
      advice = (r'choose a smaller --num_environments, or begin another run \(--logdir\) with a smaller '
                '--replay_capacity, --batch_size, --unroll_length, --queue_size$')
      with self.assertRaisesRegex(raised, 'no such update' + (f'.*{advice}' if raised != error else '')):
        self._start('--unroll_length=2', '--batch_size=1')
    self.assertEmpty(list(self.folder.iterdir()))

  def test_a_folder_that_was_there_is_as_it_was(self):
    self.logdir.mkdir(parents=True)
    with self.assertRaises(errors.UserError), mock.patch.object(machine, 'memory_bytes', lambda: 10**10):
      self._start('--unroll_length=100000', '--batch_size=10000')
    self.assertEmpty(list(self.logdir.iterdir()))

  def test_a_run_that_has_learned_stays(self):
    step, calls = learner_step.Learner.step, []

    def step_once(learner, batch):
      calls.append(batch)
      if len(calls) > 1:
        raise tf.errors.InvalidArgumentError(None, None, 'no second update')
      return step(learner, batch)
    with mock.patch.object(learner_step.Learner, 'step', step_once):
      with self.assertRaisesRegex(tf.errors.InvalidArgumentError, 'no second update'):
        self._start('--unroll_length=2', '--batch_size=1')
    self.assertContainsSubset({'config.json', 'checkpoints', 'metrics.jsonl'}, os.listdir(self.logdir))


if __name__ == '__main__':
  absltest.main()
