"""Compares the BUILD files with the Python files in their folders.

Every file must have a target, every test must run, and every import must be a dependency. Bazel does not notice such
errors: a file that is missing among the runfiles is found in the editable install, and a test without a target does not
run.
"""

import ast

from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents.tests import source_tree

_PYTHON_RULES = {'py_binary', 'py_library', 'py_test'}
_MACROS = {'binaries': 'py_binary', 'modules': 'py_library', 'suite': 'suite', 'tests': 'py_test'}  # bazel/python.bzl.
_TEST_END = "\n\n\nif __name__ == '__main__':\n  absltest.main()\n"
_ABRUPT_END = _TEST_END.replace('  absltest', '  with ending.abrupt_end():\n    absltest')  # Every suite ends so.
_NO_TARGET = {'__init__.py', 'conftest.py'}


def python_targets(build):
  """Reads the Python targets of a BUILD file with Python's parser.

  Args:
    build: the text of the BUILD file.
  Returns:
    A dict of name -> (rule, list of sources, list of dependencies). The rule of a file in a suite is 'suite'. That of
    a test that `bazel test //...` leaves out is 'manual test'.
  """
  targets = {}
  for node in ast.walk(ast.parse(build)):
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
      continue
    if node.func.id not in _PYTHON_RULES | _MACROS.keys():
      continue
    values = {word.arg: ast.literal_eval(word.value) for word in node.keywords}
    rule = 'manual test' if 'manual' in values.get('tags', []) else _MACROS.get(node.func.id, node.func.id)
    if node.func.id in _PYTHON_RULES:
      targets[values['name']] = (rule, values.get('srcs', []), values.get('deps', []))
    else:
      for name, deps in ast.literal_eval(node.args[-1]).items():
        targets[name] = (rule, [f'{name}.py'], deps)
  return targets


def faults(files, builds):
  """Finds errors in the BUILD files.

  Args:
    files: texts of the Python files by path, relative to the root.
    builds: texts of the BUILD files by path.
  Returns:
    A sorted list of 'path: what is wrong'.
  """
  found = []
  targets = {path.removesuffix('/BUILD'): python_targets(build) for path, build in builds.items()}
  for path, source in files.items():
    folder, name = path.rsplit('/', 1)
    if name in _NO_TARGET:
      continue
    owners = [target for target, (_, sources, _) in targets.get(folder, {}).items() if name in sources]
    if owners != [name.removesuffix('.py')]:
      found.append(f'{path}: want one target {name.removesuffix(".py")} in {folder}/BUILD, got {owners}')
      continue
    rule, _, deps = targets[folder][owners[0]]
    labels = {dep if dep.startswith('//') else f'//{folder}{dep}' for dep in deps}
    imported = source_tree.project_files(source_tree.imported_names(source), files)
    needed = {'//' + ':'.join(file.removesuffix('.py').rsplit('/', 1)) for file in imported}
    found.extend(f'{path}: imports {label}, which is not in deps' for label in needed - labels)
    found.extend(f'{path}: {dep} is in deps twice' for dep in set(deps) if deps.count(dep) > 1)
    if name.endswith('_test.py') and (rule not in ('py_test', 'suite') or 'absltest.main()' not in source):
      found.append(f'{path}: want a py_test that ends with absltest.main()')
    elif rule == 'suite' and not source.endswith((_TEST_END, _ABRUPT_END)):
      found.append(f'{path}: in a suite only absltest.main() may be under __main__, as a suite does not run that part')
  return sorted(found)


def unloaded_rules(build):
  """Returns the rules that a BUILD file or a .bzl file uses without loading them. Bazel 9 would not find them."""
  calls = [node for node in ast.walk(ast.parse(build)) if isinstance(node, ast.Call)]
  loaded = {name.value for call in calls if ast.unparse(call.func) == 'load' for name in call.args[1:]}
  used = {ast.unparse(call.func).removeprefix('native.') for call in calls}
  return {name for name in used - loaded if name.startswith(('cc_', 'py_', 'sh_'))}


class BuildFilesTest(parameterized.TestCase):

  def test_the_tree(self):
    files, builds = source_tree.texts('*.py'), source_tree.texts('BUILD')
    self.assertIn('tests/build_files_test.py', files)
    self.assertIn('learner/BUILD', builds)
    found = faults(files, builds)
    self.assertMultiLineEqual('\n'.join(found), '')

  def test_every_test_of_the_core_runs(self):
    builds = source_tree.texts('BUILD')
    for path in source_tree.texts('*_test.cc'):
      folder, file = path.rsplit('/', 1)
      self.assertIn(f'"{file.removesuffix(".cc")}', builds[f'{folder}/BUILD'], path)

  def test_rules_are_loaded(self):
    builds = source_tree.texts('BUILD') | {
        name: (source_tree.ROOT / name).read_text() for name in ('BUILD', 'bazel/cc.bzl', 'bazel/python.bzl')}
    self.assertEmpty({path: rules for path, build in builds.items() if (rules := unloaded_rules(build))})
    self.assertEqual(unloaded_rules('load("@rules_cc//cc:defs.bzl", "cc_test")\ncc_test()\nnative.py_test()\nglob()'),
                     {'py_test'})

  def test_a_complete_file_passes(self):
    files = {
        'learner/a.py': 'import os\nfrom scalable_agents.learner import b\nimport scalable_agents.actor',
        'learner/b.py': 'from scalable_agents.actor.c import name',
        'learner/__init__.py': '',
        'actor/c.py': '',
        'tests/learner/a_test.py': 'from scalable_agents.learner import a\nabsltest.main()',
        'tests/learner/b_test.py': 'from scalable_agents.learner import b' + _TEST_END,
    }
    builds = {
        'learner/BUILD': '''
py_library(name = "a", srcs = ["a.py"], deps = [":b"])
modules({"b": ["//actor:c"]})''',
        'actor/BUILD': 'py_library(name = "c", srcs = ["c.py"])\ncc_library(name = "d", srcs = ["d.cc"])',
        'tests/learner/BUILD': 'tests("small", {"a_test": ["//learner:a"]}, tags = ["external"])\n'
                               'suite("suite", "small", {"b_test": ["//learner:b"]})',
    }
    self.assertEmpty(faults(files, builds))

  @parameterized.parameters(
      ('', 'learner/a.py: want one target a in learner/BUILD, got []'),
      ('py_library(name = "other", srcs = ["a.py"])', "got ['other']"),
      ('py_library(name = "a", srcs = ["a.py"])', 'imports //actor:c, which is not in deps'),
      ('modules({"a": []})', 'imports //actor:c, which is not in deps'),
      ('py_library(name = "a", srcs = ["a.py"], deps = ["//actor:d", ":c"])', 'imports //actor:c, which'),
      ('modules({"a": ["//actor:c", "//actor:c"]})', '//actor:c is in deps twice'),
  )
  def test_a_fault_is_found(self, build, message):
    files = {'learner/a.py': 'from scalable_agents.actor import c', 'actor/c.py': ''}
    found = faults(files, {'learner/BUILD': build, 'actor/BUILD': 'py_library(name = "c", srcs = ["c.py"])'})
    self.assertLen(found, 1)
    self.assertIn(message, found[0])

  @parameterized.parameters(
      ('py_library(name = "a_test", srcs = ["a_test.py"])', 'absltest.main()'),
      ('py_test(name = "a_test", srcs = ["a_test.py"])', 'pass'),
      ('py_test(name = "a_test", srcs = ["a_test.py"], tags = ["manual"])', 'absltest.main()'),
      ('tests("small", {"a_test": []}, tags = ["manual"])', 'absltest.main()'),
      ('suite("suite", "small", {"a_test": []}, tags = ["manual"])', 'absltest.main()'),
      ('suite("suite", "small", {"a_test": []})', 'pass'))
  def test_a_test_that_does_not_run_is_found(self, build, source):
    self.assertEqual(faults({'tests/a_test.py': source}, {'tests/BUILD': build}),
                     ['tests/a_test.py: want a py_test that ends with absltest.main()'])

  def test_what_a_suite_would_leave_out_is_found(self):
    source = "if __name__ == '__main__':\n  prepare()\n  absltest.main()\n"
    fault, = faults({'tests/a_test.py': source}, {'tests/BUILD': 'suite("suite", "small", {"a_test": []})'})
    self.assertStartsWith(fault, 'tests/a_test.py: in a suite only absltest.main()')


if __name__ == '__main__':
  absltest.main()
