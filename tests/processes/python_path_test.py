"""A child process finds what this process finds, however it came to find it."""

import os
import pathlib
import subprocess
import sys
from unittest import mock

from absl.testing import absltest

from scalable_agents.processes import python_path


class PythonPathTest(absltest.TestCase):

  def test_a_child_finds_the_standard_library_before_the_current_folder(self):
    folder = self.create_tempdir().full_path
    pathlib.Path(folder, 'random.py').write_text('raise ValueError("of the user")\n', encoding='utf-8')
    command = [sys.executable, '-m', 'tempfile']  # This module imports `random`.
    for environment, code in ((python_path.environment() | {'PYTHONSAFEPATH': ''}, 1), (python_path.environment(), 0)):
      done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
      self.assertEqual(done.returncode, code, done.stderr)

  def test_an_empty_path_of_this_process_is_the_current_folder(self):
    folder = self.create_tempdir().full_path
    pathlib.Path(folder, 'found_in_current_folder.py').write_text('print("found")\n', encoding='utf-8')
    with mock.patch.object(sys, 'path', ['', *sys.path]), mock.patch.object(os, 'getcwd', lambda: folder):
      environment = python_path.environment()
    printed = subprocess.run([sys.executable, '-m', 'found_in_current_folder'], env=environment, check=True,
                             stdout=subprocess.PIPE, text=True).stdout
    self.assertEqual(printed, 'found\n')

  def test_a_child_finds_a_module_of_this_process_alone(self):
    folder = self.create_tempdir().full_path
    pathlib.Path(folder, 'found_by_path_alone.py').write_text('print("found")\n', encoding='utf-8')
    with mock.patch.object(sys, 'path', ['', *sys.path, folder]):
      environment = python_path.environment()
    self.assertNotIn('', environment['PYTHONPATH'].split(':'))
    printed = subprocess.run([sys.executable, '-c', 'import found_by_path_alone'], env=environment, check=True,
                             stdout=subprocess.PIPE, text=True).stdout
    self.assertEqual(printed, 'found\n')


if __name__ == '__main__':
  absltest.main()
