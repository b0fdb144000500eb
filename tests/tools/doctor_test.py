"""Tests of the checks of `make doctor`, each also on a machine without the thing that it looks for."""

import contextlib
import io
import os
import pathlib
import resource
import stat
import subprocess
import sys
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents import ops
from scalable_agents.processes import kernels
from scalable_agents.processes import python_path
from scalable_agents.tests.environments import lab_module
from scalable_agents.tools import doctor


class DoctorTest(parameterized.TestCase):

  def _program(self, *lines):
    """Makes an executable shell script of these lines. Returns its path."""
    path = self.create_tempfile(content='\n'.join(('#!/bin/sh',) + lines)).full_path
    os.chmod(path, stat.S_IRWXU)
    return path

  def _pinned(self, name, version):
    return mock.patch.object(doctor, 'requirements', lambda *_: {name: f'{name}=={version}'})

  def test_ask_returns_the_last_line(self):
    self.assertEqual(doctor.ask('sh', '-c', 'echo chatter; echo answer; echo'), (True, 'answer'))

  def test_ask_survives_every_end(self):
    self.assertEqual(doctor.ask('/no/such/program'), (False, '/no/such/program not found'))
    self.assertEqual(doctor.ask('sh', '-c', 'echo no >&2; exit 3'), (False, 'no'))
    self.assertEqual(doctor.ask('sh', '-c', 'exit 3'), (False, 'exit code 3'))
    self.assertEqual(doctor.ask('sh', '-c', 'kill -SEGV $$'), (False, 'killed by SIGSEGV'))
    self.assertFalse(doctor.ask(self.create_tempfile(content='not executable').full_path).worked)
    with mock.patch.object(doctor, '_SECONDS', 0.01):
      answer = doctor.ask('sh', '-c', 'while :; do :; done')
    self.assertFalse(answer.worked)
    self.assertIn('timed out', answer.text)

  def test_requirements_are_those_of_the_tree(self):
    self.assertEqual(doctor.requirements()['ale-py'], 'ale-py==0.12.1')

  def test_requirements_of_an_installed_package(self):
    nowhere = pathlib.Path(self.create_tempdir().full_path)
    with mock.patch.object(doctor.importlib.metadata, 'requires', lambda _: ['numpy==1.2', 'other>=3']):
      self.assertEqual(doctor.requirements(nowhere), {'numpy': 'numpy==1.2'})
    missing = mock.Mock(side_effect=doctor.importlib.metadata.PackageNotFoundError)
    with mock.patch.object(doctor.importlib.metadata, 'requires', missing):
      self.assertEqual(doctor.requirements(nowhere), {})

  @parameterized.parameters(((3, 10, 13), 'wrong'), ((3, 11, 0), 'ok'), ((3, 13, 2), 'ok'), ((3, 14, 0), 'wrong'))
  def test_python(self, version, status):
    self.assertEqual(doctor.check_python(version).status, status)

  def test_package_of_the_pinned_version(self):
    result = doctor.check_package('ale-py', 'ale_py')
    self.assertEqual((result.status, result.found, result.mend), ('ok', '0.12.1', ''))

  def test_package_of_another_version(self):
    with self._pinned('dm-env', '99.0'):
      result = doctor.check_package('dm-env', 'dm_env')
    self.assertEqual(result.status, 'wrong')
    self.assertIn('want 99.0', result.found)
    self.assertRegex(result.mend, r'pip install dm-env==99\.0$|^make setup$')

  def test_package_that_is_missing(self):
    result = doctor.check_package('nothing', 'no_such_module', required=False, use='dreams')
    self.assertEqual(result.status, 'warn')
    self.assertIn("No module named 'no_such_module' (for dreams)", result.found)
    self.assertEqual(doctor.check_package('nothing', 'no_such_module').status, 'wrong')

  def test_libraries(self):
    self.assertEqual(doctor.check_libraries().status, 'ok')
    result = doctor.check_libraries({'numpy': 'numpy==0.1', 'no-such': 'no-such==1.2', 'tensorflow': 'tensorflow==0'})
    self.assertEqual(result.status, 'wrong')
    self.assertRegex(result.found, '^numpy is [0-9.]+, want 0.1; no-such is missing, want 1.2$')
    self.assertIn('install', result.mend)

  def test_mends_through_the_virtual_environment_or_by_setting_it_up(self):
    with self._pinned('dm-env', '99.0'):
      with mock.patch.multiple(sys, prefix='/venv', base_prefix='/usr', executable='/venv/bin/python'):
        self.assertEqual(doctor.check_package('dm-env', 'nope').mend, '/venv/bin/python -m pip install dm-env==99.0')
      with mock.patch.multiple(sys, prefix='/usr', base_prefix='/usr'):
        root = self.create_tempdir()
        root.create_file('Makefile')
        self.assertEqual(doctor._install('dm-env', pathlib.Path(root.full_path)), 'make setup')

  def test_op_library(self):
    library = pathlib.Path(ops.__file__).parent / '_ops.so'
    result = doctor.check_op_library(library)
    self.assertEqual(result.status, 'ok', result.found)

  def test_op_library_of_another_abi(self):
    library = pathlib.Path(self.create_tempfile('_ops.so', content='no ELF').full_path)
    result = doctor.check_op_library(library)
    self.assertEqual(result.status, 'wrong')
    self.assertIn('does not load', result.found)
    self.assertEqual(result.mend, f'rm -f {library} && make setup')

  def test_op_library_that_crashes_the_import(self):
    library = pathlib.Path(self.create_tempfile('_ops.so').full_path)
    result = doctor.check_op_library(library, python=self._program('kill -ABRT $$'))
    self.assertEqual(result.status, 'wrong')
    self.assertIn('killed by SIGABRT', result.found)

  def test_op_library_that_is_not_built(self):
    result = doctor.check_op_library(pathlib.Path('/nowhere/_ops.so'))
    self.assertEqual((result.status, result.mend), ('wrong', 'make setup'))

  def test_roms(self):
    self.assertEqual(doctor.check_roms().status, 'ok')
    with mock.patch.object(doctor, '_ASK_ROMS', doctor._ASK_ROMS.replace("'pong'", "'no_such_game'")):
      result = doctor.check_roms()
    self.assertEqual(result.status, 'wrong')
    self.assertIn('missing or damaged', result.found)

  def test_dmlab(self):
    result = doctor.check_dmlab(self._program('echo False'))
    self.assertEqual((result.status, result.found), ('warn', 'not installed (for DMLab-30)'))
    self.assertIn('//python/pip_package:build_pip_package', result.mend)

  def _check_opening_a_level(self, *faults, which='/bin/{}'.format):
    """Checks the real or the fake module. `faults`: faults of the fake module."""
    watch = lab_module.Watch(self)
    for fault in faults:
      watch.plant(fault)
    with mock.patch.dict(os.environ, PYTHONPATH=python_path.environment()['PYTHONPATH']):
      return doctor.check_dmlab(which=which)

  def test_dmlab_opens_a_level(self):
    self.assertEqual(self._check_opening_a_level()[:3], ('ok', 'DeepMind Lab', 'opens a level'))

  @parameterized.parameters(
      ('raise_in_init', 'Failed to init environment - "the engine has crashed stack traceback:'),
      ('no_zip_in_reset', 'Failed to start environment - "Failed to compile map.'),
      ('abort_in_reset', 'killed by SIGABRT'), ('exit_in_reset', 'ERROR: the engine ends'),
      ('missing_library', 'explore_goal_locations_small: DeepMind Lab cannot load a library that --renderer=software'))
  def test_dmlab_that_opens_no_level(self, fault, reason):
    if lab_module.IS_REAL:
      self.skipTest('only the fake module fails on demand')
    result = self._check_opening_a_level(fault)
    self.assertEqual(result.status, 'warn')
    self.assertStartsWith(result.found, f'installed, but cannot open a level: {reason}')
    self.assertRegex(result.mend, 'What to install.*docs/suites.md$')
    if fault == 'no_zip_in_reset':
      result = self._check_opening_a_level(fault, which=lambda name: None if name == 'zip' else name)
      self.assertEqual(result[2:],
                       ('installed, but compiles no maps without zip (for DMLab-30)', 'apt-get install zip'))

  def test_kernels(self):
    with mock.patch.dict(os.environ, TF_ENABLE_ONEDNN_OPTS='0'):
      result = doctor.check_kernels()
    self.assertEqual((result.status, result.mend), ('warn', 'unset TF_ENABLE_ONEDNN_OPTS'), result.found)
    self.assertIn('; the processor has ', result.found)
    with mock.patch.object(kernels, 'is_onednn_on', return_value=True):
      text = kernels.describe()
    self.assertEqual(doctor.check_kernels(self._program(f'echo "{text}"')), doctor.Result('ok', 'kernels', text))
    result = doctor.check_kernels(self._program("echo 'No module' >&2", 'exit 1'))
    self.assertEqual((result.status, result.found), ('warn', 'unknown: No module'))

  def test_gpus(self):
    nvidia_smi = self._program("echo 'Fast GPU'")
    self.assertEqual(doctor.check_gpus(nvidia_smi='/no/nvidia-smi').status, 'ok')
    self.assertEqual(doctor.check_gpus(self._program('echo 1'), nvidia_smi).found,
                     '1, Fast GPU; XLA compiles for it')
    no_project = pathlib.Path(self.create_tempdir().full_path)
    for python, found in ((self._program('echo 0'), 'TensorFlow does not find it'),
                          (self._program('echo no ptxas >&2; exit 1'), 'TensorFlow cannot use it: no ptxas')):
      with mock.patch.dict(os.environ):
        os.environ.pop('CUDA_VISIBLE_DEVICES', None)
        result = doctor.check_gpus(python, nvidia_smi)
        self.assertEqual((result.status, result.found), ('warn', f'the machine has Fast GPU, but {found}'))
        self.assertEqual(result.mend, 'make setup GPU=1')
        self.assertRegex(doctor.check_gpus(python, nvidia_smi, no_project).mend, r"pip install 'tensorflow\[and-cuda\]")
        os.environ['CUDA_VISIBLE_DEVICES'] = ''
        self.assertEqual(doctor.check_gpus(python, nvidia_smi).mend, 'unset CUDA_VISIBLE_DEVICES')

  def test_shared_memory(self):
    self.assertEqual(doctor.check_shared_memory(wanted_free_bytes=0).status, 'ok')
    short = self.create_tempfile(content='MemTotal: 9000000 kB\nMemAvailable: 2097152 kB\n').full_path
    result = doctor.check_shared_memory(meminfo=short)
    self.assertEqual(result.status, 'warn')
    self.assertIn('2.0 GiB', result.found)

  def test_shared_memory_that_cannot_be_made(self):
    with mock.patch.object(os, 'memfd_create', side_effect=OSError('no memfd')):
      self.assertEqual(doctor.check_shared_memory().status, 'wrong')
    self.assertEqual(doctor.check_shared_memory(meminfo='/no/meminfo').status, 'wrong')
    self.assertEqual(doctor.check_shared_memory(meminfo='/dev/null').status, 'wrong')

  @parameterized.parameters(
      (512, 512, 'ok', ''), (511, 512, 'wrong', 'ulimit -n 512'),
      (511, resource.RLIM_INFINITY, 'wrong', 'ulimit -n 512'),
      (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 'ok', ''), (511, 511, 'wrong', 'limits.conf'))
  def test_open_files(self, soft, hard, status, mend):
    with mock.patch.object(resource, 'getrlimit', lambda _: (soft, hard)):
      result = doctor.check_open_files(workers=64)
    self.assertEqual(result.status, status)
    self.assertIn(mend, result.mend)

  def test_bazel(self):
    for version, status in (('4.2.3- (@non-git)', 'ok'), ('no_version', 'ok'), ('7.6.1', 'ok'), ('8.0.0', 'warn'),
                            ('', 'warn')):
      bazel = self.create_tempfile(content=f'#!/bin/sh\necho "bazel {version}"\n')
      os.chmod(bazel.full_path, 0o755)
      self.assertEqual(doctor.check_bazel(lambda _, path=bazel.full_path: path, gtest='/').status, status)
    result = doctor.check_bazel(lambda _: None, gtest='/no/gtest.h')
    self.assertEqual(result.status, 'warn')
    self.assertIn('Bazel and googletest not found', result.found)
    self.assertIn('apt-get install', result.mend)

  def test_an_output_that_cannot_be_written_to_is_one_line(self):
    done = subprocess.run(['sh', '-c', 'exec "$@" >/dev/full', 'sh', sys.executable, doctor.__file__], text=True,
                          stderr=subprocess.PIPE, check=False)
    self.assertEqual((done.returncode, done.stderr), (1, 'error: standard output: No space left on device\n'))

  def test_main_goes_on_after_a_failing_check(self):
    output = io.StringIO()

    def check_that_fails():
      raise RuntimeError('broken')

    good = lambda: doctor.Result('ok', 'one', 'found')
    with contextlib.redirect_stdout(output):
      self.assertEqual(doctor.main((good,)), 0)
      self.assertEqual(doctor.main((lambda: doctor.Result('warn', 'two', 'x', 'mend it'),)), 0)
      self.assertEqual(doctor.main((check_that_fails, good)), 1)
    self.assertIn("check_that_fails", output.getvalue())
    self.assertIn('fix: mend it', output.getvalue())
    self.assertEqual(output.getvalue().count('found'), 2)


if __name__ == '__main__':
  absltest.main()
