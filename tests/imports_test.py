"""Checks every import of the tree: which packages a package may import, and which modules may import TensorFlow.

Programs that may import TensorFlow must select its kernels first.

_ARROWS lists the folders of modules from the lowest to the highest. A folder imports only folders above it in the list,
so there is no loop. tests test all of them.
"""

from absl.testing import absltest
from absl.testing import parameterized

from scalable_agents.tests import source_tree

_ARROWS = {  # Package -> the other packages that it may import.
    'ops': '',
    'environments': 'ops',
    'records': 'ops',
    'processes': 'records',
    'actor': 'environments ops processes',
    'learner': 'ops records actor',
    'networks': 'processes actor',
    'replay': 'ops processes',
    'experience': 'environments ops records processes actor learner replay',
    'cluster': 'ops records processes actor learner experience',
    'training': 'environments records processes actor learner experience cluster',
    'evaluation': 'environments records processes actor training',
    'population': 'environments records processes learner training',
    'launch': 'ops environments records processes actor experience training cluster evaluation population',
    'agents': ('environments records processes actor learner networks replay experience training cluster evaluation '
               'population launch'),
    'benchmark': 'environments records processes actor learner replay experience training cluster launch agents',
    'tables/results': 'environments records training cluster population launch agents',
    'tables/papers': 'environments records training agents tables/results',
    'tables/figures': 'environments records population tables/results tables/papers',
    'tables': 'environments records processes population agents tables/results tables/papers tables/figures',
    'tools': ('environments records processes actor learner replay experience training cluster population launch '
              'agents benchmark tables tables/figures tables/papers tables/results'),
}
_TENSORFLOW = {'keras', 'sonnet', 'tensorflow', 'tensorflow_probability', 'tf_keras'}
_WORKER = 'actor/environment_worker.py'
_KERNELS = 'processes/kernels.py'
# Launchers, tables and the check of flags start without TensorFlow.
_LIGHT = ('agents/registry.py', 'agents/population.py', 'agents/laser_sweep.py', 'launch/preset_flags.py',
          'tables/tables.py', 'tools/local_cluster.py')
_CHOICES = ('kernels.choose()', 'quiet.start()', 'train.main(')  # Of TensorFlow's kernels.
# Beside the binaries these may know flags: they make them, once for all binaries.
_FLAG_MAKERS = {'launch/preset_flags.py', 'processes/run_flags.py', 'training/run_config.py'}


def _reach(path, imports):
  """The paths of all project files that importing `path` loads, itself included."""
  reached, waiting = set(), [path]
  while waiting:
    current = waiting.pop()
    if current not in reached:
      reached.add(current)
      waiting.extend(source_tree.project_files(imports[current], imports))
  return reached


def violations(sources):
  """What breaks the rules.

  Args:
    sources: texts of Python files by path, relative to the root.
  Returns:
    A sorted list of 'path: what is wrong'.
  """
  found = []
  imports = {path: source_tree.imported_names(source) for path, source in sources.items()}
  for path, source in sources.items():
    package = _folder(path.split('/')[:-1])
    if package not in {*_ARROWS, 'tests'}:
      found.append(f'{path}: no arrows known for {package}')
      continue
    for name in imports[path]:
      project, *parts = name.split('.')
      if not project:
        found.append(f'{path}: relative import {name}')
      elif project == source_tree.PROJECT and not _may_import(package, _folder(parts)):
        found.append(f'{path}: {package} must not import {name}')
      elif name.startswith('absl.flags') and not _may_know_flags(path, source):
        found.append(f'{path}: only binaries read flags')
    if path.endswith('__init__.py') and source.strip():
      found.append(f'{path}: not empty')
    if (_is_binary(source) and not path.startswith('tests/') and _may_import_tensorflow(path, imports)
        and not any(choice in source for choice in _CHOICES)):
      found.append(f'{path}: imports TensorFlow without one of {", ".join(_CHOICES)}')
  for path in _loaded_by_workers(imports):
    found.extend(f'{path}: workers load it, but it imports {name}'
                 for name in imports[path] if name.split('.')[0] in _TENSORFLOW)
  return sorted(found)


def _folder(parts):
  """Returns the folder of _ARROWS that has a path or a dotted name, both split into parts; else the first part."""
  folder = '/'.join(parts[:2])
  return folder if folder in _ARROWS else parts[0] if parts else ''


def _may_import(package, other):
  if package == 'tests':
    return other in _ARROWS or other in ('', '__main__', 'tests')
  return other == package or other in _ARROWS[package].split()


def _may_know_flags(path, source):
  """Whether a file is a binary, the maker of their flags, or a test."""
  return _is_binary(source) or path in _FLAG_MAKERS or path.startswith('tests/')


def _is_binary(source):
  return "\nif __name__ == '__main__':" in source


def _may_import_tensorflow(path, imports):
  """Whether a file, or one that it may import, imports TensorFlow other than to say which kernels are on."""
  return any(name.split('.')[0] in _TENSORFLOW for reached in _reach(path, imports) - {_KERNELS}
             for name in imports[reached])


def _loaded_by_workers(imports):
  """The paths of the files that an environment worker may load."""
  environments = {path for path in imports if path.startswith('environments/')}
  return environments | (_reach(_WORKER, imports) if _WORKER in imports else set())


class ImportsTest(parameterized.TestCase):

  def test_each_arrow_points_to_a_package_further_up_in_the_list(self):
    packages = list(_ARROWS)
    for package, others in _ARROWS.items():
      for other in others.split():
        self.assertLess(packages.index(other), packages.index(package), f'{package} -> {other}')

  def test_the_tree_follows_the_arrows(self):
    sources = source_tree.texts('*.py')
    for path in (_WORKER, 'environments/registry.py', 'learner/vtrace.py', 'tests/imports_test.py'):
      self.assertIn(path, sources)
    root = (source_tree.ROOT / '__init__.py').read_text(encoding='utf-8')  # Workers and setup.py read it.
    self.assertEqual(source_tree.imported_names(root), {'importlib'})
    found = violations(sources)
    self.assertMultiLineEqual('\n'.join(found), '')

  def test_launchers_and_tables_do_not_import_tensorflow(self):
    sources = source_tree.texts('*.py')
    imports = {path: source_tree.imported_names(source) for path, source in sources.items()}
    for path in _LIGHT:
      self.assertFalse(_may_import_tensorflow(path, imports), path)

  def test_every_folder_of_modules_is_a_package_that_setup_installs(self):
    setup = (source_tree.ROOT / 'setup.py').read_text(encoding='utf-8')
    folders = {path.parent for path in source_tree.ROOT.glob('*/*.py') if path.parent.name.isidentifier()}
    # The conf.py of docs is Sphinx's, and users copy the examples.
    for folder in folders - {source_tree.ROOT / 'docs', source_tree.ROOT / 'examples'}:
      self.assertTrue((folder / '__init__.py').exists(), folder)
      self.assertEqual(f"'{folder.name}'" in setup, folder.name != 'tests', folder)

  def test_every_allowed_arrow_passes(self):
    self.assertEmpty(violations({
        'environments/a.py': 'from scalable_agents.environments import base\nimport numpy as np',
        'environments/__init__.py': '',
        'actor/a.py': 'import tensorflow as tf\nfrom scalable_agents.environments import base',
        'learner/a.py': 'import sonnet as snt\nfrom scalable_agents.learner.vtrace import from_logits',
        'agents/a.py': 'from scalable_agents.actor import a\nfrom scalable_agents.learner import a as b',
        'agents/b.py': "from absl import flags\nif __name__ == '__main__':\n  pass",
        'processes/run_flags.py': 'from absl import flags',
        'tools/a.py': "from scalable_agents.learner import a\nkernels.choose()\nif __name__ == '__main__':\n  pass",
        'tables/a.py': 'from scalable_agents.agents import a',
        'tests/a_test.py': 'from scalable_agents.tables import a\nfrom scalable_agents.tests.actor import helper',
    }))

  @parameterized.parameters(
      ('environments/a.py', 'from scalable_agents.actor import unroll', 'environments must not import'),
      ('environments/a.py', 'import tensorflow as tf', 'imports tensorflow'),
      ('environments/a.py', 'def f():\n  from sonnet import nets', 'imports sonnet.nets'),
      ('actor/a.py', 'import scalable_agents.learner.vtrace', 'actor must not import'),
      ('actor/a.py', 'from scalable_agents import learner', 'actor must not import'),
      ('learner/a.py', 'from scalable_agents.environments import scores', 'learner must not import'),
      ('learner/a.py', 'from . import vtrace', 'relative import'),
      ('learner/a.py', 'from absl import flags', 'only binaries read flags'),
      ('learner/a.py', 'from absl.flags import FLAGS', 'only binaries read flags'),
      ('agents/a.py', 'if True:\n  from scalable_agents.tables import make', 'agents must not import'),
      ('agents/a.py', 'import scalable_agents', 'agents must not import scalable_agents'),
      ('tables/a.py', 'from scalable_agents.tests import imports_test', 'tables must not import'),
      ('tables/results/a.py', 'from scalable_agents.tables import tables', 'tables/results must not import'),
      ('utils/a.py', 'import os', 'no arrows known for utils'),
      ('tools/a.py', "def f():\n  import tensorflow as tf\nif __name__ == '__main__':\n  f()", 'without one of'),
      ('actor/__init__.py', 'import os', 'not empty'),
  )
  def test_a_planted_violation_is_found(self, path, source, message):
    found = violations({path: source})
    self.assertLen(found, 1)
    self.assertStartsWith(found[0], path)
    self.assertIn(message, found[0])

  def test_a_worker_must_not_reach_tensorflow_through_others(self):
    sources = {
        _WORKER: 'from scalable_agents.actor import shared_memory',
        'actor/shared_memory.py': 'from scalable_agents.actor.unroll import Unroll',
        'actor/unroll.py': 'import tensorflow as tf',
        'ops/ops.py': 'import tensorflow as tf',
    }
    self.assertEqual(violations(sources), ['actor/unroll.py: workers load it, but it imports tensorflow'])


if __name__ == '__main__':
  absltest.main()
