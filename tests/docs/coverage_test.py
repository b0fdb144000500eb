"""Tests docs/coverage.md: it lists every item of the papers. blocks_test.py tests its commands."""

import re

from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents.tests.docs import pages

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
  for line in pages.read('docs/coverage.md').splitlines():
    if line.startswith('## '):
      section = line.removeprefix('## ')
    elif line.startswith('| ') and not line.startswith('| item '):
      item, *cells = (cell.strip() for cell in line.strip('| ').split(' | '))
      yield section, item, cells


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


if __name__ == '__main__':
  absltest.main()
