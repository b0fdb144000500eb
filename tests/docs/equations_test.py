"""Tests the lines of code beside the papers' equations: they are found in the source, once, and a link leads there.

The site is built with the same lines, but its build does not notice if a text is found more than once.
"""

import ast
import posixpath
import re
from typing import NamedTuple

from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents.tests import source_tree

_PAGES = sorted(path.name for path in (source_tree.ROOT / 'docs' / 'equations').glob('*.md'))
_BLOCK = re.compile(r'^```\{literalinclude\} (\S+)\n((?::.*\n)*)```$', re.MULTILINE)


class Included(NamedTuple):
  """Lines of a source file that a page shows."""
  path: str                # In the repository.
  options: dict[str, str]  # Of Sphinx's directive.
  position: int            # In the page.


def _read(page):
  return (source_tree.ROOT / 'docs' / 'equations' / page).read_text(encoding='utf-8')


def _included(page):
  """Returns what a page includes."""
  return [Included(posixpath.normpath(f'docs/equations/{match[1]}'),
                   dict(re.findall(r':([\w-]+): ?(.*)', match[2])), match.start())
          for match in _BLOCK.finditer(_read(page))]


def _lines(included):
  """Returns the lines of the object that a block names, or those of the whole file."""
  text = (source_tree.ROOT / included.path).read_text(encoding='utf-8')
  if 'pyobject' not in included.options:
    return text.splitlines()
  node = ast.parse(text)
  for name in included.options['pyobject'].split('.'):
    node, = (child for child in ast.iter_child_nodes(node) if getattr(child, 'name', None) == name)
  return text.splitlines()[node.lineno - 1:node.end_lineno]


class EquationsTest(parameterized.TestCase):

  @parameterized.parameters(*_PAGES)
  def test_the_first_line_is_found_once_and_the_last_one_after_it(self, page):
    for included in _included(page):
      lines, start = _lines(included), included.options['start-at']
      found = [number for number, line in enumerate(lines) if start in line]
      self.assertLen(found, 1, included)
      end = included.options.get('end-at') or included.options.get('end-before')
      self.assertTrue(not end or any(end in line for line in lines[found[0]:]), included)

  @parameterized.parameters(*_PAGES)
  def test_a_link_before_the_lines_leads_to_their_file(self, page):
    text, included = _read(page), _included(page)
    self.assertLen(included, text.count('literalinclude'))
    for block in included:
      section = text[text.rfind('\n## ', 0, block.position):block.position]
      self.assertIn(f'(../../{block.path})', section)


if __name__ == '__main__':
  absltest.main()
