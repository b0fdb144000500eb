"""Checks commands of the pages as the programs do that they run, without running these."""

from collections.abc import Sequence
import dataclasses
import functools
import re
import runpy
import shlex
import subprocess
import sys
from typing import Any, NamedTuple
from unittest import mock

from absl import flags

from scalable_agents import __main__
from scalable_agents.agents import registry
from scalable_agents.cluster import cluster_config
from scalable_agents.environments import dmlab
from scalable_agents.environments import registry as environments
from scalable_agents.launch import preset_flags
from scalable_agents.population import population_config
from scalable_agents.processes import python_path
from scalable_agents.processes import quiet
from scalable_agents.processes import run_flags
from scalable_agents.records import settings
from scalable_agents.tests import source_tree
from scalable_agents.training import definition
from scalable_agents.training import run_config

_programs = functools.cache(__main__.programs)
_WITHOUT_FLAGS = ('check_wheel', 'doctor', 'pack_for_card', 'test_summary')


def program(words):
  """Returns the module of this project that a command runs, and its arguments; ('', []) if it runs none.

  Raises:
    ValueError: there is no such program.
  """
  match words:
    case ('bazel', 'run', target, *arguments):
      return target.replace('//', 'scalable_agents.').replace(':', '.'), arguments[arguments[:1] == ['--']:]
    case ('scalable-agents', name, *arguments) | ('python' | 'python3', '-m', 'scalable_agents', name, *arguments) if (
        name != '--help'):
      if name not in _programs():
        raise ValueError(f'no such program: {name}')
      return _programs()[name][0], arguments
    case ('python' | 'python3', '-m', module, *arguments) if module.startswith('scalable_agents.'):
      return module, arguments
  return '', []


class Run(NamedTuple):
  """A run that a command starts."""
  logdir: str
  settings: dict[str, Any]  # Those that are fixed in the run directory.


def check(words: Sequence[str]) -> Run | None:
  """Checks a command, and returns the run that it starts, if it trains an agent.

  Raises:
    ValueError, ImportError, errors.UserError, flags.Error: it runs something of this project that does not exist or
      refuses its arguments.
  """
  match words:
    case ('make', *arguments):
      return _check_make(arguments)
    case ('bazel' | 'bazelisk', 'test', *arguments):
      labels = [word for word in arguments if not word.startswith('--')]
      return _check_files(label.removeprefix('//').removesuffix('...').replace(':', '/') for label in labels)
    case ('python' | 'python3', file, *_) if file.endswith('.py'):
      return _check_files([file])
  module, arguments = program(words)
  name = module.rpartition('.')[2]
  if name == 'train':
    names = [word.removeprefix('--agent=') for word in arguments if word.startswith('--agent=')]
    return _check_agent(*names or [''], [word for word in arguments if not word.startswith('--agent=')])
  if name in registry.PRESETS:
    return _check_agent(name, arguments) if arguments else None  # Without them, the text only names the program.
  if name in _WITHOUT_FLAGS and any(word.startswith('-') for word in arguments):
    raise ValueError(f'{name} has no flags')
  if module and name not in _WITHOUT_FLAGS:
    return _check_program(module, arguments)
  return None


def _check_files(paths):
  for path in paths:
    if not any((source_tree.ROOT / f'{path}{ending}').exists() for ending in ('', '.py')):
      raise ValueError(f'no such file: {path}')


def _check_make(arguments):
  """Checks the targets and the variables, and the programs of this project that `make` would run. Returns the run."""
  makefile = (source_tree.ROOT / 'Makefile').read_text(encoding='utf-8')
  for variable in re.findall(r'^(\w+)=', '\n'.join(arguments), re.MULTILINE):
    if not re.search(rf'^{variable} \?=', makefile, re.MULTILINE):
      raise ValueError(f'the Makefile has no variable {variable}')
  done = subprocess.run(['make', '--dry-run', *arguments], cwd=source_tree.ROOT, text=True, capture_output=True,
                        check=False)
  if done.returncode:
    raise ValueError(done.stderr)
  runs = [check(('python', *shlex.split(line)[1:])) for line in done.stdout.replace('\\\n', ' ').splitlines()
          if line.startswith('.venv/bin/python -m scalable_agents')]
  return next(filter(None, runs), None)


def _check_program(module, arguments):
  """Checks a program, and what it passes on to an agent, if there are arguments. Else, checks that it exists.

  Returns the run, or the runs of members that a launcher starts in one folder, if it starts any.
  """
  defaults, takes_others, validate = _read(module)
  if not arguments:
    return None
  names = {field.name for field in dataclasses.fields(defaults)} | {'help'}
  own = [word for word in arguments
         if not takes_others or re.match('-*([a-z_]*)', word)[1].removeprefix('no') in names]
  flag_values = _parse(lambda values: run_flags.define(defaults, values), own)
  if flag_values['help'].value:
    return None
  config = run_flags.config_from_flags(type(defaults), validate, flag_values=flag_values)
  if takes_others:
    shares = getattr(config, 'share', False) or getattr(config, 'share_replay', False)  # Of laser_sweep, population.
    others = [word for word in arguments if word not in (*own, '--')]
    run = _check_agent(config.agent, others + ['--shared_replay=localhost:20000'] * shares)
    return run and Run(run_config.directory(config.logdir, run.settings['level_name']),
                       run.settings | {**dataclasses.asdict(config), 'logdir': ''})
  return None


@functools.cache
def _read(module):
  """Reads what a program is, without running it.

  Returns:
    The defaults of its flags, whether it passes other flags on to an agent, and its function that checks its config.
  """
  parts, takes_others = [], []
  with mock.patch.object(run_flags, 'define', parts.append), mock.patch.object(quiet, 'start'), mock.patch.object(
      run_flags, 'run_main', lambda _, **named: takes_others.append(bool(named))):
    names = runpy.run_module(module, run_name='__main__')
  defaults, = parts
  home = names if type(defaults).__module__ == '__main__' else vars(sys.modules[type(defaults).__module__])
  return defaults, takes_others[-1], home.get('validate', settings.check)


def _check_agent(name, arguments):
  """Checks the flags of an agent's program together, as the program does, and that the levels exist.

  Returns the run, if the program starts one.
  """
  preset = registry.find(name)
  agent = python_path.load(preset.agent)
  flag_values = _parse(lambda values: preset_flags.define(preset, values), arguments)
  if flag_values['help'].value:
    return None
  read = functools.partial(run_flags.config_from_flags, flag_values=flag_values)
  config = read(agent.config, agent.validate)
  population = read(population_config.PopulationConfig, settings.check)
  cluster = read(cluster_config.ClusterConfig, cluster_config.validate)
  run = agent.complete_run(config, read(type(preset.run)))
  if config.sweep_index >= agent.sweep.num_samples:
    raise ValueError(f'--sweep_index={config.sweep_index}: want at most {agent.sweep.num_samples - 1}')
  levels = environments.expand(config.level_name)
  for level in levels:
    _check_level(level)
  if run.mode == 'test':  # An evaluation has the settings of its run.
    return None
  protocol = read(type(preset.protocol))
  protocol.validate(levels)
  if cluster.job_name == 'actor' or cluster.task > 0:  # A run directory belongs to the first learner.
    return None
  job = definition.Job(agent, preset.agent, config, protocol, run, levels, cluster, population)
  fixed = {name: value for name, value in job.settings().items() if name not in job.free_settings()}
  return Run(run_config.directory(run.logdir, config.level_name), {'agent': agent.name} | fixed)


@functools.cache
def _check_level(level):
  if level not in dmlab.LEVELS:  # They need DeepMind Lab.
    environments.check(level)


def _parse(define, arguments):
  """Parses arguments as a program does that has --help and the flags that `define` defines. Returns the flags."""
  flag_values = flags.FlagValues()
  flags.DEFINE_bool('help', False, '', flag_values=flag_values)
  define(flag_values)
  # The folder of the photographs is the reader's.
  rest = flag_values(['program', *(re.sub('(?<=--dataset_path=).*', dmlab.DUMMY_DATASET, word) for word in arguments)])
  if rest != ['program']:
    raise ValueError(f'no such argument: {rest[1:]}')
  return flag_values
