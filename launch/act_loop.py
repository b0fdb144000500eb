"""The main loop of an actor host: it acts for a learner in another process until the run ends.

The main thread only waits for the end, so that it always reacts to Ctrl-C. Other threads act (actor/actor_host.py) and
keep contact with the learner (remote_learner.py).
"""

import signal
import threading
import time
from typing import Any, TextIO

from scalable_agents.actor import actor_host
from scalable_agents.actor import environment_workers
from scalable_agents.actor import inference
from scalable_agents.cluster import cluster_config
from scalable_agents.cluster import learner_port
from scalable_agents.cluster import relay
from scalable_agents.cluster import remote_learner
from scalable_agents.experience import memory
from scalable_agents.processes import devices
from scalable_agents.processes import stop_signals
from scalable_agents.records import errors
from scalable_agents.records import progress as progress_lib
from scalable_agents.training import definition

_SIGNAL_CHECK_SECONDS = 0.2


class ActLoop:
  """The main loop of one actor host of a cluster."""

  def __init__(self, host: actor_host.ActorHost, job: definition.Job, settings: dict[str, Any], number: int,
               stream: TextIO, relay_port: relay.RelayPort | None = None):
    """Makes the actor pool and the connection to the learner. `act` starts them.

    Args:
      host: the host of the environments. They run already.
      job: the run; its `cluster` is this process's part in the cluster.
      settings: the settings that this process must share with the learner.
      number: this host's number, from cluster_config.host_number.
      stream: where to show progress.
      relay_port: serves the parameters to other actor hosts. None: this host is no relay.
    Raises:
      errors.UserError: the agent cannot play these levels, or the memory does not suffice.
    """
    config, membership = job.config, job.cluster
    self._host = host
    self._run = job.run
    self._number = number
    self._name = cluster_config.host_name(membership.task, number)
    self._line = progress_lib.Line(0, 0, '{desc}', stream)
    self._line.message(devices.describe(acts=host.device))
    with errors.of_user(ValueError, prefix='--level_name: '):
      # Messages contain the whole fault, since an actor host has no log file.
      host.make_pool(job.agent.maker(host, job.levels, config), config.unroll_length,
                     config.queue_size, self._line.message, **job.agent.sending(config))
    memory.check(host.pool.unroll_spec, host.unroll_spec, host.parameter_specs, config, host.num_environments,
                 num_learners=0, held=host.held)
    refresh_steps, addresses = job.refresh_steps(), membership.addresses
    task = number % len(addresses)  # Learners have the first numbers, so tasks 0, 1, ... take the learners in turn.
    self._stop = threading.Event()
    self._signals = stop_signals.StopSignals()
    self._last_report: learner_port.Report | None = None
    self._reported = time.monotonic(), remote_learner.Totals(0, 0, 0, 0), 0  # Time, totals, steps at the last report.
    self._learner = remote_learner.RemoteLearner(
        addresses[task], task, settings, host.unroll_spec, host.parameter_specs, config.queue_size,
        lambda: host.refresh_is_due(refresh_steps), self._report, self._line.message, self._stop.set, host.device,
        membership.parameter_precision, relay_port, membership.parameters_from,
        # Gradients would become stale while they wait for others to be sent.
        largest_push=1 if job.agent.work else None)

  def act(self) -> int:
    """Acts until the learner's run ends, or until SIGINT, SIGTERM or SIGHUP.

    Returns:
      The exit code: 143 after SIGTERM during the run, so that what runs this host starts it again, else 0.
    Raises:
      errors.UserError: the learner refuses this host, the environments keep failing, or the policy cannot act.
    """
    self._signals.install()
    self._learner.start()
    try:
      while not self._is_over() and not self._learner.wait_for_parameters(_SIGNAL_CHECK_SECONDS):
        pass
      if not self._is_over():
        self._host.start(self._learner.parameters, self._learner.put, self._stop.set)
      shown = time.monotonic()
      while not self._is_over():
        self._stop.wait(_SIGNAL_CHECK_SECONDS)
        if time.monotonic() - shown >= self._run.log_interval_seconds:
          shown = time.monotonic()
          if self._last_report:
            self._show(self._last_report)
    finally:
      has_ended = self._stop.is_set()  # Closing the pool sets it, too.
      self._host.pool.close()
      self._learner.close()
      self._host.close()
      self._line.close()
    self._raise_what_went_wrong()
    self._line.message('stopped' if self._signals.count else 'the learner has ended the run')
    return 128 + signal.SIGTERM if self._signals.last == signal.SIGTERM and not has_ended else 0

  def _raise_what_went_wrong(self):
    with errors.of_user(environment_workers.WorkerError, inference.PolicyError):
      self._learner.check()
      self._host.check()

  def _is_over(self):
    return self._stop.is_set() or self._signals.count > 0

  def _report(self, totals):
    """Returns the report for the learner. Its rates are means since the last report."""
    now, steps = time.monotonic(), self._host.pool.statistics().steps
    then, totals_then, steps_then = self._reported
    self._reported = now, totals, steps
    seconds = max(now - then, 1e-9)
    self._last_report = learner_port.Report(
        host=self._number, name=self._name,
        frames_per_second=(steps - steps_then) * self._host.specification.frames_per_step / seconds,
        bytes_per_second=(totals.bytes - totals_then.bytes) / seconds,
        environment_restarts=self._host.pool.restarts, reconnects=totals.reconnects, lost_unrolls=totals.lost_unrolls)
    return self._last_report

  def _show(self, report):
    totals = self._learner.totals()
    self._line.show(f'{report.frames_per_second:,.0f} frames/s, {report.bytes_per_second * 1e-6:,.1f} MB/s, '
                    f'{totals.unrolls:,} unrolls sent, {totals.reconnects} reconnects')
