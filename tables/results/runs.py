"""Reads run directories, and finds the agent of the paper that corresponds to a run's settings."""

from collections.abc import Callable, Iterable, Sequence
import contextlib
import glob
import json
import math
import os
import re
from typing import Any, NamedTuple, TypeVar

from scalable_agents.agents import sweeps
from scalable_agents.cluster import cluster_config
from scalable_agents.environments import dmlab
from scalable_agents.environments import registry
from scalable_agents.environments import scores
from scalable_agents.environments import suite as suite_lib
from scalable_agents.launch import atari57_protocol
from scalable_agents.launch import dmlab30_protocol
from scalable_agents.population import population_directory
from scalable_agents.records import json_text
from scalable_agents.records import run_directory
from scalable_agents.records import run_rows
from scalable_agents.records import settings
from scalable_agents.tables.results import published
from scalable_agents.training import run_config

# Settings that all runs have, and one that runs of agents without an off-policy correction do not have.
_FLAGS = {'level_name': str, 'torso': str, 'use_lstm': bool, 'seed': int, 'total_environment_frames': int}
_OFF_POLICY_FLAGS = {'off_policy_correction': str}
_SWEPT_FLAGS = dict.fromkeys(sweeps.IMPALA.ranges, float)
# Further settings that the tables read. They may be missing or null, which means the default.
_OTHER_FLAGS = {'population_size': int, 'num_learners': int, 'learner_addresses': str, 'job_name': str, 'task': int,
                'sweep_index': int, **_SWEPT_FLAGS, 'learning_rate_decay': bool, 'burn_in': int, 'action_values': str,
                'replay_share': float, 'replay_capacity': int, 'clip_rho_threshold': float,
                'trust_region_threshold': float, 'relevance': str, 'replay_sampling': str, 'importance_exponent': float,
                'learn_online': bool, 'shared_replay': str, 'num_actors': int}
R2D2, LASER, A3C, A2C = 'r2d2', 'laser', 'a3c', 'a2c'  # The agents' names in config.json.
NAMES = {'impala': 'IMPALA', 'popart_impala': 'PopArt-IMPALA', R2D2: 'R2D2', LASER: 'LASER', A3C: 'A3C',
         A2C: 'batched A2C'}
AGENTS = ('impala', 'popart_impala')  # The agents with IMPALA's settings.
_WITHOUT_CORRECTION = (R2D2, A3C, A2C)
_PAPERS_ACTIONS = 'sampled'  # The paper does not say; the released agent samples.
_POINTS = 500
ROWS = 5_000  # Rows of a metrics.jsonl to read for figures. For a member of a population, only some of them are drawn.
_Item = TypeVar('_Item')
_BINARY = re.compile(r'(?:.*[/.])?(\w+)_(?:atari57|dmlab30)(?:\.py)?')


class Evaluation(NamedTuple):
  """The part of evaluation.json that the tables use."""
  means: dict[str, float]  # Test level -> mean return.
  episodes: int            # Episodes per level.
  frames: int              # Environment frames of training.
  departures: tuple[tuple[str, Any], ...] = ()  # (setting of the protocol, value) for each difference from the paper.


class Run(NamedTuple):
  """A run directory."""
  logdir: str
  flags: dict[str, Any]
  evaluation: Evaluation | None  # None if it was not read.
  agent: str = 'impala'          # The agent's name in config.json.
  # Environment frames per level between the returns for which an excerpt has the training episodes. 1: it has all.
  returns_every: int = 1

  @property
  def means(self) -> dict[str, float]:
    """The mean return of each test level; {} if the evaluation was not read."""
    return self.evaluation.means if self.evaluation else {}

  @property
  def family(self) -> str:
    """The agent whose settings the run has, as in published.Agent."""
    return self.agent if self.agent in (R2D2, LASER, A3C) else 'impala'

  @property
  def population(self) -> int:
    """The number of members of the run's population; 1 without a population."""
    return self.flags.get('population_size') or 1

  @property
  def learners(self) -> int:
    """The number of learners of all processes. Each process has the same number."""
    processes = cluster_config.num_processes(self.flags.get('learner_addresses') or '')
    return processes * (self.flags.get('num_learners') or 1)

  @property
  def actors(self) -> int | None:
    """The number of actors of all processes. None if config.json does not have it."""
    here = self.flags.get('num_environments')
    is_known = not self.flags.get('job_name') and type(here) is int  # Otherwise it is 'auto', or of one process.
    return self.flags.get('num_actors') or (here if is_known else None)

  @property
  def task(self) -> int:
    """The number of the learner process that wrote the directory. The run belongs to learner 0."""
    return max(self.flags.get('task', 0), 0) if self.flags.get('job_name') == 'learner' else 0


class Unwanted(run_directory.RunDirectoryError):
  """A path is not that of a run of the agents that are wanted, or the run is not evaluated."""


def read(patterns: Iterable[str], evaluated: bool, agents: Sequence[str] | None = ('impala',),
         skip: Callable[[str], None] | None = None) -> tuple[list[Run], list[str]]:
  """Reads the run directories that match.

  Args:
    patterns: paths with *, ? and [] as in a shell. A pattern that is itself the path of a directory means this
      directory. If a run has several learners, only the first learner's directory is read. The directories of the
      others are skipped if a pattern matches them.
    evaluated: whether to read evaluation.json, which must then exist.
    agents: names of agents, as in config.json, whose runs are wanted. Empty: of all agents with IMPALA's settings, and
      of A3C and A2C. None: of all agents.
    skip: called with a one-line message for each path that a pattern matches and that is `Unwanted`, and for each copy
      of a run. None: these count like other inputs that are not runs.
  Returns:
    The runs, each directory once, and a one-line message for each input that is not a run.
  """
  runs, faults, seen = [], [], set()
  for pattern in patterns:
    is_named, found = os.path.exists(pattern), matching(pattern)
    if not found:
      faults.append(f'{pattern}: no such run directory')
    for logdir in found:
      if os.path.realpath(logdir) not in seen:
        seen.add(os.path.realpath(logdir))
        try:
          run_directory.check_name(logdir)
          run = _read(logdir, evaluated, agents)
          if run.task == 0:
            runs.append(run)
          elif is_named:
            faults.append(f'{logdir}: the directory of learner {run.task} of a run: want that of learner 0')
        except Unwanted as error:
          (faults.append if is_named or skip is None else skip)(str(error))
        except run_directory.RunDirectoryError as error:
          faults.append(str(error))
  return without_copies(runs, skip or faults.append), faults


def without_copies(runs: Iterable[Run], skip: Callable[[str], None]) -> list[Run]:
  """Returns each run once, because a copy would count as a further seed. `skip` is called with a line for each copy."""
  originals = []
  for copies in grouped(runs, _beginning).values():
    original = max(copies, key=_completeness)
    originals.append(original)
    for run in copies:
      if run is not original:
        skip(f'{run.logdir}: a copy of {original.logdir}')
  return originals


def _beginning(run: Run) -> str:
  """Returns the settings and the first row of metrics, which has times, as text. Only a copy has the same.

  The copy may be of an earlier time of the run, and have another evaluation and other settings that may change then.
  """
  fixed = {name: value for name, value in run.flags.items() if name not in run_config.FREE_FLAGS}
  with contextlib.suppress(run_directory.RunDirectoryError):  # The rows may not be wanted.
    for row in run_rows.read_metrics(run.logdir, at_most=2)[:1]:
      return json.dumps([run.agent, fixed, row], sort_keys=True)
  return run.logdir


def _completeness(run: Run) -> tuple[int, bool]:
  """Of a run and its copies, the run has the largest value: copies may be of an earlier time, and excerpts have no
  checkpoints."""
  with contextlib.suppress(run_directory.RunDirectoryError):
    frames = (run_rows.last_metrics(run.logdir) or {}).get('environment_frames', 0)
    return frames, os.path.exists(run_directory.path(run.logdir, run_directory.CHECKPOINTS))
  return 0, False


def matching(pattern: str) -> list[str]:
  """Returns the paths that a pattern matches: the path of that name if there is one, else as a shell matches it."""
  found = [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern))
  return list(map(os.path.normpath, found))


def grouped(runs: Iterable[_Item], key: Callable[[_Item], Any]) -> dict[Any, list[_Item]]:
  """Groups runs or samples by what `key` returns for each, in the order of the first one of each group."""
  groups = {}
  for run in runs:
    groups.setdefault(key(run), []).append(run)
  return groups


def by_level(runs: Iterable[Run]) -> dict[str, list[Run]]:
  """Groups runs by the value of --level_name."""
  return grouped(runs, lambda run: run.flags['level_name'])


def populations(runs: Iterable[Run]) -> list[list[Run]]:
  """Groups the members of each population, which are in the same folder. A run without a population is alone."""
  return list(grouped(runs, lambda run: os.path.dirname(run.logdir) if run.population > 1 else run.logdir).values())


def fittest(runs: Iterable[Run]) -> list[Run]:
  """Returns the fittest member of each population, and all runs without a population."""
  def fitness(run):
    found = population_directory.read_fitness(run.logdir)
    return found.fitness if found else -math.inf

  return [max(members, key=fitness) for members in populations(runs)]


def suite_of(run: Run) -> suite_lib.Suite | None:
  """Returns the suite that the run was trained on, or the suite of its level. None if there is no such suite."""
  name = run.flags['level_name']
  for suite in scores.SUITES.values():
    if name == suite.name or name in suite.scores:
      return suite
  return None


def is_expert(run: Run) -> bool:
  """Returns whether the run was not trained on a whole suite, but on a level, or on levels separated by commas."""
  return run.flags['level_name'] not in scores.SUITES


def agent_of(run: Run, agents: Iterable[published.Agent]) -> published.Agent | None:
  """Returns the agent of the paper that corresponds to a run of IMPALA, A3C or LASER, in full or scaled down.

  The agent has the run's suite and network, and at least as many members and learners as the run. If several agents do,
  returns the one with the smallest population and the fewest learners. Returns None if there is none.
  """
  suite = suite_of(run)
  if suite is None or run.family != A3C and run.flags.get('off_policy_correction') != 'vtrace':
    return None
  kind = (run.family, suite.name, is_expert(run), run.flags.get('torso'), run.flags.get('use_lstm'))
  candidates = [agent for agent in agents
                if kind == (agent.family, agent.suite, agent.experts, agent.torso, agent.use_lstm)
                and run.population <= agent.population and run.learners <= agent.learners]
  return min(candidates, key=lambda agent: (agent.population, agent.learners), default=None)


def unlike_paper(run: Run) -> list[str]:
  """Returns words for what no agent of the IMPALA paper has on the suite of a run of IMPALA or A3C, for its name."""
  suite, correction = suite_of(run), run.flags.get('off_policy_correction', 'vtrace')
  words = [correction] if run.family != A3C and correction != 'vtrace' else []
  if suite and (has_lstm := run.flags.get('use_lstm')) != (suite.name == 'dmlab30'):
    words.append('LSTM' if has_lstm else 'no LSTM')
  return words


def describe(run: Run) -> str:
  """Describes the settings that determine to which agent of the paper a run corresponds."""
  flags, suite = run.flags, suite_of(run)
  task = f'a single level of {suite.name}' if suite and is_expert(run) else flags['level_name']
  lstm = 'LSTM' if flags['use_lstm'] else 'no LSTM'
  return (f'{task}, {flags["torso"]}, {lstm}, {flags.get("off_policy_correction", NAMES[run.agent])}, '
          f'population of {run.population}, {run.learners} {"learners" if run.learners > 1 else "learner"}')


def thinned(rows: Sequence[Any]) -> list[Any]:
  """Returns every k-th row and the last one, so that a figure has at most 501 points."""
  return [*rows[:-1:len(rows) // _POINTS + 1], *rows[-1:]]


def _read(logdir: str, evaluated: bool, agents: Sequence[str] | None) -> Run:
  if not os.path.lexists(run_directory.path(logdir, run_directory.CONFIG)):  # It may also be a file, such as a log.
    raise Unwanted(run_directory.no_run(logdir))
  config = run_directory.read_config(logdir)
  wanted = f'want runs of {" or ".join(NAMES[name] for name in agents or ()) or "agents with the settings of IMPALA"}'
  flags: dict[str, Any] = {
      name: value for name, value in config['flags'].items() if value is not None or name not in _OTHER_FLAGS}
  agent = config.get('agent') or agent_in(config.get('command_line', ()))  # Older runs do not name their agent.
  if agents and agent not in (None, *agents):
    raise Unwanted(f'{logdir}: a run of another agent, {settings.shown(agent)}: {wanted}')
  has_correction = agent not in _WITHOUT_CORRECTION and (agents is not None or agent in (None, *NAMES))
  required = _FLAGS | _OFF_POLICY_FLAGS if has_correction else _FLAGS
  if agents is None and agent not in (None, *NAMES):  # An agent of one's own need not have a torso.
    required = {name: _FLAGS[name] for name in ('level_name', 'seed', 'total_environment_frames')}
  if agents is not None and not agents:
    required = required | _SWEPT_FLAGS
  missing = [name for name in required if name not in flags]
  if missing:
    raise Unwanted(f'{logdir}: a run of another agent, its {run_directory.CONFIG} has no {missing[0]}: {wanted}')
  file = run_directory.path(logdir, run_directory.CONFIG)
  check_types(flags, required, file)
  try:
    registry.expand(flags['level_name'])
  except ValueError as error:
    raise run_directory.RunDirectoryError(f'{file}: --level_name={settings.shown(error)}: put the file back, or leave '
                                          'the run out') from error
  run = Run(logdir, flags, None, agent or 'impala', config.get(run_directory.RETURNS_EVERY) or 1)
  return run._replace(evaluation=_read_evaluation(run)) if evaluated and run.task == 0 else run


def check_types(flags: dict[str, Any], required: dict[str, type], file: str):
  """Raises RunDirectoryError if a flag that the tables read has the wrong type."""
  for name, kind in (required | _OTHER_FLAGS).items():
    value = flags.get(name)
    is_missing = value is None and name not in required
    if not is_missing and not json_text.is_a(value, kind):
      raise run_directory.RunDirectoryError(f'{file}: --{name}={settings.shown(value)}: want {json_text.wanted(kind)}: '
                                            'put the file back, or leave the run out')


def agent_in(command_line: Any) -> str | None:
  """Returns the agent whose binary a command line starts. None if it starts another program, such as a test."""
  for word in command_line if isinstance(command_line, list) else ():
    if not isinstance(word, str) or word.startswith('--'):
      return None
    if match := _BINARY.fullmatch(word):
      return match[1]
  return None


def _read_evaluation(run: Run) -> Evaluation:
  file = run_directory.path(run.logdir, run_directory.EVALUATION)

  def parse(content):
    levels, protocol = (json_text.field(content, name, dict) for name in ('levels', 'protocol'))
    means = {level: float(json_text.field(result, 'mean', float)) for level, result in levels.items()}
    if not means:
      raise ValueError('"levels": want at least one')
    episodes, frames = (json_text.field(protocol, name, int) for name in ('num_episodes', 'environment_frames'))
    return Evaluation(means, episodes, frames, _departures(run, protocol))

  evaluation = run_directory.read_json(file, parse, 'run the agent with --mode=test again')
  if evaluation is None:
    raise Unwanted(f'{run.logdir}: not evaluated (it has no {run_directory.EVALUATION}): run the agent on it with '
                   '--mode=test')
  return evaluation._replace(means=_as_tested(run, evaluation.means, file))


def _departures(run: Run, protocol: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
  """Returns the settings of evaluation.json's protocol that differ from the paper's, and their values."""
  found = []
  levels = () if is_expert(run) else scores.SUITES[run.flags['level_name']].levels
  for name, papers in (('atari', atari57_protocol.Protocol()), ('dmlab', dmlab30_protocol.Protocol())):
    played = json_text.field(protocol, name, dict, optional=True) or {}
    wanted = papers.environments(levels, training=False)[name]
    free = settings.free_settings(papers)
    found += [(key, played[key]) for key in wanted
              if key not in free and played.get(key, wanted[key]) != wanted[key]]
    if played.get('dataset_path') == dmlab.DUMMY_DATASET:
      found.append(('dataset_path', dmlab.DUMMY_DATASET))
  actions = json_text.field(protocol, 'actions', str, optional=True) or _PAPERS_ACTIONS
  if actions != _PAPERS_ACTIONS:
    found.append(('test_policy', actions))
  return tuple(found)


def _as_tested(run: Run, means: dict[str, float], file: str) -> dict[str, float]:
  """Returns the means with the names of test levels.

  Raises:
    run_directory.RunDirectoryError: the run was not trained on one of the levels.
  """
  suite = suite_of(run)
  if suite is None:
    return means
  tested = {level: registry.test_level(level) for level in (*suite.levels, *suite.test_levels)}
  learned = set(suite.test_levels) if not is_expert(run) else {tested[run.flags['level_name']]}
  for level in means:
    if tested.get(level) not in learned:
      raise run_directory.RunDirectoryError(f'{file} has the level {level}, but the run has learned '
                                            f'{run.flags["level_name"]}: run the agent with --mode=test again')
  return {tested[level]: mean for level, mean in means.items()}
