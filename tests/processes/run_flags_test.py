"""Tests flags made from dataclasses, and the messages for wrong values."""

import dataclasses
import os
import re
import subprocess
import sys

from absl import flags
from absl.testing import absltest
from absl.testing import flagsaver
from absl.testing import parameterized

from scalable_agents.processes import python_path
from scalable_agents.processes import run_flags
from scalable_agents.records import errors
from scalable_agents.records.settings import setting
from scalable_agents.training import run_config

_PROGRAM = '''
import atexit, dataclasses, os, signal, subprocess, sys, threading
from scalable_agents.records import errors
from scalable_agents.records import run_directory
from scalable_agents.records.settings import setting
from scalable_agents.processes import run_flags
from scalable_agents.training import run_config

@dataclasses.dataclass(frozen=True)
class Config:
  learning_rate: float = setting(0.5, 'How fast it learns.', at_least=0)
  batch_size: int = setting(32, 'Unrolls per update.', at_least=1, at_most=64)

run_flags.define(Config())
run_flags.define(run_config.RunConfig())

def main():
  config = run_flags.config_from_flags(Config)
  run = run_config.from_flags('pong')
  if run.logdir.endswith('foreign'):
    raise run_directory.RunDirectoryError('no  run directory')
  if run.logdir.endswith('worker'):
    raise errors.UserError('a worker died: ImportError: no game\\nTraceback\\n  File "game.py"\\nImportError')
  if run.logdir.endswith('stuck'):
    threading.Thread(target=threading.Event().wait).start()
    print('as far as it went')
    raise errors.UserError('refused')
  if run.logdir.endswith('interrupted'):
    raise KeyboardInterrupt
  if run.logdir.endswith('impatient'):
    for number in (signal.SIGINT, signal.SIGTERM):
      atexit.register(os.kill, os.getpid(), number)
  if run.logdir.endswith('broken'):
    raise ValueError('a mistake in the program')
  if run.logdir.endswith('parent'):
    return subprocess.run('exit 7', shell=True).returncode
  print(config, run.num_environments)

assert 'tensorflow' not in sys.modules
run_flags.run_main(main)
'''

# Flags that every program has, and what no program makes of them.
_OF_ABSL = ('flagfile', 'undefok', 'logger_levels', 'logtostderr', 'alsologtostderr', 'log_dir', 'verbosity',
            'stderrthreshold', 'showprefixforinfo', 'run_with_pdb', 'pdb_post_mortem', 'run_with_profiling',
            'profile_file', 'use_cprofile_for_profiling', 'only_check_args')
_ODD_VALUES = ('', ' ', 'x', '1x', '1,5', '--', '[]', 'nan', '-inf', '1e999', 5000 * '9', '-1', 'a\nb', 5000 * 'x',
               '%s', '{}', '\x00', '\udcff', 'x:y', ':', 'a:INFO,b', '/no/such/file', '/proc/self/mem', '/',
               sys.executable)


class _Refused(Exception):
  """What the program would print before it ends."""


def _refuse(text):
  raise _Refused(text)


@dataclasses.dataclass(frozen=True)
class _Config:
  level_name: str = setting('pong', 'What to play.')
  learning_rate: float = setting(6e-4, 'How fast it learns.', at_least=0)
  batch_size: int = setting(32, 'Unrolls per update.', at_least=1, at_most=64)
  use_lstm: bool = setting(False, 'Whether it remembers.')


def _accept(unused_config):
  pass


def _parsed(config_class, *arguments):
  flag_values = flags.FlagValues()
  run_flags.define(config_class(), flag_values)
  flag_values(['program', *arguments])
  return flag_values


def _run(*arguments, folder=None):
  return subprocess.run([sys.executable, '-c', _PROGRAM, *arguments], env=python_path.environment(), text=True,
                        capture_output=True, check=False, cwd=folder)


class ConfigFromFlagsTest(parameterized.TestCase):

  def test_every_field_is_a_flag_with_its_default_and_help(self):
    flag_values = _parsed(_Config)
    self.assertEqual(run_flags.config_from_flags(_Config, _accept, flag_values=flag_values), _Config())
    for field in dataclasses.fields(_Config):
      self.assertStartsWith(flag_values[field.name].help, field.metadata['help'])
    self.assertEqual(flag_values['batch_size'].help, 'Unrolls per update. Want a whole number from 1 to 64.')

  def test_overrides(self):
    flag_values = _parsed(_Config, '--level_name=gymnasium:CartPole-v1', '--learning_rate=1e-3', '--batch_size', '4',
                          '--use_lstm')
    config = run_flags.config_from_flags(_Config, _accept, flag_values=flag_values)
    self.assertEqual(config, _Config('gymnasium:CartPole-v1', 1e-3, 4, True))
    flag_values = _parsed(_Config, '--nouse_lstm')
    self.assertFalse(run_flags.config_from_flags(_Config, _accept, flag_values=flag_values).use_lstm)

  def test_stored_values_stand_for_flags_that_are_not_given(self):
    flag_values = _parsed(_Config, '--learning_rate=6e-4', '--nouse_lstm')
    stored = {'learning_rate': 1.0, 'use_lstm': True, 'batch_size': 8, 'of_another_time': 3}
    config = run_flags.config_from_flags(_Config, _accept, stored, flag_values)
    self.assertEqual(config, _Config(batch_size=8))

  def test_which_flags_are_on_the_command_line(self):
    flag_values = _parsed(_Config, '--learning_rate=6e-4', '--nouse_lstm')  # Both are the defaults.
    self.assertEqual(run_flags.present(['use_lstm', 'batch_size', 'learning_rate'], flag_values),
                     ['use_lstm', 'learning_rate'])

  def test_a_bad_value_is_the_users(self):
    def refuse(config):
      raise ValueError(f'--batch_size={config.batch_size}: want more')
    with self.assertRaisesRegex(errors.UserError, '^--batch_size=32: want more$'):
      run_flags.config_from_flags(_Config, refuse, flag_values=_parsed(_Config))

  def test_a_field_no_flag_can_hold(self):
    @dataclasses.dataclass(frozen=True)
    class Odd:
      sizes: tuple = setting((1, 2), 'Sizes.')
    with self.assertRaisesRegex(TypeError, 'Odd.sizes: no flag can hold'):
      run_flags.define(Odd(), flags.FlagValues())


class RunConfigTest(parameterized.TestCase):

  def _run_config(self, *arguments, default_run='pong'):
    return run_config.from_flags(default_run, _parsed(run_config.RunConfig, *arguments))

  def test_defaults(self):
    run = self._run_config()
    self.assertEqual(dataclasses.replace(run, logdir=''), run_config.RunConfig())
    self.assertEqual(run.logdir, os.path.abspath('runs/pong'))
    self.assertEqual((run.num_environments, run.num_environment_workers, run.num_inference_threads), ('auto',) * 3)
    self.assertEqual(run.test_num_episodes, 200)

  def test_free_flags_are_those_of_the_design(self):
    self.assertContainsSubset({'mode', 'logdir', 'xla', 'num_environments', 'num_environment_workers',
                               'num_inference_threads', 'checkpoint_interval_seconds', 'test_num_episodes'},
                              run_config.FREE_FLAGS)
    self.assertNoCommonElements({'seed', 'learning_rate', 'total_environment_frames', 'level_name'},
                                run_config.FREE_FLAGS)

  def test_counts(self):
    run = self._run_config('--num_environments=1_048', '--num_environment_workers=auto', '--num_inference_threads=2')
    self.assertEqual((run.num_environments, run.num_environment_workers, run.num_inference_threads), (1048, 'auto', 2))

  @parameterized.parameters('-1', 'many', '1.5', '', '٣', '_1', '1__0')
  def test_a_count_that_is_none(self, value):
    with self.assertRaisesRegex(flags.IllegalFlagValueError, f'num_environments={value}: want auto, or a whole number'):
      self._run_config(f'--num_environments={value}')

  @parameterized.parameters(
      ('--mode=play', '--mode=play: want one of train, test'),
      ('--xla=yes', '--xla=yes: want one of auto, always, never'),
      ('--environment_timeout_seconds=0',
       '--environment_timeout_seconds=0.0: want a number of more than 0 and at most 86400'),
      ('--checkpoint_interval_seconds=-1',
       '--checkpoint_interval_seconds=-1.0: want a number of more than 0 and at most 86400'),
      ('--checkpoint_interval_seconds=nan',
       '--checkpoint_interval_seconds=nan: want a number of more than 0 and at most 86400'),
      ('--log_interval_seconds=0', '--log_interval_seconds=0.0: want a number of more than 0 and at most 10'),
      ('--log_interval_seconds=10.1', '--log_interval_seconds=10.1: want a number of more than 0 and at most 10'),
      ('--test_num_episodes=0', '--test_num_episodes=0: want a whole number from 1 to 10000000'),
      ('--video=pong.avi', '--video=pong.avi: want a file that ends in .mp4 or .gif'))
  def test_bad_values(self, argument, wanted):
    with self.assertRaisesRegex(errors.UserError, f'^{re.escape(wanted)}$'):
      self._run_config(argument)

  def test_good_values(self):
    run = self._run_config('--mode=test', '--xla=never', '--log_interval_seconds=10', '--video=a/b.gif')
    self.assertEqual((run.mode, run.xla, run.log_interval_seconds), ('test', 'never', 10.0))
    self.assertEqual(run.video, os.path.abspath('a/b.gif'))

  def test_paths_are_where_the_user_is(self):
    with absltest.mock.patch.dict(os.environ, BUILD_WORKING_DIRECTORY='/where/the/user/is', HOME='/home/user'):
      self.assertEqual(self._run_config(default_run='gymnasium:ALE/Pong-v5').logdir,
                       '/where/the/user/is/runs/gymnasium_ALE_Pong-v5')
      run = self._run_config('--logdir=../here', '--video=v.mp4')
      self.assertEqual((run.logdir, run.video), ('/where/the/user/here', '/where/the/user/is/v.mp4'))
      self.assertEqual(self._run_config('--logdir=/there').logdir, '/there')
      self.assertEqual(self._run_config('--logdir=~/runs').logdir, '/home/user/runs')


class AbslTest(parameterized.TestCase):
  """Wrong values of the flags of absl. settings_test.py has those of the project's flags."""

  def _is_refused(self, argument):
    """Returns whether the argument is refused, and checks that the message is one line that names the flag."""
    with absltest.mock.patch.object(run_flags, 'fail', _refuse), flagsaver.flagsaver():
      try:
        run_flags._parse(['program', argument], False, flags.FLAGS)
        return False
      except (_Refused, errors.UserError) as error:
        line = ' '.join(str(error).split())  # As _fail prints it.
        self.assertIn(argument.lstrip('-').partition('=')[0], line)
        self.assertNotIn('Traceback', line)
        return True

  @parameterized.parameters(*_OF_ABSL)
  def test_a_value_is_accepted_or_refused_in_one_line(self, flag):
    for value in _ODD_VALUES:
      self._is_refused(f'--{flag}={value}')

  @parameterized.parameters('--stderrthreshold=x', '--stderrthreshold=', '--logger_levels=x:y', '--verbosity=x',
                            '--flagfile=/no/such/file', '--nosuchflag', '--nosuchflag=1')
  def test_refused(self, argument):
    self.assertTrue(self._is_refused(argument))


class RunMainTest(parameterized.TestCase):

  def test_a_good_command_line(self):
    done = _run('--batch_size=4', '--num_environments=3')
    self.assertEqual((done.returncode, done.stderr), (0, ''))
    self.assertEqual(done.stdout, 'Config(learning_rate=0.5, batch_size=4) 3\n')

  @parameterized.parameters(
      (['--batch_size=0'], 'error: --batch_size=0: want a whole number from 1 to 64'),
      (['--batch_size=x'], 'error: flag --batch_size=x: invalid literal'),
      (['--lerning_rate=1'], "error: Unknown command line flag 'lerning_rate'. Did you mean: learning_rate"),
      (['--num_environments=x'], 'error: flag --num_environments=x: want auto, or a whole number'),
      (['--num_inference_threads=0'], 'error: --num_inference_threads=0: want auto, or a whole number from 1 to 256'),
      (['--batch_size'], 'error: Missing value for flag --batch_size'),
      (['batch_size=3'], 'error: batch_size=3: no such argument'),
      (['--mode=play'], 'error: --mode=play: want one of'),
      (['--mode=tr\nain'], 'error: --mode=tr ain: want one of'),
      (['--logdir=/tmp/\udcff'], 'error: --logdir=/tmp/\\udcff: want text in UTF-8'),
      (['--video=/tmp/\udcff.mp4'], 'error: --video=/tmp/\\udcff.mp4: want text in UTF-8'),
      (['--logdir=foreign'], 'error: no run directory'))
  def test_what_the_user_can_mend_is_one_line(self, arguments, wanted):
    done = _run(*arguments)
    self.assertEqual((done.returncode, done.stdout), (1, ''))
    self.assertStartsWith(done.stderr, wanted)
    self.assertEqual(done.stderr.count('\n'), 1)

  def test_the_current_folder_may_be_at_fault(self):
    folder = os.path.join(self.create_tempdir().full_path, '\udcff')
    os.mkdir(folder)
    done = _run(folder=folder)
    self.assertEqual((done.returncode, done.stdout, done.stderr.count('\n')), (1, '', 1))
    self.assertRegex(done.stderr, r"^error: no --logdir is given: '/.*/\\udcff/runs/pong': a path with .* a byte "
                                  r'that is not UTF-8: choose another name\n$')
    with absltest.mock.patch.object(os, 'getcwd', side_effect=FileNotFoundError):
      with self.assertRaisesRegex(errors.UserError, '^runs/pong: the current folder has been removed: '):
        run_flags.user_path('runs/pong')

  def test_a_workers_traceback_is_shown_before_the_line(self):
    done = _run('--logdir=worker')
    self.assertEqual(done.returncode, 1)
    self.assertEqual(done.stderr.splitlines(), ['Traceback', '  File "game.py"', 'ImportError',
                                                'error: a worker died: ImportError: no game'])

  def test_a_mistake_in_the_program_keeps_its_traceback(self):
    done = _run('--logdir=broken')
    self.assertEqual(done.returncode, 1)
    self.assertIn('Traceback', done.stderr)
    self.assertIn('ValueError: a mistake in the program', done.stderr)

  def test_an_error_ends_the_process_whatever_its_threads_wait_for(self):
    done = _run('--logdir=stuck')
    self.assertEqual((done.returncode, done.stdout, done.stderr), (1, 'as far as it went\n', 'error: refused\n'))

  def test_an_interrupt_leaves_quietly(self):
    done = _run('--logdir=interrupted')
    self.assertEqual((done.returncode, done.stderr), (130, ''))

  @parameterized.parameters('>&-', '2>&-', '<&- >&- 2>&-', '>/dev/full', '2>/dev/full')
  def test_a_screen_that_cannot_be_written_to_changes_no_exit_code(self, redirections):
    for argument, code in (('--batch_size=4', 0), ('--batch_size=0', 1)):
      done = subprocess.run(['sh', '-c', f'exec "$@" {redirections}', 'sh', sys.executable, '-c', _PROGRAM, argument],
                            env=python_path.environment(), text=True, capture_output=True, check=False)
      self.assertEqual(done.returncode, code, done.stderr)
      self.assertIn(done.stderr, ('', 'error: --batch_size=0: want a whole number from 1 to 64\n'))

  def test_an_interrupt_on_the_way_out_comes_too_late(self):
    done = _run('--logdir=impatient')
    self.assertEqual((done.returncode, done.stderr), (0, ''))

  def test_regression_the_ends_of_child_processes_are_known_though_the_parent_ignores_its_own(self):
    done = subprocess.run(['sh', '-c', 'trap "" CHLD; exec "$@"', 'sh', sys.executable, '-c', _PROGRAM,
                           '--logdir=parent'], env=python_path.environment(), check=False)
    self.assertEqual(done.returncode, 7)

  def test_help_shows_the_flags(self):
    done = _run('--help')
    self.assertEqual((done.returncode, done.stderr), (0, ''))
    self.assertRegex(done.stdout,
                     '--learning_rate: How fast it learns. Want a finite number of at least 0.\n *.default: .0.5')
    self.assertIn('--num_environment_workers: Number of processes that step the environments. auto: one per core, or '
                  'one per environment with levels of DeepMind Lab. Want auto, or a whole number from 1 to 1024.',
                  ' '.join(done.stdout.split()))


if __name__ == '__main__':
  absltest.main()
