"""Makes the tables and figures of the R2D2 paper, with the results of your runs next to the paper's numbers.

  bazel run //tables:r2d2 -- --table=4 --runs='runs/r2d2_*' --output=results
  bazel run //tables:r2d2 -- --figures --runs='runs/watermaze_*'

The program prints the table and writes it as Markdown and CSV. It draws each figure for which the runs have the data:

  r2d2_delta_q.png       runs with --measure_delta_q: Delta Q and returns per training strategy (figure 1)
  r2d2_ablations.png     several variants on one level: their returns (figures 4, 7 and 8)
  r2d2_memory.png        runs with results of //agents:r2d2_history (figure 5)
  r2d2_atari_median.png  runs on several Atari games: their median score (figure 9)

Kapturowski et al. 2019: tables 1 (both suites), 3 (DMLab-30) and 4 (Atari-57).
"""

from collections.abc import Sequence
import dataclasses
import os

from scalable_agents.processes import run_flags
from scalable_agents.records import errors
from scalable_agents.records.settings import setting
from scalable_agents.tables import curves
from scalable_agents.tables import files
from scalable_agents.tables import r2d2_figures
from scalable_agents.tables import r2d2_tables
from scalable_agents.tables import runs as runs_lib

_FIGURES = {'delta_q': r2d2_figures.draw_delta_q, 'ablations': r2d2_figures.draw_ablations,
            'memory': r2d2_figures.draw_memory, 'atari_median': r2d2_figures.draw_atari_median}


@dataclasses.dataclass(frozen=True)
class R2d2TablesConfig:
  """The flags."""

  table: str = setting('', 'The table to make: ' + ', '.join(r2d2_tables.NUMBERS) + '. Its runs must be evaluated. '
                       'Default: no table.', choices=('', *r2d2_tables.NUMBERS))
  runs: str = setting('', 'Run directories of R2D2: paths or patterns with *, separated by commas. A table may also '
                          'have runs of IMPALA on single levels of DMLab-30. Without it, the table has only the '
                          'numbers of the paper.')
  output: str = setting('results', 'Folder to write to.')
  figures: bool = setting(False, 'Draw the figures for which these runs have the data: Delta Q, ablations, restricted '
                          'memory, median score over Atari games.')


def validate(config: R2d2TablesConfig):
  """Raises ValueError with one line: the flag, its value and the allowed values."""
  files.validate(config, f'one of {", ".join(r2d2_tables.NUMBERS)}')


def draw(runs: Sequence[runs_lib.Run], folder: str) -> list[str]:
  """Draws all figures for which the runs of R2D2 have the data. Returns the files.

  Raises:
    errors.UserError: there is nothing to draw.
    run_directory.RunDirectoryError: a file of a run is damaged, or a picture cannot be written.
  """
  of_r2d2 = curves.fittest([run for run in runs if run.agent == runs_lib.R2D2])
  drawn = []
  for name, draw_figure in _FIGURES.items():
    file = os.path.join(folder, f'r2d2_{name}.png')
    if draw_figure(of_r2d2, file):
      drawn.append(file)
  if not drawn:
    raise errors.UserError('--figures: these runs have nothing to draw: want runs with --measure_delta_q, several '
                           f'variants on one level, runs with {r2d2_figures.HISTORIES}, or several Atari games')
  return drawn


def main():
  """Reads the flags and the runs, and writes the table and the figures."""
  config = run_flags.config_from_flags(R2d2TablesConfig, validate)
  agents = r2d2_tables.AGENTS if config.table else (runs_lib.R2D2,)
  runs = files.read_runs(config.runs, bool(config.table), agents)
  folder = files.make_folder(config.output)
  if config.table:
    files.write(r2d2_tables.table(config.table, runs), folder, f'r2d2_table_{config.table}')
  for file in draw(runs, folder) if config.figures else []:
    print(f'wrote {file}')


if __name__ == '__main__':
  run_flags.define(R2d2TablesConfig())
  run_flags.run_main(main)
