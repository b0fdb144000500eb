"""Evaluation on one machine: the latest checkpoint of a run plays whole episodes, and evaluation.json has the results.

The protocol is that of Espeholt et al. 2018. Atari (section 5.3.2): 200 episodes per game from no-op starts, with raw
rewards; episodes end with the game and not with a life. DMLab-30 (section 5.3.1): 500 episodes per level, with
seeds that are held out from training, as in the released code. Environments play in parallel, each a fixed number of
episodes (evaluation/evaluator.py).

If several levels are played, the results of each finished level are kept in evaluation.unfinished.json. When an
evaluation is interrupted, the next one plays only the other levels, provided that the checkpoint is still the latest.

A trainer may use the same run directory meanwhile. Until its end, an evaluation writes only this file, its lock and
messages of libraries (tensorflow.log) there. The checkpoint is read before the environments start, so it is in memory
when the trainer deletes its files. A second evaluation of a run is refused while the first one plays
(run_directory.open_evaluation).
"""

from collections.abc import Callable, Sequence
import contextlib
import dataclasses
import os
import signal
import threading
import time
from typing import Any, NamedTuple, TextIO
import zlib

import numpy as np
import tensorflow as tf

from scalable_agents.actor import acting
from scalable_agents.actor import actor_host
from scalable_agents.actor import agent as agent_lib
from scalable_agents.actor import environment_workers
from scalable_agents.actor import inference
from scalable_agents.actor import parameters as parameters_lib
from scalable_agents.environments import registry
from scalable_agents.evaluation import evaluation_results
from scalable_agents.evaluation import evaluator as evaluator_lib
from scalable_agents.evaluation import recording
from scalable_agents.evaluation import video
from scalable_agents.processes import devices
from scalable_agents.records import checkpoint
from scalable_agents.records import errors
from scalable_agents.records import progress as progress_lib
from scalable_agents.records import run_directory
from scalable_agents.records import settings
from scalable_agents.training import definition
from scalable_agents.training import run_config

_LEAST_SEED = 2**30   # The seeds of training begin below 2**29 and count up.
_UNROLL_LENGTH = 20   # Agent steps after which the finished episodes of an environment are counted.
_LOOK_SECONDS = 0.2   # Interval in which the main thread checks signals and shows progress.


class Restored(NamedTuple):
  """The agent of a checkpoint."""
  agent: agent_lib.Agent
  environment_frames: int  # Number of frames that it was trained for.
  learner_steps: int       # Number of updates.


def seed_of(training_seed: int, *numbers: int) -> int:
  """Returns the seed of an evaluation. Its episodes differ from those of all training, and of other runs' evaluations.

  Environment i has this seed plus i, so neighbouring seeds would play nearly the same episodes.

  Args:
    training_seed: the seed of the run.
    *numbers: distinguish several evaluations of the run, such as those during training.
  """
  return _LEAST_SEED + (int(np.random.SeedSequence((training_seed, *numbers)).generate_state(1)[0]) >> 3)


def selection_of(agent: definition.Definition, run: run_config.RunConfig) -> acting.Selection:
  """Returns how an evaluation selects actions: as --test_policy says, or in the agent's default way.

  Raises:
    errors.UserError: the agent does not support the value of --test_policy.
  """
  known = agent.evaluation_policies
  if run.test_policy and run.test_policy not in known:
    raise errors.UserError(f'--test_policy={run.test_policy}: want one of {", ".join(known)} with this agent')
  kind = run.test_policy or known[0]
  return acting.Selection(kind, run.test_epsilon if kind == acting.EPSILON else 0.)


def evaluate(job: definition.Job, directory: run_directory.Run, screen: TextIO) -> dict[str, Any]:
  """Plays run.test_num_episodes episodes of each level and writes evaluation.json, and a video if run.video is set.

  Levels that an interrupted evaluation of the same checkpoint and protocol has finished are not played again.

  Args:
    job: the run. Its levels are played in their version for testing.
    directory: the run directory, opened for evaluation.
    screen: where progress is shown.
  Returns:
    The contents of evaluation.json; see evaluation_results.summary.
  Raises:
    run_directory.RunDirectoryError: the checkpoint is damaged or does not fit, evaluation.json cannot be written, or
      the directory has been moved or removed.
    errors.UserError: there is no checkpoint, its policy cannot act, environments cannot be made or kept alive, a
      return is not finite, or there can be no video.
    KeyboardInterrupt: Ctrl-C. Nothing is left running. evaluation.json is as before, and so is a video of that name,
      unless the new one was complete.
  """
  run, levels = job.run, [registry.test_level(level) for level in job.levels]
  protocol = job.protocol.environments(job.levels, training=False)
  if run.video:
    video.check(run.video)  # An error now is better than after minutes of play.
  loaded = load(directory.path, directory.logdir)
  selection, seed = selection_of(job.agent, run), seed_of(job.config.seed)
  identity = identify(loaded, run, seed, selection)
  # A run that goes back to an earlier checkpoint makes another one of this name. The index has the tensors' checksums.
  # Without an index the checkpoint is damaged, which `restore` reports.
  index = zlib.crc32(loaded.files.get('index', b''))
  finished = evaluation_results.FinishedLevels(directory.path, identity | {'index': index}, protocol,
                                               settings.free_settings(job.protocol))
  played = _missing(levels, finished, screen)
  run = with_environments(run, [levels[level_id] for level_id in played])
  with explaining(directory.logdir, loaded), contextlib.closing(
      actor_host.ActorHost(levels, protocol, run, seed, screen, played=played)) as host:
    print(devices.describe(acts=host.device), file=screen, flush=True)
    make_agent = job.agent.maker(host, levels, job.config)
    policy = restore(make_agent, loaded, host.device)
    if run.video:
      recording.record(policy, selection, levels[0], protocol, seed, run, screen)

    def look(evaluator):
      directory.check_in_place()
      finished.keep(evaluation_results.of_levels(evaluator, levels, played))

    evaluator = play(policy, make_agent, selection, host, run, screen, look)
  results = finished.results | evaluation_results.of_levels(evaluator, levels, played)
  summary = evaluation_results.summary(policy, {level: results[level] for level in levels}, protocol, host, identity)
  directory.check_in_place()
  run_directory.write_json(run_directory.path(directory.path, run_directory.EVALUATION), summary)
  finished.forget()
  return summary


@contextlib.contextmanager
def explaining(logdir: str, loaded: checkpoint.Loaded):
  """Raises errors of environments and of the policy as errors that the user can correct.

  Args:
    logdir: the run directory as the user has named it.
    loaded: the checkpoint that is played.
  """
  with errors.of_user(environment_workers.WorkerError), errors.of_user(inference.PolicyError, prefix=os.path.join(
      logdir, run_directory.CHECKPOINTS, os.path.basename(loaded.path)) + ': '):
    yield


def load(directory: str, logdir: str) -> checkpoint.Loaded:
  """Reads the latest checkpoint of a run.

  Args:
    directory: the run directory.
    logdir: the same, as the user has named it.
  Raises:
    errors.UserError: there is no checkpoint.
    checkpoint.CheckpointError: the checkpoint is damaged.
  """
  loaded = checkpoint.load(run_directory.path(directory, run_directory.CHECKPOINTS))
  if not loaded:
    raise errors.UserError(f'{logdir}: there is no checkpoint: train first, or choose another --logdir')
  return loaded


def identify(loaded: checkpoint.Loaded, run: run_config.RunConfig, seed: int,
             selection: acting.Selection) -> dict[str, Any]:
  """Identifies an evaluation: two with the same identity and the same protocol estimate the same score."""
  actions = f'{selection.kind} {selection.epsilon:g}' if selection.kind == acting.EPSILON else selection.kind
  return {'checkpoint': os.path.basename(loaded.path), 'num_episodes': run.test_num_episodes, 'seed': seed,
          'actions': actions}


def restore(make_agent: Callable[[], agent_lib.Agent], loaded: checkpoint.Loaded, device: str) -> Restored:
  """Returns the agent of a checkpoint.

  Args:
    make_agent: makes an agent, whose variables are then overwritten.
    loaded: the checkpoint.
    device: where to put the agent.
  Raises:
    checkpoint.CheckpointError: the checkpoint is damaged or does not fit the agent.
  """
  learner = tf.Module()  # Has the part of a Learner that is read from the checkpoint.
  with tf.device(device):
    learner.agent = make_agent()
  learner.environment_frames = tf.Variable(0, dtype=tf.int64, trainable=False)
  learner.update_steps = tf.Variable(0, dtype=tf.int64, trainable=False)
  checkpoint.Checkpointer(os.path.dirname(loaded.path), learner=learner).restore(loaded, partial=True)
  return Restored(learner.agent, int(learner.environment_frames), int(learner.update_steps))


def _missing(levels, finished, screen) -> list[int]:
  """Returns the ids of the levels that have to be played, and tells the user about the others."""
  if finished.are_others:
    print('levels were finished before, but with another checkpoint or under another protocol: they do not count, and '
          'will be replaced', file=screen, flush=True)
  if finished.results:
    print(f'{len(finished.results)} of {len(levels)} levels were finished before', file=screen, flush=True)
  missing = [level_id for level_id, level in enumerate(levels) if level not in finished.results]
  # If no level is missing, an evaluation was interrupted at the very end. Then one level is played again.
  return missing or [len(levels) - 1]


def with_environments(run: run_config.RunConfig, levels: Sequence[str]) -> run_config.RunConfig:
  """Returns the settings with a number of environments that suits the levels to be played and their episodes."""
  wanted = run.test_num_episodes * len(levels)
  environments = max(actor_host.counts(run, levels)[0], len(levels))
  return dataclasses.replace(run, num_environments=min(environments, wanted))


def play(policy, make_agent, selection, host, run, screen,
         look=lambda evaluator: None) -> evaluator_lib.Evaluator:
  """Plays until the evaluator has all its episodes, and returns it. Closes the host in any case.

  Args:
    policy: a Restored, whose agent's acting variables are used.
    make_agent: makes an agent for each inference loop.
    selection: how actions are selected.
    host: has the environments.
    run: the settings of the run.
    screen: where progress is shown.
    look: called with the evaluator at regular intervals.
  Raises:
    environment_workers.WorkerError: environments cannot be kept alive.
    KeyboardInterrupt: Ctrl-C before the last episode has ended.
    inference.PolicyError: the policy cannot act.
  """
  ended = threading.Event()  # Set when play ends for any reason.
  interrupted = []
  # The handler only takes note. A KeyboardInterrupt could cut the clean-up short, or be raised while a lock is held.
  handler = signal.signal(signal.SIGINT, lambda *unused_signal: interrupted.append(True))
  # Levels take different times. An environment that has filled its quota is retired, so that the others get its cores.
  evaluator = evaluator_lib.Evaluator(run.test_num_episodes, host.level_ids, ended.set,
                                      lambda environment: host.pool.retire(environment))
  progress = _Progress(host, evaluator, run.log_interval_seconds, screen)
  try:
    variables = policy.agent.acting_variables
    parameters = parameters_lib.ParameterSnapshot(inference.specs(variables), host.device)
    parameters.publish(policy.learner_steps, [variable.read_value() for variable in variables])
    host.make_pool(make_agent, _UNROLL_LENGTH, host.num_environments, progress.report_fault)
    host.start(parameters, evaluator.put, ended.set, selection)
    while not ended.wait(_LOOK_SECONDS) and not interrupted:
      progress.update()
      look(evaluator)
    progress.update(last=True)
    host.close()
    if interrupted and evaluator.num_played < evaluator.num_episodes:
      raise KeyboardInterrupt
    host.check()
  finally:
    host.close()
    progress.close()
    signal.signal(signal.SIGINT, handler)
  return evaluator


class _Progress(progress_lib.Line):
  """Shows how many episodes are done: as a progress bar on a terminal, elsewhere as a plain line per interval."""

  def __init__(self, host, evaluator, interval_seconds, stream):
    # On a narrow terminal the bar, which comes last, is cut first.
    super().__init__(evaluator.num_episodes, 0, '{percentage:3.0f}% {desc} {bar:20}', stream)
    self._host = host
    self._evaluator = evaluator
    self._interval_seconds = interval_seconds
    self._began = self._said = time.monotonic()

  def update(self, last=False):
    """Shows the progress: on a terminal at every call, elsewhere once per interval and at the last call."""
    now = time.monotonic()
    if self._bar is not None:
      self._bar.n = self._evaluator.num_played
    elif not last and now - self._said < self._interval_seconds:
      return
    self._said = now
    frames = self._host.pool.statistics().steps * self._host.specification.frames_per_step
    self.show(f'{self._evaluator.num_played:,} of {self._evaluator.num_episodes:,} episodes, '
              f'{frames / max(now - self._began, 1e-9):,.0f} frames/s')
