"""Records an episode of a policy as a video file."""

from fractions import Fraction
from typing import Any, TextIO

import numpy as np
import tensorflow as tf

from scalable_agents.actor import acting
from scalable_agents.actor import environment_workers
from scalable_agents.actor import inference
from scalable_agents.environments import atari57
from scalable_agents.environments import filmed
from scalable_agents.evaluation import evaluator as evaluator_lib
from scalable_agents.evaluation import lone_environment
from scalable_agents.evaluation import video
from scalable_agents.records import errors
from scalable_agents.training import run_config

_CONSOLE_FRAMES_PER_SECOND = 60
_PICTURES_PER_SECOND = 15  # In videos of levels that do not run on a console.
_FILMED = 'scalable_agents.environments.registry:make_filmed'


def record(policy, selection: acting.Selection, level: str, protocol: dict[str, Any], seed: int,
           run: run_config.RunConfig, screen: TextIO):
  """Records an episode to the file run.video. An Atari game is shown at the speed of the console.

  Args:
    policy: evaluation.Policy.
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
  arguments = {'level_name': level, 'seed': seed, 'protocol': protocol}
  try:
    with lone_environment.LoneEnvironment(_FILMED, arguments, run.environment_timeout_seconds) as environment:
      frames_per_step = environment.specification.frames_per_step
      speed = Fraction(_PICTURES_PER_SECOND)
      if level in atari57.LEVELS:
        speed = Fraction(_CONSOLE_FRAMES_PER_SECOND, frames_per_step)
      print(f'recording an episode to {run.video}', file=screen, flush=True)
      with video.Writer(run.video, speed) as writer:
        episode = _play_episode(policy, selection, environment, seed, writer.add)
  except environment_workers.WorkerError as error:
    raise errors.UserError(f'--video: {error}') from error
  print(f'recorded: return {episode.episode_return:g}, {episode.length:,} frames', file=screen, flush=True)


def _play_episode(policy, selection, environment, seed, show) -> evaluator_lib.Episode:
  """Plays an episode; `show` is called with the picture before the first step and after every step."""
  step = tf.function(lambda *args: policy.agent.step(*args, selection), autograph=False)
  agent_state = policy.agent.initial_state(1)
  row = environment.advance()
  action, steps = 0, 0
  while True:
    show(row.observation.pop(filmed.PICTURE))
    if row.observation.pop(filmed.ENDED):
      return evaluator_lib.Episode(row.episode_return, row.episode_length)
    inputs = acting.ActorInput(
        actor_id=tf.constant([0]), actor_place=tf.constant([0.]), last_action=tf.constant([action]),
        reward=inference.finite_rewards(tf.constant([row.reward])),
        discount=tf.constant([0. if row.done else 1.]), done=tf.constant([row.done]),  # No life is lost in evaluations.
        observation={name: tf.constant(value[np.newaxis]) for name, value in row.observation.items()})
    output, agent_state = step(inputs, agent_state, tf.constant([seed, steps], tf.int64))
    if not inference.is_finite(output):
      raise inference.PolicyError(policy.learner_steps)
    action = int(output.action[0])
    row = environment.advance(action)
    steps += 1
