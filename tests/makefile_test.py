"""Tests of the Makefile and of the script that installs packages for it."""

import os
import pathlib
import shutil
import subprocess

from absl.testing import absltest

from scalable_agents.tests import source_tree

# Stands for a Python whose venv fails late, for example because the disk is full.
_PYTHON = '''#!/bin/sh
[ "$2" = venv ] || exit 0
mkdir -p .venv/bin
touch .venv/bin/python
exit 1
'''


class MakefileTest(absltest.TestCase):

  def _make(self, *arguments, **programs):
    """Runs make in a new folder, where programs are these scripts. Returns the completed process and the folder."""
    folder = pathlib.Path(self.create_tempdir().full_path)
    shutil.copy(source_tree.ROOT / 'Makefile', folder)
    for name in ('requirements.txt', 'requirements-plots.txt', 'requirements-dev.txt'):
      (folder / name).touch()
    scripts = {'tools/install_packages.sh': '#!/bin/sh\necho packages $* >> packages\n', 'bin/python3.11': _PYTHON,
               **{f'bin/{name}': script for name, script in programs.items()}}
    for name, script in scripts.items():
      file = folder / name
      file.parent.mkdir(parents=True, exist_ok=True)
      file.write_text(script, encoding='utf-8')
      file.chmod(0o700)
    done = subprocess.run(['make', *arguments], cwd=folder, text=True, capture_output=True, check=False,
                          env=os.environ | {'PATH': f'{folder}/bin:{os.environ["PATH"]}', 'GPU': '0'})
    return done, folder

  def test_an_environment_that_could_not_be_made_does_not_stay(self):
    done, folder = self._make('.venv/bin/python')
    self.assertEqual(done.returncode, 2, done.stderr)
    self.assertTrue((folder / '.venv/bin').exists(), done.stdout)
    self.assertFalse((folder / '.venv/bin/python').exists())

  def test_an_environment_with_another_python_is_refused(self):
    python = '#!/bin/sh\n[ "$1" = --version ] && echo Python 3.10.2\nexit 1\n'
    done, _ = self._make('setup', **{'../.venv/bin/python': python})
    self.assertEqual(done.returncode, 2)
    self.assertIn('setup: .venv has Python 3.10.2, perhaps without pip; want pip and Python 3.11, 3.12 or 3.13: '
                  'remove .venv and run make setup again', done.stderr)

  def test_libraries_are_built_again_where_a_source_has_changed_whatever_its_time(self):
    done, folder = self._make('ops/_ops.so', **{f'../{name}': '#!/bin/sh\n' for name in (
        '.venv/bin/python', 'setup.py', 'pyproject.toml', 'ops/cc/ops.cc', 'environments/pixels.py')})
    make = lambda: subprocess.run(
        ['make', 'ops/_ops.so'], cwd=folder, text=True, capture_output=True, check=True,
        env=os.environ | {'GPU': '0'}).stdout
    self.assertIn('building the C++ libraries', done.stdout)
    self.assertNotIn('building the C++ libraries', make())
    source = folder / 'ops/cc/ops.cc'
    source.write_text('int changed;\n', encoding='utf-8')
    os.utime(source, (0, 0))
    self.assertIn('building the C++ libraries', make())

  def test_bazel_is_installed_only_for_setup_and_test(self):
    for target, wanted in (('setup', 'packages --bazel\n'), ('test', 'packages --bazel\n'), ('train', 'packages\n'),
                           ('benchmark', 'packages\n')):
      _, folder = self._make(target)
      self.assertEqual((folder / 'packages').read_text(encoding='utf-8'), wanted, target)

  def test_an_agent_without_settings_is_refused_before_anything_is_installed(self):
    done, folder = self._make('train', 'AGENT=laser')
    self.assertEqual((done.returncode, done.stdout), (2, ''))
    self.assertIn('train: AGENT=laser: want impala or r2d2', done.stderr)
    self.assertFalse((folder / 'packages').exists())

  def test_clean_removes_the_rest_where_bazel_fails(self):
    done, folder = self._make('clean', bazel='#!/bin/sh\nmkdir build\nexit 36\n')
    self.assertEqual(done.returncode, 0, done.stderr)
    self.assertFalse((folder / 'build').exists())


class InstallPackagesTest(absltest.TestCase):

  def test_packages_of_bazel_are_wanted_only_with_its_argument_and_a_broken_repository_does_not_matter(self):
    folder = self.create_tempdir()
    scripts = {'apt-get': f'echo "$*" >> {folder.full_path}/calls; test "$2" != update',
               'env': 'shift; exec "$@"', 'id': 'echo 0', 'python3': 'exit 0'}
    for name, script in scripts.items():  # There is neither g++ nor Bazel.
      os.chmod(folder.create_file(f'bin/{name}', content=f'#!/bin/sh\n{script}\n').full_path, 0o700)
    for arguments, packages in (((), 1), (('--bazel',), 2)):
      done = subprocess.run(['/bin/sh', source_tree.ROOT / 'tools/install_packages.sh', *arguments], text=True,
                            capture_output=True, check=False, env={'PATH': f'{folder.full_path}/bin'})
      self.assertEqual((done.returncode, done.stderr.count('\n')), (0, 1), done.stderr)
      self.assertStartsWith(done.stderr, 'setup: apt-get update failed: ')
      calls = pathlib.Path(folder.full_path, 'calls')
      update, *installs = calls.read_text(encoding='utf-8').splitlines()
      self.assertEqual(update, '-qq update')
      self.assertEndsWith(installs[0], ' g++')
      self.assertLen(installs, packages)
      self.assertEqual('bazel-bootstrap' in installs[-1], bool(arguments))
      calls.unlink()


if __name__ == '__main__':
  absltest.main()
