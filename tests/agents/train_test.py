"""Tests how the program of any agent finds it. agent_contract_test.py tests what it does then."""

import subprocess
import sys

from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents.agents import registry
from scalable_agents.agents import train
from scalable_agents.processes import python_path


class TrainTest(parameterized.TestCase):

  def _run(self, *arguments):
    return subprocess.run([sys.executable, '-m', train.__name__, *arguments], env=python_path.environment(), text=True,
                          capture_output=True, timeout=100)

  def test_help_without_an_agent_says_how_to_name_one(self):
    done = self._run('--help')
    self.assertEqual(done.returncode, 0)
    self.assertIn('--agent=my_package.my_agent:MY_AGENT', done.stdout)

  @parameterized.parameters(
      ((), '--agent=: want module:NAME or one of'),
      (('--agent=impala',), '--agent=impala: want module:NAME or one of'),
      (('--agent=no_such_module:X', '--seed=1'), '--agent=no_such_module:X: want module:NAME or one of'))
  def test_a_wrong_agent_is_one_line(self, arguments, message):
    done = self._run(*arguments)
    self.assertEqual((done.returncode, done.stdout), (1, ''))
    self.assertStartsWith(done.stderr, f'error: {message} {", ".join(registry.PRESETS)}')
    self.assertEqual(done.stderr.count('\n'), 1)


if __name__ == '__main__':
  absltest.main()
