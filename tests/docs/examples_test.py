"""Runs the examples of the pages in docs."""

import re
import shlex
import sys

from absl.testing import absltest

from scalable_agents.environments import registry
from scalable_agents.tests import source_tree
from scalable_agents.tests.processes import signal_handlers
from scalable_agents.tests.training import training


def setUpModule():
  training.configure_tensorflow()


class EnvironmentsTest(absltest.TestCase):
  """Tests docs/environments.md."""

  def setUp(self):
    super().setUp()
    signal_handlers.restore_after(self)
    self._page = (source_tree.ROOT / 'docs' / 'environments.md').read_text(encoding='utf-8')
    code, = re.findall(r'```python\n(.*?)```', self._page, re.DOTALL)
    folder = self.create_tempdir()
    folder.create_file('my_tasks.py', content=code)
    self.enter_context(absltest.mock.patch.object(sys, 'path', [*sys.path, folder.full_path]))

  def test_the_environment_of_ones_own(self):
    """The page says that the best return of a corridor of length 8 is 0.94."""
    level, = set(re.findall(r"--level_name=(dm_env:\S+)'", self._page))
    registry.check(level)
    environment = registry.make(level, seed=0)
    environment.reset()
    steps = [environment.step(1) for _ in range(7)]
    self.assertTrue(steps[-1].last())
    self.assertAlmostEqual(sum(step.reward for step in steps), 0.94)

  def test_the_commands_train(self):
    """They train for a few hundred frames: dm_env, gymnasium with keyword arguments, and MiniGrid's dict."""
    commands = re.findall(r'^scalable-agents impala_atari57((?:.*\\\n)*.*)$', self._page, re.MULTILINE)
    commands = [command for command in commands if ':' in command]  # Not those of built-in tasks.
    self.assertLen(commands, 3)
    for command, environment in zip(commands, ('dm_env:my_tasks', 'gymnasium:CartPole', 'gymnasium:minigrid')):
      flags, logdir = shlex.split(command), f'{self.create_tempdir().full_path}/run'
      self.assertIn(f'--level_name={environment}', command.replace("'", ''))
      training.run_preset('impala_atari57', *flags, f'--logdir={logdir}', '--total_environment_frames=400',
                          '--num_environments=4', '--num_environment_workers=1', '--batch_size=4')
      self.assertGreaterEqual(training.rows(logdir)[-1]['environment_frames'], 400)


class ReplayTest(absltest.TestCase):
  """Tests docs/replay.md."""

  def test_the_example(self):
    page = (source_tree.ROOT / 'docs' / 'replay.md').read_text(encoding='utf-8')
    code, *_ = re.findall(r'```python\n(.*?)```', page, re.DOTALL)
    self.assertLessEqual(sum(bool(line.strip()) for line in code.splitlines()), 20)
    names = {}
    exec(code, names)  # pylint: disable=exec-used
    sample, statistics = names['sample'], names['replay'].statistics()
    self.assertEqual(sample.rows['pixels'].shape, [4, 8, 20, 20, 1])
    self.assertEqual(sample.states.shape, [1, 8, 32])
    # Of the 500 rows, 24 unrolls of 20 steps were inserted: 120 episodes of 4 steps. Each has 3 sequences, which train
    # its steps 0 and 1, 1 and 2, and 2 and 3.
    self.assertEqual((statistics.inserted, statistics.gaps), (360, 0))


if __name__ == '__main__':
  absltest.main()
