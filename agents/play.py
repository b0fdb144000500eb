"""Shows a trained agent playing: in a window; without a display in a video, and as characters in a terminal.

  scalable-agents play --logdir=runs/pong
  scalable-agents play --agent_file=impala_pong.npz --level_name=pong
  scalable-agents play --agent=impala --level_name=pong

The first command plays the newest checkpoint of a run. The second one plays a file of export.py. The third one plays
the run in runs/impala_pong or, if there is none, an agent of this project's release (docs/play.md).
"""

from scalable_agents.processes import quiet

if __name__ == '__main__':
  quiet.start()  # Before TensorFlow is imported.

import dataclasses
import functools
import statistics
import sys

from scalable_agents.actor import acting
from scalable_agents.actor import environment_workers
from scalable_agents.actor import inference
from scalable_agents.agents import python_api
from scalable_agents.agents import registry as agents
from scalable_agents.agents import trained_agents
from scalable_agents.environments import dmlab
from scalable_agents.environments import registry
from scalable_agents.evaluation import recording
from scalable_agents.evaluation import video
from scalable_agents.evaluation import viewers
from scalable_agents.processes import run_flags
from scalable_agents.records import errors
from scalable_agents.records import settings
from scalable_agents.records.settings import setting
from scalable_agents.training import run_config

_VIEWS = ('auto', 'window', 'terminal', 'video', 'none')


@dataclasses.dataclass(frozen=True)
class PlayConfig:
  """The flags."""

  agent: str = setting('', f'The agent ({", ".join(agents.AGENTS)}), or the module:NAME of one of your own. Needed '
                           'only without --logdir and --agent_file, or if the agent is your own.')
  level_name: str = setting('', 'The level to play. Default: the first one that the agent was trained on.')
  logdir: str = setting('', 'The run directory whose newest checkpoint plays.')
  agent_file: str = setting('', 'The file, made by `scalable-agents export`, whose agent plays.')
  view: str = setting('auto', 'How to show it: window, terminal, video or none. auto: in a window; if there is no '
                              'display, as a video, and in the terminal if the output goes to one.', choices=_VIEWS)
  video: str = setting('', 'Record it to this .mp4 or .gif file, whatever --view is. Default with --view=video: '
                           'AGENT_LEVEL.mp4 in the current folder.')
  num_episodes: int = setting(1, 'Number of episodes. A video has the first one.', at_least=1, at_most=1_000_000)
  max_seconds: float = setting(0., "End each episode after this many seconds of the level's time; 0: play all of it.",
                               at_least=0, at_most=settings.MAX_SECONDS)
  seed: int = setting(0, 'Seed of the first episode and of its actions. Each further episode has the next one.',
                      at_least=0, at_most=settings.MAX_SEED)
  test_policy: str = setting('', 'How actions are selected: sampled, greedy or epsilon. Default: as in evaluations.',
                             choices=run_config.TEST_POLICIES)
  test_epsilon: float = setting(0.001, 'With epsilon: the probability of a random action.', at_least=0, at_most=1)
  dataset_path: str = setting('', python_api.DATASET_PATH)
  renderer: str = setting('software', "DeepMind Lab's renderer: software, or hardware, which needs EGL.",
                          choices=dmlab.RENDERERS)
  environment_timeout_seconds: float = setting(
      60.0, 'Seconds to wait until the environment is made, and for each step.', more_than=0,
      at_most=settings.MAX_SECONDS)


def validate(config: PlayConfig):
  """Raises ValueError with one line: the flag, its value and the allowed values."""
  settings.check(config)
  if config.agent and ':' not in config.agent and config.agent not in agents.AGENTS:
    raise ValueError(f'--agent={config.agent}: want one of {", ".join(agents.AGENTS)}, or module:NAME')
  if config.logdir and config.agent_file:
    raise ValueError('--agent_file: want --logdir or --agent_file, not both')
  if not config.logdir and not config.agent_file and (
      not config.level_name or config.agent not in agents.AGENTS):
    raise ValueError('want --logdir, --agent_file, or --agent and --level_name, so that there is something to play')
  if config.video and not config.video.endswith(('.mp4', '.gif')):
    raise ValueError(f'--video={settings.shown(config.video)}: want a file that ends in .mp4 or .gif')


def load(config: PlayConfig) -> python_api.Policy:
  """Loads the agent that the flags name.

  Raises:
    errors.UserError: there is none, it is damaged, it is another agent, or it was not trained on this level.
  """
  with errors.of_user(ValueError, ImportError):
    if config.level_name:
      registry.check(config.level_name)
    path = config.logdir or config.agent_file or trained_agents.find(
        config.agent, config.level_name, run_flags.user_path('runs'))
    is_own = ':' in config.agent
    policy = python_api.load(path, config.test_policy, config.test_epsilon, agent=config.agent if is_own else '',
                             dataset_path=config.dataset_path, renderer=config.renderer, seed=config.seed)
  if config.agent and not is_own and config.agent != policy.name:
    raise errors.UserError(f'--agent={config.agent}: {path} has another agent, {policy.name}')
  if config.level_name and registry.test_level(config.level_name) not in policy.levels:
    raise errors.UserError(f'--level_name={config.level_name}: the agent of {path} was trained on '
                           f'{", ".join(policy.levels)}')
  with errors.of_user(ValueError):  # From here, because a message of a worker has a traceback.
    registry.check_settings(level_of(config, policy), policy.protocol)
  return policy


def level_of(config: PlayConfig, policy: python_api.Policy) -> str:
  """Returns the name of the level to play, in its version for evaluation."""
  return registry.test_level(config.level_name) if config.level_name else policy.levels[0]


def _viewers(config, name, title):
  """Returns two lists of functions that make viewers: for the first episode, and for each further one."""
  view = config.view
  if view == 'auto':
    view = 'window' if viewers.has_window() else 'video'
  live = []
  if view == 'window':
    live.append(functools.partial(viewers.Window, title=title))
  if view == 'terminal' or (config.view, view) == ('auto', 'video') and sys.stdout.isatty():
    live.append(functools.partial(viewers.Terminal, title=title, stream=sys.stdout))
  file = config.video or (f'{name}.mp4' if view == 'video' else '')
  if not file:
    return live, live
  file = run_flags.user_path(file)
  video.check(file)
  print(f'recording the first episode to {file}', file=quiet.screen(), flush=True)
  return [*live, functools.partial(video.Writer, file)], live


def _report(returns, num_episodes):
  """Prints the mean and the median of the returns of the episodes that have ended."""
  if not returns:
    print(f'no mean return: none of the {num_episodes:,} episodes ended')
    return
  ended = f' ({len(returns):,} of {num_episodes:,} episodes ended)' if len(returns) < num_episodes else ''
  print(f'mean return {statistics.fmean(returns):.2f}, median {statistics.median(returns):.8g}{ended}')


def play(config: PlayConfig, policy: python_api.Policy) -> None:
  """Plays and shows the episodes, and prints their returns.

  Raises:
    errors.UserError: there is no window, the environment draws no pictures or fails, the policy cannot act, or the
      video cannot be written.
  """
  level = level_of(config, policy)
  name = run_config.file_name(f'{policy.name}_{level}')
  title = f'{policy.name} on {level}, after {policy.environment_frames:,} frames of training'
  print(title, file=quiet.screen(), flush=True)
  try:
    make_viewers, make_further = _viewers(config, name, title)
    step, returns = acting.compiled(policy.agent, policy.selection), []
    for number in range(config.num_episodes):
      episode = recording.show(
          policy, step, level, policy.protocol, config.seed + number, config.environment_timeout_seconds,
          *(make_further if number else make_viewers), max_seconds=config.max_seconds)
      so_far, cut = '', ''
      if episode.has_ended:
        returns.append(episode.episode_return)
      else:
        so_far, cut = ' so far', f', cut after {config.max_seconds:g} s'
      print(f'episode {number + 1}: return{so_far} {episode.episode_return:.8g}, {episode.length:,} frames{cut}',
            flush=True)
    if config.num_episodes > 1:
      _report(returns, config.num_episodes)
  except viewers.Closed:
    print('the window was closed', file=quiet.screen())
  except (environment_workers.WorkerError, inference.PolicyError) as error:
    raise errors.UserError(str(error)) from error


def main():
  """Reads the flags, loads the agent and shows it."""
  config = run_flags.config_from_flags(PlayConfig, validate)
  play(config, load(config))


if __name__ == '__main__':
  run_flags.define(PlayConfig())
  run_flags.run_main(main)
