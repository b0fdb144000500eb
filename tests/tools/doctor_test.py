"""Tests of the checks of `make doctor`, each also on a machine without the thing that it looks for."""

import contextlib
import io
import os
import pathlib
import resource
import signal
import stat
import subprocess
import sys
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents import ops
from scalable_agents.environments import pixel_pass
from scalable_agents.ops import sources
from scalable_agents.processes import kernels
from scalable_agents.processes import python_path
from scalable_agents.tests.actor import waiting
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

  def test_ask_imports_nothing_from_the_folder_of_temporary_files(self):
    folder = self.create_tempdir()
    folder.create_file('zipapp.py', content='raise RuntimeError')
    with mock.patch.object(doctor.tempfile, 'gettempdir', lambda: folder.full_path):
      self.assertEqual(doctor.ask(sys.executable, '-c', 'import zipapp; print("imported")'), (True, 'imported'))

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
    lines = ['numpy==1.2', 'dm-env<2,>=1.6', 'pytest==1; extra == "dev"']
    with mock.patch.object(doctor.importlib.metadata, 'requires', lambda _: lines):
      wanted = doctor.requirements(nowhere)
    self.assertEqual(wanted, {'numpy': 'numpy==1.2', 'dm-env': 'dm-env<2,>=1.6'})
    with mock.patch.object(doctor, 'requirements', lambda *_: wanted):
      self.assertRegex(doctor.check_libraries().found, '^numpy is [0-9.]+, want 1.2$')
      self.assertEqual(doctor.check_package('dm-env', 'dm_env').status, 'ok')
    missing = mock.Mock(side_effect=doctor.importlib.metadata.PackageNotFoundError)
    with mock.patch.object(doctor.importlib.metadata, 'requires', missing):
      self.assertEqual(doctor.requirements(nowhere), {})

  def test_versions_of_a_range(self):
    for wanted, fitting, others in (
        ('==1.4.0', ('1.4.0', '1.4.0+cpu'), ('1.4.1', '1.4')), ('~=2.21.0', ('2.21.0', '2.21.9'), ('2.20.9', '2.22.0')),
        ('~=2.2', ('2.2', '2.10'), ('2.1', '3.0')), ('~=2.0.1', ('2.0.10',), ('2.1', '2.0')),
        ('<2,>=1.4.0', ('1.4', '1.10.2'), ('1.3.9', '2.0', '2.0.0rc1')), ('', ('1',), ())):
      self.assertEqual([doctor.fits(version, wanted) for version in fitting + others],
                       [True] * len(fitting) + [False] * len(others), wanted)

  @parameterized.parameters(((3, 10, 13), 'wrong'), ((3, 11, 0), 'ok'), ((3, 13, 2), 'ok'), ((3, 14, 0), 'wrong'))
  def test_python(self, version, status):
    self.assertEqual(doctor.check_python(version).status, status)

  def test_package_of_the_pinned_version(self):
    result = doctor.check_package('ale-py', 'ale_py')
    self.assertEqual((result.status, result.found, result.fix), ('ok', '0.12.1', ''))

  def test_package_of_another_version(self):
    with self._pinned('dm-env', '99.0'):
      result = doctor.check_package('dm-env', 'dm_env')
    self.assertEqual(result.status, 'wrong')
    self.assertIn('want 99.0', result.found)
    self.assertRegex(result.fix, r'pip install dm-env==99\.0$|^make setup$')

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
    self.assertIn('install', result.fix)

  def test_fixes_through_the_virtual_environment_or_by_setting_it_up(self):
    with self._pinned('dm-env', '99.0'):
      with mock.patch.multiple(sys, prefix='/venv', base_prefix='/usr', executable='/venv/bin/python'):
        self.assertEqual(doctor.check_package('dm-env', 'nope').fix, '/venv/bin/python -m pip install dm-env==99.0')
        with mock.patch.object(sys, 'executable', '/my venv/bin/python'):
          self.assertEqual(doctor.check_package('dm-env', 'nope', '/no/python').fix,
                           "'/my venv/bin/python' -m pip install dm-env==99.0")
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
    self.assertEqual(result.fix, f'rm -f {library} && make setup')

  def test_a_path_with_a_space_is_quoted(self):
    library = pathlib.Path(self.create_tempdir('my folder').create_file('_ops.so', content='no ELF').full_path)
    for check in (doctor.check_op_library, doctor.check_pixel_library):
      self.assertEqual(check(library, '/no/python').fix, f"rm -f '{library}' && make setup")

  def test_op_library_that_crashes_the_import(self):
    library = pathlib.Path(self.create_tempfile('_ops.so').full_path)
    result = doctor.check_op_library(library, python=self._program('kill -ABRT $$'))
    self.assertEqual(result.status, 'wrong')
    self.assertIn('killed by SIGABRT', result.found)

  def test_op_library_that_is_not_built(self):
    result = doctor.check_op_library(pathlib.Path('/nowhere/_ops.so'))
    self.assertEqual((result.status, result.fix), ('wrong', 'make setup'))
    result = doctor.check_op_library(pathlib.Path('/nowhere/_ops.so'), root=pathlib.Path('/nowhere'))  # From a wheel.
    self.assertEndsWith(result.fix, ' -m pip install --force-reinstall --no-deps scalable_agents-*.whl')

  def test_pixel_library(self):
    library = pathlib.Path(pixel_pass._LIBRARY)
    self.assertEqual(doctor.check_pixel_library(library).status, 'ok')
    broken = pathlib.Path(self.create_tempfile('_pixels.so', content='no ELF').full_path)
    for path, status, fix in ((broken, 'wrong', f'rm -f {broken} && make setup'),
                              (pathlib.Path('/nowhere/_pixels.so'), 'warn', 'make setup')):
      result = doctor.check_pixel_library(path)
      self.assertEqual((result.status, result.fix), (status, fix))
      wheel = doctor.check_pixel_library(path, root=pathlib.Path('/nowhere'))
      self.assertEndsWith(wheel.fix, ' -m pip install --force-reinstall --no-deps scalable_agents-*.whl')

  def _tree(self, is_stale, library='ops/_ops.so', folders=sources.OPS):
    """Makes a tree with a C++ source and its library. Returns the library's path."""
    root = self.create_tempdir()
    source = root.create_file(f'{folders[0]}/cc/source.cc', content='// old')
    library = root.create_file(library, content=f'ELF {sources.checksum(root.full_path, folders)} ')
    os.utime(source.full_path)  # A checkout may give an old source a new time.
    if is_stale:
      source.write_text('// new')
    return pathlib.Path(library.full_path)

  @parameterized.parameters((False, 'ok', ''), (True, 'wrong', 'make setup'))
  def test_op_library_of_other_sources(self, is_stale, status, fix):
    result = doctor.check_op_library(self._tree(is_stale), python=self._program('echo loads'))
    self.assertEqual((result.status, result.fix), (status, fix))
    self.assertEqual(result.found.endswith('_ops.so is older than this code'), is_stale)

  @parameterized.parameters((False, 'ok', ''), (True, 'wrong', 'make setup'))
  def test_pixel_library_of_other_sources(self, is_stale, status, fix):
    library = self._tree(is_stale, 'environments/_pixels.so', ['environments'])
    result = doctor.check_pixel_library(library, python=self._program('echo loads'))
    self.assertEqual((result.status, result.fix), (status, fix))
    self.assertEqual(result.found.endswith('_pixels.so is older than this code'), is_stale)

  def test_compiler(self):
    for command in ('c++', 'env c++'):  # The second is as `ccache c++`.
      with mock.patch.dict(os.environ, CXX=command):
        result = doctor.check_compiler(pathlib.Path('/nowhere/_ops.so'))
      self.assertEqual(result.status, 'ok', result)
      self.assertRegex(result.found, r'\d+\.\d+')

  def test_a_compiler_is_wanted_only_where_something_must_be_built(self):
    old = self._program('test "$1" = --version || { echo "no option $1" >&2; exit 1; }', 'echo cc 4.8', 'echo FSF')
    for compiler, found in (('/no/c++', '/no/c++ not found'), (f'/no/ccache {old}', '/no/ccache not found'),
                            (old, 'cc 4.8 has no C++17: no option -std=c++17')):
      built, stale = (doctor.check_compiler(self._tree(is_stale), compiler) for is_stale in (False, True))
      self.assertEqual((built.status, built.found), ('warn', f'{found} (only to build the C++ ops again)'))
      self.assertEqual(stale.status, 'wrong')
      self.assertStartsWith(stale.found, f'{found} (')
      self.assertIn('is older than', stale.found)
      self.assertStartsWith(stale.fix, 'apt-get install g++')

  def test_roms(self):
    self.assertEqual(doctor.check_roms().status, 'ok')
    with mock.patch.object(doctor, '_ASK_ROMS', doctor._ASK_ROMS.replace("'pong'", "'no_such_game'")):
      result = doctor.check_roms()
    self.assertEqual(result.status, 'wrong')
    self.assertIn('missing or damaged', result.found)
    self.assertRegex(result.fix, r' -m pip install --force-reinstall --no-deps ale-py==[\d.]+$|^make setup$')

  def test_dmlab(self):
    result = doctor.check_dmlab(self._program('echo False'))
    self.assertEqual((result.status, result.found), ('warn', 'not installed (for DMLab-30)'))
    self.assertIn('//python/pip_package:build_pip_package', result.fix)
    self.assertRegex(result.fix, 'uv and .* /[^ ]*/dmlab-gym build$')  # The program may not be on PATH.

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
    self.assertRegex(result.fix, 'docs/dmlab.md, step 2')
    if fault == 'no_zip_in_reset':
      result = self._check_opening_a_level(fault, which=lambda name: None if name == 'zip' else name)
      self.assertEqual(result[2:],
                       ('installed, but compiles no maps without zip (for DMLab-30)', 'apt-get install zip'))

  def test_kernels(self):
    with mock.patch.dict(os.environ, TF_ENABLE_ONEDNN_OPTS='0'):
      result = doctor.check_kernels()
    self.assertEqual((result.status, result.fix), ('warn', 'unset TF_ENABLE_ONEDNN_OPTS'), result.found)
    self.assertIn('; the processor has ', result.found)
    with mock.patch.object(kernels, 'is_onednn_on', return_value=True):
      text = kernels.describe()
    self.assertEqual(doctor.check_kernels(self._program(f'echo "{text}"')), doctor.Result('ok', 'kernels', text))
    result = doctor.check_kernels(self._program("echo 'No module' >&2", 'exit 1'))
    self.assertEqual((result.status, result.found), ('warn', 'unknown: No module'))

  def _check_gpus(self, python, driver='550.54.14', packages=('nvidia-cudnn-cu12', 'nvidia-nccl-cu12'),
                  root=doctor.ROOT, capability='8.9'):
    """Checks the GPUs of a machine with a card, this driver and these of the two packages with CUDA's libraries."""
    nvidia_smi = self._program(f'test "$1" = --query-gpu=compute_cap && exec echo {capability}',
                               f"echo 'Slow GPU, {driver}'", f"echo 'Fast GPU, {driver}'")
    site = self.create_tempdir()
    for name in ('tensorflow', *packages):
      site.create_file(f'{name.replace("-", "_")}-9.1.dist-info/METADATA', content=f'Name: {name}\nVersion: 9.1\n' + (
          'Requires-Dist: numpy>=1\nRequires-Dist: nvidia-cudnn-cu12<10,>=9; extra == "and-cuda"\n'
          'Requires-Dist: nvidia-nccl-cu12; extra == "and-cuda"\n' if name == 'tensorflow' else ''))
      site.create_file(f'{name.replace("-", "_")}-9.1.dist-info/RECORD', content=(
          'lib/libcudnn.so.9,,\nlib/libcudnn_ops.so.9,,\n' if name == 'nvidia-cudnn-cu12' else ''))
    site.create_file('lib/libcudnn.so.9')
    with mock.patch.dict(os.environ), mock.patch.object(sys, 'path', [site.full_path]):
      os.environ.pop('CUDA_VISIBLE_DEVICES', None)
      return doctor.check_gpus(python, nvidia_smi, root)

  def test_gpus(self):
    self.assertEqual(self._check_gpus(self._program('echo 2')).found,
                     '2, Fast GPU, driver 550.54.14; XLA compiles for it')
    result = self._check_gpus(self._program('echo 0'), driver='470.82.01')
    self.assertEqual(result[:3], ('warn', 'GPUs',
                                  'the machine has Fast GPU, driver 470.82.01, which is too old for TensorFlow'))
    self.assertIn('525 or later', result.fix)
    result = self._check_gpus(self._program('echo 0'), capability='9.0')  # As an H100's.
    self.assertEndsWith(result.found, 'driver 550.54.14, which is too old for TensorFlow')
    self.assertIn('555 or later', result.fix)

  def test_gpus_without_cuda_libraries(self):
    no_gpu, has_card = self._program('echo 0'), 'the machine has Fast GPU, driver 550.54.14, but '
    result = self._check_gpus(no_gpu, packages=())
    self.assertEqual(result[2:], (f'{has_card}TensorFlow has no CUDA libraries', 'make setup GPU=1'))
    no_project = pathlib.Path(self.create_tempdir().full_path)
    self.assertEndsWith(self._check_gpus(no_gpu, packages=(), root=no_project).fix,
                        "pip install 'tensorflow[and-cuda]==9.1'")
    result = self._check_gpus(no_gpu, packages=('nvidia-cudnn-cu12',))
    self.assertEqual(result.found, f'{has_card}CUDA libraries are missing: libcudnn_ops.so.9, nvidia-nccl-cu12')
    self.assertEndsWith(result.fix, "pip install --force-reinstall --no-deps 'nvidia-cudnn-cu12<10,>=9' "
                                     "'nvidia-nccl-cu12'")

  def test_gpus_that_tensorflow_does_not_use(self):
    with mock.patch.object(doctor, '_load', lambda _: mock.Mock(find_fault=lambda _: None)):
      for python, found in ((self._program('echo 0'), 'TensorFlow does not find it'),
                            (self._program('echo no ptxas >&2; exit 1'), 'TensorFlow cannot use it: no ptxas')):
        result = self._check_gpus(python)
        self.assertEqual((result.status, result.found),
                         ('warn', f'the machine has Fast GPU, driver 550.54.14, but {found}'))
        self.assertIn('list_physical_devices', result.fix)

  def test_gpus_without_a_driver(self):
    self.assertEqual(doctor.check_gpus(nvidia_smi='/no/nvidia-smi')[:3],
                     ('ok', 'GPUs', 'none: training runs on the CPU'))
    result = doctor.check_gpus(nvidia_smi=self._program('echo no communication with the driver', 'exit 9'))
    self.assertEqual(result[:3], ('warn', 'GPUs', 'none can be used: no communication with the driver'))
    self.assertIn('--gpus=all', result.fix)
    with mock.patch.object(doctor, '_load', lambda _: mock.Mock(models=lambda: ['Fast GPU'])):
      self.assertEqual(doctor.check_gpus(nvidia_smi='/no/nvidia-smi')[:3],
                       ('warn', 'GPUs', 'none can be used: /no/nvidia-smi not found'))

  def test_limits_of_this_machine(self):
    result = doctor.check_limits(wanted_free_bytes=0)
    self.assertRegex(result.found, r'^\d+ of \d+ cores; [0-9.]+ of [0-9.]+ GiB of memory, [0-9.]+ GiB free$')

  @parameterized.parameters(
      ((8, 64, 8, 256, 5), 'ok', ()),
      ((1, 1, 8, 8, 5), 'ok', ()),
      ((1, 64, 8, 256, 5), 'warn', ('--cpus=2',)),
      ((8, 8, 16, 16, 3), 'warn', ('--num_environments=8',)),
      ((1, 2, 3, 16, 2), 'warn', ('--cpus=2', '--num_environments=8', '--memory=8g')))
  def test_limits(self, numbers, status, fixes):
    script = f'print(*{numbers[:2]}, *[gib << 30 for gib in {numbers[2:]}])'
    result = doctor.check_limits(script=self.create_tempfile(content=script).full_path)
    self.assertEqual(result.status, status, result)
    self.assertEqual(tuple(fix for fix in ('--cpus=2', '--num_environments=8', '--memory=8g') if fix in result.fix),
                     fixes)
    self.assertEqual(result.found, '{} of {} cores; {:.1f} of {:.1f} GiB of memory, {:.1f} GiB free'.format(*numbers))

  def test_limits_that_are_not_known(self):
    result = doctor.check_limits(script='/no/machine.py')
    self.assertEqual(result.status, 'warn')
    self.assertStartsWith(result.found, 'unknown: ')

  def test_shared_memory(self):
    self.assertEqual(doctor.check_shared_memory().status, 'ok')

  def test_shared_memory_that_cannot_be_made(self):
    with mock.patch.object(os, 'memfd_create', side_effect=OSError('no memfd')):
      self.assertEqual(doctor.check_shared_memory().status, 'wrong')

  @parameterized.parameters(
      (100, 576, 'ok', ''), (100, resource.RLIM_INFINITY, 'ok', ''), (100, 575, 'wrong', 'limits.conf'))
  def test_open_files(self, soft, hard, status, fix):
    with mock.patch.object(resource, 'getrlimit', lambda _: (soft, hard)):
      result = doctor.check_open_files()
    self.assertEqual(result.status, status)
    self.assertIn(fix, result.fix)

  def test_bazel(self):
    for version, status, fix in (
        ('4.2.3- (@non-git)', 'ok', ''), ('no_version', 'ok', ''), ('7.6.1', 'ok', ''),
        ('8.0.0', 'warn', 'bazel test --config=modules'), ('', 'warn', 'apt-get install')):
      bazel = self.create_tempfile(content=f'#!/bin/sh\necho "bazel {version}"\n')
      os.chmod(bazel.full_path, 0o755)
      result = doctor.check_bazel(lambda _, path=bazel.full_path: path, gtest='/')
      self.assertEqual(result.status, status)
      self.assertStartsWith(result.fix, fix)
    with mock.patch.object(doctor, '_SECONDS', 0.01):
      result = doctor.check_bazel(lambda _: self._program('exec sleep 600'), gtest='/')
    self.assertEqual(result.status, 'warn')
    self.assertIn('timed out', result.found)
    result = doctor.check_bazel(lambda _: None, gtest='/no/gtest.h')
    self.assertEqual(result.status, 'warn')
    self.assertIn('Bazel and googletest not found', result.found)
    self.assertIn('apt-get install', result.fix)

  def test_bazel_in_a_folder_whose_path_has_a_space(self):
    folder = self.create_tempdir('my folder')
    root = pathlib.Path(folder.full_path)
    bazel = lambda _: self._program('echo bazel 4.2.3')
    self.assertEqual(doctor.check_bazel(bazel, gtest='/', root=root).status, 'ok')  # An installed package.
    folder.create_file('Makefile')
    result = doctor.check_bazel(bazel, gtest='/', root=root)
    self.assertEqual(result.status, 'warn')
    self.assertIn(f'does not work in a folder whose path has a space: {root} ', result.found)

  def test_ctrl_c_ends_it_without_a_traceback(self):
    folder = self.create_tempdir()
    pipe = os.path.join(folder.full_path, 'pipe')
    os.mkfifo(pipe)
    compiler = self._program(f'echo begins > {pipe}', 'exec sleep 600')
    checking = subprocess.Popen([sys.executable, doctor.__file__], text=True, stdout=subprocess.DEVNULL,
                                stderr=subprocess.PIPE, env=os.environ | {'CXX': compiler}, start_new_session=True)
    self.addCleanup(checking.kill)
    with waiting.start(open, pipe)() as begun:
      self.assertEqual(begun.read(), 'begins\n')
    os.killpg(checking.pid, signal.SIGINT)
    _, printed = checking.communicate()
    self.assertEqual((checking.returncode, printed), (130, ''))

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
      self.assertEqual(doctor.main((lambda: doctor.Result('warn', 'two', 'x', 'fix it'),)), 0)
      self.assertEqual(doctor.main((check_that_fails, good)), 1)
    self.assertIn("check_that_fails", output.getvalue())
    self.assertIn('fix: fix it', output.getvalue())
    self.assertEqual(output.getvalue().count('found'), 2)


if __name__ == '__main__':
  absltest.main()
