"""Training: puts actors, experience, learner and run directory together, and keeps them going.

Threads: the main thread only waits for the end, so that Ctrl-C is always heard. The learner's thread updates and logs.
A third thread collects the next batch meanwhile (collector.py), a fourth writes checkpoints (records/checkpoint.py),
and a fifth asks now and then how much memory is in use. Acting has its own threads (actor/actor_host.py), which run
graphs.
"""

import contextlib
import threading
import time
from typing import Any, Callable, Sequence, TextIO

import tensorflow as tf

from scalable_agents.actor import actor_host
from scalable_agents.actor import environment_workers
from scalable_agents.actor import inference
from scalable_agents.records import checkpoint
from scalable_agents.records import errors
from scalable_agents.records import run_directory
from scalable_agents.records import run_rows
from scalable_agents.training import agent_interface
from scalable_agents.training import collector as collector_lib
from scalable_agents.training import intake as intake_lib
from scalable_agents.training import kernels
from scalable_agents.training import memory
from scalable_agents.training import publisher as publisher_lib
from scalable_agents.training import quiet
from scalable_agents.training import run_log
from scalable_agents.training import skipped_updates
from scalable_agents.training import stop_signals
from scalable_agents.training import unroll_check
from scalable_agents.training.cluster import learner_port
from scalable_agents.training.cluster import learners_together

_MEMORY_INTERVAL_SECONDS = 10.
_SIGNAL_CHECK_SECONDS = 0.2
_LONGEST_SILENCE_SECONDS = 10.  # If no batch comes for so long, a row says so.
_UPDATE_PATIENCE_SECONDS = 3.   # How long Ctrl-C waits for the update under way.
_AGREEMENT_SECONDS = 60.        # How long it waits for all learners to agree to leave, which they do in an update.
_WAITING_WORD_SECONDS = 30.     # An update waits so long for other learners before the user is told.


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

  def __init__(self, host: actor_host.ActorHost, agent: agent_interface.AgentModule, config: agent_interface.Config,
               levels: Sequence[str], run, directory: run_directory.Run, stream: TextIO,
               learner_device: str | None = None, make_member: Callable[..., Any] | None = None,
               port: learner_port.LearnerPort | None = None, strategy: tf.distribute.Strategy | None = None):
    """Builds everything and restores the latest checkpoint.

    Args:
      host: running environments.
      agent: the agent's module.
      config: the agent's hyper-parameters.
      levels: names of the levels played.
      run: run_flags.RunConfig.
      directory: the run directory, which the caller has opened.
      stream: where progress is shown.
      learner_device: None for the first GPU, or the CPU without one.
      make_member: called with the learner and a function that shows the user a line; returns a
        population_member.Member. None if the run is no member of a population.
      port: where actors in other processes may take part; None if there are none.
      strategy: of several learners.
    Raises:
      run_directory.RunDirectoryError: the checkpoint or the metrics are damaged or missing, or cannot be written.
      errors.UserError: the agent cannot be made for these environments, or the machine has too little memory.
    """
    self._host, self._config, self._run, self._directory, self._port = host, config, run, directory, port
    device = learner_device or actor_host.inference_device()
    self._together = learners_together.LearnersTogether(strategy, device)
    if port:
      self._together.compare(port.settings)
    make_agent = agent_interface.agent_maker(agent, host, levels, config)
    self.learner = self._make_learner(agent, make_agent, levels, device)
    host.make_pool(make_agent, config.unroll_length, config.queue_size, lambda line: self._log.report_fault(line),
                   config.synchronous)
    memory.check(host.pool.unroll_spec, host.parameter_specs, config, host.num_environments,
                 len(self._together.devices))
    self._experience = agent.make_experience(self._make_intake(len(levels)), config)
    statistics = run_log.make_statistics(levels)
    self._member = make_member and make_member(self.learner, lambda text: self._log.say(text))
    self._checkpointer = self._restore(statistics)
    self._frames = int(self.learner.environment_frames.numpy())
    self._log = run_log.RunLog(directory, host, statistics, levels, self._frames, config.total_environment_frames,
                               0. if config.synchronous else run.log_interval_seconds, stream)
    if self._member:
      self._member.resume(self._frames)
    self._publisher = publisher_lib.Publisher(
        self.learner, config.policy_lag, learner_port.PARAMETERS if port else '')
    self._skipped = skipped_updates.SkippedUpdates(
        levels, port.actor_name if port else 'actor {}'.format, self._log.say, self._together.have_peers)
    self._memory_megabytes = host.memory_megabytes()
    self._signals, self._all_leave = stop_signals.StopSignals(), False
    self._update_began, self._told_of_waiting = None, 0.
    self._stop, self._error = threading.Event(), None

  def _make_learner(self, agent, make_agent, levels, device):
    with self._together.scope():
      try:
        learning_agent = make_agent()
      except ValueError as error:
        raise errors.UserError(f'{", ".join(levels)}: {error}') from error
      return agent.make_learner(learning_agent, self._config, self._run.xla, device)

  def _restore(self, statistics):
    """Restores the latest checkpoint, or saves the first one. Returns the Checkpointer."""
    member = {'member': self._member} if self._member else {}
    checkpointer = checkpoint.Checkpointer(
        self._checkpoints, beside=self._experience, learner=self.learner, statistics=statistics, **member)
    if not checkpointer.restore():
      if run_rows.last_metrics(self._directory.path):
        raise run_directory.RunDirectoryError(
            f'{self._directory.logdir} has metrics of a run and no checkpoint to go on from: put '
            f'{run_directory.CHECKPOINTS} back, or choose another --logdir')
      checkpointer.save()
    self._together.share(self.learner.variables)
    return checkpointer

  @property
  def _checkpoints(self):
    return run_directory.path(self._directory.path, run_directory.CHECKPOINTS)

  def _make_intake(self, num_levels):
    specification, port = self._host.specification, self._port
    if not port:  # What comes from this process's own environments is right.
      return intake_lib.Intake(self._host.pool.unroll_spec, self._config.queue_size, specification.frames_per_step)
    return intake_lib.Intake(
        self._host.pool.unroll_spec, self._config.queue_size, specification.frames_per_step,
        lambda batch: unroll_check.are_possible(batch, num_levels, specification.num_actions),
        lives_may_have_begun=checkpoint.latest(self._checkpoints) is not None, shared_name=learner_port.UNROLLS, actor_name=port.actor_name)

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
    self._signals.install()
    self._publisher.publish()
    if self._port:
      self._port.offer(self._host.pool.unroll_spec, self._host.parameter_specs)
    self._host.start(self._publisher.parameters, self._experience.put, self._stop.set)
    learner = threading.Thread(target=self._run_learner, name='learner', daemon=True)
    learner.start()
    threading.Thread(target=self._watch_memory, name='memory', daemon=True).start()
    self._wait_for_the_end()
    is_the_end = self._port is not None and self._is_well()  # Else it may come back, and the actors wait for it.
    self._host.pool.close()
    if is_the_end:
      self._port.announce_end()
    self._experience.close()
    learner.join(_UPDATE_PATIENCE_SECONDS if self._signals.count else None)
    self._host.close()
    if learner.is_alive():  # What a checkpoint would hold is not certain.
      self._log.close_progress()
      self._log.say('left amid an update, the same command goes on from the last checkpoint')
      if is_the_end:
        self._port.wait_for_farewells()
      quiet.leave(0)
    try:
      self._leave()
    finally:
      with contextlib.suppress(checkpoint.CheckpointError):  # Another error has ended the run, or `save` has raised it.
        self._checkpointer.close()
      self._log.close()
      if is_the_end:
        self._port.wait_for_farewells()

  def _wait_for_the_end(self):
    while not self._stop.wait(_SIGNAL_CHECK_SECONDS) and not self._signals.count:
      self._tell_of_waiting()
    if self._together.have_peers and not self._stop.wait(_UPDATE_PATIENCE_SECONDS):
      self._await_agreement()
    self._stop.set()

  def _await_agreement(self):
    """After a signal: waits until all learners have heard of it, as far as it can."""
    self._log.say('the learners leave together, with their next update; a second signal: without the others')
    deadline = time.monotonic() + _AGREEMENT_SECONDS
    while not self._stop.wait(_SIGNAL_CHECK_SECONDS) and self._signals.count < 2 and time.monotonic() < deadline:
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
    """Saves, if that makes sense, and raises what has ended the training before its time."""
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
    self._prepare_to_save()
    self._checkpointer.save()
    self._log.finish_curve()
    self._log.close_progress()
    self._log.say(f'{self._frames:,} frames trained, ' + (
        f'see {self._directory.logdir}' if self._has_finished() else 'the same command goes on from there'))
    if isinstance(failure, environment_workers.WorkerError):
      raise errors.UserError(str(failure)) from failure
    if failure or self._error:
      raise failure or self._error

  def _has_finished(self):
    return self._frames >= self._config.total_environment_frames

  def _tell_of_waiting(self):
    """Says now and then that an update waits for other learners, who may have no actors."""
    began, now = self._update_began, time.monotonic()
    if self._together.have_peers and began and now - max(began, self._told_of_waiting) > _WAITING_WORD_SECONDS:
      self._told_of_waiting = now
      self._log.say(f'an update has been going on for {now - began:.0f} s: do all learners get unrolls?')

  def _watch_memory(self):
    """Keeps the figure up to date, in a thread of its own: to ask for that of many workers takes long."""
    while not self._stop.wait(_MEMORY_INTERVAL_SECONDS):
      self._memory_megabytes = self._host.memory_megabytes()

  def _run_learner(self):
    with collector_lib.Collector(self._experience, self._together.devices, self._host.pool,
                                 self._host.num_environments, self._config.synchronous) as collector:
      try:
        self._learn(collector)
      except (tf.errors.OutOfRangeError, tf.errors.CancelledError):
        pass  # The experience was closed.
      except Exception as error:  # pylint: disable=broad-except; raised by `train`.
        self._error = error
      self._stop.set()  # The main thread closes the experience, which ends the collector's wait.

  def _learn(self, collector):
    self._log.begin(self._frames)
    last_save = None
    while not self._stop.is_set() and not self._all_leave and not self._has_finished():
      self._await(collector)
      self._update(collector.take())
      collector.resume()
      if last_save is None:  # The update was traced and compiled: its time is no measure of speed.
        self._log.begin(self._frames)
        last_save = time.monotonic()
      if self._log.is_due:
        self._write_row()
      self._checkpointer.check()
      if time.monotonic() - last_save >= self._run.checkpoint_interval_seconds and not self._checkpointer.is_writing:
        last_save = time.monotonic()
        self._prepare_to_save()
        self._checkpointer.begin_save()
      self._log.draw_curve_now_and_then()

  def _await(self, collector):
    """Waits for the next batches; meanwhile rows say that there are none."""
    while True:
      self._directory.check_in_place()  # Before every update, so that nothing is learned or written in vain.
      silence = None if self._config.synchronous else max(_LONGEST_SILENCE_SECONDS - self._log.age(), 0.)
      with self._log.waiting():
        if collector.wait(silence):
          return
      self._write_row()
      self._together.check()

  def _update(self, collected):
    batches, arrived = zip(*collected)
    if self._port:
      self._port.learned(int(self.learner.update_steps.numpy()), [batch.unroll for batch in batches])
    self._update_began = time.monotonic()
    update = self._together.step(self.learner, batches, arrived, self._signals.count > 0)
    self._update_began = None
    self._all_leave = update.leaving
    self._frames += update.environment_frames
    for batch, feedback in zip(batches, update.feedback):
      self._experience.update(batch.sample, feedback)
    episodes = intake_lib.finite(update.episodes)
    if self._member:
      self._member.learned(self._frames, episodes.level_ids, episodes.returns)  # Perhaps it has other parameters now.
    self._publisher.publish()
    self._log.add(self._frames, update.metrics, episodes)
    self._skipped.add(self.learner, update.metrics, batches)

  def _write_row(self):
    more = {'learner_steps': int(self.learner.update_steps.numpy()),
            'skipped_updates': int(self.learner.skipped_updates.numpy()), 'memory_megabytes': self._memory_megabytes}
    complaints = self._experience.complaints()
    if self._member:
      more |= self._member.metrics()
    if self._port:
      more |= self._port.metrics() | {'environment_restarts': self._port.environment_restarts}
      complaints.append(self._port.complaint())
    for complaint in filter(None, complaints):
      self._log.say(complaint)
    self._log.write(self._frames, more | self._experience.metrics())

  def _prepare_to_save(self):
    self._directory.check_in_place()
    if self._log.has_news:
      self._write_row()  # So that metrics.jsonl reaches as far as the checkpoint.
