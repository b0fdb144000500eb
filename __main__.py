"""Runs a program of this project: `scalable-agents NAME --flags`, or `python -m scalable_agents NAME --flags`."""

import ast
import difflib
import os
import runpy
import shutil
import sys
import textwrap

from scalable_agents.ops import sources
from scalable_agents.processes import standard_streams

_HERE = os.path.dirname(os.path.realpath(__file__))  # Not Bazel's links, which are to some files only.
_FOLDERS = {'agents': 'Train, evaluate and use agents', 'tables': 'Make the tables and figures of the papers',
            'tools': 'Measure, compare and check'}


def programs() -> dict[str, tuple[str, str]]:
  """Returns name -> (module, first line of its docstring) of all programs. Imports none of them.

  The second program of a name is found as `folder.name`.
  """
  found = {}
  for folder in _FOLDERS:
    for file in sorted(os.listdir(os.path.join(_HERE, folder))):
      name, extension = os.path.splitext(file)
      if extension == '.py' and not name.startswith('_'):
        with open(os.path.join(_HERE, folder, file), encoding='utf-8') as stream:
          text = stream.read()
        if "\nif __name__ == '__main__':" in text:
          shown = f'{folder}.{name}' if name in found else name
          found[shown] = f'scalable_agents.{folder}.{name}', (ast.get_docstring(ast.parse(text)) or '').split('\n')[0]
  return found


def _columns():
  """Returns the width of the terminal. In a file or a pipe, a program has one line."""
  return max(shutil.get_terminal_size().columns, 60) if sys.stdout.isatty() else 1000


def main():
  """Runs the program that the first argument names, with the other arguments."""
  standard_streams.make_unfailing()  # `scalable-agents | head -1` ends the reader.
  try:
    _run()
  except KeyboardInterrupt:  # Until the program's imports have ended. Later, it handles Ctrl-C itself.
    sys.exit(130)
  except sources.LibraryError as error:
    sys.exit(f'error: {error}')


def _run():
  """Runs the program, or lists all."""
  found = programs()
  name = sys.argv[1] if len(sys.argv) > 1 else '--help'
  if name in ('--help', '-h', 'help'):
    print(__doc__)
    for folder, heading in _FOLDERS.items():
      print(f'\n{heading}:')
      for program, (module, description) in found.items():
        if module.split('.')[1] == folder:
          print(textwrap.fill(f'  {program:<24}{description}', _columns(), subsequent_indent=26 * ' '))
    print('\nscalable-agents NAME --help lists the flags of a program.')
    return
  if name not in found:
    closest = difflib.get_close_matches(name, found, n=3)
    hint = f'did you mean {" or ".join(closest)}?' if closest else 'see scalable-agents --help'
    sys.exit(f'error: no program {name!r}: {hint}')
  del sys.argv[1]
  runpy.run_module(found[name][0], run_name='__main__', alter_sys=True)


if __name__ == '__main__':
  main()
