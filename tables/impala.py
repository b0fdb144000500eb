"""Makes the IMPALA paper's tables, with the results of your runs next to the paper's numbers.

  bazel run //tables:impala -- --table=3 --runs='runs/dmlab30_*' --output=results
  bazel run //tables:impala -- --table=C.1 --figures
  bazel run //tables:impala -- --table=sweep --runs='runs/sweep_*' --figures
  bazel run //tables:impala -- --table=2 --runs='runs/sweep_*' --figures

The program prints the table and writes it as Markdown and CSV. Espeholt et al. 2018: tables 2, 3, 4, B.1 and C.1,
figures 4 and E.1 to E.4.
"""

from collections.abc import Sequence
import dataclasses
import os

from scalable_agents.processes import run_flags
from scalable_agents.records import settings
from scalable_agents.records.settings import setting
from scalable_agents.tables import figures
from scalable_agents.tables import files
from scalable_agents.tables import off_policy_table
from scalable_agents.tables import paper_tables
from scalable_agents.tables import runs as runs_lib
from scalable_agents.tables import sweep

_SWEEP = 'sweep'
_TABLES = (off_policy_table.NUMBER, *paper_tables.TABLES, _SWEEP)


@dataclasses.dataclass(frozen=True)
class TablesConfig:
  """The flags."""

  table: str = setting('', 'The table to make: ' + ', '.join(_TABLES) + '. The table of a sweep lists its samples, '
                       'best first. The runs of tables 2 and sweep need not be evaluated.', choices=_TABLES)
  runs: str = setting('', 'Run directories to compare with the paper: paths or patterns with *, separated by commas. '
                          'Without it, the table has only the numbers of the paper. A sweep may also be of '
                          'PopArt-IMPALA.')
  output: str = setting('results', 'Folder to write to.')
  figures: bool = setting(False, 'Also draw figures: learning curves and bars of scores per level. For tables 2 and '
                                 'sweep: the curves of the best samples, the stability, and the variants of '
                                 '--action_values.')


def validate(config: TablesConfig):
  """Raises ValueError with one line: the flag, its value and the allowed values."""
  settings.check(config)
  if not config.runs and (config.table == _SWEEP or config.table == off_policy_table.NUMBER and config.figures):
    raise ValueError('--runs: want the runs of a sweep')
  if not config.output:
    raise ValueError('--output: want a folder')


def read_runs(config: TablesConfig) -> list[runs_lib.Run]:
  """Reads the runs in --runs. Raises errors.UserError."""
  if config.table == _SWEEP:
    return files.read_runs(config.runs, evaluated=False, agents=runs_lib.AGENTS)
  return files.read_runs(config.runs, evaluated=config.table != off_policy_table.NUMBER)


def draw_paper_table(table: paper_tables.PaperTable, runs: Sequence[runs_lib.Run], folder: str) -> Sequence[str]:
  """Draws the figures of a paper's table. Returns the files."""
  bars = os.path.join(folder, f'{table.suite}_scores.png')
  of_levels, _ = paper_tables.gather(paper_tables.levels_table(table.suite), runs)
  figures.draw_bars(table.suite, of_levels, bars)
  gathered, _ = paper_tables.gather(table, runs)
  curves = os.path.join(folder, f'{table.suite}_learning_curves.png')
  return [bars, curves] if figures.draw_learning_curves(table.suite, gathered, curves) else [bars]


def draw_sweep(found: Sequence[sweep.Sample], folder: str) -> Sequence[str]:
  """Draws the figures of a sweep. Returns the files."""
  stability, curves, action_values = (os.path.join(folder, f'{name}.png')
                                      for name in ('stability', 'best_three_curves', 'action_values'))
  figures.draw_stability(found, stability)
  drawn = [stability]
  if figures.draw_sweep_curves(found, curves):
    drawn.append(curves)
  if figures.draw_action_values(found, action_values):
    drawn.append(action_values)
  return drawn


def main():
  """Reads the flags and the runs, and writes the table and the figures."""
  config = run_flags.config_from_flags(TablesConfig, validate)
  runs = read_runs(config)
  folder = files.make_folder(config.output)
  if config.table in (_SWEEP, off_policy_table.NUMBER):
    found = sweep.samples(runs)
    if config.table == _SWEEP:
      files.write(sweep.table(found), folder, _SWEEP)
    else:
      files.write(off_policy_table.table(found), folder, f'table_{config.table}')
    drawn = draw_sweep(found, folder) if config.figures else []
  else:
    table = paper_tables.TABLES[config.table]
    gathered, notes = paper_tables.gather(table, runs)
    files.write(paper_tables.make(table, gathered, notes), folder, f'table_{config.table}')
    drawn = draw_paper_table(table, runs, folder) if config.figures else []
  for file in drawn:
    print(f'wrote {file}')


if __name__ == '__main__':
  run_flags.define(TablesConfig())
  run_flags.run_main(main)
