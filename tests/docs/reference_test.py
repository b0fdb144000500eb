"""Tests that the site's reference has every flag, error, public name and file of a run.

The pages are text here; `make docs` builds them. metrics_test.py tests the page of the metrics.
"""

import ast
import dataclasses
import importlib
import inspect
import json
import re
import sys

from absl.testing import absltest

from scalable_agents.agents import registry
from scalable_agents.cluster import cluster_config
from scalable_agents.learner import popart
from scalable_agents.population import population_config
from scalable_agents.population import population_directory
from scalable_agents.records import run_directory
from scalable_agents.records.settings import setting
from scalable_agents.tests import source_tree
from scalable_agents.tests.docs import pages
from scalable_agents.tools import reference
from scalable_agents.training import definition

_PAGES = {path.name: path.read_text(encoding='utf-8')
          for path in (source_tree.ROOT / 'docs' / 'reference').glob('*.md')}
_TABLES = reference.tables()
_SOURCE = r'(?i)\b(et al|tables?|section|figure|equation|equations|appendix|papers?|released code|ape-x|ours)\b'
_WITHOUT_SOURCE = {'--level_name', '--seed', '--num_actors'}
_MODULES = [importlib.import_module(name) for text in _PAGES.values()
            for name in re.findall(r'^\.\. automodule:: (\S+)$', text, re.MULTILINE)]


def _sources():
  """Yields the path and the syntax tree of each module of the package, without tests."""
  for path, text in source_tree.texts('*.py').items():
    if not path.startswith('tests/'):
      yield path, ast.parse(text)


def _members(module):
  """Yields the names and the objects of the public functions, classes and methods that a module defines."""
  for name, thing in vars(module).items():
    if not name.startswith('_') and getattr(thing, '__module__', None) == module.__name__ and callable(thing):
      yield name, thing
      for part, member in vars(thing).items() if inspect.isclass(thing) else ():
        if not part.startswith('_') and (inspect.isfunction(member) or isinstance(member, property)):
          yield f'{name}.{part}', member


def _unwrapped(thing):
  """Returns the method that Sonnet has wrapped without its docstring; conf.py switches that off."""
  return inspect.getclosurevars(thing).nonlocals.get('f', thing) if inspect.isfunction(thing) else thing


@dataclasses.dataclass(frozen=True)
class _Config:
  rate: float = setting(1e-4, 'A *rate* of a|b, see --other_flag=1. Table G.1.', at_least=0)
  on: bool = setting(True, 'Whether it is on.')
  name: str = setting('', 'The name.')


class TablesTest(absltest.TestCase):

  def test_every_table_is_on_a_page(self):
    shown = re.findall(r'^\{\{ (\w+) \}\}$', '\n'.join(_PAGES.values()), re.MULTILINE)
    self.assertCountEqual(shown, _TABLES)

  def test_every_setting_of_the_sources_has_a_row(self):
    names = {node.target.id for _, tree in _sources() for node in ast.walk(tree)
             if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Call)
             and ast.unparse(node.value.func) == 'setting'}
    self.assertContainsSubset({'learning_rate', 'burn_in', 'logdir', 'renderer', 'share_replay'}, names)
    rows = re.findall(r'^\| `--(\w+)` \|', '\n'.join(_TABLES.values()), re.MULTILINE)
    self.assertEmpty(names - set(rows))

  def test_every_flag_of_a_binary_is_in_its_tables(self):
    for name, preset in registry.PRESETS.items():
      agent = next(agent for agent, path in registry.AGENTS.items() if path == preset.agent)
      parts = {agent: preset.config, name.rpartition('_')[2]: preset.protocol, 'run': preset.run,
               'cluster': cluster_config.ClusterConfig(), 'population': population_config.PopulationConfig()}
      for table, config in parts.items():
        for field in dataclasses.fields(config):
          self.assertIn(f'| `--{field.name}` |', _TABLES[f'flags_{table}'], name)

  def test_a_table(self):
    self.assertEqual(
        reference.flags_table({'one': _Config(), 'two': _Config(rate=2.), 'three': _Config(rate=2.)}),
        '{.flags}\n'
        '| flag | default | meaning, source, range |\n'
        '| --- | --- | --- |\n'
        '| `--rate` | `0.0001`<br>`2.0` in `two`, `three` | A \\*rate\\* of a\\|b, see `--other_flag=1`. Table G.1. '
        'Want a finite number of at least 0. |\n'
        '| `--on` | `True` | Whether it is on. |\n'
        '| `--name` | empty | The name. |')

  def test_values_of_the_papers(self):
    """Tables G.1 and D.3 of the IMPALA paper, and table 2 of the R2D2 paper."""
    self.assertIn('| `--unroll_length` | `20`<br>`100` in `impala_dmlab30` |', _TABLES['flags_impala'])
    self.assertIn('| `--replay_capacity` | `100_000` |', _TABLES['flags_r2d2'])

  def test_the_flags_of_agents_name_their_sources(self):
    rows = [row for agent in registry.AGENTS for row in _TABLES[f'flags_{agent}'].splitlines()[3:]]
    self.assertLen({row.split('`')[1] for row in rows if not re.search(_SOURCE, row)} - _WITHOUT_SOURCE, 0)

  def test_every_error_is_in_the_table(self):
    for name, module in list(sys.modules.items()):
      if re.match(r'scalable_agents\.(?!tests)', name):
        for error, kind in _members(module):
          if inspect.isclass(kind) and issubclass(kind, Exception):
            self.assertIn(f'| `{error}` | `{name.removeprefix("scalable_agents.")}` |', _TABLES['errors'])
    self.assertTrue(all(meaning for *_, meaning in reference.errors().values()))


class RunDirectoryTest(absltest.TestCase):

  def test_every_file_is_on_the_page(self):
    page = (source_tree.ROOT / 'docs' / 'run_directory.md').read_text(encoding='utf-8')
    names = {value for module in (run_directory, population_directory) for name, value in vars(module).items()
             if name.isupper() and isinstance(value, str) and ' ' not in value}
    self.assertContainsSubset({'config.json', '.lock', 'evolution.jsonl'}, names)
    for name in names:
      self.assertRegex(page, rf'`{re.escape(name)}[*/]*`')


  def test_every_key_of_the_json_files_is_on_the_page(self):
    page = (source_tree.ROOT / 'docs' / 'run_directory.md').read_text(encoding='utf-8')
    run = source_tree.ROOT / 'docs' / 'results' / 'breakout_shallow'
    config, evaluation = (json.loads((run / name).read_text(encoding='utf-8'))
                          for name in ('config.json', 'evaluation.json'))
    keys = {*config, *evaluation, *evaluation['protocol'], *evaluation['levels']['breakout'],
            *population_directory.Fitness._fields, *population_directory.Evolution._fields}
    self.assertEmpty({key for key in keys if f'`{key}`' not in page})


class NamesTest(absltest.TestCase):

  def test_what_examples_and_pages_import_is_public(self):
    public = {module.__name__ for module in _MODULES} | set(
        re.findall(r'^\.\. autofunction:: (\S+)$', '\n'.join(_PAGES.values()), re.MULTILINE))
    code = [path.read_text(encoding='utf-8') for path in (source_tree.ROOT / 'examples').glob('*.py')]
    for page in pages.CHECKED:
      code += [block.code for block in pages.blocks(pages.read(page)) if block.language in ('python', '{code-cell}')]
    names = {name for text in code for name in source_tree.imported_names(text) if name.startswith('scalable_agents')}
    self.assertContainsSubset({'scalable_agents.learner.vtrace', 'scalable_agents.agents.impala'}, names)
    # The name of a module, or a name in one.
    self.assertEmpty([name for name in names - {'scalable_agents'} if not public & {name, name.rpartition('.')[0]}])

  def test_every_public_name_has_a_docstring(self):
    self.assertGreater(len(_MODULES), 20)
    missing = [f'{module.__name__}.{name}' for module in _MODULES for name, thing in _members(module)
               if not _unwrapped(thing).__doc__ and thing.__name__ != '<lambda>']  # A lambda: the default of a field.
    self.assertEmpty(missing)

  def test_every_public_field_has_a_meaning(self):
    missing = [f'{module.__name__}.{name}.{field}' for module in _MODULES for name, thing in _members(module)
               if inspect.isclass(thing) for field, (_, meaning) in reference.fields(thing).items() if not meaning]
    self.assertEmpty(missing)

  def test_the_names_of_the_package_are_on_the_page(self):
    names = re.findall("'(\\w+)'", re.search(r'if name in \((.*)\)', (
        source_tree.ROOT / '__init__.py').read_text(encoding='utf-8'))[1])
    self.assertCountEqual(names, re.findall(
        r'auto(?:function|exception):: scalable_agents\.(\w+)$', _PAGES['python_interface.md'], re.MULTILINE))

  def test_the_fields_of_a_class_and_the_constants_of_a_module(self):
    self.assertEqual(reference.fields(popart.Moments)['second'],
                     ('second: tf.Tensor', '[N] or [B] float64; nu of a level.'))
    self.assertEqual(reference.fields(definition.Definition)['steps_between_fetches'], (
        'steps_between_fetches: Callable[[Any], int] = lambda config: config.unroll_length',
        "Agent steps of each environment after which actors of the agent's paper fetch new parameters."))
    self.assertEqual(reference.fields(_Config)['name'], ("name: str = ''", 'The name.'))
    self.assertIn('MAX_SCALE', reference.fields(popart))
    self.assertEmpty(reference.fields(ValueError))

  def test_what_is_indented_in_a_docstring_is_printed_as_it_is(self):
    self.assertEqual(
        reference.restructured(['The sum of', '', '  |x| = 1', 'and', '', 'Args:', '  x: |x|.']),
        ['The sum of', '', '', '::', '', '  |x| = 1', '', 'and', '', 'Args:', '  x: \\|x\\|.'])


if __name__ == '__main__':
  absltest.main()
