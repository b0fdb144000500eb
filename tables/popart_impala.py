"""Makes the results table and the figures of the PopArt-IMPALA paper, with the results of your runs.

  bazel run //tables:popart_impala -- --table=1 --runs=runs/popart_atari57_population/member_07
  bazel run //tables:popart_impala -- --figures --runs='runs/four_games_popart,runs/four_games_multi_head'

The program prints the table and writes it as Markdown and CSV. The figures are training scores and returns against
frames, normalisation statistics, and scores per level; the runs in them need not be evaluated. Hessel et al. 2019,
"Summary of results" and figures 1 to 5.
"""

from collections.abc import Sequence
import dataclasses
import os

from scalable_agents.processes import run_flags
from scalable_agents.records import errors
from scalable_agents.records.settings import setting
from scalable_agents.tables import curves
from scalable_agents.tables import files
from scalable_agents.tables import popart_figures
from scalable_agents.tables import popart_tables
from scalable_agents.tables import runs as runs_lib

_TABLE = '1'


@dataclasses.dataclass(frozen=True)
class PopArtTablesConfig:
  """The flags."""

  table: str = setting('', 'The table to make: 1. Its runs must be evaluated. Default: no table.', choices=('', _TABLE))
  runs: str = setting('', 'Run directories of IMPALA and PopArt-IMPALA: paths or patterns with *, separated by commas. '
                          'Without it, the table has only the numbers of the paper.')
  output: str = setting('results', 'Folder to write to.')
  figures: bool = setting(False, 'Draw figures of the training of these runs: scores, returns, statistics, scores per '
                          'level.')


def validate(config: PopArtTablesConfig):
  """Raises ValueError with one line: the flag, its value and the allowed values."""
  files.validate(config, _TABLE)


def draw(runs: Sequence[runs_lib.Run], folder: str) -> list[str]:
  """Draws all figures. Returns the files.

  Raises:
    errors.UserError: the runs cannot be compared, or there is nothing to draw.
  """
  try:
    agents = popart_figures.by_agent(runs)
  except ValueError as error:
    raise errors.UserError(f'--figures: {error}') from error
  drawn = []
  for name, draw_figure in (('scores', popart_figures.draw_scores), ('returns', curves.draw_returns),
                            ('levels', popart_figures.draw_levels)):
    file = os.path.join(folder, f'popart_{name}.png')
    if draw_figure(agents, file):
      drawn.append(file)
  with_statistics = [run for name, of_agent in agents.items() if name.endswith(popart_tables.POPART)
                     for run in of_agent]
  names = [os.path.basename(run.logdir) for run in with_statistics]
  for run, name in zip(with_statistics, names, strict=True):
    if names.count(name) > 1 or run.population > 1:  # A member's folder has the name of the population.
      name = f'{os.path.basename(os.path.dirname(run.logdir))}_{name}'
    file = os.path.join(folder, f'popart_statistics_{name}.png')
    if popart_figures.draw_statistics(run, file):
      drawn.append(file)
  if not drawn:
    raise errors.UserError('--figures: these runs have no metrics to draw')
  return drawn


def main():
  """Reads the flags and the runs, and writes the table and the figures."""
  config = run_flags.config_from_flags(PopArtTablesConfig, validate)
  runs = files.read_runs(config.runs, bool(config.table), runs_lib.AGENTS)
  folder = files.make_folder(config.output)
  if config.table:
    files.write(popart_tables.table(runs), folder, f'popart_table_{config.table}')
  for file in draw(runs, folder) if config.figures else []:
    print(f'wrote {file}')


if __name__ == '__main__':
  run_flags.define(PopArtTablesConfig())
  run_flags.run_main(main)
