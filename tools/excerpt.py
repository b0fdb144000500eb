"""Copies the small files of a run to a folder of their own, which can be published: 1 MB instead of many.

  scalable-agents excerpt --run=runs/breakout_shallow --output=docs/results/breakout_shallow

The copy is a run directory that the programs of tables and figures read. It has config.json, the evaluations, the
learning curve, and 200 rows of the metrics, spread evenly over the run. It has no checkpoint, so it can be neither
continued nor evaluated again. Its config.json has no path of the original run directory.
"""

import dataclasses
import os
import shutil

from scalable_agents.processes import run_flags
from scalable_agents.records import errors
from scalable_agents.records import row_file
from scalable_agents.records import run_directory
from scalable_agents.records import settings
from scalable_agents.records.settings import setting
from scalable_agents.tables import files

_ROWS = 200  # Of metrics.jsonl.
_WHOLE = (run_directory.EVALUATION, run_directory.EVALUATIONS, run_directory.LEARNING_CURVE)  # If they exist.


@dataclasses.dataclass(frozen=True)
class ExcerptConfig:
  """The flags."""

  run: str = setting('', 'The run directory to copy from.')
  output: str = setting('', 'The folder to write to. It is made if there is none.')


def write(run: str, output: str):
  """Copies a run's small files.

  Args:
    run: the run directory.
    output: the folder to write to. Its path, as given here, becomes the logdir in the copy's config.json.
  Raises:
    errors.UserError: `run` is not a run directory, or it is `output`, or a file cannot be read or written.
  """
  config = run_directory.read_config(run)
  folder = files.make_folder(output)
  if os.path.samefile(run, folder):
    raise errors.UserError(f'--output={output}: this is the run directory itself')
  config |= {'flags': settings.to_json(config['flags'] | {'logdir': output}),
             'command_line': run_directory.command_of(config)}
  run_directory.write_json(run_directory.path(folder, run_directory.CONFIG), config)
  for name in _WHOLE:
    if os.path.exists(run_directory.path(run, name)):
      with run_directory.replaced(run_directory.path(folder, name)) as new:
        shutil.copyfile(run_directory.path(run, name), new)
  with run_directory.replaced(run_directory.path(folder, run_directory.METRICS)) as new, open(new, 'wb') as stream:
    stream.writelines(row.line for row in row_file.sample(run_directory.path(run, run_directory.METRICS), _ROWS))


def main():
  """Copies, and says where to."""
  config = run_flags.config_from_flags(ExcerptConfig)
  for name in ('run', 'output'):
    if not getattr(config, name):
      raise errors.UserError(f'--{name}=: want a folder')
  write(run_flags.user_path(config.run), config.output)
  print(f'wrote {config.output}')


if __name__ == '__main__':
  run_flags.define(ExcerptConfig())
  run_flags.run_main(main)
