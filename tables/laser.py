"""Makes the tables and figures of the LASER paper, with the results of your runs next to the paper's numbers.

  bazel run //tables:laser -- --table=2 --runs='runs/laser_sweep/agent_*' --output=results
  bazel run //tables:laser -- --figures --runs='runs/laser_*/agent_*,runs/impala_*'

The program prints the table and writes it as Markdown and CSV. Scores are returns of training episodes, so runs need
not be evaluated. It draws each figure for which the runs have the data:

  laser_data_efficiency.png  LASER and other agents: score against frames (figures 1 and 3)
  laser_ablations.png        several variants of LASER: score against frames (figures 2, 3 and 4)
  laser_rejected.png         the share of steps outside the trust region

Schmitt et al. 2020: tables 1 (both suites) and 2 (Atari-57).
"""

from collections.abc import Sequence
import dataclasses
import os

from scalable_agents.processes import run_flags
from scalable_agents.records import errors
from scalable_agents.records.settings import setting
from scalable_agents.tables import files
from scalable_agents.tables import laser_figures
from scalable_agents.tables import laser_tables
from scalable_agents.tables import runs as runs_lib

_FIGURES = {'data_efficiency': laser_figures.draw_data_efficiency, 'ablations': laser_figures.draw_ablations,
            'rejected': laser_figures.draw_rejected}


@dataclasses.dataclass(frozen=True)
class LaserTablesConfig:
  """The flags."""

  table: str = setting('', 'The table to make: ' + ', '.join(laser_tables.NUMBERS) + '. Default: no table.',
                       choices=('', *laser_tables.NUMBERS))
  runs: str = setting('', 'Run directories of LASER: paths or patterns with *, separated by commas. The figures '
                          'compare them with runs of IMPALA and PopArt-IMPALA. Without it, the table has only the '
                          'numbers of the paper.')
  output: str = setting('results', 'Folder to write to.')
  figures: bool = setting(False, 'Draw the figures for which these runs have the data: data efficiency, ablations, '
                                 'rejected steps.')


def validate(config: LaserTablesConfig):
  """Raises ValueError with one line: the flag, its value and the allowed values."""
  files.validate(config, f'one of {", ".join(laser_tables.NUMBERS)}')


def draw(runs: Sequence[runs_lib.Run], folder: str) -> list[str]:
  """Draws all figures for which the runs have the data. Returns the files.

  Raises:
    errors.UserError: there is nothing to draw.
    run_directory.RunDirectoryError: a file of a run is damaged, or a picture cannot be written.
  """
  drawn = []
  for name, draw_figure in _FIGURES.items():
    file = os.path.join(folder, f'laser_{name}.png')
    if draw_figure(runs, file):
      drawn.append(file)
  if not drawn:
    raise errors.UserError('--figures: these runs have nothing to draw: want runs of LASER that have finished episodes')
  return drawn


def main():
  """Reads the flags and the runs, and writes the table and the figures."""
  config = run_flags.config_from_flags(LaserTablesConfig, validate)
  runs = files.read_runs(config.runs, evaluated=False, agents=laser_tables.AGENTS)
  folder = files.make_folder(config.output)
  if config.table:
    files.write(laser_tables.table(config.table, runs), folder, f'laser_table_{config.table}')
  for file in draw(runs, folder) if config.figures else []:
    print(f'wrote {file}')


if __name__ == '__main__':
  run_flags.define(LaserTablesConfig())
  run_flags.run_main(main)
