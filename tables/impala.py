"""The IMPALA paper's tables, with what your runs have reached beside them.

  bazel run //tables:impala -- --table=3 --runs='runs/dmlab30_*' --output=results
  bazel run //tables:impala -- --table=C.1 --figures
  bazel run //tables:impala -- --table=sweep --runs='runs/sweep_*' --figures

Prints the table, and writes it as Markdown and CSV. Espeholt et al. 2018: tables 3, 4, B.1 and C.1, figures
4 and E.1.
"""

import dataclasses
import os
import sys
from typing import Sequence

from scalable_agents.records import errors
from scalable_agents.records import run_directory
from scalable_agents.records import settings
from scalable_agents.records.settings import setting
from scalable_agents.tables import figures
from scalable_agents.tables import layout
from scalable_agents.tables import paper_tables
from scalable_agents.tables import runs as runs_lib
from scalable_agents.tables import sweep
from scalable_agents.training import run_flags

_SWEEP = 'sweep'
_TABLES = (*paper_tables.TABLES, _SWEEP)


@dataclasses.dataclass(frozen=True)
class TablesConfig:
  """The flags."""

  table: str = setting('', 'Which table: ' + ', '.join(_TABLES) + '. Of a sweep: its samples, best first.',
                       choices=_TABLES)
  runs: str = setting('', 'Run directories to compare with the paper: paths, with * if you like, separated by commas. '
                          'None: only the numbers of the paper.')
  output: str = setting('results', 'The folder to write to.')
  figures: bool = setting(False, 'Draw pictures too: learning curves, and scores of levels as bars; of a sweep the '
                                 'curves of its best samples, and its stability.')


def validate(config: TablesConfig):
  """Raises ValueError, one line with flag, value and what is allowed."""
  settings.check(config)
  if config.table == _SWEEP and not config.runs:
    raise ValueError('--runs: want the runs of a sweep')
  if not config.output:
    raise ValueError('--output: want a folder')


def read_runs(config: TablesConfig) -> list[runs_lib.Run]:
  """The runs in --runs.

  Raises:
    errors.UserError: of one of them. Those of others have been printed.
  """
  runs, faults = runs_lib.read(_patterns(config.runs), evaluated=config.table != _SWEEP)
  for fault in faults[:-1]:
    print('error:', fault, file=sys.stderr)
  if faults:
    raise errors.UserError(faults[-1])
  return runs


def _patterns(text: str) -> list[str]:
  """Splits --runs at commas and strips spaces, unless that is how a directory is called."""
  if text and os.path.exists(run_flags.user_path(text)):
    return [run_flags.user_path(text)]
  parts = [part for part in text.split(',') if part.strip()]
  return [run_flags.user_path(part if os.path.exists(run_flags.user_path(part)) else part.strip()) for part in parts]


def make_folder(config: TablesConfig) -> str:
  """The path of --output, which is made where it is missing.

  Raises:
    errors.UserError: that cannot be, or nothing can be written there.
  """
  folder = run_flags.user_path(config.output)
  try:
    os.makedirs(folder, exist_ok=True)
  except OSError as error:
    raise errors.UserError(f'--output: {folder}: {error.strerror}: choose another folder') from error
  if not os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
    raise errors.UserError(f'--output: {folder}: no permission to write there: choose another folder')
  return folder


def write(table: layout.Table, folder: str, name: str):
  """Prints a table and writes it as NAME.md and NAME.csv."""
  text = layout.markdown(table)
  print(text)
  for ending, content in (('md', text), ('csv', layout.comma_separated(table))):
    file = os.path.join(folder, f'{name}.{ending}')
    with run_directory.replaced(file) as new, open(new, 'w', encoding='utf-8') as stream:
      stream.write(content)
    print(f'wrote {file}')


def draw_paper_table(table: paper_tables.PaperTable, runs: Sequence[runs_lib.Run], folder: str) -> Sequence[str]:
  """Draws what belongs to a table of the paper; returns the files."""
  bars = os.path.join(folder, f'{table.suite}_scores.png')
  of_levels, _ = paper_tables.gather(paper_tables.levels_table(table.suite), runs)
  figures.draw_bars(table.suite, of_levels, bars)
  gathered, _ = paper_tables.gather(table, runs)
  curves = os.path.join(folder, f'{table.suite}_learning_curves.png')
  return [bars, curves] if figures.draw_learning_curves(table.suite, gathered, curves) else [bars]


def draw_sweep(found: Sequence[sweep.Sample], folder: str) -> Sequence[str]:
  """Draws the samples of a sweep; returns the files."""
  stability, curves = (os.path.join(folder, name) for name in ('stability.png', 'best_three_curves.png'))
  figures.draw_stability(found, stability)
  return [stability, curves] if figures.draw_sweep_curves(found, curves) else [stability]


def main():
  """Reads the flags and the runs, and writes what is asked for."""
  config = run_flags.config_from_flags(TablesConfig, validate)
  runs = read_runs(config)
  folder = make_folder(config)
  if config.table == _SWEEP:
    found = sweep.samples(runs)
    write(sweep.table(found), folder, _SWEEP)
    drawn = draw_sweep(found, folder) if config.figures else []
  else:
    table = paper_tables.TABLES[config.table]
    gathered, notes = paper_tables.gather(table, runs)
    write(paper_tables.make(table, gathered, notes), folder, f'table_{config.table}')
    drawn = draw_paper_table(table, runs, folder) if config.figures else []
  for file in drawn:
    print(f'wrote {file}')


if __name__ == '__main__':
  run_flags.define(TablesConfig())
  run_flags.run_main(main)
