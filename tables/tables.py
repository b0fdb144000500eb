"""Makes the tables and figures of a paper, with the results of your runs next to the paper's numbers.

  scalable-agents tables --paper=impala --table=3 --runs='runs/dmlab30_*' --output=results
  scalable-agents tables --paper=r2d2 --figures --runs='runs/watermaze_*'

Prints the table and writes it as Markdown and CSV. `impala`, `popart_impala`, `r2d2` and `laser` are this program for
one paper:

  impala         Espeholt et al. 2018: tables 1, 2, 3, 4, B.1 and C.1, figures 4 to 6, B.1 and E.1 to E.4. Table 1
                 compares speeds: --throughput has the file of `throughput`. The table "sweep" lists the samples of a
                 sweep, best first, also of A3C and batched A2C. --figures draws learning curves and bars of scores per
                 level. For tables 2 and sweep: the best samples' curves, the stability, and the variants of
                 --action_values. Without a table: training scores on a suite against frames and hours, and per level,
                 of any agents.
  popart_impala  Hessel et al. 2019: the summary of results, and figures 1 to 5: training scores and returns,
                 statistics, scores per level.
  r2d2           Kapturowski et al. 2019: tables 1, 3 and 4. Figures: runs with --measure_delta_q (figure 1), also with
                 several numbers of actors (6), returns per level (2, right, and 10), several variants on one level (4,
                 7 and 8), runs with results of `r2d2_history` (5), and runs on several levels of a suite, also of
                 IMPALA: scores against frames and hours (2, left, 3 and 9), and per level (11).
  laser          Schmitt et al. 2020: tables 1 and 2. Figures: data efficiency (1 and 3), ablations (2, 3 and 4), and
                 the share of steps outside the trust region.

--budget prints what the results of all four papers cost, in core-days and GPU-days (docs/budget.md).
--returns_every=1_000_000 prints the training returns of any runs after each million frames, beside the papers' scores,
and with --figures draws them.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import os
from typing import Any, NamedTuple

from scalable_agents.processes import run_flags
from scalable_agents.records import errors
from scalable_agents.records import settings
from scalable_agents.records.settings import setting
from scalable_agents.tables import files
from scalable_agents.tables.figures import drawing
from scalable_agents.tables.figures import impala
from scalable_agents.tables.figures import impala_training
from scalable_agents.tables.figures import laser
from scalable_agents.tables.figures import popart_impala
from scalable_agents.tables.figures import r2d2
from scalable_agents.tables.figures import returns
from scalable_agents.tables.papers import budget
from scalable_agents.tables.papers import laser_tables
from scalable_agents.tables.papers import layout
from scalable_agents.tables.papers import off_policy_table
from scalable_agents.tables.papers import paper_tables
from scalable_agents.tables.papers import popart_tables
from scalable_agents.tables.papers import r2d2_tables
from scalable_agents.tables.papers import returns_table
from scalable_agents.tables.papers import sweep
from scalable_agents.tables.papers import throughput_table
from scalable_agents.tables.results import runs as runs_lib

_SWEEP = 'sweep'
_OF_SAMPLES = (off_policy_table.NUMBER, _SWEEP)  # The IMPALA paper's tables whose runs need not be evaluated.
_Runs = Sequence[runs_lib.Run]


class _Paper(NamedTuple):
  """What the program makes for a paper."""
  tables: Sequence[str]                               # Numbers of the tables.
  agents: Callable[[str], Sequence[str] | None]       # Number -> agents, see runs.read.
  evaluated: Callable[[str], bool]                    # Number -> whether the runs must be evaluated.
  table: Callable[[str, _Runs], layout.Table]
  pictures: Callable[[str, _Runs], Mapping[str, Any]]  # Name -> picture, None if the runs do not have the data.
  nothing: str = ''                                   # The message if no picture has data.
  prefix: str = ''                                    # Of the tables' files.


def _impala_agents(number: str) -> Sequence[str] | None:
  if not number:
    return None
  if number in paper_tables.TABLES:
    return ('impala', runs_lib.A3C)
  return ('impala',) if number == off_policy_table.NUMBER else ()


def _impala_table(number: str, runs: _Runs) -> layout.Table:
  if number == throughput_table.NUMBER:
    return throughput_table.table(())
  if number not in _OF_SAMPLES:
    table = paper_tables.TABLES[number]
    return paper_tables.make(table, *paper_tables.gather(table, runs))
  return (sweep if number == _SWEEP else off_policy_table).table(sweep.samples(runs))


def _impala_pictures(number: str, runs: _Runs) -> Mapping[str, Any]:
  if not number:
    return impala_training.pictures(runs)
  if number in _OF_SAMPLES:
    return impala.sweep_pictures(sweep.samples(runs))
  return impala.pictures(paper_tables.TABLES[number], runs)


_PAPERS = {
    'impala': _Paper(
        (throughput_table.NUMBER, off_policy_table.NUMBER, *paper_tables.TABLES, _SWEEP),
        _impala_agents,
        lambda table: bool(table) and table not in _OF_SAMPLES, _impala_table, _impala_pictures,
        'these runs have nothing to draw: want runs on a suite or its levels that have finished episodes'),
    'popart_impala': _Paper(
        ('1',), lambda _: runs_lib.AGENTS, bool, lambda _, runs: popart_tables.table(runs),
        lambda _, runs: popart_impala.pictures(runs), 'these runs have no metrics to draw', 'popart_'),
    'r2d2': _Paper(
        r2d2_tables.NUMBERS, lambda _: r2d2_tables.AGENTS, bool, r2d2_tables.table,
        lambda _, runs: r2d2.pictures(runs),
        'these runs have nothing to draw: want runs that have finished episodes', 'r2d2_'),
    'laser': _Paper(
        laser_tables.NUMBERS, lambda _: laser_tables.AGENTS, lambda _: False, laser_tables.table,
        lambda _, runs: laser.pictures(runs),
        'these runs have nothing to draw: want runs of LASER that have finished episodes', 'laser_'),
}
_TABLES = '; '.join(f'{name}: {", ".join(paper.tables)}' for name, paper in _PAPERS.items())


@dataclasses.dataclass(frozen=True)
class TablesConfig:
  """The flags."""

  paper: str = setting('impala', 'The paper.', choices=tuple(_PAPERS))
  table: str = setting('', f'The table to make ({_TABLES}). Its runs must be evaluated, except for tables 2 and sweep '
                           'of impala, and those of laser. Default: no table.')
  runs: str = setting('', 'Run directories to compare with the paper: paths or patterns with *, separated by commas. '
                          "The table sweep takes runs of any agent with IMPALA's settings, also of one of your own. "
                          'Tables of r2d2 also take runs of IMPALA. Figures of laser also take runs of other agents. '
                          'Without this flag, the table has only the numbers of the paper.')
  throughput: str = setting('', 'With --table=1 of impala: the file throughput.json of `scalable-agents throughput`. '
                                'Without it, the table has only the numbers of the paper.')
  budget: bool = setting(False, 'Print what the results of all papers cost, and write it as Markdown and CSV. The only '
                                'other flag may be --output.')
  returns_every: int = setting(0, 'Environment frames per level. Print the training returns of --runs after each so '
                               'many frames, and write them as Markdown and CSV. The runs may be of any agents. '
                               '0: do not.',
                               at_least=0, at_most=settings.MAX_FRAMES)
  output: str = setting('results', 'Folder to write to.', required='a folder')
  figures: bool = setting(False, 'Also draw the figures for which these runs have the data.')


def validate(config: TablesConfig):
  """Raises ValueError with one line: the flag, its value and the allowed values."""
  settings.check(config)
  known = _PAPERS[config.paper].tables
  if config.table not in ('', *known):
    raise ValueError(f'--table={config.table}: want one of {", ".join(known)}')
  if config.budget:
    if config.table or config.runs or config.throughput or config.figures or config.returns_every:
      raise ValueError('--budget: want no other flag but --output')
  elif config.returns_every:
    if config.table or config.throughput or not config.runs:
      raise ValueError('--returns_every: want --runs, and no other flags but --figures and --output')
  elif not config.table and not config.figures:
    wanted = f'one of {", ".join(known)}' if len(known) > 1 else known[0]
    raise ValueError(f'--table=: want {wanted}, or --figures')
  is_speed = (config.paper, config.table) == ('impala', throughput_table.NUMBER)
  if config.throughput and not is_speed:
    raise ValueError('--throughput: only with --table=1 of impala')
  if is_speed and (config.runs or config.figures):
    raise ValueError('--table=1: want neither --runs nor --figures; `scalable-agents throughput` measures it')
  if config.paper == 'impala' and config.table:
    if not config.runs and (config.table == _SWEEP or config.table in _OF_SAMPLES and config.figures):
      raise ValueError('--runs: want the runs of a sweep')
  elif config.figures and not config.runs:
    raise ValueError('--runs: want the runs to draw')


def _speeds(path):
  """Makes the table of speeds from a file of tools/throughput.py."""
  with errors.of_user(errors.UserError, prefix='--throughput='):
    return throughput_table.table(throughput_table.read(run_flags.user_path(path)))


def _write_returns(config: TablesConfig, runs: _Runs, folder: str):
  found = returns_table.gather(runs, config.returns_every)
  files.write(returns_table.table(found), folder, 'returns')
  if config.figures:
    _save(returns.picture(found), folder, 'returns')


def _draw(config: TablesConfig, runs: _Runs, folder: str):
  """Draws the figures for which the runs have the data. Raises errors.UserError if there are none."""
  paper = _PAPERS[config.paper]
  pictures = {name: picture for name, picture in paper.pictures(config.table, runs).items() if picture}
  if not pictures:
    raise errors.UserError(f'--figures: {paper.nothing}')
  for name, picture in pictures.items():
    _save(picture, folder, name)


def _save(picture, folder, name):
  file = os.path.join(folder, f'{name}.png')
  drawing.save(picture, file)
  print(f'wrote {file}')


def main():
  """Reads the flags and the runs, and writes the table and the figures."""
  config = run_flags.config_from_flags(TablesConfig, validate)
  paper = _PAPERS[config.paper]
  agents = None if config.returns_every else paper.agents(config.table)
  runs = files.read_runs(config.runs, not config.returns_every and paper.evaluated(config.table), agents)
  folder = files.make_folder(config.output)
  if config.budget:
    files.write(budget.table(), folder, 'budget')
  if config.returns_every:
    _write_returns(config, runs, folder)
  if config.table:
    made = _speeds(config.throughput) if config.throughput else paper.table(config.table, runs)
    name = _SWEEP if config.table == _SWEEP else f'{paper.prefix}table_{config.table}'
    files.write(made, folder, name)
  if config.figures and not config.returns_every:
    _draw(config, runs, folder)


def start(paper: str):
  """Runs the program to its end, where --paper has this default."""
  run_flags.define(TablesConfig(paper=paper))
  run_flags.run_main(main)


if __name__ == '__main__':
  start('impala')
