"""Tests of tables as Markdown and as CSV."""

from absl.testing import absltest

from scalable_agents.tables.papers import layout
from scalable_agents.tables.results import results

_TABLE = layout.Table('A title', ['level', *layout.comparison_columns('us')], [
    ['pong', *layout.compared(21.0, results.Cell(results.Score(19.456, 1.23, 3), 'in full'), 1)],
    ['qbert', *layout.compared(5.25, results.Cell(results.Score(10.0), 'scaled down: 1 of 2 frames'), 1)],
    ['venture', *layout.compared(None, results.Cell(results.Score(-0.04), 'in full'), 1)],
    ['zaxxon', *layout.compared(3.0, results.Cell(None, 'not run'), 1)],
], ['A note.'])


class LayoutTest(absltest.TestCase):

  def test_markdown(self):
    self.assertMultiLineEqual(layout.markdown(_TABLE), '''\
**A title**

| level   | us: paper |        us: this run | us: difference | us: run                    |
|---------|----------:|--------------------:|---------------:|----------------------------|
| pong    |      21.0 | 19.5 ± 1.2 (3 runs) |           -1.5 | in full                    |
| qbert   |       5.2 |                10.0 |           +4.8 | scaled down: 1 of 2 frames |
| venture |         – |                 0.0 |              – | in full                    |
| zaxxon  |       3.0 |                   – |              – | not run                    |

- A note.
''')

  def test_a_text_after_a_number_is_only_in_markdown(self):
    table = layout.Table('A title', ['mean'], [[layout.Number(1.26, 1, ' (1 to 2)')]], [])
    self.assertIn('| 1.3 (1 to 2) |', layout.markdown(table))
    self.assertEqual(layout.comma_separated(table), 'mean\n1.26\n')

  def test_regression_a_bar_in_a_name_is_no_column(self):
    table = layout.Table('A title', ['level'], [['dm_env:m:make?a=x|y']], [])
    self.assertIn(r'| dm_env:m:make?a=x\|y |', layout.markdown(table))
    self.assertEqual(layout.comma_separated(table), 'level\ndm_env:m:make?a=x|y\n')

  def test_without_notes_a_table_ends_with_its_last_row(self):
    self.assertEndsWith(layout.markdown(_TABLE._replace(notes=[])), 'not run                    |\n')

  def test_csv_has_all_digits_and_the_spread_in_columns_of_its_own(self):
    self.assertMultiLineEqual(layout.comma_separated(_TABLE), '''\
level,us: paper,us: this run,us: this run ±,us: this run runs,us: difference,us: run
pong,21.0,19.456,1.23,3,-1.5440000000000005,in full
qbert,5.25,10.0,,1,4.75,scaled down: 1 of 2 frames
venture,,-0.04,,1,,in full
zaxxon,3.0,,,,,not run
''')


if __name__ == '__main__':
  absltest.main()
