"""Tests the run directories in the pages' commands: --logdir and --runs.

Each run has a directory of its own. The commands for tables read runs that other commands make, or excerpts in docs/.
"""

import bisect
import collections
import contextlib
import fnmatch
import shlex

from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents.records import errors
from scalable_agents.tests import source_tree
from scalable_agents.tests.docs import commands
from scalable_agents.tests.docs import pages

_FOLDERS = {'population': [f'/member_{index:02}' for index in range(24)],  # A launcher -> what it makes in --logdir.
            'laser_sweep': [f'/agent_{index:02}' for index in range(10)]}


def _values(page, flag):
  """Returns (number of its heading, module, value) of each command in a page that has a flag."""
  headings = [number for number, line in enumerate(pages.without_code(pages.read(page)).splitlines(), 1)
              if line.startswith('##')]
  found = []
  for line, words in pages.calls(page):
    module, arguments = commands.program(words)
    found += [(bisect.bisect(headings, line), module, word.removeprefix(flag))
              for word in arguments if word.startswith(flag)]
  return found


def _made(page):
  """Returns the section and the run directories of each command that makes some."""
  trained = [(section, [path + folder for folder in _FOLDERS.get(module.rpartition('.')[2], [''])])
             for section, module, path in _values(page, '--logdir=') if module.startswith('scalable_agents.agents.')]
  copied = [(section, [path]) for section, module, path in _values(page, '--output=') if module.endswith('.excerpt')]
  return trained + copied


def _read(page):
  """Returns the section and each pattern of --runs in a page."""
  return [(section, pattern) for section, _, value in _values(page, '--runs=') for pattern in value.split(',')]


def _trainings(page):
  """Returns the words of the commands in a page that a reader may run as they are.

  Between backticks, these are the ones that name a run directory. The others only show flags.
  """
  in_blocks = pages.calls_in_blocks(page)
  return [call.words for call in pages.calls(page)
          if call in in_blocks or any(word.startswith(('--logdir=', 'LOGDIR=')) for word in call.words)]


def _matches(pattern, path):
  """Returns whether a pattern matches a path, as in a shell: * is a part of one name."""
  patterns, names = pattern.split('/'), path.split('/')
  return len(patterns) == len(names) and all(map(fnmatch.fnmatchcase, names, patterns))


class RunsTest(parameterized.TestCase):

  @parameterized.parameters(*(page for page in pages.CHECKED if '--runs=' in pages.read(page)))
  def test_the_runs_that_are_read_are_made_or_published(self, page):
    made = [path for other in pages.CHECKED for _, paths in _made(other) for path in paths]
    configs = source_tree.ROOT.glob('docs/*/*/config.json')
    published = [str(config.parent.relative_to(source_tree.ROOT)) for config in configs]
    self.assertEmpty([pattern for _, pattern in _read(page)
                      if not any(_matches(pattern, path) for path in made + published)])

  @parameterized.parameters('laser.md', 'popart.md', 'r2d2.md', 'suites.md')
  def test_runs_are_read_in_the_section_that_makes_them(self, page):
    read = _read(f'docs/{page}')
    sections = {section for section, _ in read}
    unread = [paths[0] for section, paths in _made(f'docs/{page}') if section in sections
              if not any(_matches(pattern, path) for reader, pattern in read if reader == section for path in paths)]
    self.assertEmpty(unread)

  def test_runs_with_different_settings_have_directories_of_their_own(self):
    made = collections.defaultdict(list)  # Run directory -> the settings and the words of each command that makes it.
    for page in pages.CHECKED:
      for words in _trainings(page):
        with contextlib.suppress(ImportError, errors.UserError):  # Agents and environments of the tutorials' reader.
          if run := commands.check(words):
            made[run.logdir].append((run.settings, f'{page}: {shlex.join(words)}'))
    self.assertGreater(len(made), 100)
    for (settings, words), *others in made.values():
      self.assertEmpty([text for other, text in others if other != settings], f'not with {words}')

  def test_a_star_does_not_match_a_slash(self):
    self.assertTrue(_matches('runs/*/agent_*', 'runs/pong/agent_00'))
    self.assertFalse(_matches('runs/*', 'runs/pong/agent_00'))


if __name__ == '__main__':
  absltest.main()
