"""Tests of the sweep of LASER agents: which processes it starts. tests/experience tests the shared replay."""

import contextlib
import dataclasses
import io
import itertools
import shlex
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents.agents import laser_atari57
from scalable_agents.agents import laser_dmlab30
from scalable_agents.agents import laser_replay
from scalable_agents.agents import laser_sweep
from scalable_agents.processes import run_flags
from scalable_agents.records import errors

_ADDRESS = 'replay-host:20000'


def _values(arguments):
  """Flag -> value, of a command's arguments."""
  return dict(argument.removeprefix('--').split('=', 1) for argument in arguments if argument.startswith('--'))


class SweepTest(parameterized.TestCase):

  def test_agents_are_the_cells_of_the_papers_grid_each_once(self):
    """Schmitt et al. 2020, section 5.1."""
    config = laser_sweep.SweepConfig(seed=7)
    cells = []
    for index in range(9):
      flags = _values(laser_sweep.flags_of(config, index))
      self.assertEqual(set(flags), {'learning_rate', 'entropy_cost', 'seed'})
      self.assertEqual(flags['seed'], str(7 + index))
      cells.append((float(flags['learning_rate']), float(flags['entropy_cost'])))
    self.assertCountEqual(cells, itertools.product((3e-4, 6e-4, 1.2e-3), (5e-3, 1e-2, 2e-2)))
    self.assertEqual(cells[0], (6e-4, 1e-2))  # A sweep of one agent has the values in the middle.
    self.assertEqual({sum(value != middle for value, middle in zip(cell, cells[0])) for cell in cells[1:5]}, {1})

  def test_agents_on_dmlab_are_random_samples(self):
    config = laser_sweep.SweepConfig(agent='laser_dmlab30', agents=10)
    self.assertEqual([laser_sweep.flags_of(config, index) for index in range(10)],
                     [[f'--sweep_index={index}', f'--seed={index + 1}'] for index in range(10)])

  @parameterized.parameters(
      ('laser_atari57', laser_atari57, '50000000'), ('laser_dmlab30', laser_dmlab30, '10000000000'))
  def test_commands(self, name, module, frames):
    config = laser_sweep.SweepConfig(agent=name, agents=3, logdir='/a folder/sweep')
    agents, replay = laser_sweep.commands(config, ['--torso=shallow'], _ADDRESS)
    self.assertEqual(list(agents), ['agent_00', 'agent_01', 'agent_02'])
    for index, command in enumerate(agents.values()):
      self.assertEqual(command[:2], ['-m', module.__name__])
      flags = _values(command)
      self.assertContainsSubset({'total_environment_frames': frames, 'torso': 'shallow', 'shared_replay': _ADDRESS,
                                 'seed': str(1 + index)}, flags)
      self.assertNotIn('logdir', flags)  # The launcher adds it.
    self.assertEqual(replay, ['-m', laser_replay.__name__, f'--shared_replay={_ADDRESS}',
                              '--logdir=/a folder/sweep/replay'])
    without, _ = laser_sweep.commands(dataclasses.replace(config, share=False), [], _ADDRESS)
    self.assertNotIn('shared_replay', ' '.join(itertools.chain(*without.values())))

  def test_the_number_of_frames_can_be_changed(self):
    agents, _ = laser_sweep.commands(laser_sweep.SweepConfig(), ['--total_environment_frames=5'], _ADDRESS)
    for command in agents.values():
      self.assertEqual(_values(command)['total_environment_frames'], '5')  # As for programs, the last one counts.

  @parameterized.parameters(
      (dict(agents=10), "--agents=10: want at most 9, the size of the paper's sweep"),
      (dict(agents=11, agent='laser_dmlab30'), "--agents=11: want at most 10, the size of the paper's sweep"),
      (dict(agents=0), '--agents=0: want a whole number from 1 to '),
      (dict(agent='impala_atari57'), '--agent=impala_atari57: want one of laser_atari57, laser_dmlab30'),
      (dict(logdir=''), '--logdir=: want a folder'),
      (dict(print_commands='replay-host'), '--print_commands=replay-host: want HOST:PORT'))
  def test_refuses(self, settings, message):
    with self.assertRaises(ValueError) as caught:
      laser_sweep.validate(laser_sweep.SweepConfig(**settings))
    self.assertStartsWith(str(caught.exception), message)

  def test_a_sweep_of_ten_on_dmlab_is_allowed(self):
    laser_sweep.validate(laser_sweep.SweepConfig(agents=10, agent='laser_dmlab30', print_commands=_ADDRESS))


class MainTest(parameterized.TestCase):

  def _main(self, *others, **settings):
    """Runs `main` with these settings. Returns the lines that it prints."""
    config = laser_sweep.SweepConfig(**dict(logdir='/runs/a sweep') | settings)
    screen = io.StringIO()
    with mock.patch.object(run_flags, 'config_from_flags', lambda *unused: config):
      with contextlib.redirect_stdout(screen):
        laser_sweep.main(others)
    return screen.getvalue().splitlines()

  @parameterized.parameters(True, False)
  def test_prints_commands_that_a_shell_can_read(self, share):
    lines = self._main('--level_name=pong', '--gpu=a b', agents=2, share=share, print_commands=_ADDRESS)
    commands = [shlex.split(line) for line in lines]
    self.assertEqual({command[0] for command in commands}, {'python'})
    modules = [laser_replay.__name__] * share + [laser_atari57.__name__] * 2
    self.assertEqual([command[2] for command in commands], modules)
    self.assertEqual([_values(command)['logdir'] for command in commands],
                     ['/runs/a sweep/replay'] * share + ['/runs/a sweep/agent_00', '/runs/a sweep/agent_01'])
    for command in commands[share:]:
      self.assertContainsSubset({'level_name': 'pong', 'gpu': 'a b'}, _values(command))
    for command in commands:
      self.assertEqual(_values(command).get('shared_replay'), _ADDRESS if share else None)

  @parameterized.parameters('--learning_rate=1', '--entropy_cost=0', '--mode=test', '--shared_replay=a:1',
                            '-sweep_index=3')
  def test_refuses_flags_that_it_sets_itself(self, flag):
    with self.assertRaisesRegex(errors.UserError, f'^{flag}: the sweep sets this flag of its agents by itself$'):
      self._main(flag, print_commands=_ADDRESS)

  def test_starts_the_replay_and_the_agents(self):
    folder = self.create_tempdir().full_path
    with mock.patch.object(laser_sweep.run_launcher, 'Launcher') as launcher:
      launcher.return_value.run.return_value = []
      screen = self._main(agents=2, logdir=folder)
      (commands, its_folder, _, services), _ = launcher.call_args
      self.assertEqual((list(commands), its_folder, list(services)), (['agent_00', 'agent_01'], folder, ['replay']))
      address = _values(services['replay'])['shared_replay']
      self.assertRegex(address, r'^127\.0\.0\.1:\d+$')
      self.assertEqual({_values(command)['shared_replay'] for command in commands.values()}, {address})
      self.assertEqual(len({command[0] for command in commands.values()}), 1)
      self.assertIn('scalable-agents tables --paper=laser', screen[-1])
      self._main(agents=2, logdir=folder, share=False)
      self.assertEmpty(launcher.call_args[0][3])
      launcher.return_value.run.return_value = ['agent_01']
      with self.assertRaisesRegex(errors.UserError, 'not started again: agent_01; the same command tries again$'):
        self._main(agents=2, logdir=folder)


if __name__ == '__main__':
  absltest.main()
