"""Makes the tables of the site's reference from the code: flags, errors, and the fields of public classes.

docs/conf.py gives `tables` to the pages in docs/reference, where {{ NAME }} stands for a table. So they are never older
than the code.
"""

import ast
from collections.abc import Mapping, Sequence
import dataclasses
import importlib
import inspect
import itertools
import pathlib
import re
import textwrap
import typing
from typing import Any, cast

from scalable_agents.agents import registry
from scalable_agents.cluster import cluster_config
from scalable_agents.population import population_config
from scalable_agents.records import settings

_ROOT = pathlib.Path(__file__).resolve().parent.parent
_SECTION = re.compile(r'(Args|Attributes|Raises|Returns|Yields):')  # Of a docstring.
_COMMENT = re.compile(r' *# ')           # A line that is a comment.
_CONTINUED = re.compile(r' {4,}# ')      # A line that continues the comment behind a field; it is indented further.
_DEFINED = re.compile(r'^ +run_flags\.define\((\w+)\(', re.MULTILINE)


def tables() -> dict[str, str]:
  """Returns the tables in Markdown by name.

  flags_AGENT has the hyper-parameters of an agent; flags_atari57, flags_dmlab30, flags_run, flags_cluster and
  flags_population the other settings of the agents' binaries; flags_PROGRAM the settings of another program.
  """
  return {f'flags_{name}': flags_table(configs) for name, configs in flags().items()} | {'errors': errors_table()}


def flags() -> dict[str, dict[str, Any]]:
  """Returns name of the table -> {name of the binary: the config with its defaults}."""
  presets = registry.PRESETS
  found: dict[str, dict[str, Any]] = {
      agent: {name: preset.config for name, preset in presets.items() if preset.agent == path}
      for agent, path in registry.AGENTS.items()}
  for suite in ('atari57', 'dmlab30'):
    found[suite] = {name: preset.protocol for name, preset in presets.items() if name.endswith(suite)}
  found['run'] = {name: preset.run for name, preset in presets.items()}
  found['cluster'] = {'': cluster_config.ClusterConfig()}
  found['population'] = {'': population_config.PopulationConfig()}
  for folder in ('agents', 'tables', 'tools'):
    for path in sorted((_ROOT / folder).glob('*.py')):
      if match := _DEFINED.search(path.read_text(encoding='utf-8')):
        module = importlib.import_module(f'scalable_agents.{folder}.{path.stem}')
        found[f'{folder}_{path.stem}' if path.stem in found else path.stem] = {'': getattr(module, match[1])()}
  return found


def flags_table(configs: Mapping[str, Any]) -> str:
  """Returns a table of flags with their defaults and help texts, which say the source and the range.

  Args:
    configs: name of a binary -> its config. All are of one class, and the first one's default is given without a name.
  """
  first, *_ = configs.values()
  kinds = typing.get_type_hints(type(first))
  rows = []
  for field in dataclasses.fields(first):
    binaries = {}  # Value -> the binaries whose default it is.
    for binary, config in configs.items():
      binaries.setdefault(_value(getattr(config, field.name)), []).append(f'`{binary}`')
    default, *others = binaries
    defaults = [default, *(f'{value} in {", ".join(binaries[value])}' for value in others)]
    meaning = _escaped(settings.help_text(kinds[field.name], field.metadata))
    rows.append([f'`--{field.name}`', '<br>'.join(defaults), meaning])
  return '{.flags}\n' + _table(['flag', 'default', 'meaning, source, range'], rows)


def errors_table() -> str:
  """Returns a table of all public exception classes with their meaning."""
  rows = [[f'`{name}`', f'`{module}`', f'`{base}`', _escaped(meaning)]
          for name, (module, base, meaning) in sorted(errors().items())]
  return _table(['error', 'module', 'is a', 'meaning'], rows)


def errors() -> dict[str, tuple[str, str, str]]:
  """Returns name -> (module, base class, docstring) of all public exception classes of the package. Imports nothing."""
  found = {}
  folders = sorted(init.parent for init in _ROOT.glob('*/__init__.py'))
  # Not bazel-bin.
  for package in (folder for folder in folders if folder.name.isidentifier() and folder.name != 'tests'):
    for path in sorted(package.rglob('*.py')):
      for node in ast.parse(path.read_text(encoding='utf-8')).body:
        if isinstance(node, ast.ClassDef) and node.bases and not node.name.startswith('_'):
          base = ast.unparse(node.bases[0])
          if base.endswith(('Error', 'Exception')):
            module = '.'.join(path.relative_to(_ROOT).with_suffix('').parts)
            found[node.name] = module, base.rpartition('.')[2], ' '.join((ast.get_docstring(node) or '').split())
  return found


def restructured(docstring: Sequence[str]) -> list[str]:
  """Makes reStructuredText of a docstring's lines: indented blocks are printed as they are, and | is a character."""
  found, literal, last = [], False, ''
  for line in docstring:
    indented = line.startswith(' ')
    if indented and not literal and (not last or last.endswith(':')) and not _SECTION.fullmatch(last):
      literal = True
      found += ['', '::', '']
    elif literal and line and not indented:
      literal = False
      found.append('')
    found.append(line if literal else line.replace('|', '\\|'))
    last = line
  return found


def fields(thing: Any) -> dict[str, tuple[str, str]]:
  """Returns name -> (declaration, meaning) of the public fields of a class, or of the constants of a module.

  The meaning is the help text of a setting, or the comment above the field or behind it. Only a NamedTuple and a
  dataclass have fields.
  """
  is_module = inspect.ismodule(thing)
  if not is_module and not ('__annotations__' in vars(thing) and hasattr(thing, '__match_args__')):
    return {}
  lines = textwrap.dedent(inspect.getsource(thing)).splitlines()
  tree: Any = ast.parse('\n'.join(lines))
  found = {}
  for node in tree.body if is_module else tree.body[0].body:
    if not isinstance(node, (ast.AnnAssign, ast.Assign)):
      continue
    annotated = isinstance(node, ast.AnnAssign)
    name, value = ast.unparse(node.target if annotated else node.targets[0]), node.value
    if name.startswith('_'):
      continue
    first, last = node.lineno - 1, cast(int, node.end_lineno)  # Comments are above the line `first`, or from `last` on.
    above = list(itertools.takewhile(_COMMENT.match, reversed(lines[:first])))[::-1]
    behind = re.findall('  # .*', lines[last - 1][node.end_col_offset:])
    below = itertools.takewhile(_CONTINUED.match, lines[last:]) if behind else ()
    meaning = ' '.join(line.strip(' #') for line in (*above, *behind, *below))
    if isinstance(value, ast.Call) and ast.unparse(value.func) == 'setting':
      value, meaning = value.args[0], thing.__dataclass_fields__[name].metadata['help']
    declaration = f'{name}: {ast.unparse(node.annotation)}' if annotated else name
    found[name] = declaration + (f' = {ast.unparse(value)}' if value else ''), meaning
  return found


def _value(value):
  """Formats a default value as on a command line."""
  return f'`{value:_}`' if type(value) is int else f'`{value}`' if value != '' else 'empty'


def _escaped(text):
  """Formats a text of the code for Markdown: flags, names and addresses of programs as code, all else as it is."""
  parts = re.split(r'(`[^`]+`|--\w+(?:=\w+)?|//\w+:\w+|\w+_\w+)', text)
  return ''.join(f'`{part.strip("`")}`' if index % 2 else re.sub(r'([\\`*_|<\[$])', r'\\\1', part)
                 for index, part in enumerate(parts))


def _table(head, rows):
  """Returns a Markdown table."""
  lines = [head, ['---'] * len(head), *rows]
  return '\n'.join(f'| {" | ".join(cells)} |' for cells in lines)
