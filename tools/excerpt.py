"""Copies the small files of a run to a folder of their own, which can be published: 1 MB instead of many.

  scalable-agents excerpt --run=runs/breakout_shallow --output=results/excerpts/breakout_shallow
  scalable-agents excerpt --run=runs/pong --output=pong --rows=2 --nocurve --returns_every=1_000_000

The copy is a run directory that the programs of tables and figures read. It has config.json, the evaluations, the
learning curve, and 200 rows of the metrics, spread evenly over the run. The best value that `compare_runs` finds in it
is the best of these rows. It also has what r2d2_history.py wrote, and of a member of a population the fitness and the
evolution. It has no checkpoint, so it can be neither continued nor evaluated again. Its config.json has no path of the
original run directory.

With --returns_every, the copy also has the training episodes from which `scalable-agents tables` with the same flag
computes returns. The second command writes about 40 KB. LASER's figure, which is made from episodes, then has straight
lines between these.

Members of a population, and agents with a shared replay, belong together because they lie in the same folder. Their
copies must, too, without those of others. Copies of members keep their names, such as member_00.
"""

import bisect
from collections.abc import Iterator
import dataclasses
import math
import os
import shutil
import tempfile
from typing import Any

from scalable_agents.environments import registry
from scalable_agents.population import population_directory
from scalable_agents.processes import run_flags
from scalable_agents.records import errors
from scalable_agents.records import run_directory
from scalable_agents.records import run_rows
from scalable_agents.records import settings
from scalable_agents.records.settings import setting
from scalable_agents.tables import files
from scalable_agents.tables.results import training_returns

_WHOLE = (run_directory.EVALUATION, run_directory.EVALUATIONS, population_directory.FITNESS,
          population_directory.EVOLUTION, run_directory.RESTRICTED_HISTORY)  # Copied as they are.
_FILES = {run_directory.CONFIG, run_directory.METRICS, run_directory.EPISODES, run_directory.LEARNING_CURVE, *_WHOLE}
# What a command that trains or evaluates leaves in an excerpt, where it is refused.
_LEFT_BEHIND = {run_directory.LOCK, run_directory.EVALUATION_LOCK, run_directory.LIBRARY_LOG}


@dataclasses.dataclass(frozen=True)
class ExcerptConfig:
  """The flags."""

  run: str = setting('', 'The run directory to copy from.', required='a folder')
  output: str = setting('', 'The folder to write to. It is made if there is none.', required='a folder')
  rows: int = setting(200, 'The largest number of rows of metrics.jsonl to copy.', at_least=2, at_most=10**9)
  curve: bool = setting(True, 'Also copy the learning curve.')
  returns_every: int = setting(
      0, 'Environment frames per level. Also copy the last 100 training episodes of each level before each multiple of '
      'this number. 0: no episodes.', at_least=0, at_most=10**15)


def write(config: ExcerptConfig):
  """Copies a run's small files.

  Args:
    config: its `output`, as given here, becomes the logdir in the copy's config.json.
  Raises:
    errors.UserError: `run` is not a run directory, or is an excerpt without the episodes that are wanted, or `output`
      has other files than an excerpt, or a file cannot be read or written.
  """
  run, output = config.run, config.output
  of_run = run_directory.read_config(run)
  levels = _num_levels(run, of_run['flags'])
  has_every = of_run.pop(run_directory.RETURNS_EVERY, None) or 1  # More than 1: `run` is itself an excerpt.
  if config.returns_every % has_every:
    raise errors.UserError(f'--returns_every={config.returns_every}: {run} is an excerpt with '
                           f'--returns_every={has_every}: want a multiple of it')
  folder = files.make_folder(output)
  if os.path.samefile(run, folder):
    raise errors.UserError(f'--output={output}: this is the run directory itself')
  _check(folder, output, of_run)
  # Everything is read and written to a new folder first, so that an error leaves an earlier excerpt as it is.
  rows = {run_directory.METRICS: [
      row.line for row in run_rows.complete_rows(run_directory.path(run, run_directory.METRICS), config.rows)]}
  if config.returns_every:
    rows[run_directory.EPISODES] = list(_episodes(run, config.returns_every * levels))
    if len(rows[run_directory.EPISODES]) == 1:
      raise errors.UserError(f'--returns_every={config.returns_every}: {run} has no training episodes. An excerpt has '
                             'them only if it was made with this flag')
  of_run |= {'flags': settings.to_json(of_run['flags'] | {'logdir': output}),
             'command_line': run_directory.command_of(of_run)}
  if config.returns_every:
    of_run[run_directory.RETURNS_EVERY] = config.returns_every
  curve = [run_directory.LEARNING_CURVE] if config.curve else []
  with run_directory.one_line_errors(output), tempfile.TemporaryDirectory(dir=folder, prefix='.new_') as new:
    run_directory.write_json(run_directory.path(new, run_directory.CONFIG), of_run)
    for name in (*_WHOLE, *curve):
      if os.path.exists(run_directory.path(run, name)):
        shutil.copyfile(run_directory.path(run, name), run_directory.path(new, name))
    for name, lines in rows.items():
      with open(run_directory.path(new, name), 'wb') as stream:
        stream.writelines(lines)
    written = os.listdir(new)
    for name in written:
      os.replace(run_directory.path(new, name), run_directory.path(folder, name))
    # Of an earlier excerpt, or left behind there. The folder may be published.
    for name in ((_FILES | _LEFT_BEHIND) & set(os.listdir(folder))).difference(written):
      os.remove(run_directory.path(folder, name))


def _num_levels(run: str, flags: dict[str, Any]) -> int:
  name = flags.get('level_name', '')
  with errors.of_user(ValueError, prefix=f'{run_directory.path(run, run_directory.CONFIG)}: --level_name={name}: '):
    return len(registry.expand(str(name)))


def _check(folder: str, output: str, of_run: dict[str, Any]):
  """Raises UserError if the folder has other files than an excerpt, or the excerpt of another run."""
  names = [name for name in sorted(os.listdir(folder)) if not name.startswith('.new_')]  # Left by kill -9.
  allowed = _FILES | _LEFT_BEHIND if run_directory.CONFIG in names else _FILES
  if others := [name for name in names if name not in allowed]:
    raise errors.UserError(f'--output={output}: has other files, such as {others[0]}: choose another folder')
  if run_directory.CONFIG not in names:
    return
  earlier = run_directory.read_config(folder)['flags']
  if settings.differences(earlier, of_run['flags'], {'logdir'}, {}):
    raise errors.UserError(f'--output={output}: has the excerpt of another run: choose another folder, or remove it')


def _episodes(run: str, every: int) -> Iterator[bytes]:
  """Yields the header of episodes.csv, and the rows to copy, in order. `every`: environment frames of all levels."""
  file = run_directory.path(run, run_directory.EPISODES)
  rows, frames_of = [], {}  # Level -> environment frames and place in `rows` of each episode, oldest first.
  for row in run_rows.complete_rows(file):
    if row.position:
      episode = run_rows.episode_row(file, row)
      if math.isfinite(episode.episode_return):
        frames_of.setdefault(episode.level, []).append((episode.frames, len(rows)))
        rows.append(row.line)
  kept = set()
  for episodes in frames_of.values():
    for mark in sorted({max(-(-frames // every), 1) * every for frames, _ in episodes}):  # The others show the same.
      end = bisect.bisect_right(episodes, mark, key=lambda episode: episode[0])
      kept.update(place for _, place in episodes[max(0, end - training_returns.WINDOW):end])
  yield run_rows.EPISODES_HEADER
  yield from (rows[place] for place in sorted(kept))


def main():
  """Copies, and says where to."""
  config = run_flags.config_from_flags(ExcerptConfig)
  write(dataclasses.replace(config, run=run_flags.user_path(config.run)))
  print(f'wrote {config.output}')


if __name__ == '__main__':
  run_flags.define(ExcerptConfig())
  run_flags.run_main(main)
