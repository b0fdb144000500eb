"""Draws how hyper-parameters changed in a population (their schedules), as in appendix F of Espeholt et al. 2018.

  scalable-agents tables.population --population=runs/population --sweep_run=runs/sweep_3

The figure is POPULATION/schedules.png. It has a panel per hyper-parameter and a thin line per member. Bold lines show
the schedule of the fittest member's agent, followed back through the members that it was copied from. Each member is
drawn against its own frames. If a member with fewer frames copied one with more frames, the bold lines overlap there.
With --sweep_run the figure also has the learning rate of a run without a population, such as the best one of a sweep,
which decays linearly (figure F.1).
"""

import dataclasses
import os

from scalable_agents.population import population_directory
from scalable_agents.processes import run_flags
from scalable_agents.records import errors
from scalable_agents.records import run_rows
from scalable_agents.records.settings import setting
from scalable_agents.tables.figures import drawing
from scalable_agents.tables.figures import impala as impala_figures
from scalable_agents.tables.figures import lineage
from scalable_agents.tables.results import runs as runs_lib

_SCHEDULES = 'schedules.png'


@dataclasses.dataclass(frozen=True)
class PopulationFigureConfig:
  """The flags."""

  population: str = setting('', "The population's directory, which contains member_00, member_01, ...",
                            required='a folder')
  sweep_run: str = setting('', 'The run directory whose learning rate is drawn for comparison. Default: none.')


def _learning_rate(logdir: str) -> list[tuple[float, float]]:
  """Returns environment frames and learning rates of a run. Raises UserError if it has none."""
  rows = run_rows.read_metrics(logdir, runs_lib.ROWS)
  found = [(row['environment_frames'], row['learning_rate']) for row in rows if row.get('learning_rate')]
  if not found:
    raise errors.UserError(f'--sweep_run={logdir}: want a run directory whose metrics have the learning rate')
  return found


def main():
  """Reads the flags and the population, and draws the figure."""
  config = run_flags.config_from_flags(PopulationFigureConfig)
  folder = run_flags.user_path(config.population)
  members = lineage.read(folder)
  if not members:
    raise errors.UserError(f'--population={folder}: no member in this folder has a fitness yet')
  best = lineage.fittest(members)
  lines = {name: [lineage.schedule(member, name) for member in members.values()] for name in members[best].start}
  ancestry = lineage.ancestry(members, best)
  bold = {name: [lineage.schedule(members[segment.member], name, segment) for segment in ancestry] for name in lines}
  compared = _learning_rate(run_flags.user_path(config.sweep_run)) if config.sweep_run else ()
  file = os.path.join(folder, _SCHEDULES)
  drawing.save(impala_figures.draw_schedules(lines, bold, population_directory.member_name(best), compared), file)
  print(f'wrote {file}')


if __name__ == '__main__':
  run_flags.define(PopulationFigureConfig())
  run_flags.run_main(main)
