"""Tests docs/coverage.md: it lists every item of the papers, and each of its commands is one that its program takes.

A command is a code span that starts with //. To cover a new program, only name it on the page. In a command, IMAGES is
the folder of the photographs for DMLab-30.
"""

import dataclasses
import functools
import re
import runpy
import shlex
import sys
from unittest import mock

from absl import flags
from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents.agents import registry
from scalable_agents.cluster import cluster_config
from scalable_agents.environments import dmlab
from scalable_agents.environments import registry as environments
from scalable_agents.population import population_config
from scalable_agents.processes import python_path
from scalable_agents.processes import quiet
from scalable_agents.processes import run_flags
from scalable_agents.records import errors
from scalable_agents.records import settings
from scalable_agents.tests import source_tree

_PAGE = 'coverage.md'
_ITEMS = {  # Section of the page -> what the paper has.
    'IMPALA': [*(f'Figure {n}' for n in (1, 2, 3, 4, 5, 6, 'B.1', 'D.1', 'E.1', 'E.2', 'E.3', 'E.4', 'F.1')),
               *(f'Table {n}' for n in (1, 2, 3, 4, 'B.1', 'C.1', 'D.1', 'D.2', 'D.3', 'G.1')),
               *(f'Remark {n}' for n in (1, 2, 3)), 'Theorem 1', 'Theorem 2',
               *(f'Appendix {n}' for n in ('A.1', 'A.2', 'A.3', 'B', 'C', 'D', 'E.1', 'E.2', 'E.3', 'F', 'G'))],
    'PopArt-IMPALA': ['Summary of results', *(f'Figure {n}' for n in range(1, 6)), 'Implementation notes'],
    'R2D2': [*(f'Figure {n}' for n in range(1, 12)), *(f'Table {n}' for n in range(1, 5)),
             *(f'Appendix, {part}' for part in ('Effect of distributed RL agent training', 'Extended results',
                                                'Hyper-parameters', 'Full results'))],
    'LASER': [*(f'Figure {n}' for n in range(1, 5)), 'Table 1', 'Table 2', 'Algorithm 1',
              *(f'Proposition {n}' for n in range(1, 6)),
              *(f'Appendix {n}' for n in ('A.1', 'A.2', 'A.3', 'B', 'C', 'D'))],
}


def _rows():
  """Yields the section, the item and the further cells of each row of the page's tables."""
  section = ''
  for line in (source_tree.ROOT / 'docs' / _PAGE).read_text(encoding='utf-8').splitlines():
    if line.startswith('## '):
      section = line.removeprefix('## ')
    elif line.startswith('| ') and not line.startswith('| item '):
      item, *cells = (cell.strip() for cell in line.strip('| ').split(' | '))
      yield section, item, cells


_COMMANDS = sorted({command for *_, cells in _rows() for command in re.findall('`(//[^`]+)`', cells[-1])})


@functools.cache
def _program(module):
  """Reads what a program is, without running it.

  Returns:
    The defaults of its flags, whether it passes other flags on to an agent, and its function that checks its config.
  """
  parts, takes_others = [], []
  with mock.patch.object(run_flags, 'define', parts.append), mock.patch.object(quiet, 'start'), mock.patch.object(
      run_flags, 'run_main', lambda _, **named: takes_others.append(bool(named))):
    names = runpy.run_module(module, run_name='__main__')
  defaults, = parts
  home = names if type(defaults).__module__ == '__main__' else vars(sys.modules[type(defaults).__module__])
  return defaults, takes_others[-1], home.get('validate', settings.check)


def _parse(parts, arguments):
  """Parses flags as a program does. Returns the flags."""
  flag_values = flags.FlagValues()
  flags.DEFINE_bool('help', False, '', flag_values=flag_values)
  for defaults in parts:
    run_flags.define(defaults, flag_values)
  rest = flag_values(['program', *arguments])
  if rest != ['program']:
    raise ValueError(f'no such argument: {rest[1:]}')
  return flag_values


def _check_agent(name, arguments):
  """Checks the flags of a preset's program together, as the program does, and that the levels exist."""
  preset = registry.PRESETS[name]
  agent = python_path.load(preset.agent)
  population, cluster = population_config.PopulationConfig(), cluster_config.ClusterConfig()
  flag_values = _parse((preset.config, preset.protocol, population, cluster, preset.run), arguments)
  if flag_values['help'].value:
    return
  read = functools.partial(run_flags.config_from_flags, flag_values=flag_values)
  config = read(agent.config, agent.validate)
  read(type(population), population_config.validate)
  read(type(cluster), cluster_config.validate)
  run = agent.complete_run(config, read(type(preset.run)))
  if config.sweep_index >= agent.sweep.num_samples:
    raise ValueError(f'--sweep_index={config.sweep_index}: want at most {agent.sweep.num_samples - 1}')
  for level in environments.expand(config.level_name):
    _check_level(level)
  if run.mode == 'train':  # An evaluation has the settings of its run.
    read(type(preset.protocol)).validate(environments.expand(config.level_name))


@functools.cache
def _check_level(level):
  if level not in dmlab.LEVELS:  # They need DeepMind Lab.
    environments.check(level)


def _check(command):
  """Raises an error if the program of a command does not exist, or refuses its flags."""
  target, *arguments = shlex.split(command.replace('--dataset_path=IMAGES', f'--dataset_path={dmlab.DUMMY_DATASET}'))
  package, name = target.removeprefix('//').split(':')
  if package == 'agents' and name in registry.PRESETS:
    return _check_agent(name, arguments)
  defaults, takes_others, validate = _program(f'scalable_agents.{package}.{name}')
  names = {field.name for field in dataclasses.fields(defaults)}
  own = [argument for argument in arguments
         if not takes_others or re.match('--([a-z_]*)', argument)[1].removeprefix('no') in names]
  config = run_flags.config_from_flags(type(defaults), validate, flag_values=_parse([defaults], own))
  if takes_others:
    shares = getattr(config, 'share', False) or getattr(config, 'share_replay', False)  # Of laser_sweep, population.
    agents = [argument for argument in arguments if argument not in own]
    _check_agent(getattr(config, 'agent', 'impala_atari57'), agents + ['--shared_replay=localhost:20000'] * shares)


class CoverageTest(parameterized.TestCase):

  @parameterized.parameters(*_ITEMS)
  def test_every_item_of_the_papers_has_a_row(self, section):
    named = [item for of_section, item, _ in _rows() if of_section == section]
    for item in _ITEMS[section]:
      self.assertTrue(any(re.match(rf'{re.escape(item)}(?![\w.])', name) for name in named), item)

  def test_every_row_says_what_it_is_and_how_it_is_made_or_why_not(self):
    for section, item, cells in _rows():
      self.assertLen(cells, 2, f'{section}, {item}')
      self.assertTrue(all(cells), f'{section}, {item}')

  @parameterized.parameters(*_COMMANDS)
  def test_a_command_parses(self, command):
    _check(command)

  @parameterized.parameters(
      '//agents:impala_atari57 --level_name=no_such_game', '//agents:impala_atari57 --no_such_flag=1',
      '//agents:impala_atari57 --batch_size=0', '//agents:no_such_program', '//tables:impala --tabel=3',
      '//agents:population --agent=impala_atari57 --no_such_flag=1', '//tables:impala word',
      # Flags that are refused together.
      '//agents:impala_dmlab30', '//agents:impala_dmlab30 --level_name=rooms_watermaze --sweep_index=24',
      '//agents:laser_atari57 --level_name=pong --replay_share=0 --nolearn_online', '//tables:impala --runs=runs/x',
      '//agents:r2d2_atari57 --level_name=pong --samples_per_period=50',
      '//agents:laser_sweep --level_name=pong --replay_share=0', '//agents:laser_sweep --level_name=pong --agents=10')
  def test_a_wrong_command_is_found(self, command):
    with self.assertRaises((ValueError, ImportError, errors.UserError, flags.Error)):
      _check(command)


if __name__ == '__main__':
  absltest.main()
