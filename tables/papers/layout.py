"""Formats a table as Markdown and as CSV."""

from collections.abc import Sequence
import csv
import io
from typing import Any, NamedTuple

from scalable_agents.tables.results import results

MISSING = '–'


class Number(NamedTuple):
  """A cell with a number."""
  value: results.Score | float | None  # None for an empty cell.
  decimals: int                        # Digits after the point in Markdown. CSV has all digits.
  more: str = ''                       # A text after the number, only in Markdown.


class Table(NamedTuple):
  """A table of texts and Numbers."""
  title: str
  columns: Sequence[str]
  rows: Sequence[Sequence[str | Number]]
  notes: Sequence[str]  # Lines below the table.


def compared(paper: float | None, cell: results.Cell, decimals: int) -> list[str | Number]:
  """Returns the cells of the columns of `comparison_columns`.

  Args:
    paper: the paper's number, None if the paper has none.
    cell: the runs' result.
    decimals: digits after the point.
  """
  score = cell.score
  difference = score.mean - paper if score is not None and paper is not None else None
  return [Number(paper, decimals), Number(score, decimals), Number(difference, decimals), cell.extent]


def comparison_columns(name: str) -> list[str]:
  """Returns the headings for the paper's number, the run's score, their difference, and the extent of the run."""
  return [f'{name}: {head}' for head in ('paper', 'this run', 'difference', 'run')]


def markdown(table: Table) -> str:
  """Formats a table as Markdown. Columns are padded, so that the text is also readable on the screen."""
  differences = [column.endswith('difference') for column in table.columns]
  rows = [[_text(value, signed) for value, signed in zip(row, differences, strict=True)] for row in table.rows]
  widths = [max(map(len, column)) for column in zip(table.columns, *rows, strict=True)]
  right = [any(isinstance(row[i], Number) for row in table.rows) for i in range(len(widths))]
  lines = ['| ' + ' | '.join(text.rjust(width) if end else text.ljust(width)
                             for text, width, end in zip(row, widths, right, strict=True)) + ' |'
           for row in (table.columns, *rows)]
  lines.insert(1, '|' + '|'.join('-' * (width + 1) + (':' if end else '-')
                                 for width, end in zip(widths, right, strict=True)) + '|')
  notes = [f'- {note}' for note in table.notes]
  return '\n'.join([f'**{table.title}**', '', *lines, *([''] if notes else []), *notes]) + '\n'


def comma_separated(table: Table) -> str:
  """Formats a table as CSV, with all digits. The spread and the number of runs have their own columns."""
  scored = [column.endswith('this run') for column in table.columns]
  text = io.StringIO()
  writer = csv.writer(text, lineterminator='\n')
  writer.writerow([name for column, score in zip(table.columns, scored, strict=True)
                   for name in ((column, f'{column} ±', f'{column} runs') if score else (column,))])
  for row in table.rows:
    writer.writerow([value for cell, score in zip(row, scored, strict=True) for value in _values(cell, score)])
  return text.getvalue()


def _text(cell: str | Number, signed: bool) -> str:
  if isinstance(cell, str):
    return cell.replace('|', r'\|')
  value, decimals, more = cell
  if value is None:
    return MISSING
  if isinstance(value, results.Score):
    spread = f' ± {value.spread:.{decimals}f} ({value.seeds} runs)' if value.spread is not None else ''
    return f'{value.mean:z.{decimals}f}{spread}{more}'
  return f'{value:{"+" if signed else ""}z.{decimals}f}{more}'


def _values(cell: str | Number, scored: bool) -> Sequence[Any]:
  value = cell.value if isinstance(cell, Number) else cell
  if scored:
    return tuple(value) if isinstance(value, results.Score) else (None,) * len(results.Score._fields)
  return (value,)
