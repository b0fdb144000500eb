"""Evaluation on one machine: the latest checkpoint of a run plays whole episodes, and evaluation.json tells how well.

The protocol is that of Espeholt et al. 2018. Atari, section 5.3.2: 200 episodes per game from no-op starts, raw
rewards, episodes that end with the game and not with a life. DMLab-30, section 5.3.1: 500 episodes per level, held out
from training. Actions are sampled from the policy; the paper does not say, and the released agent samples. Environments
play side by side, each a fixed number of episodes (actor/evaluator.py).

Where several levels are played, each is kept in a file of its own when it is done, evaluation.unfinished.json: an
evaluation that was cut short goes on with the others, if the checkpoint is still the latest one. Nothing else is
written to the run directory before the end, so a trainer may be at work there meanwhile: the checkpoint is read before
the environments start, and stays in memory when the trainer deletes its files. A second evaluation of a run is refused
while the first one plays (run_directory.open_evaluation).
"""

import contextlib
import dataclasses
from fractions import Fraction
import json
import os
import signal
import statistics
import threading
import time
from typing import Any, Container, NamedTuple, TextIO

import numpy as np
import tensorflow as tf

from scalable_agents.actor import actor_host
from scalable_agents.actor import environment_workers
from scalable_agents.actor import evaluator as evaluator_lib
from scalable_agents.actor import inference
from scalable_agents.actor import lone_environment
from scalable_agents.actor import parameters as parameters_lib
from scalable_agents.environments import atari57
from scalable_agents.environments import dmlab
from scalable_agents.environments import filmed
from scalable_agents.environments import scores
from scalable_agents.records import checkpoint
from scalable_agents.records import errors
from scalable_agents.records import progress as progress_lib
from scalable_agents.records import run_directory
from scalable_agents.training import run_flags
from scalable_agents.training import video

_SEED_OFFSET = 2**30  # Training begins below 2**29, and counts its seeds up.
_UNROLL_LENGTH = 20   # Agent steps between two looks at an environment's episodes.
_LOOK_SECONDS = 0.2   # Between two looks of the main thread at signals and progress.
_CONSOLE_FRAMES_PER_SECOND = 60
_PICTURES_PER_SECOND = 15  # In videos of levels without a console's clock.
_FILMED = 'scalable_agents.environments.registry:make_filmed'
_REFERENCE_SCORES = {'atari57': 'environments/data/atari57_scores.csv: random_paper, human',
                     'dmlab30': 'environments/data/dmlab30_scores.csv: random, human'}


class Policy(NamedTuple):
  """What is evaluated."""
  agent: tf.Module
  environment_frames: int  # Trained for.
  learner_steps: int


def seed_of(training_seed: int) -> int:
  """The seed of an evaluation: its episodes are none of those that a run with `training_seed` has learned from."""
  return (training_seed + _SEED_OFFSET) % 2**31


def evaluate(make_agent, config, levels: list[str], protocol: dict[str, Any], run: run_flags.RunConfig,
             directory: run_directory.Run, screen: TextIO, free: Container[str] = ()):
  """Plays run.test_num_episodes episodes of each level, writes evaluation.json, and a video where run.video asks.

  Levels that an evaluation cut short has finished, of the same checkpoint and under the same protocol, count.

  Args:
    make_agent: called with number of actions, observation spec and config.
    config: the agent's hyper-parameters.
    levels: names of the levels.
    protocol: of the environments, see registry.make_from_json.
    run: the settings.
    directory: the run directory, opened to evaluate.
    screen: where progress is shown.
    free: settings of the protocol that do not decide what is played.
  Returns:
    What evaluation.json holds; see `_summary`.
  Raises:
    run_directory.RunDirectoryError: the checkpoint is damaged or does not fit, evaluation.json cannot be written, or
      the directory has been moved or removed.
    errors.UserError: there is no checkpoint, its policy cannot act, environments cannot be made or kept alive, a
      return is not finite, or there can be no video.
    KeyboardInterrupt: Ctrl-C. Nothing is left running; evaluation.json and a video of that name are as before.
  """
  if run.video:
    video.check(run.video)  # Now rather than after minutes of play.
  seed = seed_of(config.seed)
  loaded = checkpoint.load(run_directory.path(directory.path, run_directory.CHECKPOINTS))
  if not loaded:
    raise errors.UserError(
        f'{directory.logdir}: there is no checkpoint to evaluate: train first, or choose another --logdir')
  of = {'checkpoint': os.path.basename(loaded.path), 'num_episodes': run.test_num_episodes, 'seed': seed}
  finished = _FinishedLevels(directory.path, of, protocol, free)
  # Where none is missing, somebody was cut short at the very end: one level is played again.
  missing = [level for level in levels if level not in finished.results] or levels[-1:]
  if finished.are_others:
    print('levels were finished before of another checkpoint or under another protocol: they do not count', file=screen,
          flush=True)
  if finished.results:
    print(f'{len(finished.results)} of {len(levels)} levels were finished before', file=screen, flush=True)
  wanted = run.test_num_episodes * len(missing)
  run = dataclasses.replace(run, num_environments=min(max(actor_host.counts(run, missing)[0], len(missing)), wanted))
  try:
    host = actor_host.ActorHost(missing, protocol, run, seed, screen)
    try:
      policy = restore(make_agent, config, host, loaded)
      if run.video:
        _record(policy, levels[0], protocol, seed, run, screen)

      def look(evaluator):
        directory.check_in_place()
        finished.keep(_results(evaluator, missing))

      evaluator = _play(policy, make_agent, config, host, run, screen, look)
    finally:
      host.close()
  except environment_workers.WorkerError as error:
    raise errors.UserError(str(error)) from error
  except inference.PolicyError as error:
    where = os.path.join(directory.logdir, run_directory.CHECKPOINTS, of['checkpoint'])
    raise errors.UserError(f'{where}: {error}') from error
  results = finished.results | _results(evaluator, missing)
  summary = _summary(policy, {level: results[level] for level in levels}, protocol, host, of)
  directory.check_in_place()
  run_directory.write_json(run_directory.path(directory.path, run_directory.EVALUATION), summary)
  finished.forget()
  return summary


def restore(make_agent, config, host: actor_host.ActorHost, loaded: checkpoint.Loaded) -> Policy:
  """Returns the agent of a checkpoint.

  Raises:
    checkpoint.CheckpointError: it is damaged or does not fit.
  """
  learner = tf.Module()  # The part of a learner (agents/impala.py) that is of interest here.
  with tf.device(actor_host.inference_device()):
    learner.agent = make_agent(host.specification.num_actions, host.observation_spec, config)
  learner.environment_frames = tf.Variable(0, dtype=tf.int64, trainable=False)
  learner.update_steps = tf.Variable(0, dtype=tf.int64, trainable=False)
  checkpoint.Checkpointer(os.path.dirname(loaded.path), learner=learner).restore(loaded, partial=True)
  return Policy(learner.agent, int(learner.environment_frames), int(learner.update_steps))


def report(summary: dict[str, Any]) -> str:
  """What evaluation.json holds as a few lines for the screen."""
  protocol = summary['protocol']
  if len(summary['levels']) > 1:
    return _report_of_several(summary)
  lines = []
  for level, result in summary['levels'].items():
    lines += [f'{level}: {protocol["num_episodes"]:,} episodes after {protocol["environment_frames"]:,} frames of '
              f'training ({protocol["learner_steps"]:,} updates)',
              f'  mean return       {result["mean"]:12,.2f}',
              f'  median return     {result["median"]:12,.2f}']
    if result['human_normalised'] is not None:
      lines.append(f'  human-normalised  {result["human_normalised"]:12,.2f} %  (of the mean; random 0 %, human 100 %)')
    lines.append(f'  mean length       {statistics.fmean(result["episode_lengths"]):12,.2f} frames')
  return '\n'.join(lines)


def _report_of_several(summary):
  """A line per level, and what the papers quote of the suite."""
  protocol = summary['protocol']
  lines = [f'{protocol["num_episodes"]:,} episodes of each of {len(summary["levels"])} levels after '
           f'{protocol["environment_frames"]:,} frames of training ({protocol["learner_steps"]:,} updates)',
           f'{"level":42}{"mean":>12}{"median":>12}{"normalised":>12}']
  for level, result in summary['levels'].items():
    normalised = '' if result['human_normalised'] is None else f'{result["human_normalised"]:10,.2f} %'
    lines.append(f'{level:42}{result["mean"]:12,.2f}{result["median"]:12,.2f}{normalised:>12}'.rstrip())
  if summary['suite']:
    lines.append('human-normalised over the levels: ' + ', '.join(
        f'{name.removeprefix("suite_score/").replace("_", " ")} {value:,.2f} %'
        for name, value in summary['suite'].items() if name != 'suite_score'))
  return '\n'.join(lines)


class _FinishedLevels:
  """The results of levels that are done while others are not, in a file that outlives this process."""

  def __init__(self, logdir, of, protocol, free):
    """Reads what an earlier evaluation has left, if it was of the same checkpoint, episodes, seed and protocol.

    Args:
      logdir: the run directory.
      of: checkpoint, num_episodes and seed.
      protocol: of the environments.
      free: settings of the protocol that do not decide what is played.
    """
    self._file = run_directory.path(logdir, run_directory.EVALUATION_UNFINISHED)
    decisive = {part: settings and {name: value for name, value in settings.items()
                                    if name not in free or value == dmlab.DUMMY_DATASET}
                for part, settings in protocol.items()}
    self._of = of | {'protocol': decisive}
    self.results, self.are_others = {}, False
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError), open(self._file, encoding='utf-8') as stream:
      left = json.load(stream)
      self.are_others = left['of'] != self._of
      if not self.are_others:
        self.results = left['levels']
    self._kept = 0

  def keep(self, results):
    """Writes the file anew where more levels are done than at the last call."""
    if len(results) > self._kept:
      self._kept = len(results)
      run_directory.write_json(self._file, {'of': self._of, 'levels': self.results | results})

  def forget(self):
    """Removes the file."""
    with contextlib.suppress(FileNotFoundError):
      os.remove(self._file)


def _record(policy, level, protocol, seed, run, screen):
  """Records an episode at the speed of the console, if there is one.

  Raises:
    errors.UserError: the environment draws no pictures or fails, or the encoder fails.
  """
  is_atari = level in atari57.LEVELS
  arguments = {'level_name': level, 'seed': seed, 'protocol': protocol}
  try:
    with lone_environment.LoneEnvironment(_FILMED, arguments, run.environment_timeout_seconds) as environment:
      frames_per_step = environment.specification.frames_per_step
      speed = Fraction(_CONSOLE_FRAMES_PER_SECOND, frames_per_step) if is_atari else Fraction(_PICTURES_PER_SECOND)
      print(f'recording an episode to {run.video}', file=screen, flush=True)
      with video.Writer(run.video, speed) as writer:
        episode = _play_episode(policy, environment, seed, writer.add)
  except environment_workers.WorkerError as error:
    raise errors.UserError(f'--video: {error}') from error
  print(f'recorded: return {episode.episode_return:g}, {episode.length:,} frames', file=screen, flush=True)


def _play_episode(policy, environment, seed, show) -> evaluator_lib.Episode:
  """Plays an episode; `show` is called with the picture before the first and after every step."""
  step = tf.function(policy.agent.step, autograph=False)
  agent_state = policy.agent.initial_state(1)
  row = environment.advance()
  action, steps = 0, 0
  while True:
    show(row.observation.pop(filmed.PICTURE))
    if row.observation.pop(filmed.ENDED):
      return evaluator_lib.Episode(row.episode_return, row.episode_length)
    observation = {name: tf.constant(value[np.newaxis]) for name, value in row.observation.items()}
    output, agent_state = step(tf.constant([action]), inference.finite_rewards(tf.constant([row.reward])),
                               tf.constant([row.done]), observation, agent_state, tf.constant([seed, steps]))
    if not inference.is_sound(output):
      raise inference.PolicyError(policy.learner_steps)
    action = int(output.action[0])
    row = environment.advance(action)
    steps += 1


def _play(policy, make_agent, config, host, run, screen, look) -> evaluator_lib.Evaluator:
  """Plays until the evaluator, which is returned, has all its episodes; closes the host in any case.

  Meanwhile `look` is called with it every now and then.

  Raises:
    environment_workers.WorkerError: environments cannot be kept alive.
    KeyboardInterrupt: Ctrl-C.
    inference.PolicyError: the policy cannot act.
  """
  ended = threading.Event()  # For whatever reason.
  interrupted = []
  # Noted rather than raised: a KeyboardInterrupt could cut the clean-up short, or hit this thread holding a lock.
  handler = signal.signal(signal.SIGINT, lambda *unused_signal: interrupted.append(True))
  # Levels take unequally long: who is done leaves the cores to the others.
  evaluator = evaluator_lib.Evaluator(run.test_num_episodes, host.level_ids, ended.set,
                                      lambda environment: host.pool.retire(environment))
  progress = _Progress(host, evaluator, run.log_interval_seconds, screen)
  try:
    variables = policy.agent.trainable_variables
    parameters = parameters_lib.ParameterSnapshot([tf.TensorSpec(v.shape, v.dtype) for v in variables])
    parameters.publish(policy.learner_steps, [variable.read_value() for variable in variables])
    host.make_pool(make_agent, dataclasses.replace(config, unroll_length=_UNROLL_LENGTH, synchronous=False),
                   host.num_environments, progress.report_fault)
    host.start(parameters, evaluator.put, ended.set)
    while not ended.wait(_LOOK_SECONDS) and not interrupted:
      progress.update()
      look(evaluator)
    progress.update(last=True)
    host.close()
    if interrupted:
      raise KeyboardInterrupt
    host.check()
  finally:
    host.close()
    progress.close()
    signal.signal(signal.SIGINT, handler)
  return evaluator


def _results(evaluator, levels) -> dict[str, dict[str, Any]]:
  """What evaluation.json holds of each level that is finished.

  Human-normalised scores are those of the mean return, in per cent; None where no human's score is known.

  Raises:
    errors.UserError: a return is not finite.
  """
  results = {}
  for level_id, level in enumerate(levels):
    if not evaluator.is_finished(level_id):
      continue
    episodes = evaluator.episodes(level_id)
    returns = [episode.episode_return for episode in episodes]
    if not np.all(np.isfinite(returns)):
      raise errors.UserError(f'{level}: an environment gave rewards that are not finite numbers, mend it')
    mean = statistics.fmean(returns)
    normalised = scores.human_normalised(level, mean) if scores.has_reference(level) else None
    results[level] = {
        'mean': mean,
        'median': statistics.median(returns),
        'human_normalised': normalised,
        'human_normalised_capped': None if normalised is None else min(100., normalised),
        'episode_returns': returns,
        'episode_lengths': [episode.length for episode in episodes],
    }
  return results


def _summary(policy, results, environments, host, of) -> dict[str, Any]:
  """What evaluation.json holds; `suite` is what scores.suite_figures says, None for a single level.

  `of` has the checkpoint that was played, the number of episodes and the seed.
  """
  means = {level: result['mean'] for level, result in results.items()}
  protocol = {
      **of,
      'actions': 'sampled',
      'rewards': 'raw',
      'frames_per_step': host.specification.frames_per_step,
      'num_actions': host.specification.num_actions,
      'num_environments': host.num_environments,
      'environment_restarts': host.pool.restarts,
      'environment_frames': policy.environment_frames,
      'learner_steps': policy.learner_steps,
      'atari': environments.get('atari') if any(level in atari57.LEVELS for level in results) else None,
      'dmlab': environments.get('dmlab') if any(level in dmlab.LEVELS for level in results) else None,
      'reference_scores': next((_REFERENCE_SCORES[name] for name, suite in scores.SUITES.items()
                                if any(level in suite.scores for level in results)), None),
  }
  suite = scores.suite_figures(means) if scores.is_suite(means) else None
  return {'levels': results, 'suite': suite, 'protocol': protocol}


class _Progress(progress_lib.Line):
  """Episodes done of all: a line that moves on a terminal, a plain line per interval elsewhere."""

  def __init__(self, host, evaluator, interval_seconds, stream):
    # A narrow terminal cuts the bar first.
    super().__init__(evaluator.num_episodes, 0, '{percentage:3.0f}% {desc} {bar:20}', stream)
    self._host, self._evaluator, self._interval_seconds = host, evaluator, interval_seconds
    self._began = self._said = time.monotonic()

  def update(self, last=False):
    """Shows how far it is; on a terminal whenever called, elsewhere once per interval and where it is the last time."""
    now = time.monotonic()
    frames = self._host.pool.statistics().steps * self._host.specification.frames_per_step
    text = (f'{self._evaluator.num_played:,} of {self._evaluator.num_episodes:,} episodes, '
            f'{frames / max(now - self._began, 1e-9):,.0f} frames/s')
    if self._bar is not None:
      self._bar.n = self._evaluator.num_played
      self._bar.set_description_str(text, refresh=True)
    elif last or now - self._said >= self._interval_seconds:
      self._said = now
      self.message(text)
