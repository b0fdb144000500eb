"""Tests README.md: its length, agents and badges. Also tests CITATION.cff and the links between all pages."""

import re
import tomllib

from absl.testing import absltest
from absl.testing import parameterized
import yaml

import scalable_agents
from scalable_agents.agents import registry
from scalable_agents.tests import source_tree
from scalable_agents.tests.docs import pages


def _anchors(text):
  """Returns the anchors of a page's headings, as GitHub makes them."""
  headings = re.findall(r'^#+ (.*)$', pages.without_code(text), re.MULTILINE)
  return {re.sub(r'[^\w\- ]', '', heading.lower()).replace(' ', '-') for heading in headings}


class ReadmeTest(parameterized.TestCase):

  def test_it_has_at_most_900_words(self):
    self.assertLessEqual(len(pages.read('README.md').split()), 900)

  def test_its_table_has_every_preset(self):
    named = re.findall('`([a-z0-9_]+)`', pages.read('README.md'))
    self.assertContainsSubset(registry.PRESETS, named)

  @parameterized.parameters('python', 'tensorflow', 'licence')
  def test_a_badge_is_true(self, name):
    project = tomllib.loads(pages.read('pyproject.toml'))
    first, end = re.fullmatch(r'>=3\.(\d+),<3\.(\d+)', project['project']['requires-python']).groups()
    true = {
        'python': f'3.{first} to 3.{int(end) - 1}',
        'tensorflow': re.search('^tensorflow==(.*)$', pages.read('requirements.txt'), re.MULTILINE)[1],
        'licence': project['project']['license'].replace('-', ' ')}
    self.assertIn(f'>{true[name]}</text>', pages.read(f'docs/badges/{name}.svg'))
    self.assertRegex(pages.read('README.md'), rf'(?i)!\[{name} {true[name]}\]\(docs/badges/{name}\.svg\)')


class CitationTest(absltest.TestCase):

  def test_it_has_the_version_and_the_papers(self):
    citation = yaml.safe_load(pages.read('CITATION.cff'))
    self.assertEqual(citation['version'], scalable_agents.__version__)
    papers = tomllib.loads(pages.read('pyproject.toml'))['project']['urls'].values()
    self.assertCountEqual([reference['url'] for reference in citation['references']], papers)
    for entry in (citation, *citation['references']):
      self.assertContainsSubset({'title', 'authors', 'type'}, entry)


class LinksTest(parameterized.TestCase):

  @parameterized.parameters(*pages.ALL)
  def test_links_of_a_page_lead_somewhere(self, page):
    text = pages.read(page)
    folder = (source_tree.ROOT / page).parent
    broken = []
    for link in re.findall(r'\]\(([^)\s]+)\)', pages.without_code(text)):
      if re.match('https?:', link):
        continue
      path, _, anchor = link.partition('#')
      target = folder / path if path else source_tree.ROOT / page
      is_generated = 'reference' in target.parts  # Their headings are made when the site is built.
      if not target.exists() or anchor and not is_generated and anchor not in _anchors(
          target.read_text(encoding='utf-8')):
        broken.append(link)
    self.assertEmpty(broken)


if __name__ == '__main__':
  absltest.main()
