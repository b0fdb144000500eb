"""Tests of `python -m scalable_agents` and of the installed command `scalable-agents`."""

import os
import re
import subprocess
import sys
import tempfile

from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents import __main__
from scalable_agents.agents import registry
from scalable_agents.ops import sources
from scalable_agents.processes import python_path


def _run(*arguments):
  with tempfile.TemporaryDirectory() as folder:  # matplotlib has a word for the user if it has no folder of its own.
    return subprocess.run([sys.executable, '-m', 'scalable_agents', *arguments], text=True, capture_output=True,
                          env=python_path.environment() | {'MPLCONFIGDIR': folder}, check=False)


class MainTest(parameterized.TestCase):

  def test_all_presets_and_both_populations_are_programs(self):
    found = __main__.programs()
    for name in registry.PRESETS:
      self.assertEqual(found[name][0], f'scalable_agents.agents.{name}')
    self.assertEqual(found['population'][0], 'scalable_agents.agents.population')
    self.assertEqual(found['tables.population'][0], 'scalable_agents.tables.population')

  def test_without_a_program_it_lists_them(self):
    for arguments in ((), ('--help',)):
      done = _run(*arguments)
      self.assertEqual((done.returncode, done.stderr), (0, ''))
      self.assertRegex(done.stdout, r'(?m)^  impala_atari57 +Trains and evaluates IMPALA ')
      listed = re.findall(r'(?m)^  ([\w.]+) ', done.stdout)
      self.assertCountEqual(listed, __main__.programs())

  def test_a_reader_that_ends_is_no_error(self):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, 'wb') as stream:
      done = subprocess.run([sys.executable, '-m', 'scalable_agents'], stdout=stream, stderr=subprocess.PIPE,
                            env=python_path.environment(), check=False)
    self.assertEqual((done.returncode, done.stderr), (0, b''))

  def test_a_program_gets_its_flags(self):
    done = _run('tables', '--paper=nobody')
    self.assertEqual((done.returncode, done.stdout), (1, ''))
    self.assertRegex(done.stderr, '^error: .*--paper=nobody.*\n$')

  def test_help_of_a_program(self):
    for name, shown in (('laser', '--table: '), ('train', 'train --agent=impala_atari57 '), ('doctor', 'Each check '),
                        ('check_wheel', 'Each PYTHON is '), ('pack_for_card', 'it needs no Python'),
                        ('test_summary', 'test_summary.py EVENTS')):
      done = _run(name, '--help')
      self.assertIn(shown, done.stdout)
      self.assertEqual((done.returncode, done.stderr), (0, ''))

  @parameterized.parameters((KeyboardInterrupt, 130), (sources.LibraryError('old: run it'), 'error: old: run it'))
  def test_the_end_of_imports_shows_no_traceback(self, error, code):
    with absltest.mock.patch.object(__main__.runpy, 'run_module', side_effect=error), \
         absltest.mock.patch.object(sys, 'argv', ['scalable-agents', 'doctor']), \
         absltest.mock.patch.object(sys, 'stdout'), absltest.mock.patch.object(sys, 'stderr'):
      with self.assertRaises(SystemExit) as left:
        __main__.main()
    self.assertEqual(left.exception.code, code)

  def test_an_unknown_program_is_one_line(self):
    done = _run('impala_atari')
    self.assertEqual((done.returncode, done.stdout), (1, ''))
    self.assertRegex(done.stderr, "^error: no program 'impala_atari': did you mean impala_atari57 or .*\n$")


if __name__ == '__main__':
  absltest.main()
