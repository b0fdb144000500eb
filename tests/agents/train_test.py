"""Tests how the program of any agent finds it. agent_contract_test.py tests what it does then."""

import subprocess
import sys

from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents.agents import registry
from scalable_agents.agents import train
from scalable_agents.launch import preset_flags
from scalable_agents.processes import python_path


class TrainTest(parameterized.TestCase):

  def _run(self, *arguments):
    return subprocess.run([sys.executable, '-m', train.__name__, *arguments], env=python_path.environment(), text=True,
                          capture_output=True, timeout=300)

  def test_help_without_an_agent_says_how_to_name_one(self):
    done = self._run('--help')
    self.assertEqual(done.returncode, 0)
    self.assertIn('--agent=my_package.my_agent:MY_AGENT', done.stdout)

  @parameterized.parameters(
      ((), '--agent=: want module:NAME or one of'),
      (('--agent=impala',), '--agent=impala: want module:NAME or one of'),
      (('--agent', 'impala', '--seed=1'), '--agent=impala: want module:NAME or one of'),
      (('--seed=1', '--agent'), '--agent=: want module:NAME or one of'),
      (('--agent=collections:OrderedDict',), '--agent=collections:OrderedDict: want module:NAME or one of'),
      (('--agent=no_such_module:X', '--seed=1'), '--agent=no_such_module:X: want module:NAME or one of'))
  def test_a_wrong_agent_is_one_line(self, arguments, message):
    done = self._run(*arguments)
    self.assertEqual((done.returncode, done.stdout), (1, ''))
    self.assertStartsWith(done.stderr, f'error: {message} {", ".join(registry.PRESETS)}')
    self.assertEqual(done.stderr.count('\n'), 1)

  @parameterized.parameters(
      ('--learning_rat=1', "error: Unknown command line flag 'learning_rat'."),
      ('--learning_rate=-1', 'error: --learning_rate=-1.0: want a finite number of at least 0'),
      ('--num_learners=0', 'error: --num_learners=0: want a whole number from 1'),
      ('--level_name=pnog', "error: --level_name: unknown level 'pnog': did you mean pong?"),
      ('--help', 'Try --helpfull'))
  def test_wrong_flags_and_help_do_not_wait_for_tensorflow(self, flag, message):
    program = f"""
import sys
sys.modules['tensorflow'] = None  # Its import would fail.
from {train.__name__.rpartition('.')[0]} import train
train.main('impala_atari57')"""
    done = subprocess.run([sys.executable, '-c', program, flag], env=python_path.environment(), text=True,
                          capture_output=True, timeout=300)
    self.assertEqual(done.returncode, 0 if flag == '--help' else 1)
    self.assertIn(message, done.stdout + done.stderr)
    self.assertNotIn('Traceback', done.stderr)

  @parameterized.parameters(('--mode=test', 0), ('--mode=train', 1))
  def test_regression_an_evaluation_does_not_need_the_level_of_the_preset(self, mode, code):
    """The run in --logdir may have another level, and that of the preset may not be installed."""
    program = f"""
import dataclasses
from {preset_flags.__name__.rpartition('.')[0]} import preset_flags
from {registry.__name__.rpartition('.')[0]} import registry
preset = registry.PRESETS['impala_atari57']
preset = dataclasses.replace(preset, config=dataclasses.replace(preset.config, level_name='not_installed'))
preset_flags.define(preset)
preset_flags.check(preset)"""
    done = subprocess.run([sys.executable, '-c', program, mode], env=python_path.environment(), text=True,
                          capture_output=True, timeout=300)
    self.assertEqual(done.returncode, code)
    self.assertEqual("unknown level 'not_installed'" in done.stderr, code == 1)


if __name__ == '__main__':
  absltest.main()
