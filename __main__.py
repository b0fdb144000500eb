"""Runs a program of this project: `scalable-agents NAME --flags`, or `python -m scalable_agents NAME --flags`."""

import ast
import difflib
import os
import runpy
import sys

_HERE = os.path.dirname(os.path.realpath(__file__))  # Not Bazel's links, which are to some files only.
_FOLDERS = ('agents', 'tables', 'tools')


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


def main():
  """Runs the program that the first argument names, with the other arguments."""
  found = programs()
  name = sys.argv[1] if len(sys.argv) > 1 else '--help'
  if name in ('--help', '-h', 'help'):
    print(__doc__, '\n')
    for program, (_, description) in found.items():
      print(f'  {program:<24}{description}')
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
