"""What the programs for tables read and write: the run directories in --runs, and the files in --output."""

from collections.abc import Sequence
import contextlib
import os
import sys

from scalable_agents.processes import run_flags
from scalable_agents.records import errors
from scalable_agents.records import run_directory
from scalable_agents.tables.papers import layout
from scalable_agents.tables.results import runs as runs_lib


def read_runs(text: str, evaluated: bool, agents: Sequence[str] | None = ('impala',)) -> list[runs_lib.Run]:
  """Reads run directories. Other paths that a pattern matches are skipped and named.

  Args:
    text: the value of --runs: paths or patterns with *, separated by commas.
    evaluated: whether the runs must have been evaluated.
    agents: names of agents, as in config.json, whose runs are wanted. See runs.read.
  Raises:
    errors.UserError: the text names nothing, or some run directories cannot be read, or patterns match no run that is
      wanted, or only directories of learners other than learner 0. The error is about the last one. The others are
      printed.
  """
  skipped, wanted = [], patterns(text)
  if text and not wanted:
    raise errors.UserError(f'--runs={text}: want run directories')
  runs, faults = runs_lib.read(wanted, evaluated, agents, skipped.append)
  if not runs and not faults:
    skipped, faults = [], skipped
  for line in skipped:
    print('skipped:', line, file=sys.stderr)
  for fault in faults[:-1]:
    print('error:', fault, file=sys.stderr)
  if faults:
    raise errors.UserError(faults[-1])
  if text and not runs:
    raise errors.UserError(f'--runs={text}: only directories of other learners than learner 0: want that of learner 0')
  return runs


def patterns(text: str) -> list[str]:
  """Splits --runs at commas and strips spaces. If a directory has the whole text as its name, does not split."""
  with contextlib.suppress(run_directory.RunDirectoryError):  # A long list is no path.
    if text and os.path.exists(run_flags.user_path(text)):
      return [run_flags.user_path(text)]
  parts = [part for part in text.split(',') if part.strip()]
  return [run_flags.user_path(part if os.path.exists(run_flags.user_path(part)) else part.strip()) for part in parts]


def make_folder(output: str) -> str:
  """Returns the path of --output. Makes the folder if it does not exist.

  Raises:
    errors.UserError: the folder cannot be made or is not writable.
  """
  folder = run_flags.user_path(output)
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
