"""Training: puts actors, queue, learner and run directory together, and keeps them going.

Threads: the main thread only waits for the end, so that Ctrl-C is always heard; the learner's thread updates, logs
and saves; a third collects the next batch and copies it to the learner's device meanwhile; a fourth asks now and then
how much memory is in use. Acting has its own threads (actor_host.py), which run graphs.
"""

import collections
from concurrent import futures
import signal
import threading
import time

import numpy as np
import tensorflow as tf

from scalable_agents.actor import actor_host
from scalable_agents.actor import environment_workers
from scalable_agents.actor import inference
from scalable_agents.actor import parameters as parameters_lib
from scalable_agents.environments import scores
from scalable_agents.learner import queue as unroll_queue
from scalable_agents.records import checkpoint
from scalable_agents.records import episode_statistics
from scalable_agents.records import errors
from scalable_agents.records import metrics as metrics_lib
from scalable_agents.records import progress as progress_lib
from scalable_agents.records import run_directory
from scalable_agents.records import run_rows
from scalable_agents.training.cluster import learner_port
from scalable_agents.training.cluster import learners_together
from scalable_agents.training import curve_process
from scalable_agents.training import kernels
from scalable_agents.training import memory
from scalable_agents.training import metrics_row
from scalable_agents.training import quiet
from scalable_agents.training import skipped_updates
from scalable_agents.training import unroll_check

_CURVE_INTERVAL_SECONDS = 300.
_MEMORY_INTERVAL_SECONDS = 10.
_SIGNAL_CHECK_SECONDS = 0.2
_LONGEST_SILENCE_SECONDS = 10.  # Where no batch comes, a row says so.
_UPDATE_PATIENCE_SECONDS = 3.   # How long Ctrl-C waits for the update under way.
_AGREEMENT_SECONDS = 60.        # How long it waits for all learners to agree to leave, which they do in an update.
_WAITING_WORD_SECONDS = 30.     # Of an update that waits for other learners, until the user is told.


def configure_tensorflow():
  """Settings of the process, to be made before TensorFlow computes anything. The log says which kernels compute."""
  # The other half of the cores is for the environments. Threads that find nothing to do look for work for a while
  # before they sleep, which cost a fifth of the training process's time where there were as many as cores.
  tf.config.threading.set_intra_op_parallelism_threads(max(1, actor_host.num_cores() // 2))
  for gpu in tf.config.list_physical_devices('GPU'):
    tf.config.experimental.set_memory_growth(gpu, True)
  quiet.note(f'kernels on the CPU: {kernels.describe()}')


class Trainer:
  """One training process."""

  def __init__(self, host: actor_host.ActorHost, make_agent, make_learner, config, levels, run,
               directory: run_directory.Run, stream, learner_device=None, make_member=None, port=None, strategy=None):
    """Builds everything and restores the latest checkpoint.

    Args:
      host: running environments.
      make_agent: called with number of actions, observation spec and config.
      make_learner: called with agent, config, environment frames per agent step, XLA mode and device.
      config: the agent's hyper-parameters.
      levels: names of the levels played.
      run: run_flags.RunConfig.
      directory: the run directory, which the caller has opened.
      stream: where progress is shown.
      learner_device: None for the first GPU, or the CPU without one.
      make_member: called with the learner and a function that shows the user a line; returns a
        population_member.Member. None where the run is no member of a population.
      port: learner_port.LearnerPort where actors in other processes may take part.
      strategy: tf.distribute.Strategy of several learners.
    Raises:
      run_directory.RunDirectoryError: the checkpoint or the metrics are damaged or missing, or cannot be written.
      errors.UserError: the agent cannot be made for these environments, or the machine has too little memory.
    """
    self._host, self._config, self._levels, self._run = host, config, levels, run
    self._directory = directory
    self._port = port
    self._device = learner_device or actor_host.inference_device()
    self._together = learners_together.LearnersTogether(strategy, self._device)
    if port:
      self._together.compare(port.settings)
    with self._together.scope():
      try:
        agent = make_agent(host.specification.num_actions, host.observation_spec, config)
      except ValueError as error:
        raise errors.UserError(f'{", ".join(levels)}: {error}') from error
      self.learner = make_learner(agent, config, host.specification.frames_per_step, run.xla, self._device)
    self._statistics = episode_statistics.EpisodeStatistics(
        levels, suite_score=scores.suite_figures if scores.is_suite(levels) else None)
    self._member = make_member and make_member(self.learner, lambda text: self._progress.message(text))
    self._checkpointer = checkpoint.Checkpointer(
        run_directory.path(directory.path, run_directory.CHECKPOINTS), learner=self.learner,
        statistics=self._statistics, **({'member': self._member} if self._member else {}))
    if not self._checkpointer.restore():
      if run_rows.last_metrics(directory.path):
        raise run_directory.RunDirectoryError(
            f'{directory.logdir} has metrics of a run and no checkpoint to go on from: put '
            f'{run_directory.CHECKPOINTS} back, or choose another --logdir')
      self._checkpointer.save()
    self._together.share(self.learner.variables)
    self._frames = int(self.learner.environment_frames.numpy())
    self._metrics = metrics_lib.MetricsWriter(directory.path, self._frames)
    if self._member:
      self._member.resume(self._frames)
    self._progress = progress_lib.Progress(config.total_environment_frames, self._frames, stream)
    self._curve = curve_process.CurveProcess(directory.path, self._progress.message)
    self._snapshots = collections.deque(maxlen=config.policy_lag + 1)
    host.make_pool(make_agent, config, config.queue_size, self._progress.report_fault)
    memory.check(host.pool.unroll_spec, host.parameter_specs, config, host.num_environments,
                 len(self._together.devices))
    self._parameters = parameters_lib.ParameterSnapshot(host.parameter_specs, learner_port.PARAMETERS if port else '')
    self._queue = unroll_queue.UnrollQueue(host.pool.unroll_spec, config.queue_size, _time_major(host.pool.unroll_spec),
                                           learner_port.UNROLLS if port else '')
    # Of this process's own environments they are right.
    self._check = unroll_check.UnrollCheck(
        len(levels), host.specification.num_actions, port.actor_name) if port else None
    self._row = metrics_row.MetricsRow(host, self._metrics.last_row.get('environment_restarts', 0))
    self._skipped = skipped_updates.SkippedUpdates(
        levels, port.actor_name if port else 'actor {}'.format, self._progress.message,
        self._together.have_peers)
    self._memory_megabytes = host.memory_megabytes()
    self._unrolls_granted, self._unrolls_taken = host.num_environments, 0  # Synchronous runs only.
    self._interrupts, self._all_leave = 0, False
    self._update_began, self._told_of_waiting = None, 0.
    self._stop = threading.Event()
    self._error = None

  @property
  def has_learned(self) -> bool:
    """Whether the run, in this process or those before, has made an update."""
    return self._frames > 0

  def train(self):
    """Trains until the frames are reached, or SIGINT, SIGTERM or SIGHUP ends it; leaves a checkpoint either way.

    SIGHUP, which a closed terminal sends, stays ignored where it was ignored at the start, as by nohup.

    An update that goes on for long after the signal is not waited for: the process ends then, and the run goes on from
    the checkpoint before. Learners in several processes end together, in an update that all of them make; after a
    second signal, or a minute, this one leaves without the others, whose run that ends until all are started again.

    Raises:
      errors.UserError: ten updates in a row were not finite, environments cannot be kept alive, or the policy cannot
        act.
      run_directory.RunDirectoryError: a file could not be written, or the directory has been moved or removed.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
      signal.signal(number, self._interrupt)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it.
      signal.signal(signal.SIGHUP, self._hang_up)
    self._publish()
    if self._port:
      self._port.offer(self._host.pool.unroll_spec, self._host.parameter_specs)
    self._host.start(self._parameters, self._queue.put, self._stop.set)
    learner = threading.Thread(target=self._run_learner, name='learner', daemon=True)
    learner.start()
    threading.Thread(target=self._watch_memory, name='memory', daemon=True).start()
    # In turns, as a signal handler must not touch the event: it may interrupt the very thread that holds its lock.
    while not self._stop.wait(_SIGNAL_CHECK_SECONDS) and not self._interrupts:
      self._tell_of_waiting()
    if self._together.have_peers:
      self._await_agreement()
    self._stop.set()
    is_the_end = self._port is not None and self._is_well()  # Else it may come back, and the actors wait for it.
    self._host.pool.close()
    if is_the_end:
      self._port.announce_end()
    self._queue.close()
    learner.join(_UPDATE_PATIENCE_SECONDS if self._interrupts else None)
    self._host.close()
    if learner.is_alive():  # What a checkpoint would hold is not certain.
      self._progress.close()
      self._progress.message('left amid an update, the same command goes on from the last checkpoint')
      if is_the_end:
        self._port.wait_for_farewells()
      quiet.leave(0)
    try:
      self._leave()
    finally:
      self._metrics.close()
      self._progress.close()
      if is_the_end:
        self._port.wait_for_farewells()

  def _await_agreement(self):
    """After a signal: waits until all learners have heard of it, as far as it can."""
    if self._stop.wait(_UPDATE_PATIENCE_SECONDS):
      return
    self._progress.message('the learners leave together, with their next update; a second signal: without the others')
    deadline = time.monotonic() + _AGREEMENT_SECONDS
    while not self._stop.wait(_SIGNAL_CHECK_SECONDS) and self._interrupts < 2 and time.monotonic() < deadline:
      pass

  def _is_well(self):
    """Whether nothing but the frames or a signal, to all learners, has ended the training."""
    if self._together.have_peers and not self._all_leave and not self._has_finished():
      return False
    try:
      self._host.check()
    except Exception:  # pylint: disable=broad-except; raised in the end.
      return False
    return self._error is None

  def _leave(self):
    """Saves, where nothing speaks against it, and raises what has ended the training before its time."""
    if isinstance(self._error, learners_together.LostLearnerError) or (
        self._error and not isinstance(self._error, errors.UserError)):
      raise self._error  # Amid an update, perhaps: what a checkpoint would hold is not certain.
    try:
      self._host.check()
      failure = None
    except inference.PolicyError as error:  # No checkpoint of it takes the place of one that may be of use.
      raise errors.UserError(f'{error}. {self._directory.logdir} keeps its last checkpoint') from error
    except Exception as error:  # pylint: disable=broad-except; raised below.
      failure = error
    self._save()
    self._curve.finish()
    self._progress.close()
    self._progress.message(f'{self._frames:,} frames trained, ' + (
        f'see {self._directory.logdir}' if self._has_finished() else 'the same command goes on from there'))
    if isinstance(failure, environment_workers.WorkerError):
      raise errors.UserError(str(failure)) from failure
    if failure or self._error:
      raise failure or self._error

  def _has_finished(self):
    return self._frames >= self._config.total_environment_frames

  def _tell_of_waiting(self):
    """Says now and then that other learners are waited for, who may have no actors."""
    began, now = self._update_began, time.monotonic()
    if self._together.have_peers and began and now - max(began, self._told_of_waiting) > _WAITING_WORD_SECONDS:
      self._told_of_waiting = now
      self._progress.message(f'an update has been going on for {now - began:.0f} s: do all learners get unrolls?')

  def _interrupt(self, *unused_signal):
    self._interrupts += 1

  def _hang_up(self, *unused_signal):
    """The terminal was closed: both the kernel and the shell may say so, which is no second request."""
    self._interrupts = max(self._interrupts, 1)

  def _watch_memory(self):
    """Keeps the figure up to date, in a thread of its own: to ask for that of many workers takes long."""
    while not self._stop.wait(_MEMORY_INTERVAL_SECONDS):
      self._memory_megabytes = self._host.memory_megabytes()

  def _run_learner(self):
    with futures.ThreadPoolExecutor(1) as collector:
      try:
        self._learn(collector)
      except (tf.errors.OutOfRangeError, tf.errors.CancelledError):
        pass  # The queue was closed.
      except Exception as error:  # pylint: disable=broad-except; raised by `train`.
        self._error = error
      self._stop.set()  # Closes the queue, which ends a batch being collected.

  def _learn(self, collector):
    self._row.begin(self._frames)
    first = True
    last_save = last_curve = time.monotonic()
    upcoming = collector.submit(self._collect)
    while not self._stop.is_set() and not self._all_leave and not self._has_finished():
      batches = self._await(upcoming)
      if not self._config.synchronous:
        upcoming = collector.submit(self._collect)  # Collected, and copied to the device, while the update runs.
      self._update(batches)
      if self._config.synchronous:
        upcoming = collector.submit(self._collect)
      now = time.monotonic()
      if first:  # It was traced and compiled: its time is no measure of speed.
        first = False
        self._row.begin(self._frames)
        last_save = now
      if self._config.synchronous or self._row.age() >= self._run.log_interval_seconds:
        self._log()
      if now - last_save >= self._run.checkpoint_interval_seconds:
        last_save = now
        self._save()
      if now - last_curve >= _CURVE_INTERVAL_SECONDS:
        last_curve = now
        self._curve.begin()

  def _await(self, upcoming):
    """The next batch, once it is there; meanwhile rows say that there is none."""
    while True:
      self._directory.check_in_place()  # Before every update, so that nothing is learned or written in vain.
      silence = None if self._config.synchronous else max(_LONGEST_SILENCE_SECONDS - self._row.age(), 0.)
      with self._row.waiting():
        arrived, _ = futures.wait([upcoming], silence)
      if arrived:
        return upcoming.result()
      self._log()
      self._together.check()

  def _collect(self):
    """Waits for a batch for each learner; in a synchronous run first lets the actors play for it."""
    if self._config.synchronous:
      wanted = self._config.batch_size * len(self._together.devices)
      while self._unrolls_taken + wanted > self._unrolls_granted:
        self._host.pool.release()
        self._unrolls_granted += self._host.num_environments
      self._unrolls_taken += wanted
    batches = []
    for device in self._together.devices:
      with tf.device(device):  # Where a function's results are copied to, whatever computes them.
        batches.append(self._take_batch())
    return batches

  @tf.function(autograph=False)
  def _take_batch(self):
    """The next batch, and the learners_together.Episodes that ended in it."""
    with tf.device('/CPU:0'):
      size = self._config.batch_size
      unroll = self._check.take_batch(self._queue, size) if self._check else self._queue.take_batch(size)
      environment_output = unroll.environment_output
      done = environment_output.done[1:]  # Row 0 was in the unroll before.
      levels = tf.where(done, unroll.level_id, learners_together.NO_LEVEL)
      episodes = learners_together.Episodes(*(tf.reshape(values, [-1]) for values in (
          levels, environment_output.episode_return[1:], environment_output.episode_length[1:])))
    return unroll, episodes

  def _update(self, batches):
    unrolls, episodes = zip(*batches)
    if self._port:
      for unroll in unrolls:
        lags = np.maximum(self.learner.update_steps.numpy() - unroll.parameter_version[1:].numpy(), 0)  # [T, B].
        self._port.learned(unroll.actor_id.numpy(), lags.mean(axis=0))
    self._update_began = time.monotonic()
    metrics, (level_ids, returns, lengths), self._all_leave = self._together.step(
        self.learner, unrolls, episodes, self._interrupts > 0)
    self._update_began = None
    self._frames = int(self.learner.environment_frames.numpy())
    sums_up = np.isfinite(returns)  # NaN would make every mean that includes it NaN.
    level_ids, returns, lengths = level_ids[sums_up], returns[sums_up], lengths[sums_up]
    if self._member:
      self._member.learned(self._frames, level_ids, returns)  # Perhaps it has other parameters now.
    self._publish()
    self._statistics.add(level_ids, returns, lengths)
    self._metrics.add_episodes(self._frames, [self._levels[i] for i in level_ids], returns, lengths)
    self._row.add(metrics)
    self._skipped.add(self.learner, metrics, unrolls)

  def _publish(self):
    """Gives the actors the parameters of `policy_lag` updates ago."""
    self._snapshots.append((self.learner.update_steps.read_value(), self._read_parameters()))
    self._parameters.publish(*self._snapshots[0])

  @tf.function(autograph=False)
  def _read_parameters(self):
    # No copies: an update gives variables that somebody has read new memory.
    return [tf.identity(variable) for variable in self.learner.agent.trainable_variables]

  def _log(self):
    row = self._row.finish(self._frames)
    row |= self._statistics.metrics()
    if self._member:
      row |= self._member.metrics()
    if self._port:
      row |= self._port.metrics()
      row['environment_restarts'] += self._port.environment_restarts
      for complaint in filter(None, (self._port.complaint(), self._check.complaint())):
        self._progress.message(complaint)
    row |= {'learner_steps': int(self.learner.update_steps.numpy()), 'queue_size': self._queue.size(),
            'skipped_updates': int(self.learner.skipped_updates.numpy()), 'memory_megabytes': self._memory_megabytes}
    self._metrics.write(row)
    self._progress.update(row)

  def _save(self):
    self._directory.check_in_place()
    if self._row.updates:
      self._log()  # So that metrics.jsonl reaches as far as the checkpoint.
    self._checkpointer.save()


def _time_major(unroll_spec):
  """Which components of an unroll have a time dimension, as UnrollQueue wants to know."""
  mark = lambda nest, value: tf.nest.map_structure(lambda spec: value, nest)
  return unroll_spec._replace(
      level_id=False, actor_id=False, life_id=False, index=False, parameter_version=True,
      agent_state=mark(unroll_spec.agent_state, False), agent_output=mark(unroll_spec.agent_output, True),
      environment_output=mark(unroll_spec.environment_output, True))
