"""The source tree as text, for tests that read source files."""

import ast
import pathlib

PROJECT = 'scalable_agents'
# Bazel's runfiles are links to the source files, so this is also the source tree under Bazel.
ROOT = pathlib.Path(__file__).resolve().parent.parent


def texts(name):
  """Returns the texts of all files in the packages whose name matches a pattern, by path relative to the root."""
  packages = [init.parent for init in ROOT.glob('*/__init__.py') if init.parent.name.isidentifier()]  # No bazel-bin.
  return {
      str(path.relative_to(ROOT)): path.read_text(encoding='utf-8')
      for package in packages for path in package.rglob(name)
  }


def imported_names(source):
  """The full dotted names that a Python text imports; those of relative imports start with a dot."""
  names = set()
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.Import):
      names.update(alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      names.update(f'{"." * node.level}{node.module or ""}.{alias.name}' for alias in node.names)
  return names


def project_files(names, paths):
  """The files, among `paths`, that hold the project's names: 'scalable_agents.a.b' is in a/b.py, or b is in a.py."""
  files = set()
  for name in names:
    project, *parts = name.split('.')
    if project == PROJECT:
      files.update(path for path in ('/'.join(parts) + '.py', '/'.join(parts[:-1]) + '.py') if path in paths)
  return files
