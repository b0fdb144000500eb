"""Makes run directories like those of the binaries, for the tests of tables."""

import fnmatch
import json
import os
import zlib

from absl.testing import parameterized

from scalable_agents.environments import scores
from scalable_agents.population import population_directory
from scalable_agents.records import run_directory
from scalable_agents.records.settings import to_json
from scalable_agents.tables.results import runs as runs_lib

_FLAGS = {'level_name': 'dmlab30', 'total_environment_frames': 10_000_000_000, 'torso': 'deep', 'use_lstm': True,
          'off_policy_correction': 'vtrace', 'learning_rate': 6e-4, 'entropy_cost': 0.01, 'rmsprop_epsilon': 0.1,
          'seed': 1}
_R2D2_FLAGS = {'level_name': 'pong', 'total_environment_frames': 10_000_000_000, 'torso': 'dqn', 'use_lstm': True,
               'seed': 1, 'recurrent_state': 'stored', 'burn_in': 40, 'reset_on_life_loss': False, 'discount': 0.997,
               'value_rescaling': True, 'reward_transform': 'none', 'batch_size': 64, 'target_update_interval': 2_500,
               'measure_delta_q': False, 'episode_end_on_life_loss': False, 'full_action_set': True}

_LASER_FLAGS = _FLAGS | {
    'level_name': 'pong', 'total_environment_frames': 50_000_000, 'torso': 'deep_4x', 'use_lstm': False,
    'rmsprop_epsilon': 0.01, 'clip_rho_threshold': 1.0, 'replay_share': 0.8, 'replay_capacity': 10_000_000,
    'trust_region_threshold': 0.1, 'relevance': 'implied', 'replay_sampling': 'episodes', 'importance_exponent': 1.0,
    'learn_online': True, 'shared_replay': ''}


class TestCase(parameterized.TestCase):
  """A test with a folder for run directories."""

  def setUp(self):
    super().setUp()
    self.folder = self.create_tempdir().full_path

  def read(self, evaluated=False, pattern='*'):
    """Reads the runs in the folder and the folders in it, in the order of their names, if these match the pattern."""
    places = [place for place, _, files in os.walk(self.folder) if 'config.json' in files]
    wanted = sorted(place for place in places if fnmatch.fnmatch(os.path.relpath(place, self.folder), pattern))
    runs, faults = runs_lib.read(wanted, evaluated, tuple(runs_lib.NAMES))
    self.assertEmpty(faults)
    return runs


def mean_return(level, share):
  """Returns the mean return of an agent with this human-normalised score on a level."""
  reference = {level: score for suite in scores.SUITES.values() for level, score in suite.scores.items()}[level]
  return reference.random + share * (reference.human - reference.random)


def make(folder, name, means=None, episodes=500, frames=None, curves=None, binary='impala_dmlab30', protocol=None,
         more=None, agent=None, defaults=None, **flags):
  """Makes a run directory.

  Args:
    folder: the folder to make it in.
    name: the directory's name.
    means: level -> mean return, for evaluation.json. None: there is no such file.
    episodes: evaluation episodes per level.
    frames: environment frames of training. Default: all.
    curves: level -> returns or None at 1/N, 2/N, ... of the frames, for metrics.jsonl. None: there are no rows.
    binary: the binary in config.json's command line.
    protocol: the protocol in evaluation.json.
    more: name -> values, further metrics of the rows in metrics.jsonl.
    agent: the agent's name in config.json. None: there is none, as in older runs.
    defaults: the settings. Default: those of IMPALA, deep, on DMLab-30.
    **flags: settings that differ from `defaults`. A setting of None is left out.
  Returns:
    The path.
  """
  logdir = os.path.join(folder, name)
  os.makedirs(logdir)
  flags = {name: value for name, value in ((defaults or _FLAGS) | flags).items() if value is not None}
  frames = frames or flags.get('total_environment_frames')
  run_directory.write_json(os.path.join(logdir, 'config.json'), ({'agent': agent} if agent else {}) | {
      'flags': to_json(flags), 'versions': {},
      'command_line': ['python', '-m', f'scalable_agents.agents.{binary}', '--logdir=runs/r2d2_atari57']})
  if means is not None:
    run_directory.write_json(os.path.join(logdir, 'evaluation.json'), {
        'levels': {level: {'mean': mean} for level, mean in means.items()},
        'protocol': {'num_episodes': episodes, 'environment_frames': frames} | (protocol or {})})
  if curves is not None:
    points = max(map(len, curves.values()))
    megabytes = zlib.crc32(name.encode())  # Two runs do not have the same rows.
    with open(os.path.join(logdir, 'metrics.jsonl'), 'w', encoding='utf-8') as stream:
      for point in range(points):
        returns = {f'episode_return/{level}': curve[point] for level, curve in curves.items()}
        row = {'environment_frames': frames * (point + 1) // points, 'wall_seconds': 60. * point,
               'memory_megabytes': megabytes,
               'episode_return': None if None in returns.values() else sum(returns.values()) / len(returns), **returns,
               **{metric: values[point] for metric, values in (more or {}).items()}}
        stream.write(json.dumps(row) + '\n')
  return logdir


def single_game(folder, name, mean=None, **settings):
  """Makes a run of one Atari game. `mean` is the mean return of the evaluation. See `make`."""
  settings = {'level_name': 'pong', 'use_lstm': False, 'total_environment_frames': 200_000_000, 'episodes': 200,
              'binary': 'impala_atari57', 'rmsprop_epsilon': 0.01} | settings
  return make(folder, name, None if mean is None else {settings['level_name']: mean}, **settings)


def r2d2(folder, name, mean=None, histories=None, **settings):
  """Makes a run of R2D2 on one Atari game, or on the level in `settings`.

  Args:
    folder: the folder to make it in.
    name: the directory's name.
    mean: the mean return of the evaluation. None: there is none.
    histories: history -> (mean return, greedy match, difference of values), for restricted_history.json.
    **settings: see `make`. Settings differ from those of R2D2 on Atari.
  Returns:
    The path.
  """
  settings = {'level_name': 'pong', 'episodes': 200, 'binary': 'r2d2_atari57', 'agent': 'r2d2',
              'defaults': _R2D2_FLAGS} | settings
  level = settings['level_name']
  logdir = make(folder, name, None if mean is None else {level: mean}, **settings)
  if histories is not None:
    names = ('mean_return', 'greedy_match', 'value_difference')
    run_directory.write_json(os.path.join(logdir, 'restricted_history.json'), {
        level: {history: dict(zip(names, values)) for history, values in histories.items()}})
  return logdir


def evaluate(logdir, level, means, frames):
  """Adds evaluations of one level during training to a run directory: mean returns at 1/N, 2/N, ... of the frames."""
  with open(os.path.join(logdir, 'evaluations.jsonl'), 'w', encoding='utf-8') as stream:
    for point, mean in enumerate(means):
      stream.write(json.dumps({'environment_frames': frames * (point + 1) // len(means), 'num_episodes': 10,
                               'levels': {level: {'mean': mean}}, 'suite': None}) + '\n')


def laser(folder, name, episodes=None, **settings):
  """Makes a run of LASER on one Atari game, or on the level in `settings`.

  Args:
    folder: the folder to make it in.
    name: the directory's name.
    episodes: returns of the training episodes, which end at equal distances up to the end of training. Or level ->
      such returns. None: there are none.
    **settings: see `make`. Settings differ from those of an agent in the paper's sweep on Atari.
  Returns:
    The path.
  """
  settings = {'binary': 'laser_atari57', 'agent': 'laser', 'defaults': _LASER_FLAGS} | settings
  logdir = make(folder, name, **settings)
  if episodes is not None:
    level = (settings['defaults'] | settings)['level_name']
    of_levels = episodes if isinstance(episodes, dict) else {level: episodes}
    frames = settings.get('frames') or (settings['defaults'] | settings)['total_environment_frames']
    rows = sorted((frames * (number + 1) // len(returns), level, value)
                  for level, returns in of_levels.items() for number, value in enumerate(returns))
    with open(os.path.join(logdir, 'episodes.csv'), 'w', encoding='utf-8') as stream:
      stream.write('frames,level,return,length\n')
      stream.writelines(f'{at},{level},{value},1000\n' for at, level, value in rows)
  return logdir


def member(folder, index, points, frames, evolutions=(), start=1.0):
  """Makes a member of a population, whose learning rate evolves.

  Args:
    folder: the population's folder.
    index: the member's index.
    points: the member's fitness. None: it has none.
    frames: environment frames of training when the fitness was measured.
    evolutions: for each evolution, the member's environment frames and the new learning rate. If the member copied
      another one, also the parent and the parent's frames.
    start: the initial learning rate.
  """
  logdir = single_game(folder, population_directory.member_name(index), learning_rate=start)
  if points is not None:
    rate = evolutions[-1][1] if evolutions else start
    population_directory.write_fitness(logdir, population_directory.Fitness(frames, points, {'learning_rate': rate}))
  for evolved_at, rate, *parent in evolutions:
    population_directory.append_evolution(logdir, population_directory.Evolution(
        evolved_at, 0.0, *(parent or (None, None)), {'learning_rate': rate}))
