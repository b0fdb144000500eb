"""Plays an episode of a policy for somebody to watch: in a window, in a terminal, or as a video file."""

from collections.abc import Callable
import contextlib
from fractions import Fraction
import functools
from typing import Any, NamedTuple, Protocol, TextIO

import numpy as np
import tensorflow as tf

from scalable_agents.actor import acting
from scalable_agents.actor import environment_workers
from scalable_agents.actor import inference
from scalable_agents.environments import atari57
from scalable_agents.environments import dmlab
from scalable_agents.environments import filmed
from scalable_agents.evaluation import lone_environment
from scalable_agents.evaluation import video
from scalable_agents.processes import stop_signals
from scalable_agents.records import errors
from scalable_agents.training import run_config

_GAME_FRAMES_PER_SECOND = 60  # Of Atari games and of DeepMind Lab.
_PICTURES_PER_SECOND = 15     # In videos of other levels.
_FILMED = 'scalable_agents.environments.registry:make_filmed'


class Viewer(Protocol):
  """Shows pictures, in a `with` block. See video.py and viewers.py."""

  def add(self, picture: np.ndarray, /) -> None:
    """Shows a picture, uint8 [H, W, 3]."""


class Shown(NamedTuple):
  """What was shown: an episode, or its beginning."""
  episode_return: float  # Sum of raw rewards so far.
  length: int            # Environment frames.
  has_ended: bool        # Whether it is the whole episode.


def record(policy, selection: acting.Selection, level: str, protocol: dict[str, Any], seed: int,
           run: run_config.RunConfig, screen: TextIO):
  """Records an episode to the file run.video. An Atari game is shown at the speed of the console.

  Args:
    policy: evaluation.Restored.
    selection: how actions are selected.
    level: the level's name.
    protocol: settings of the environments; see registry.make_from_json.
    seed: seed of the environment and of random actions.
    run: the settings of the run.
    screen: where messages are shown.
  Raises:
    errors.UserError: the environment draws no pictures or fails, or the encoder fails.
    inference.PolicyError: the policy cannot act.
  """
  print(f'recording an episode to {run.video}', file=screen, flush=True)
  with errors.of_user(environment_workers.WorkerError, prefix='--video: '):
    episode = show(policy, acting.compiled(policy.agent, selection), level, protocol, seed,
                   run.environment_timeout_seconds, functools.partial(video.Writer, run.video))
  print(f'recorded: return {episode.episode_return:.8g}, {episode.length:,} frames', file=screen, flush=True)


def show(policy, step: Callable[..., Any], level: str, protocol: dict[str, Any], seed: int, timeout_seconds: float,
         *make_viewers: Callable[[Fraction], contextlib.AbstractContextManager[Viewer]],
         max_seconds: float = 0.) -> Shown:
  """Plays an episode and shows it to viewers. Without viewers, the environment need not draw pictures.

  Args:
    policy: evaluation.Restored, or another object with its `agent` and `learner_steps`.
    step: from acting.compiled, of its agent. Episodes share it, because TensorFlow traces each one anew.
    level, protocol, seed: as for `record`.
    timeout_seconds: how long to wait until the environment is made, and for each step.
    *make_viewers: each makes a viewer, given the number of pictures per second.
    max_seconds: ends after this many seconds of the level's time. 0: at the end of the episode.
  Returns:
    The episode, or its beginning.
  Raises:
    environment_workers.WorkerError: the environment draws no pictures or fails.
    inference.PolicyError: the policy cannot act.
  """
  arguments = {'level_name': level, 'seed': seed, 'protocol': protocol, 'has_pictures': bool(make_viewers)}
  # SIGTERM and SIGHUP remove a video that is not finished.
  with stop_signals.leaving_on_signals(), contextlib.ExitStack() as stack:
    environment = stack.enter_context(lone_environment.LoneEnvironment(_FILMED, arguments, timeout_seconds))
    speed = Fraction(_PICTURES_PER_SECOND)
    if level in atari57.LEVELS + dmlab.LEVELS:
      speed = Fraction(_GAME_FRAMES_PER_SECOND, environment.specification.frames_per_step)
    viewers = [stack.enter_context(make_viewer(speed)) for make_viewer in make_viewers]
    return _play_episode(policy, step, environment, seed, viewers, max_seconds * speed)


def _play_episode(policy, step, environment, seed, viewers, max_steps) -> Shown:
  """Plays an episode; viewers get the picture before the first step and after each. 0 `max_steps`: all of it."""
  agent_state = policy.agent.initial_state(1)
  row = environment.advance()
  action, steps = 0, 0
  while True:
    if viewers:
      picture = row.observation.pop(filmed.PICTURE)
      for viewer in viewers:
        viewer.add(picture)
    has_ended = bool(row.observation.pop(filmed.ENDED))
    if has_ended or 0 < max_steps <= steps:
      return Shown(row.episode_return, row.episode_length, has_ended)
    observation = {name: tf.constant(value[np.newaxis]) for name, value in row.observation.items()}
    inputs = acting.lone_inputs(observation, tf.constant([action]), tf.constant([row.reward]), tf.constant([row.done]))
    output, agent_state = step(inputs, agent_state, tf.constant([seed, steps], tf.int64))
    if not inference.is_finite(output):
      raise inference.PolicyError(policy.learner_steps)
    action = int(output.action[0])
    row = environment.advance(action)
    steps += 1
