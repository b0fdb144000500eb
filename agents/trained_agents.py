"""The trained agents of this project's releases: finds or fetches their files, or says how to train such an agent.

A release is a folder at RELEASE_URL with the files that RELEASED names, which export.py has made. docs/play.md
says how a release is made. There is none yet, so both are empty.
"""

import hashlib
import http.client
import os
import urllib.request

from scalable_agents.agents import agent_file
from scalable_agents.environments import dmlab
from scalable_agents.environments import dmlab30
from scalable_agents.records import errors
from scalable_agents.records import run_directory

RELEASE_URL = ''
RELEASED: dict[str, str] = {}  # File -> SHA-256.

_TIMEOUT_SECONDS = 60.
# The flags that train small agents in seconds or minutes on two cores; other agents are trained with the paper's. On
# Pong they are those of `make train`, and otherwise those of a command in the documentation.
TRAINING_FLAGS = {
    ('impala', 'pong'): (
        '--torso=shallow --torso_precision=auto --centre_pixels=median --noscale_pixels --num_environments=64 '
        '--batch_size=8 --rmsprop_decay=0.9 --rmsprop_epsilon=1e-5 --clip_gradient_norm=20 --vtrace_lambda=0.9 '
        '--entropy_cost=0.003 --total_environment_frames=10_000_000'),
    ('r2d2', 'pong'): (
        '--torso=shallow --torso_precision=auto --centre_pixels=mean --num_environments=64 --full_action_set=False '
        '--burn_in=4 --sequence_length=16 --sequence_period=8 --unroll_length=16 --batch_size=16 '
        '--samples_per_period=1 --discount=0.99 --learning_rate=5e-4 --adam_epsilon=1e-5 --target_update_interval=200 '
        '--replay_capacity=60_000 --replay_minimum_size=4_000 --nosave_replay --total_environment_frames=10_000_000'),
    ('popart_impala', 'harvest'): (
        '--torso=shallow --num_environments=48 --num_environment_workers=2 --batch_size=24 --unroll_length=8 '
        '--optimizer=adam --learning_rate=3e-4 --popart_decay=3e-3 --entropy_cost=0.3 --reward_transform=none '
        '--synchronous --total_environment_frames=50_000'),
    ('laser', 'catch'): (
        '--torso=shallow --unroll_length=4 --batch_size=64 --replay_share=0.75 --replay_capacity=20_000 '
        '--replay_minimum_size=500 --learning_rate=1e-3 --num_environments=16 --total_environment_frames=40_000'),
}


def find(agent: str, level: str, runs: str) -> str:
  """Returns the file of a trained agent, or the directory of a run of it.

  Args:
    agent: the name of an agent of this project.
    level: the name of the level that it was trained on, or is tested on.
    runs: the folder of run directories, where one named AGENT_LEVEL is looked for.
  Raises:
    errors.UserError: there is neither, or the file cannot be fetched, or is not the one that was released.
  """
  level = dmlab30.SUITE.trained.get(level, level)  # Agents are not trained on the level with which they are tested.
  name = f'{agent}_{level}'
  logdir = os.path.join(runs, name)
  if os.path.isdir(logdir):
    return logdir
  file = name + agent_file.ENDING
  if file in RELEASED:
    return _fetch(file, _command(agent, level, logdir))
  raise errors.UserError(f'no release has a trained agent {name}, and there is no run in {logdir}. To train one: '
                         f'{_command(agent, level, logdir)}')


def _command(agent, level, logdir):
  suite = 'dmlab30' if level in dmlab.LEVELS else 'atari57'
  flags = TRAINING_FLAGS.get((agent, level), '')
  return ' '.join(f'scalable-agents {agent}_{suite} --level_name={level} {flags} --logdir={logdir}'.split())


def _fetch(file: str, command: str) -> str:
  """Returns the path of a released file in the user's cache, to which it is downloaded once."""
  cache = os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache')
  path, url = os.path.join(cache, 'scalable_agents', file), f'{RELEASE_URL}/{file}'
  try:
    with open(path, 'rb') as stream:
      if _is_released(file, stream.read()):
        return path
  except OSError:  # It was not downloaded before.
    pass
  try:
    with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as response:
      content = response.read()
    if not _is_released(file, content):
      raise errors.UserError(f'{url} is damaged: its SHA-256 is not that of the release: try again')
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with run_directory.replaced(path) as new, open(new, 'wb') as stream:
      stream.write(content)
  except (OSError, http.client.HTTPException) as error:
    raise errors.UserError(f'{url} cannot be fetched ({error}). To train such an agent: {command}') from error
  return path


def _is_released(file: str, content: bytes) -> bool:
  return hashlib.sha256(content).hexdigest() == RELEASED[file]
