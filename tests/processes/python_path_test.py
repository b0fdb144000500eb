"""A child process finds what this process finds, however it came to find it."""

import pathlib
import subprocess
import sys
from unittest import mock

from absl.testing import absltest

from scalable_agents.processes import python_path


class PythonPathTest(absltest.TestCase):

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
