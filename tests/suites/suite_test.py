"""Several test files in one process: each is run, and one that cannot be is a failure among the others' results."""

import os
import subprocess
import sys
from xml.etree import ElementTree

from absl.testing import absltest

from scalable_agents.processes import python_path
from scalable_agents.tests.suites import suite

_FILE = 'tests/environments/instruction_test.py'
_OTHER = 'tests/environments/dmlab30_test.py'


class SuiteTest(absltest.TestCase):

  def _run(self, *arguments):
    """Runs a suite. Returns the exit code, and the names of the cases in its test.xml by outcome."""
    xml = os.path.join(self.create_tempdir().full_path, 'test.xml')
    done = subprocess.run([sys.executable, suite.__file__, *arguments], capture_output=True, check=False,
                          env=python_path.environment() | {'XML_OUTPUT_FILE': xml})
    cases = {'passed': [], 'failed': []}
    for case in ElementTree.parse(xml).iter('testcase'):
      failed = case.find('failure') is not None or case.find('error') is not None
      cases['failed' if failed else 'passed'].append(f'{case.get("classname")}.{case.get("name")}')
    return done.returncode, cases

  def test_every_case_of_every_file_is_run_and_named(self):
    code, cases = self._run(f'--files={_FILE},{_OTHER}')
    self.assertEqual(code, 0)
    self.assertEmpty(cases['failed'])
    for file in (_FILE, _OTHER):
      code, alone = self._run(f'--files={file}')
      self.assertEqual(code, 0)
      self.assertNotEmpty(alone['passed'])
      for name in alone['passed']:
        self.assertStartsWith(name, suite.module_name(file))
      self.assertContainsSubset(alone['passed'], cases['passed'])

  def test_a_file_that_cannot_be_imported_fails_and_the_others_run(self):
    code, cases = self._run(f'--files=tests/environments/no_such_test.py,{_FILE}')
    self.assertNotEqual(code, 0)
    self.assertLen(cases['failed'], 1)
    self.assertIn('no_such_test', cases['failed'][0])
    self.assertNotEmpty(cases['passed'])

  def test_a_file_without_tests_and_no_file_fail(self):
    for arguments in ([f'--files={_FILE},tests/source_tree.py'], []):
      code, cases = self._run(*arguments)
      self.assertNotEqual(code, 0)
      self.assertLen(cases['failed'], 1)


if __name__ == '__main__':
  absltest.main()
