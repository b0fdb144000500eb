"""Run directories that are damaged in many ways: every reader reads them, or refuses them with one line.

The readers are the programs for tables and figures, a run that is resumed, an evaluation, and the other members of a
population. Each test damages one file of a kind of run in several ways, with a generator of fixed seed. All tests
together use each of _VALUES. To look for more faults, make _DAMAGES longer.
"""

import contextlib
import io
import itertools
import json
import os
import pathlib
import random
import shutil
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
from matplotlib import figure

from scalable_agents.evaluation import evaluation_results
from scalable_agents.population import population_directory
from scalable_agents.processes import run_flags
from scalable_agents.records import errors
from scalable_agents.records import learning_curve
from scalable_agents.records import metrics
from scalable_agents.records import run_directory
from scalable_agents.tables import population
from scalable_agents.tables import tables
from scalable_agents.tests.tables import run_directories

_DAMAGES = ('cut', 'drop', 'value', 'value')  # Of each file in each kind of run.
_DIGITS = '1' + 400 * '0'
_VALUES = ('Infinity', '-Infinity', 'NaN', '1e999', '-1e999', _DIGITS, f'-{_DIGITS}', f'{_DIGITS}.5', '9' * 19,
           '-1', '1.5', '0', '1e300', 'null', 'true', '"text"', '""', r'"1\n2"', r'"\ud800"', '[]', '[1, "a"]', '{}',
           '{"mean": [1]}', 100_000 * '[', 100_000 * '{"a":', 'nothing')
_LEVELS = ('rooms_watermaze', 'rooms_keys_doors_puzzle')
_CURVES = {'curves': {level: [1., 2., 3.] for level in _LEVELS},
           'more': {name: [1., 2., 3.] for name in (
               'suite_score', 'suite_score/mean_capped', 'popart/mean/rooms_watermaze', 'popart/scale/rooms_watermaze',
               'delta_q/first', 'delta_q/last', 'rejected/online', 'rejected/replayed', 'environment_restarts')} | {
                   'bottleneck': ['learner', 'learner', 'actors']}}


def _impala(folder):
  """Makes a member of a population of IMPALA on DMLab-30, and its sibling."""
  for index in (1, 0):
    logdir = run_directories.make(
        folder, population_directory.member_name(index), {level: 3. for level in _LEVELS}, population_size=2,
        seed=index, agent='impala', learning_rate_decay=False, **_CURVES)
    population_directory.write_fitness(logdir, population_directory.Fitness(
        6_000_000_000, 1. + index, {'learning_rate': 1e-3}))
    population_directory.append_evolution(logdir, population_directory.Evolution(
        6_000_000_000, 1., 1 - index, 5_000_000_000, {'learning_rate': 2e-3}))
  row = {'num_episodes': 2, 'levels': {level: {'mean': 3.} for level in _LEVELS}, 'suite': {'suite_score': 5.}}
  rows = [json.dumps({'environment_frames': frames, **row}) + '\n' for frames in (4_000_000_000, 8_000_000_000)]
  pathlib.Path(logdir, 'evaluations.jsonl').write_text(''.join(rows), encoding='utf-8')
  return logdir


def _r2d2(folder):
  """Makes a run of R2D2 on a game, and one of a variant."""
  more = {'measure_delta_q': True, 'histories': {'inf': (1., 0.5, 0.1), '3': (0.5, 0.4, 0.2)}}
  run_directories.r2d2(folder, 'other', 20., discount=0.99, **more | _CURVES)
  return run_directories.r2d2(folder, 'run', 20., **more | _CURVES)


def _laser(folder):
  """Makes a run of LASER on a game, and one of a variant."""
  run_directories.laser(folder, 'other', [1., 2., 3.], replay_share=0., **_CURVES)
  return run_directories.laser(folder, 'run', [1., 2., 3.], **_CURVES)


_KINDS = {  # Name -> what makes a run, its files that are damaged, and the programs that read it, with their flags.
    'impala': (_impala, ('config.json', 'metrics.jsonl', 'evaluation.json', 'evaluations.jsonl', 'fitness.json',
                         'evolution.jsonl'), (
        (tables, tables.TablesConfig('impala', '3', figures=True)),
        (tables, tables.TablesConfig('impala', '2', figures=True)),
        (tables, tables.TablesConfig('popart_impala', '1', figures=True)),
        (population, population.PopulationFigureConfig()))),
    'r2d2': (_r2d2, ('config.json', 'metrics.jsonl', 'evaluation.json', 'restricted_history.json'), (
        (tables, tables.TablesConfig('r2d2', '4', figures=True)),)),
    'laser': (_laser, ('config.json', 'metrics.jsonl', 'episodes.csv'), (
        (tables, tables.TablesConfig('laser', '1', figures=True)),)),
}


def _damage(text: str, how: str, value: str, choose: random.Random) -> bytes:
  """Damages the text of a JSON file, of a file of JSON rows or of a CSV file.

  Args:
    text: the text.
    how: 'cut' for a text that ends early, 'drop' for a value that is missing, and 'value' for one that is replaced.
    value: the text that replaces it. It need not be JSON.
    choose: chooses the place.
  """
  if how == 'cut':
    return text[:choose.randrange(len(text))].encode() + choose.choice((b'', b'\n'))
  try:
    rows = [json.loads(text)]
    indent = 2
  except ValueError:
    rows, indent = [], None
    for line in text.splitlines():
      rows.append(json.loads(line) if line.startswith('{') else line.split(','))
  holder, key = choose.choice(list(_places(rows)))
  if how == 'drop':
    del holder[key]
  else:
    holder[key] = '@@'
  lines = [json.dumps(row, indent=indent) if isinstance(row, dict) else '@@' if row == '@@' else
           ','.join(map(str, row)) for row in rows]
  return ''.join(line.replace('"@@"', value).replace('@@', value) + '\n' for line in lines).encode()


def _places(value):
  """Yields (container, key) of every value inside a JSON value."""
  keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
  for key in keys:
    yield value, key
    yield from _places(value[key])


def _show(module, config, folder, output):
  """Runs a program for tables or figures."""
  config = config.__class__(**vars(config) | (
      {'population': folder} if module is population else {'runs': f'{folder}/*', 'output': output}))
  with mock.patch.object(run_flags, 'config_from_flags', return_value=config):
    module.main()


def _resume(logdir, flags):
  """Resumes a run as far as its files are read, and evaluates it."""
  with run_directory.open_run(logdir, flags, ()) as directory:
    population_directory.drop_evolutions_after(directory.path, 7_000_000_000)
    writer = metrics.MetricsWriter(directory.path, 7_000_000_000)
    writer.write({'environment_frames': 7_000_000_000, 'episode_return': 1.})
    writer.close()
    learning_curve.draw(directory.path)
  with run_directory.open_evaluation(logdir, flags, ()) as directory:
    evaluation_results.FinishedLevels(directory.path, {}, {}, ())


class DamagedRunsTest(parameterized.TestCase):

  def _check(self, read, what):
    """Checks that a reader reads the damaged run, or refuses it with one line."""
    screen = io.StringIO()
    try:
      with contextlib.redirect_stdout(screen), contextlib.redirect_stderr(screen):
        read()
    except errors.UserError as error:
      self.assertNotIn('\n', str(error), what)
      self.assertLess(len(str(error)), 3_000, what)
    except Exception as error:
      raise AssertionError(f'{what}: {type(error).__name__}: {error}') from error

  @parameterized.parameters(*((kind, file) for kind, (_, files, _) in _KINDS.items() for file in files))
  def test_it_is_read_or_refused_with_one_line(self, kind, file):
    make, _, programs = _KINDS[kind]
    output, sound = self.create_tempdir().full_path, self.create_tempdir().full_path
    logdir = make(sound)
    text = pathlib.Path(logdir, file).read_text(encoding='utf-8')
    flags = run_directory.read_config(logdir)['flags']
    names = [(name, each) for name, (_, files, _) in _KINDS.items() for each in files]
    values = itertools.islice(itertools.cycle(_VALUES), names.index((kind, file)) * _DAMAGES.count('value'), None)
    choose = random.Random(f'{kind} {file}')
    # Drawing pictures would take minutes. Their contents are made.
    self.enterContext(mock.patch.object(
        figure.Figure, 'savefig', lambda picture, name, format: pathlib.Path(name).touch()))
    for module, config in programs:
      with contextlib.redirect_stdout(io.StringIO()):
        _show(module, config, sound, output)
    for how in _DAMAGES:
      folder = os.path.join(self.create_tempdir().full_path, 'runs')
      shutil.copytree(sound, folder)
      damaged = _damage(text, how, next(values) if how == 'value' else '', choose)
      here = pathlib.Path(folder, os.path.basename(logdir))
      (here / file).write_bytes(damaged)
      what = f'{kind}, {file}: {damaged[:2000]} ...'
      for module, config in programs:
        self._check(lambda: _show(module, config, folder, output), f'{module.__name__} {config} {what}')
      self._check(lambda: _resume(str(here), flags), f'resume {what}')


if __name__ == '__main__':
  absltest.main()
