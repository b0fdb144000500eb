"""Run directories: what binds them, what is refused, and that nothing is touched when it is."""

import contextlib
import ctypes
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents.processes import python_path
from scalable_agents.records import package_versions
from scalable_agents.records import run_directory
from scalable_agents.records import run_rows
from scalable_agents.tests.records import disk_events

_CONFIG = {'learning_rate': 6e-4, 'level_name': 'pong', 'use_lstm': False, 'mode': 'train'}
_FREE = ('mode', 'logdir')

# Holds the directory named by its argument until its stdin ends, to train or to evaluate.
_HOLDER = '''
import sys
from scalable_agents.records import run_directory
run = getattr(run_directory, sys.argv[2])(sys.argv[1], {}, ())
print('held', flush=True)
sys.stdin.read()
'''


def _contents(directory):
  """Every file below a directory with its bytes."""
  found = {}
  for folder, _, names in os.walk(directory):
    for name in names:
      with open(os.path.join(folder, name), 'rb') as stream:
        found[os.path.join(folder, name)] = stream.read()
  return found


@contextlib.contextmanager
def _ordinary_user():
  """Permissions mean nothing to root, so this thread gives up for a while what makes it so (capabilities(7))."""
  libc = ctypes.CDLL(None, use_errno=True)
  header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
  assert libc.capget(header, sets) == 0
  effective = sets[0]
  sets[0] &= ~0b110  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH.
  assert libc.capset(header, sets) == 0
  try:
    yield
  finally:
    sets[0] = effective
    assert libc.capset(header, sets) == 0


def _start_holder(logdir, purpose='open_run'):
  process = subprocess.Popen([sys.executable, '-c', _HOLDER, logdir, purpose], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, env=python_path.environment(), text=True)
  assert process.stdout.readline() == 'held\n'
  return process


class OpenRunTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self._logdir = os.path.join(self.enterContext(tempfile.TemporaryDirectory()), 'runs', 'pong')
    package_versions.installed.cache_clear()
    self.addCleanup(package_versions.installed.cache_clear)

  def _write(self, name, content):
    os.makedirs(self._logdir, exist_ok=True)
    with open(os.path.join(self._logdir, name), 'wb') as stream:
      stream.write(content)

  def _begin(self, config, agent=''):
    """Makes a run with training to resume."""
    run_directory.open_run(self._logdir, config, _FREE, agent).close()
    self._write('metrics.jsonl', b'')

  def _assert_refused(self, *wanted, config=None, defaults=None):
    before = _contents(self._logdir)
    with self.assertRaises(run_directory.RunDirectoryError) as caught:
      run_directory.open_run(self._logdir, _CONFIG if config is None else config, _FREE, '', defaults)
    after = _contents(self._logdir)
    after.pop(os.path.join(self._logdir, '.lock'), None)
    before.pop(os.path.join(self._logdir, '.lock'), None)
    self.assertEqual(after, before)
    text = str(caught.exception)
    self.assertNotIn('\n', text)
    for part in wanted:
      self.assertIn(part, text)
    return text

  def test_a_new_directory_records_settings_versions_and_command_line(self):
    run_directory.open_run(self._logdir, _CONFIG, _FREE).close()
    with open(os.path.join(self._logdir, 'config.json'), encoding='utf-8') as stream:
      config = json.load(stream)
    self.assertEqual(config['flags'], _CONFIG)
    self.assertEqual(config['versions']['python'], '.'.join(map(str, sys.version_info[:3])))
    self.assertRegex(config['versions']['tensorflow'], r'^2\.\d+')
    self.assertEqual(config['command_line'], sys.orig_argv)
    self.assertEqual(run_directory.read_config(self._logdir), config)

  def test_a_package_that_is_not_installed_has_no_version(self):
    with absltest.mock.patch.object(package_versions, '_PACKAGES', ('no-such-package',)):
      run_directory.open_run(self._logdir, _CONFIG, _FREE).close()
    self.assertIsNone(run_directory.read_config(self._logdir)['versions']['no-such-package'])

  def test_a_run_names_the_commit_of_its_code(self):
    root = self.create_tempdir()
    module = root.create_file('records/package_versions.py').full_path
    others = {name: value for name, value in os.environ.items() if not name.startswith('GIT_')}
    for words in (['init'], ['add', '.'], ['commit', '--message=one']):
      subprocess.run(['git', '-C', root.full_path, '-c', 'user.name=a', '-c', 'user.email=a@b',
                      '-c', 'commit.gpgsign=false', *words], env=others, stdout=subprocess.DEVNULL, check=True)
    with absltest.mock.patch.object(package_versions, '__file__', module):
      run_directory.open_run(self._logdir, _CONFIG, _FREE).close()
      written = run_directory.read_config(self._logdir)['versions']['scalable_agents']
      self.assertRegex(written, '^[0-9a-f]{7,}$')
      changed = []
      for content in (b'x = 1', b'x = 2', b'x = "caf\xe9"'):  # The last one is not UTF-8.
        root.create_file('records/package_versions.py', content=content, mode='wb')
        changed.append(package_versions.commit())
        self.assertRegex(changed[-1], f'^{written}[+][0-9a-f]{{8}}$')
      self.assertLen(set(changed), 3)  # Results of one are not those of the other.
    # A package that is installed inside of that checkout is not part of it.
    installed = root.create_file('.venv/scalable_agents/records/package_versions.py').full_path
    with absltest.mock.patch.object(package_versions, '__file__', installed):
      self.assertEqual(package_versions.commit(), '')

  def test_a_run_in_use_is_not_removed(self):
    with run_directory.open_run(self._logdir, _CONFIG, _FREE):
      with self.assertRaisesRegex(run_directory.RunDirectoryError, 'trains there. Stop it$'):
        run_directory.remove(self._logdir)
    self.assertTrue(os.path.exists(os.path.join(self._logdir, 'config.json')))
    run_directory.remove(self._logdir)
    self.assertFalse(os.path.exists(self._logdir))

  def test_the_same_configuration_resumes_and_free_settings_may_differ(self):
    self._begin({**_CONFIG, 'sizes': (1, 2)})
    before = run_directory.read_config(self._logdir)
    config = {**_CONFIG, 'sizes': (1, 2), 'mode': 'test', 'logdir': 'x'}
    with run_directory.open_run(self._logdir, config, _FREE) as run:
      self.assertEqual(run.logdir, self._logdir)
    self.assertEqual(run_directory.read_config(self._logdir), before)

  def test_infinite_settings_are_json_that_every_program_reads(self):
    config = {'clip': float('inf'), 'floor': float('-inf')}
    for _ in range(2):  # The second time resumes.
      run_directory.open_run(self._logdir, config, ()).close()
    with open(os.path.join(self._logdir, 'config.json'), encoding='utf-8') as stream:
      flags = json.load(stream, parse_constant=self.fail)['flags']
    self.assertEqual(flags, {'clip': 'inf', 'floor': '-inf'})
    self.assertEqual(run_directory.read_config(self._logdir)['flags'], config)

  def test_a_run_without_training_binds_its_directory_to_nothing(self):
    run_directory.open_run(self._logdir, _CONFIG, _FREE, 'impala').close()  # As a process that gets SIGTERM early.
    other = {**_CONFIG, 'learning_rate': 1.}
    run_directory.open_run(self._logdir, other, _FREE, 'r2d2').close()
    config = run_directory.read_config(self._logdir)
    self.assertEqual((config['flags'], config['agent']), (other, 'r2d2'))

  def test_another_configuration_is_refused_and_each_difference_named(self):
    self._begin(_CONFIG)
    text = self._assert_refused(
        self._logdir, '--learning_rate was 0.0006 and is 0.001 now', '--use_lstm was false and is absent now',
        '--added was absent and is null now',
        config={'learning_rate': 1e-3, 'level_name': 'pong', 'mode': 'test', 'added': None})
    self.assertNotIn('level_name', text)
    self.assertNotIn('mode', text)

  def test_a_run_from_before_a_setting_existed_has_its_default(self):
    self._begin(_CONFIG)
    defaults = {'clip': float('inf'), 'learning_rate': 1., 'added': None}
    for open_again in (run_directory.open_run, run_directory.open_evaluation):
      open_again(self._logdir, {**_CONFIG, 'clip': float('inf'), 'added': None}, _FREE, '', defaults).close()
    self._assert_refused(self._logdir, '--clip was Infinity by default and is 2.0 now. Use',
                         config={**_CONFIG, 'clip': 2.}, defaults=defaults)
    self._assert_refused(self._logdir, '--learning_rate was 0.0006 and is 1.0 now. Use',
                         config={**_CONFIG, 'learning_rate': 1.}, defaults=defaults)

  def test_regression_a_run_from_before_a_setting_was_renamed_goes_on(self):
    self._write('config.json', b'{"agent": "r2d2", "flags": {"samples_per_insert": 0.77}}')
    self._write('metrics.jsonl', b'')
    run_directory.open_run(self._logdir, {'samples_per_period': 0.77}, _FREE).close()
    self._assert_refused('--samples_per_period was 0.77 and is 1.0 now. Use', config={'samples_per_period': 1.})

  def test_regression_a_run_from_before_pixels_had_two_centres_goes_on(self):
    self._write('config.json', b'{"agent": "impala", "flags": {"centre_pixels": true}}')
    self._write('metrics.jsonl', b'')
    run_directory.open_run(self._logdir, {'centre_pixels': 'mean'}, _FREE).close()
    self._assert_refused('--centre_pixels was "mean" and is "none" now. Use', config={'centre_pixels': 'none'})

  def test_config_json_names_the_agent_and_the_directory_is_bound_to_it(self):
    self._begin(_CONFIG, 'impala')
    self.assertEqual(run_directory.read_config(self._logdir)['agent'], 'impala')
    run_directory.open_run(self._logdir, _CONFIG, _FREE, 'impala').close()
    for open_as_another in (run_directory.open_run, run_directory.open_evaluation):
      with self.assertRaisesRegex(run_directory.RunDirectoryError, ' is a run of another agent, impala: use its '):
        open_as_another(self._logdir, _CONFIG, _FREE, 'r2d2')

  def test_a_run_from_before_agents_were_named_goes_on(self):
    self._begin(_CONFIG)
    self.assertNotIn('agent', run_directory.read_config(self._logdir))
    run_directory.open_run(self._logdir, _CONFIG, _FREE, 'impala').close()

  def test_true_is_not_one(self):
    self._begin({'use_lstm': True})
    self._assert_refused('--use_lstm was true and is 1 now', config={'use_lstm': 1})

  @parameterized.parameters(b'', b'{"flags": {"learning_rate": 6e', b'\xff\xfe\x00', b'[1, 2]', b'{"flags": 3}', b'{}')
  def test_a_damaged_config_is_refused(self, content):
    self._write('config.json', content)
    self._write('metrics.jsonl', b'{}\n')
    self._assert_refused('/config.json', ' is damaged (')

  def test_a_directory_of_other_things_is_refused(self):
    self._write('thesis.tex', b'four years of work')
    self._assert_refused(self._logdir, 'thesis.tex', 'choose another --logdir')
    self.assertEqual(os.listdir(self._logdir), ['thesis.tex'])

  def test_a_file_in_its_place_is_refused(self):
    os.makedirs(os.path.dirname(self._logdir))
    with open(self._logdir, 'w', encoding='utf-8') as stream:
      stream.write('a file')
    self._assert_refused(self._logdir, 'File exists')
    self._logdir = os.path.join(self._logdir, 'below')
    self._assert_refused('Not a directory')

  @parameterized.parameters((0o555, 'no permission to write'), (0o000, 'Permission denied'))
  def test_a_directory_without_permission_is_refused(self, mode, wanted):
    run_directory.open_run(self._logdir, _CONFIG, _FREE).close()
    os.chmod(self._logdir, mode)
    try:
      with _ordinary_user(), self.assertRaisesRegex(run_directory.RunDirectoryError, f'^{self._logdir}: {wanted}'):
        run_directory.open_run(self._logdir, _CONFIG, _FREE)
    finally:
      os.chmod(self._logdir, 0o755)

  def test_a_parent_without_permission_is_refused(self):
    parent = self.enterContext(tempfile.TemporaryDirectory())
    os.chmod(parent, 0o555)
    self._logdir = os.path.join(parent, 'run')
    with _ordinary_user():
      self._assert_refused('Permission denied')

  def test_a_start_that_was_killed_early_does_not_block_the_directory(self):
    for name in ('.lock', 'config.json.new', 'tensorflow.log'):
      self._write(name, b'{"flags"')
    run_directory.open_run(self._logdir, _CONFIG, _FREE).close()
    self.assertEqual(run_directory.read_config(self._logdir)['flags'], _CONFIG)

  def test_a_failed_start_that_is_killed_while_it_cleans_up_does_not_block_the_directory(self):
    os.makedirs(os.path.join(self._logdir, 'checkpoints'))
    self._write('config.json', b'{"flags": {}}')
    run = run_directory.open_run(self._logdir, {}, ())
    run.prepare_undo(set(), ())
    removed = []
    remove = lambda name: removed.append(os.path.basename(name))
    with mock.patch.object(os, 'remove', remove), mock.patch.object(shutil, 'rmtree', remove):
      run.undo()
    self.assertEqual(removed[-1], 'config.json')
    self.assertIn('checkpoints', removed)

  def test_a_second_trainer_is_refused_until_the_first_has_gone_even_by_kill_9(self):
    first = _start_holder(self._logdir)
    self.addCleanup(first.stdin.close)
    self.addCleanup(first.stdout.close)
    self._assert_refused('is in use', f'process {first.pid} on ', config={})
    first.send_signal(signal.SIGKILL)
    first.wait()
    run_directory.open_run(self._logdir, {}, ()).close()

  def test_one_evaluation_at_a_time_also_beside_a_trainer(self):
    with run_directory.open_run(self._logdir, {}, ()):
      first = _start_holder(self._logdir, 'open_evaluation')
      self.addCleanup(first.stdin.close)
      self.addCleanup(first.stdout.close)
      with self.assertRaisesRegex(run_directory.RunDirectoryError,
                                  f'^{self._logdir} is in use: process {first.pid} on .* evaluates the run. Wait'):
        run_directory.open_evaluation(self._logdir, {}, ())
      first.send_signal(signal.SIGKILL)
      first.wait()
      run_directory.open_evaluation(self._logdir, {}, ()).close()

  def test_an_evaluation_of_what_is_no_run_or_another_one_makes_nothing(self):
    os.makedirs(self._logdir)
    with self.assertRaisesRegex(run_directory.RunDirectoryError, f'^{self._logdir}: no run has been started there'):
      run_directory.open_evaluation(self._logdir, {}, ())
    self.assertEmpty(os.listdir(self._logdir))
    self._write('config.json', b'{"flags": {"seed": 1}}')
    with self.assertRaisesRegex(run_directory.RunDirectoryError, 'another configuration: --seed was 1 and is 2 now'):
      run_directory.open_evaluation(self._logdir, {'seed': 2}, ())
    self.assertEqual(os.listdir(self._logdir), ['config.json'])

  def test_who_else_trains_there(self):
    self.assertIsNone(run_directory.trainer(self._logdir))
    with run_directory.open_run(self._logdir, {}, ()):
      self.assertIsNone(run_directory.trainer(self._logdir))  # This process is no other one.
    self.assertIsNone(run_directory.trainer(self._logdir))
    other = _start_holder(self._logdir)
    self.assertRegex(run_directory.trainer(self._logdir), f'^process {other.pid} on .+$')
    other.communicate()
    self.assertIsNone(run_directory.trainer(self._logdir))

  def test_a_path_that_follows_the_directory_also_in_child_processes(self):
    with run_directory.open_run(self._logdir, {}, ()) as run:
      run.check_in_place()
      moved = self._logdir + '_moved'
      os.rename(self._logdir, moved)
      self._write('config.json', b'of another run')
      with self.assertRaisesRegex(run_directory.RunDirectoryError, f'^{self._logdir} was moved or removed'):
        run.check_in_place()
      self.assertEqual(run_directory.read_config(run.path)['flags'], {})
      subprocess.run(['touch', run_directory.path(run.path, 'by_a_child')], check=True)
      self.assertIn('by_a_child', os.listdir(moved))
      with self.assertRaisesRegex(run_directory.RunDirectoryError, f'^{moved}/metrics.jsonl, line 1 is damaged'):
        with open(run_directory.path(run.path, 'metrics.jsonl'), 'w', encoding='utf-8') as stream:
          stream.write('{}\n')
        run_rows.read_metrics(run.path)

  def test_a_child_does_not_keep_the_directory(self):
    run = run_directory.open_run(self._logdir, _CONFIG, _FREE)
    child = subprocess.Popen(['cat'], stdin=subprocess.PIPE, close_fds=False)
    run.close()
    run_directory.open_run(self._logdir, _CONFIG, _FREE).close()
    child.communicate()

  def test_a_refused_start_does_not_keep_the_directory(self):
    self._begin(_CONFIG)
    self._assert_refused('another configuration', config={})
    run_directory.open_run(self._logdir, _CONFIG, _FREE).close()

  def test_no_config(self):
    with self.assertRaisesRegex(run_directory.RunDirectoryError, 'no run has been started there'):
      run_directory.read_config(self._logdir)


class CommandTest(parameterized.TestCase):

  @parameterized.parameters(
      (['/home/me/bin/scalable-agents', 'play', '--seed=1'], ['scalable-agents', 'play', '--seed=1']),
      (['-m', 'scalable_agents', 'play', '--logdir=/home/me/runs/pong'], ['python', '-m', 'scalable_agents', 'play']),
      (['-m', 'scalable_agents', 'play', '--logdir', '/home/me/runs/pong', '-logdir=/tmp/run', '--seed', '1'],
       ['python', '-m', 'scalable_agents', 'play', '--seed', '1']),
      (['/home/me/agents/play.py', '--seed=1'], ['python', 'play.py', '--seed=1']), ([], ['python']))
  def test_a_command_without_paths(self, arguments, command):
    self.assertEqual(run_directory.command_of({'command_line': ['/home/me/bin/python3', *arguments]}), command)
    self.assertEqual(run_directory.command_of({'command_line': command}), command)  # That of an excerpt.

  def test_a_run_without_a_command_line(self):
    for config in ({}, {'command_line': None}):
      self.assertEqual(run_directory.command_of(config), ['python'])

  def test_a_command_without_some_flags(self):
    words = ['python3', '/home/me/bin/scalable-agents', 'train', '--maps=/a', '--seed', '1', '-images', '/b', '--maps',
             '/c', '--mapsize=2', '--logdir=/d']
    self.assertEqual(run_directory.command_of({'command_line': words}, without=('maps', 'images')),
                     ['scalable-agents', 'train', '--seed', '1', '--mapsize=2'])


class WriteTest(absltest.TestCase):

  def test_what_is_written_is_on_the_disk_before_it_is_in_force(self):
    with disk_events.recorded() as events:
      run_directory.write_json(os.path.join(self.create_tempdir().full_path, 'evaluation.json'), {'mean': 1.5})
    self.assertEqual(events, [('sync', 'evaluation.json.new'), ('replace', 'evaluation.json.new')])

  def test_a_failure_leaves_the_old_file_and_no_other(self):
    file = os.path.join(self.enterContext(tempfile.TemporaryDirectory()), 'evaluation.json')
    run_directory.write_json(file, {'mean': 1.5})
    with self.assertRaises(TypeError):
      run_directory.write_json(file, {'mean': 2.5, 'network': object()})
    self.assertEqual(os.listdir(os.path.dirname(file)), ['evaluation.json'])
    with self.assertRaisesRegex(run_directory.RunDirectoryError, f'^{file}: No space left on device'):
      with run_directory.replaced(file) as new:
        os.mkdir(new)  # It cannot be removed as a file is; the first error counts.
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file)
    with open(file, encoding='utf-8') as stream:
      self.assertEqual(json.load(stream), {'mean': 1.5})

  def test_what_the_system_refuses_is_one_line(self):
    with self.assertRaisesRegex(run_directory.RunDirectoryError, '^/no/such/folder/x.new: No such file or directory'):
      run_directory.write_json('/no/such/folder/x', {})


if __name__ == '__main__':
  absltest.main()
