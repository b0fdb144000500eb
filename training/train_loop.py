"""Training: connects actors, experience, learner and run directory, and runs the training loop.

Threads:
  - The main thread only waits for the end, so that it can always react to Ctrl-C.
  - The learner's thread makes updates and logs.
  - A thread collects the next batches meanwhile (collector.py).
  - A thread writes checkpoints (records/checkpoint.py).
  - With --evaluation_interval, a thread waits for the process that evaluates a checkpoint (evaluations.py).
  - A thread waits for the process that draws the learning curve (curve_process.py).
  - A thread measures at intervals how much memory is in use, and whether other programs take the workers' cores.
  - Acting has its own threads (actor/actor_host.py), which run graphs.
"""

from collections.abc import Callable, Sequence
import contextlib
import dataclasses
import threading
import time
from typing import Any, NamedTuple, Protocol, TextIO

import tensorflow as tf

from scalable_agents.actor import actor_host
from scalable_agents.actor import environment_workers
from scalable_agents.actor import inference
from scalable_agents.cluster import learner_port
from scalable_agents.experience import intake as intake_lib
from scalable_agents.experience import memory
from scalable_agents.experience import unroll_check
from scalable_agents.learner import learner_step
from scalable_agents.processes import devices
from scalable_agents.processes import quiet
from scalable_agents.records import errors
from scalable_agents.records import run_directory
from scalable_agents.records import run_rows
from scalable_agents.training import collector as collector_lib
from scalable_agents.training import definition
from scalable_agents.training import learner_group
from scalable_agents.training import publisher as publisher_lib
from scalable_agents.training import run_end
from scalable_agents.training import run_log
from scalable_agents.training import saver as saver_lib
from scalable_agents.training import skipped_updates

_WATCH_INTERVAL_SECONDS = 10.
_WATCH_PAUSES = 50.  # At least, in units of the time that a measurement takes.
_LONGEST_SILENCE_SECONDS = 10.  # If no batch arrives for this time, a row of metrics is still written.


class Evaluations(Protocol):
  """The evaluations of a run while it trains: evaluation/evaluations.py."""

  def begin_if_due(self, saved_frames: int) -> None:
    """Begins an evaluation of the newest checkpoint, if one is due."""

  def results(self) -> list[dict[str, Any]]:
    """Returns the rows for evaluations.jsonl since the last call."""
    ...

  def finish(self, saved_frames: int, is_interrupted: Callable[[], bool]) -> None:
    """Waits for the evaluation of the last checkpoint."""

  def close(self) -> None:
    """Ends the evaluation that is running."""


class _Unread(NamedTuple):
  """An update whose results have not been read yet."""
  update: learner_group.Update
  number: int                            # In the run, skipped updates included.
  batches: Sequence[learner_step.Batch]  # Its batches on the host, from collector.Collected.
  episodes: intake_lib.Episodes
  frames: int                            # Environment frames of the run, with those of this update.


class Trainer:
  """The training of one process: its learners, and its actors if it has any. Others may be in other processes."""

  def __init__(self, host: actor_host.ActorHost, job: definition.Job, directory: run_directory.Run, stream: TextIO,
               make_member: Callable[..., Any] | None = None, port: learner_port.LearnerPort | None = None,
               strategy: tf.distribute.Strategy | None = None,
               make_evaluations: Callable[..., Evaluations] | None = None):
    """Builds everything and restores the latest checkpoint.

    Args:
      host: has running environments.
      job: the run.
      directory: the run directory, which the caller has opened.
      stream: where progress is shown.
      make_member: called with the learner and a function that shows the user a line; returns a
        population_member.Member. None if the run is not a member of a population.
      port: through which actor hosts in other processes take part; None if there are none.
      strategy: the strategy of several learners.
      make_evaluations: called with the run directory, the environment frames of the run's last evaluation, and a
        function that shows the user a line. None if there are no evaluations during training.
    Raises:
      run_directory.RunDirectoryError: the checkpoint or the metrics are damaged or missing, or cannot be written.
      errors.UserError: the agent cannot be made for these environments, or the machine has too little memory.
    """
    config, levels = job.config, job.levels
    self._host = host
    self._job = job
    self._config = config
    self._directory = directory
    self._port = port
    device = devices.choose()
    self._together = learner_group.LearnerGroup(strategy, device)
    self._together.compare(port.settings if port else {})
    make_agent = job.agent.maker(host, levels, config)
    self.learner = self._make_learner(make_agent, device)
    host.make_pool(make_agent, config.unroll_length, config.queue_size, lambda line: self._log.report_fault(line),
                   config.barrier, **job.agent.sending(config))
    memory.check(host.pool.unroll_spec, host.unroll_spec, host.parameter_specs, config, host.num_environments,
                 len(self._together.devices), host.held)
    refresh_steps = job.refresh_steps()
    self._publisher = publisher_lib.Publisher(
        self.learner, config.policy_lag, device if host.is_idle else host.device, port.parameters_name if port else '',
        job.cluster.parameter_precision,
        # Without environments there are no steps to count, but replayers (LASER) still take parameters.
        lambda: not refresh_steps or host.is_idle or host.refresh_is_due(refresh_steps))
    self._intake, self._experience = self._make_experience(make_agent)
    statistics = run_log.make_statistics(levels)
    self._member = make_member and make_member(self.learner, lambda text: self._log.say(text))
    self._saver = self._make_saver(statistics)
    self._frames = int(self.learner.environment_frames.numpy())
    self._was_complete = self._has_finished()  # Before this process.
    learns = self._together.devices
    print(devices.describe(learns, '' if host.is_idle else host.device), file=stream, flush=True)
    self._log = run_log.RunLog(directory, host, statistics, levels, self._frames, config.total_environment_frames,
                               0. if config.synchronous else job.run.log_interval_seconds, stream)
    if self._member:
      self._member.resume(self._frames)
    self._skipped = skipped_updates.SkippedUpdates(
        levels, port.actor_name if port else 'actor {}'.format, self._log.say, self._together.have_peers,
        is_member=self._member is not None)
    self._memory_megabytes = host.memory_megabytes()
    self._saved_frames = self._saving_frames = self._frames  # Of the newest checkpoint, and of the one being written.
    self._evaluations = None
    if make_evaluations:
      last = run_rows.last_evaluation(directory.path)
      self._evaluations = make_evaluations(directory, last.frames if last else 0, self._log.say)
    self._end = run_end.RunEnd(self._together.have_peers, self._log.say)
    self._stop = self._end.reached
    self._unread: _Unread | None = None  # The last update, unless its results have been read.
    self._all_leave = False
    self._not_finite: set[int] = set()  # Levels whose episodes had returns that are not finite.
    self._error = None

  def _make_learner(self, make_agent, device):
    with self._together.scope():
      with errors.of_user(ValueError, prefix=f'{", ".join(self._job.levels)}: '):
        agent = make_agent()
      return self._job.agent.make_learner(agent, self._config, self._job.run.xla, device)

  def _make_experience(self, make_agent):
    """Returns the intake and the agent's experience."""
    levels = self._job.levels
    spec = dataclasses.replace(
        definition.environment_spec(self._host, levels), protocol=self._job.shared_protocol())
    # Unrolls of this process's own environments need no check.
    of_cluster: dict[str, Any] = {} if not self._port else dict(
        check=lambda batch: unroll_check.is_valid(batch, len(levels), spec.num_actions),
        shared_name=self._port.unrolls_name, actor_name=self._port.actor_name)
    intake = intake_lib.Intake(self._host.unroll_spec, self._config.queue_size,
                               self._host.specification.frames_per_step, **of_cluster)
    return intake, self._job.agent.make_experience(
        intake, spec, self._config, self._host.seed, self._publisher.parameters, make_agent)

  def _make_saver(self, statistics):
    """Returns the Saver, after it has restored all state. All learners then have the same parameters.

    Raises:
      run_directory.RunDirectoryError: this process has a run, and the first learner begins a new one. Going on would
        replace what may be the run's last checkpoint.
    """
    with self._together.scope():
      resumes = tf.Variable(int(saver_lib.has_checkpoint(self._directory)), trainable=False, dtype=tf.int64)
    member = {'member': self._member} if self._member else {}
    saver = saver_lib.Saver(self._directory, self._job.run.checkpoint_interval_seconds,
                            {'experience': self._experience, 'intake': self._intake},
                            learner=self.learner, statistics=statistics, **member)
    restored = int(self.learner.environment_frames.numpy())
    self._together.broadcast([*self.learner.variables, resumes])  # `resumes` is now that of the first learner.
    if restored and not int(resumes.numpy()):
      raise run_directory.RunDirectoryError(
          f'{self._directory.logdir} has a run of {restored:,} frames, and the first learner begins a new one: put the '
          "first learner's run directory back, or give all learners another --logdir")
    return saver

  @property
  def has_learned(self) -> bool:
    """Whether this process or an earlier one of the run has made an update."""
    return self._frames > 0

  def train(self):
    """Trains until total_environment_frames are reached, or until SIGINT, SIGTERM or SIGHUP. Then saves a checkpoint.

    SIGHUP, which a closed terminal sends, stays ignored if it was ignored at the start, as under nohup.

    After a signal the current update gets time to end, see RunEnd.await_update. If it takes longer, the process ends
    without it, and the run can be resumed from the checkpoint before.

    Learners in several processes end together, after an update that all of them make. After a second signal, or a
    minute, this learner ends without the others. That ends the others' training too, until all are started again.

    Raises:
      errors.UserError: ten updates in a row were not finite, environments cannot be kept alive, or the policy cannot
        act.
      run_directory.RunDirectoryError: a file could not be written, or the directory has been moved or removed.
    """
    self._end.signals.install()
    self._publisher.begin()
    if self._port:
      self._port.offer(self._host.unroll_spec, self._host.parameter_specs)
    self._host.start(self._publisher.parameters, self._intake.put, self._stop.set)
    learner = threading.Thread(target=self._run_learner, name='learner', daemon=True)
    learner.start()
    threading.Thread(target=self._watch_machine, name='machine watcher', daemon=True).start()
    self._end.wait()
    # If an error ended the training, or the save fails, the learner may be started again, and the actor hosts wait for
    # it.
    port = self._port if self._port and self._is_well() else None
    self._host.pool.close()
    if self._port:
      self._port.announce_save()
    self._experience.close()
    self._end.await_update(learner)
    self._host.close()
    if learner.is_alive():  # An update is running, so a checkpoint could hold a half-made update.
      self._log.close_progress()
      self._log.say('ended without another checkpoint; run the same command to continue from the last one')
      if port and not self._together.have_peers:  # Otherwise all learners are started again.
        port.announce_end()
        port.wait_for_farewells()
      with errors.of_user(environment_workers.WorkerError, inference.PolicyError):
        self._host.check()  # Its error may be what ended the training.
      quiet.leave(0)
    try:
      self._leave(port)
    finally:
      self._saver.close()
      if self._evaluations:
        self._evaluations.close()
      self._log.close()
      if port:
        port.wait_for_farewells()

  def _is_well(self):
    """Whether the training ended without an error: all frames were trained, or a signal has reached all learners."""
    if self._together.have_peers and not self._all_leave and not self._has_finished():
      return False
    try:
      self._host.check()
    except Exception:  # `_leave` raises it.
      return False
    return self._error is None

  def _leave(self, port):
    """Saves a checkpoint if the state is known to be good, and raises the error that ended the training, if any.

    Afterwards the actor hosts at the port, if any, are told of the end.
    """
    if isinstance(self._error, learner_group.LostLearnerError) or (
        self._error and not isinstance(self._error, errors.UserError)):
      raise self._error  # It may have come during an update, so a checkpoint could hold a half-made update.
    try:
      self._host.check()
      failure = None
    except inference.PolicyError as error:  # A checkpoint of this policy must not replace one that may be of use.
      advice = '' if self._member else ': begin another run (--logdir) with a lower --learning_rate'
      raise errors.UserError(f'{error}. {self._directory.logdir} keeps its last checkpoint{advice}') from error
    except Exception as error:  # Raised below.
      failure = error
    is_undone = not self.has_learned and (failure or self._error)  # The run directory keeps nothing of the run.
    # For a run that was complete, the same checkpoint would be written again, perhaps with a large replay.
    if not self._was_complete and not is_undone:
      self._saver.save(self._write_last_row)
    # If a learner could not save, all are started again, and the actor hosts wait for them.
    if port and self._end.await_others(self._together.wait_for_all):
      port.announce_end()
    self._finish_evaluations()
    self._log.finish_curve()
    self._log.close_progress()
    if not is_undone:
      self._log.say(f'{self._frames:,} frames trained, ' + (
          f'see {self._directory.logdir}' if self._has_finished() else 'run the same command to continue'))
    if isinstance(failure, environment_workers.WorkerError):
      raise errors.UserError(str(failure)) from failure
    if error := failure or self._error:
      raise error

  def _has_finished(self):
    return self._frames >= self._config.total_environment_frames

  def _watch_machine(self):
    """Measures memory and cores at intervals, in a thread of its own, because measuring many workers takes long."""
    measured_seconds = 0.
    while not self._stop.wait(max(_WATCH_INTERVAL_SECONDS, _WATCH_PAUSES * measured_seconds)):
      began = time.monotonic()
      self._memory_megabytes = self._host.memory_megabytes()  # With a replay of 100 GB, this takes seconds of a core.
      measured_seconds = time.monotonic() - began
      self._host.watch_cores()

  def _run_learner(self):
    with contextlib.ExitStack() as on_end:
      try:
        collector = on_end.enter_context(collector_lib.Collector(
            self._experience, self.learner.prepare, self._together.devices, self._host.pool,
            self._host.num_environments, self._config.barrier != 'none'))
        try:
          self._learn(collector)
        finally:
          self._read_results()
      except Exception as error:  # Raised by `train`.
        # After `_stop` the experience is closed, which ends the wait for a batch with one of these errors.
        is_closed = self._stop.is_set() and isinstance(error, (tf.errors.OutOfRangeError, tf.errors.CancelledError))
        self._error = None if is_closed else error
      self._stop.set()  # The main thread closes the experience, which ends the collector's wait.

  def _learn(self, collector):
    self._log.begin(self._frames)
    is_first = True
    while not self._stop.is_set() and not self._all_leave and not self._has_finished():
      self._await(collector)
      self._update(collector.take())
      collector.resume()
      if is_first:  # It was traced and compiled, so its time says nothing about speed.
        is_first = False
        self._log.begin(self._frames)
        self._saver.begin_interval()
      if self._log.is_due:
        self._write_row()
      if self._saver.begin_if_due(self._write_last_row):
        self._saving_frames = self._frames
      self._log.draw_curve_if_due()

  def _await(self, collector):
    """Waits for the next batches. If they take long, writes rows of metrics meanwhile."""
    while True:
      self._saver.check()  # Before every update, so that no training is lost if the directory was moved.
      silence = None if self._config.synchronous else max(_LONGEST_SILENCE_SECONDS - self._log.age(), 0.)
      with self._log.waiting():
        if collector.wait(silence):
          return
      self._write_row()
      self._together.check()

  def _update(self, collected):
    batches, on_host, arrived = zip(*collected, strict=True)
    if self._port:
      self._port.record_lags(self._publisher.version, arrived)
    with self._end.updating():
      update = self._together.step(self.learner, batches, arrived, self._end.signals.count > 0)
    self._all_leave = update.leaving
    self._frames += update.environment_frames
    episodes, others = intake_lib.finite(update.episodes)
    for level in sorted(others - self._not_finite):
      self._not_finite.add(level)
      self._log.say(f'{self._job.levels[level]}: returns that are not finite do not count; an agent that learns from a '
                    'replay may learn from such rewards as from 0. Correct the environment')
    before, self._unread = self._unread, _Unread(update, self._publisher.version + 1, on_host, episodes, self._frames)
    try:
      if self._member:
        self._member.learned(self._frames, episodes.level_ids, episodes.returns)  # This may replace the parameters.
      self._publisher.publish()
    finally:  # A checkpoint counts the frames of these updates in any case, so their episodes must not be lost.
      self._read(before)
    if self._config.synchronous:
      self._read_results()

  def _read_results(self):
    """Waits for the last update, and reads its results if that has not been done.

    If the results were read at once, a GPU would then wait for Python. So they are read when the next update has begun,
    or when they are needed.
    """
    unread, self._unread = self._unread, None
    self._read(unread)

  def _read(self, unread):
    if not unread:
      return
    with self._end.updating():
      metrics = self.learner.read(unread.update.metrics)
    for batch, feedback in zip(unread.batches, unread.update.feedback, strict=True):
      self._experience.update(batch.sample, feedback)
    self._log.add(unread.frames, metrics, unread.episodes)
    self._skipped.add(self.learner, unread.number, metrics, unread.batches)

  def _write_row(self):
    self._read_results()
    counts = {'learner_steps': int(self.learner.update_steps.numpy()),
              'skipped_updates': int(self.learner.skipped_updates.numpy()), 'memory_megabytes': self._memory_megabytes}
    warnings = self._experience.warnings()
    of_port, restarts = {}, 0
    if self._port:
      of_port, restarts = self._port.metrics(), self._port.environment_restarts
      warnings.append(self._port.warning())
    for warning in filter(None, warnings):
      self._log.say(warning)
    self._log.write(self._frames, counts, of_port, self._experience.metrics(),
                    present=self._member.metrics() if self._member else {}, other_restarts=restarts)

    if self._evaluations:
      self._log_evaluations(self._evaluations)
      if not self._saver.is_writing:
        self._saved_frames = self._saving_frames
      self._evaluations.begin_if_due(self._saved_frames)

  def _log_evaluations(self, evaluations):
    for row in evaluations.results():
      self._log.add_evaluation(row)

  def _finish_evaluations(self):
    """Waits for the evaluation of the last checkpoint if the run is complete, until a signal. Else ends it."""
    if not self._evaluations:
      return
    if self._has_finished() and not self._error:
      self._evaluations.finish(self._frames, lambda: self._end.signals.count > 0)
    self._evaluations.close()
    self._log_evaluations(self._evaluations)

  def _write_last_row(self):
    """Writes a row if there were updates since the last one. metrics.jsonl must reach as far as each checkpoint."""
    self._read_results()
    if self._log.has_unwritten_updates:
      self._write_row()
    self._log.sync()
