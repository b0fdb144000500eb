"""Tests of environments/dmlab.py: a module or library that is missing, and how a Lab ends.

They use the real module if it is installed, else the fake one.
"""

import glob
import os
import signal
import subprocess
import sys
import tempfile
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import psutil

from scalable_agents.environments import dmlab
from scalable_agents.processes import python_path
from scalable_agents.tests.actor import waiting
from scalable_agents.tests.environments import lab_module

_LEVEL = 'rooms_watermaze'
_COMPILED = 'explore_goal_locations_small'
_fake_only = absltest.skipIf(lab_module.IS_REAL, 'only the fake module fails on demand')

# A program with a Lab. It prints the Lab's folder, starts an episode, and then does what its second argument says.
_PROCESS = '''
import os, signal, sys
from scalable_agents.environments import dmlab
environment = dmlab.Dmlab(sys.argv[1], seed=0)
assert os.path.isdir(environment._folder.path)
print(environment._folder.path, flush=True)
environment.reset()
print('plays', flush=True)
if sys.argv[2] == 'step':
  while True:
    environment.step(0)
elif sys.argv[2] == 'raise':
  raise RuntimeError('a fault')
elif sys.argv[2] == 'os._exit':
  os._exit(0)
elif sys.argv[2] == 'wait':
  signal.pause()
'''


def _runs(process):
  """Returns whether a process has not ended. A zombie has ended."""
  try:
    return process.status() != psutil.STATUS_ZOMBIE
  except psutil.NoSuchProcess:
    return False


class MissingModuleTest(parameterized.TestCase):

  def test_one_line_says_what_it_is_and_how_to_do_without(self):
    with mock.patch.dict(sys.modules, {'deepmind_lab': None}):
      with self.assertRaisesRegex(ImportError, f'^{_LEVEL}: DeepMind Lab, the 3D game') as raised:
        dmlab.Dmlab(_LEVEL, seed=0)
    message = str(raised.exception)
    for part in ('from source', 'https://github.com/google-deepmind/lab', '//python/pip_package:build_pip_package',
                 '--level_name=catch'):
      self.assertIn(part, message)
    self.assertNotIn('\n', message)

  def test_a_lab_that_cannot_be_imported_is_told_from_one_that_is_missing(self):
    folder = self.create_tempdir()
    folder.create_file('deepmind_lab/__init__.py', 'import imp_that_python_no_longer_has')
    with mock.patch.dict(sys.modules), mock.patch.object(sys, 'path', [folder.full_path, *sys.path]):
      sys.modules.pop('deepmind_lab', None)
      with self.assertRaisesRegex(ImportError, f'^{_LEVEL}: DeepMind Lab is installed but cannot be imported .No '
                                  "module named 'imp_that_.*Python 3.11 or older"):
        dmlab.Dmlab(_LEVEL, seed=0)

  def test_a_check_loads_nothing(self):
    program = ('import sys\nfrom scalable_agents.environments import dmlab\n'
               'dmlab.check_installed("rooms_watermaze")\nprint("deepmind_lab" in sys.modules)')
    printed = subprocess.run([sys.executable, '-c', program], env=python_path.environment(), check=True,
                             capture_output=True, text=True).stdout
    self.assertEqual(printed, 'False\n')

  def test_the_check_misses_it_too(self):
    with mock.patch.object(dmlab.importlib.util, 'find_spec', return_value=None), mock.patch.dict(sys.modules):
      sys.modules.pop('deepmind_lab', None)
      with self.assertRaisesRegex(ImportError, f'^{_LEVEL}: DeepMind Lab, .*is not installed'):
        dmlab.check_installed(_LEVEL)

  def test_tensorflow_and_lab_do_not_meet(self):
    with mock.patch.dict(sys.modules, tensorflow=sys):
      with self.assertRaisesRegex(ImportError, f'^{_LEVEL}: DeepMind Lab crashes in a process that has'):
        dmlab.Dmlab(_LEVEL, seed=0)


@_fake_only
class MissingLibraryTest(lab_module.TestCase):

  @parameterized.parameters(
      ('software', 'libOSMesa.so.8', 'libOSMesa.so.8; on Debian: apt-get install libosmesa6 '),
      ('hardware', '/x/libdmlab_headless_hw.so', 'libdmlab_headless_hw.so '))
  def test_it_is_named_and_where_it_comes_from(self, renderer, library, words):
    with open(os.path.join(self.watch.folder, 'missing_library'), 'w', encoding='utf-8') as file:
      file.write(library)
    descriptors = os.listdir('/proc/self/fd')
    with self.assertRaisesRegex(ImportError, f'^{_LEVEL}: DeepMind Lab cannot load a library that --renderer={renderer}'
                                rf' needs, {words}\(Failed to connect RL API\)$'):
      self.make(renderer=renderer)
    self.assertEqual(os.listdir('/proc/self/fd'), descriptors)

  @parameterized.parameters(
      ('Failed to open library! - /a/libx.so\nlibOSMesa.so.8: cannot open shared object file: No', 'libOSMesa.so.8'),
      ('Failed to open library! - /a/libx.so\n/a/libx.so: cannot open shared object file: No such', 'libx.so'),
      ('Failed to open library: "/a/libx.so"\n2 - No such file or directory', 'libx.so'))
  def test_what_labs_loader_says(self, text, library):
    self.assertEqual(dmlab._MISSING_LIBRARY.search(text)[1], library)


class EndTest(lab_module.TestCase):

  def test_close_removes_the_folder_and_is_idempotent(self):
    environment = self.make()
    folder = environment._folder.path
    environment.reset()
    self.assertTrue(os.path.isdir(folder))
    environment.close()
    environment.close()
    self.assertFalse(os.path.exists(folder))

  def test_a_closed_lab_is_not_touched(self):
    environment = self.make()
    environment.reset()
    environment.close()
    for _ in range(2):
      with self.assertRaisesRegex(RuntimeError, '^this DeepMind Lab is closed$'):
        environment.step(0)
      with self.assertRaisesRegex(RuntimeError, '^this DeepMind Lab is closed$'):
        environment.reset()

  @_fake_only
  def test_a_lab_that_cannot_be_made_leaves_nothing(self):
    self.watch.plant('raise_in_init')
    with self.assertRaisesRegex(RuntimeError, 'Failed to init environment'):
      self.make()
    self.assertEmpty(glob.glob(os.path.join(tempfile.gettempdir(), 'dmlab_*')))

  def test_a_lab_that_is_dropped_leaves_nothing(self):
    environment = dmlab.Dmlab(_LEVEL, seed=0)
    folder = environment._folder.path
    environment.reset()
    del environment
    waiting.wait_until(lambda: not os.path.exists(folder))

  def _start(self, *arguments):
    """Starts a process with a Lab. Returns the process and the Lab's folder."""
    process = subprocess.Popen([sys.executable, '-c', _PROCESS, *arguments], env=python_path.environment(),
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    self.addCleanup(process.stdout.close)
    self.addCleanup(process.wait)
    self.addCleanup(process.kill)
    folder = waiting.start(process.stdout.readline)().strip()
    self.assertIn('dmlab_', folder)
    return process, folder

  @parameterized.parameters('end', 'raise', 'os._exit')
  def test_the_folder_goes_with_the_process(self, way):
    process, folder = self._start(_COMPILED, way)
    process.wait(waiting.PATIENCE_SECONDS)
    waiting.wait_until(lambda: not os.path.exists(folder))

  @parameterized.parameters(signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV)
  def test_the_folder_goes_with_a_killed_process(self, number):
    process, folder = self._start(_COMPILED, 'wait')
    self.assertEqual(waiting.start(process.stdout.readline)(), 'plays\n')
    self.assertNotEmpty(os.listdir(folder))
    process.send_signal(number)
    self.assertEqual(process.wait(waiting.PATIENCE_SECONDS), -number)
    waiting.wait_until(lambda: not os.path.exists(folder))

  @parameterized.parameters(('exit_in_step', 1), ('abort_in_step', -signal.SIGABRT))
  @_fake_only
  def test_the_folder_goes_when_c_code_ends_the_process(self, fault, code):
    process, folder = self._start(_COMPILED, 'step')
    self.assertEqual(waiting.start(process.stdout.readline)(), 'plays\n')
    self.watch.plant(fault)
    self.assertEqual(process.wait(waiting.PATIENCE_SECONDS), code)
    waiting.wait_until(lambda: not os.path.exists(folder))

  @_fake_only
  def test_a_map_compiler_does_not_outlive_the_process(self):
    self.watch.plant('compile_in_reset')
    process, folder = self._start(_COMPILED, 'wait')
    note = os.path.join(self.watch.folder, 'compiler')
    waiting.wait_until(lambda: os.path.exists(note) and os.path.getsize(note))
    with open(note, encoding='ascii') as file:
      shell = psutil.Process(int(file.read()))
    waiting.wait_until(shell.children)
    compiler, = shell.children()
    self.assertTrue(shell.is_running() and compiler.is_running())
    process.kill()
    process.wait()
    for ended in (shell, compiler):
      waiting.wait_until(lambda: not _runs(ended))
    waiting.wait_until(lambda: not os.path.exists(folder))


if __name__ == '__main__':
  absltest.main()
