"""Tests that the commands for tables in the pages read the runs that other commands there make: --runs and --logdir.

In a path, a variable of the shell stands for any text, here for x.
"""

import fnmatch
import re

from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents.tests import source_tree

_PAGES = ['README.md', *(str(path.relative_to(source_tree.ROOT))
                         for path in sorted((source_tree.ROOT / 'docs').rglob('*.md')))]
_VALUE = r'''("[^"]*"|'[^']*'|[^\s'"`]+)'''
_AGENT = re.compile(r'(?://agents:|scalable_agents\.agents\.|scalable[_-]agents )(\w+)[^`\n]*--logdir=' + _VALUE)
_FOLDERS = {'population': [f'/member_{index:02}' for index in range(24)],  # A launcher -> what it makes in --logdir.
            'laser_sweep': [f'/agent_{index:02}' for index in range(10)]}


def _text(page):
  """Returns a page with each command on one line."""
  return (source_tree.ROOT / page).read_text(encoding='utf-8').replace('\\\n', ' ')


def _path(value):
  """Returns a path without quotes and variables."""
  return re.sub(r'\$\{[^}]*\}|\$\w+', 'x', value.strip('\'"').replace('$PWD/', ''))


def _made(text):
  """Returns the run directories of each command that makes some."""
  return [[_path(value) + folder for folder in _FOLDERS.get(program, [''])] for program, value in _AGENT.findall(text)]


def _patterns(text):
  """Returns the patterns of --runs in a text."""
  return [pattern for value in re.findall('--runs=' + _VALUE, text) for pattern in _path(value).split(',')]


def _matches(pattern, path):
  """Returns whether a pattern matches a path, as in a shell: * is a part of one name."""
  patterns, names = pattern.split('/'), path.split('/')
  return len(patterns) == len(names) and all(map(fnmatch.fnmatchcase, names, patterns))


class RunsTest(parameterized.TestCase):

  @parameterized.parameters(*(page for page in _PAGES if _patterns(_text(page))))
  def test_a_command_makes_the_runs_that_are_read(self, page):
    made = [path for other in _PAGES for paths in _made(_text(other)) for path in paths]
    unknown = [pattern for pattern in _patterns(_text(page)) if not any(_matches(pattern, path) for path in made)]
    self.assertEmpty(unknown)

  @parameterized.parameters('laser.md', 'popart.md', 'r2d2.md', 'suites.md')
  def test_runs_are_read_in_the_section_that_makes_them(self, page):
    sections = [text for text in re.split(r'\n##+ ', _text(f'docs/{page}')) if _patterns(text)]
    unread = [paths[0] for text in sections for paths in _made(text)
              if not any(_matches(pattern, path) for pattern in _patterns(text) for path in paths)]
    self.assertEmpty(unread)

  def test_a_star_does_not_match_a_slash(self):
    self.assertTrue(_matches('runs/*/agent_*', 'runs/pong/agent_00'))
    self.assertFalse(_matches('runs/*', 'runs/pong/agent_00'))


if __name__ == '__main__':
  absltest.main()
