"""Tests docs/coverage.md: it lists every item of the papers, and each of its commands is one that its program takes.

A command is a code span that starts with //. To cover a new program, only name it on the page.
"""

import dataclasses
import functools
import re
import runpy
import shlex
from unittest import mock

from absl import flags
from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents.agents import registry
from scalable_agents.cluster import cluster_config
from scalable_agents.environments import dmlab
from scalable_agents.environments import registry as environments
from scalable_agents.population import population_config
from scalable_agents.processes import quiet
from scalable_agents.processes import run_flags
from scalable_agents.records import errors
from scalable_agents.tests import source_tree

_PAGE = 'coverage.md'
_ITEMS = {  # Section of the page -> what the paper has.
    'IMPALA': [*(f'Figure {n}' for n in (1, 2, 3, 4, 5, 6, 'B.1', 'D.1', 'E.1', 'E.2', 'E.3', 'E.4', 'F.1')),
               *(f'Table {n}' for n in (1, 2, 3, 4, 'B.1', 'C.1', 'D.1', 'D.2', 'D.3', 'G.1')),
               *(f'Remark {n}' for n in (1, 2, 3)), 'Theorem 1', 'Theorem 2'],
    'PopArt-IMPALA': ['Summary of results', *(f'Figure {n}' for n in range(1, 6))],
    'R2D2': [*(f'Figure {n}' for n in range(1, 12)), *(f'Table {n}' for n in range(1, 5))],
    'LASER': [*(f'Figure {n}' for n in range(1, 5)), 'Table 1', 'Table 2', 'Algorithm 1',
              *(f'Proposition {n}' for n in range(1, 6))],
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
  """Returns the defaults of a program's flags, and whether it passes other flags on to an agent. Does not run it."""
  parts, takes_others = [], []
  with mock.patch.object(run_flags, 'define', parts.append), mock.patch.object(quiet, 'start'), mock.patch.object(
      run_flags, 'run_main', lambda _, **named: takes_others.append(bool(named))):
    runpy.run_module(module, run_name='__main__')
  return parts, takes_others[-1]


def _parse(parts, arguments):
  """Parses flags as a program does, and checks the range of each. Returns the flags."""
  flag_values = flags.FlagValues()
  flags.DEFINE_bool('help', False, '', flag_values=flag_values)
  for defaults in parts:
    run_flags.define(defaults, flag_values)
  rest = flag_values(['program', *arguments])
  if rest != ['program']:
    raise ValueError(f'no such argument: {rest[1:]}')
  for defaults in parts:
    run_flags.config_from_flags(type(defaults), flag_values=flag_values)
  return flag_values


def _parse_agents(name, arguments):
  """Parses the flags of a preset's program, and checks that the level exists."""
  preset = registry.PRESETS[name]
  parts = preset.config, preset.protocol, population_config.PopulationConfig(), cluster_config.ClusterConfig()
  flag_values = _parse((*parts, preset.run), arguments)
  for level in environments.expand(flag_values['level_name'].value):
    _check_level(level)


@functools.cache
def _check_level(level):
  if level not in dmlab.LEVELS:  # They need DeepMind Lab.
    environments.check(level)


def _check(command):
  """Raises an error if the program of a command does not exist or does not take its flags."""
  target, *arguments = shlex.split(command)
  package, name = target.removeprefix('//').split(':')
  if package == 'agents' and name in registry.PRESETS:
    return _parse_agents(name, arguments)
  parts, takes_others = _program(f'scalable_agents.{package}.{name}')
  names = {field.name for part in parts for field in dataclasses.fields(part)}
  own = [argument for argument in arguments
         if not takes_others or re.match('--([a-z_]*)', argument)[1].removeprefix('no') in names]
  flag_values = _parse(parts, own)
  if takes_others:
    agent = flag_values['agent'].value if 'agent' in names else 'impala_atari57'
    _parse_agents(agent, [argument for argument in arguments if argument not in own])


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
      '//agents:population --agent=impala_atari57 --no_such_flag=1', '//tables:impala word')
  def test_a_wrong_command_is_found(self, command):
    with self.assertRaises((ValueError, ImportError, errors.UserError, flags.Error)):
      _check(command)


if __name__ == '__main__':
  absltest.main()
