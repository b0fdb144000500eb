"""Measures the cost of unrolls and parameters between a learner and actor hosts, and how many hosts it can serve.

  scalable-agents cluster_scaling

One process sends unrolls to another through the cluster's own code (cluster/remote_learner.py), over loopback and
without learning. The program measures the size of an unroll and the CPU time that it costs the receiving process. From
these it computes the rate, and the number of actors, at which the learner's cores or network are fully used. Then many
hosts fetch parameters from one learner: in float32, in bfloat16, and through relays. The hosts have no environments,
and eight of them share a process; each relay has a process of its own. The program measures what the learner sends and
its CPU time, and computes how many hosts fill its network, their unrolls included. At last the hosts fetch from two
learners: all parameters from one of them, or half of the parameters from each. The last line of the output is a JSON
object with all numbers.
"""

from scalable_agents.processes import quiet

if __name__ == '__main__':
  quiet.start()  # Before TensorFlow is imported.

from collections.abc import Mapping
from concurrent import futures
import dataclasses
import json
import multiprocessing
import random
import re
import signal
import sys
import threading
import time
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from scalable_agents.actor import parameters as parameters_lib
from scalable_agents.benchmark import training_rate
from scalable_agents.cluster import cluster_config
from scalable_agents.cluster import learner_port
from scalable_agents.cluster import relay
from scalable_agents.cluster import remote_learner
from scalable_agents.learner import queue as unroll_queue
from scalable_agents.processes import free_ports
from scalable_agents.processes import parent_death
from scalable_agents.processes import ports
from scalable_agents.processes import run_flags
from scalable_agents.records import errors
from scalable_agents.records import settings
from scalable_agents.records.settings import setting

# Agent steps per unroll, and the shape of its pixels. Of Atari's stacks, it has each frame once.
_KINDS = {'Atari': (20, (24, 84, 84, 1)), 'DMLab-30': (100, (101, 72, 96, 3))}
_FRAMES_PER_STEP = 4
_PAPER_FRAMES_PER_SECOND = 250_000  # Espeholt et al. 2018 (IMPALA), table 1: 500 CPUs, one learner.
_PARAMETERS = [tf.TensorSpec([1_600, 1_000])]  # About the number of parameters of the deep network.
_ENVIRONMENTS = (1, 4, 32)  # Numbers of environments of a host for which capacities are computed.
_UPDATE_SECONDS = 0.05      # The paper's fastest learner makes 15.6 updates per second: 200,000 frames, batches of 32.
_FETCH_SECONDS = 4.         # Seconds between two fetches of a host. Faster ones would fill a small machine's cores.
_HOSTS_PER_PROCESS = 8
_LEARNERS = 2               # Of the last measurement.
_QUEUE_SIZE, _BATCH_SIZE = 1, 32
_WARM_UP_SECONDS = 2.
_PATIENCE_SECONDS = 60.


@dataclasses.dataclass(frozen=True)
class ClusterScalingConfig:
  """The flags."""

  seconds: float = setting(10., 'Seconds for which each kind of unroll is sent.', at_least=1,
                           at_most=training_rate.MAX_SECONDS)
  cores: int = setting(16, "Number of the learner machine's cores that only receive unrolls.", at_least=1,
                       at_most=65_536)
  gigabits_per_second: float = setting(10., "Speed of the learner machine's network.", at_least=0.1,
                                       at_most=1_000_000)
  actor_frames_per_second: float = setting(
      500., 'Environment frames per second of one actor, which is a core with one environment.', at_least=1,
      at_most=1_000_000_000)
  hosts: int = setting(64, 'Number of hosts that fetch parameters.', at_least=2, at_most=1_000)
  relays: int = setting(8, 'How many of them are relays in one of the measurements.', at_least=1, at_most=1_000)


def validate(config: ClusterScalingConfig):
  """Raises ValueError with one line: the flag, its value and the allowed values."""
  settings.check(config)
  if config.relays > config.hosts:
    raise ValueError(f'--relays={config.relays}: want at most --hosts={config.hosts}')


class _Unroll(NamedTuple):
  """The parts of an unroll that determine its size."""
  actor_id: Any  # [] int32.
  pixels: Any    # [frames, H, W, C] uint8.


class Cost(NamedTuple):
  """The measured cost of one kind of unroll."""
  unrolls_per_second: float
  bytes: int          # Bytes per unroll.
  cpu_seconds: float  # CPU seconds per unroll in the learner's process.


def _spec(kind):
  _, pixels = _KINDS[kind]
  return _Unroll(tf.TensorSpec([], tf.int32), tf.TensorSpec(pixels, tf.uint8))


def _num_bytes(specs):
  return sum(int(np.prod(spec.shape)) * spec.dtype.size for spec in specs)


def _send(kind, address):
  """Sends unrolls until the process is killed."""
  _begin()
  pixels = np.random.default_rng(0).integers(256, size=_spec(kind).pixels.shape, dtype=np.uint8)
  report = learner_port.Report(cluster_config.MAX_HOSTS - 1, 'sender', 0., 0., 0, 0, 0)
  learner = remote_learner.RemoteLearner(
      address, 0, {}, _spec(kind), _PARAMETERS, _QUEUE_SIZE, lambda: False, lambda totals: report, print, lambda: None)
  learner.start()

  @tf.function(autograph=False)
  def send():
    def send_one(actor_id):  # Two actors in turn, because each uses only one of the connections.
      learner.put(_Unroll(actor_id, tf.constant(pixels)))
      return [1 - actor_id]
    tf.while_loop(lambda actor_id: True, send_one, [0], parallel_iterations=1)
  if not learner.wait_for_parameters(_PATIENCE_SECONDS):
    raise errors.UserError('the learner sent no parameters')
  send()


def _receive(kind, address, seconds):
  """Receives unrolls for this number of seconds. Returns a Cost."""
  tf.config.threading.set_intra_op_parallelism_threads(1)
  port = learner_port.LearnerPort(cluster_config.ClusterConfig('learner', address), {})
  parameters = parameters_lib.ParameterSnapshot(_PARAMETERS, shared_name=learner_port.PARAMETERS)
  parameters.publish(0, [tf.zeros(spec.shape) for spec in _PARAMETERS])
  queue = unroll_queue.UnrollQueue(_spec(kind), _QUEUE_SIZE, _Unroll(False, True), learner_port.UNROLLS)
  port.offer(_spec(kind), _PARAMETERS)
  take = tf.function(lambda: queue.take_batch(_BATCH_SIZE), autograph=False)
  take()
  end_of_warm_up, unrolls = time.monotonic() + _WARM_UP_SECONDS, 0
  while time.monotonic() < end_of_warm_up:
    take()
  began, cpu = time.monotonic(), time.process_time()
  while (passed := time.monotonic() - began) < seconds:
    take()
    unrolls += _BATCH_SIZE
  return Cost(unrolls / passed, _num_bytes(_spec(kind)), (time.process_time() - cpu) / unrolls)


class ParameterCost(NamedTuple):
  """The measured cost of parameters that a learner publishes for some hosts."""
  bytes: int               # Bytes of the parameters.
  sent_per_second: float   # Bytes per second that the learner sends.
  cpu_per_second: float    # CPU seconds per second in the learner's process, publishing included.


def _serve_parameters(address, parameters, precision, hosts, seconds):
  """Publishes parameters, once all hosts have come, for this number of seconds. Returns a ParameterCost."""
  port = learner_port.LearnerPort(cluster_config.ClusterConfig('learner', address), {})
  specs = parameters_lib.sent_specs(parameters, precision)
  snapshot = parameters_lib.ParameterSnapshot(specs, shared_name=learner_port.PARAMETERS)
  values, types = [tf.random.normal(spec.shape) for spec in parameters], tuple(spec.dtype for spec in specs)
  version = 0

  def publish_for(seconds):
    nonlocal version
    end = time.monotonic() + seconds
    while time.monotonic() < end:
      version += 1
      snapshot.publish(version, parameters_lib.cast(values, types))
      time.sleep(_UPDATE_SECONDS)

  publish_for(_UPDATE_SECONDS)
  port.offer(_spec('Atari'), parameters)
  patience = time.monotonic() + _PATIENCE_SECONDS
  while (there := port.metrics()['actor_hosts']) < hosts:
    if time.monotonic() > patience:
      raise errors.UserError(f'only {there} of {hosts} hosts have come: choose fewer --hosts')
    publish_for(1.)
  publish_for(2 * ports.BEAT_SECONDS)  # Afterwards, reports have rates without the start.
  began, cpu = time.monotonic(), time.process_time()
  publish_for(seconds)
  cpu_per_second = (time.process_time() - cpu) / (time.monotonic() - began)
  return ParameterCost(_num_bytes(specs), sent_per_second(port.metrics()), cpu_per_second)


def sent_per_second(metrics: Mapping[str, Any]) -> float:
  """Returns the bytes per second that hosts fetch from the learner itself, not from a relay, given its metrics."""
  return 1e6 * sum(value for name, value in metrics.items() if re.match('actor/direct_.*/megabytes', name))


def _fetch(addresses, parameters, numbers, precision, parameters_from, relay_port):
  """Runs hosts with these numbers that fetch parameters, from each address, until the process is killed."""
  _begin()
  served = relay.RelayPort(relay_port) if relay_port else None
  for number in numbers:
    for address in addresses:
      host = _Host(number, 'relayed' if parameters_from else 'direct')
      remote_learner.RemoteLearner(
          address, 0, {}, _spec('Atari'), parameters, _QUEUE_SIZE, host.is_due, host.report, print, lambda: None,
          parameter_precision=precision, relay_port=served, parameters_from=parameters_from).start()
  threading.Event().wait()


class _Host:
  """The part of a host that a RemoteLearner needs."""

  def __init__(self, number, kind):
    self._number, self._name = number, f'{kind}_{number}'
    # Hosts do not fetch at the same time, but each fetches from all its learners at once.
    self._due_at = time.monotonic() + random.Random(number).uniform(0, _FETCH_SECONDS)
    self._reported = time.monotonic(), 0

  def is_due(self):
    if time.monotonic() < self._due_at:
      return False
    self._due_at += _FETCH_SECONDS
    return True

  def report(self, totals):
    now, (then, bytes_then) = time.monotonic(), self._reported
    self._reported = now, totals.bytes
    rate = (totals.bytes - bytes_then) / max(now - then, 1e-9)
    return learner_port.Report(self._number, self._name, 0., rate, 0, totals.reconnects, totals.lost_unrolls)


def measure_parameters(hosts: int, relays: int, precision: str, seconds: float) -> ParameterCost:
  """Measures what parameters cost a learner, with hosts in processes that end with this process.

  Args:
    hosts: number of hosts.
    relays: how many of them are relays; 0 for none. The others are behind these, in turn.
    precision: see parameters.sent_specs.
    seconds: seconds to measure.
  """
  learner, *relay_ports = free_ports.find(1 + relays)
  addresses = [f'localhost:{learner}']
  fetches = [(addresses, _PARAMETERS, range(number, number + 1), precision, '', port)
             for number, port in enumerate(relay_ports)]
  for index, numbers in enumerate(_groups(range(relays, hosts))):
    source = f'localhost:{relay_ports[index % relays]}' if relays else ''
    fetches.append((addresses, _PARAMETERS, numbers, precision, source, 0))
  cost, = _measure_parameters([(addresses[0], _PARAMETERS, precision, hosts, seconds)], fetches)
  return cost


def measure_learners(hosts: int, learners: int, in_pieces: bool, seconds: float) -> list[ParameterCost]:
  """Measures what float32 parameters cost each of several learners, which have no other contact with each other.

  Args:
    hosts: number of hosts.
    learners: number of learners.
    in_pieces: whether each host fetches an equal part of the parameters from each learner. Otherwise it fetches all
      parameters from one learner, which is one of the learners in turn.
    seconds: seconds to measure.
  """
  addresses = [f'localhost:{port}' for port in free_ports.find(learners)]
  if in_pieces:
    pieces = [tf.TensorSpec([spec.shape[0] // learners, *spec.shape[1:]]) for spec in _PARAMETERS]
    servers = [(address, pieces, 'float32', hosts, seconds) for address in addresses]
    fetches = [(addresses, pieces, numbers, 'float32', '', 0) for numbers in _groups(range(hosts))]
  else:
    servers = [(address, _PARAMETERS, 'float32', hosts // learners, seconds) for address in addresses]
    fetches = [([address], _PARAMETERS, numbers, 'float32', '', 0) for index, address in enumerate(addresses)
               for numbers in _groups(range(index, hosts, learners))]
  return _measure_parameters(servers, fetches)


def _groups(numbers):
  """Splits the numbers of hosts into those of one process each."""
  return [numbers[first:first + _HOSTS_PER_PROCESS] for first in range(0, len(numbers), _HOSTS_PER_PROCESS)]


def _measure_parameters(servers, fetches):
  """Runs a learner and a process with hosts for each tuple of arguments. Returns the cost of each learner."""
  context = multiprocessing.get_context('forkserver')  # Importing TensorFlow for each process would take a minute.
  context.set_forkserver_preload(['scalable_agents.tools.cluster_scaling'])
  fetchers = [context.Process(target=_fetch, args=arguments, daemon=True) for arguments in fetches]
  with futures.ProcessPoolExecutor(len(servers), context, _begin) as pool:
    costs = [pool.submit(_serve_parameters, *arguments) for arguments in servers]
    try:
      for fetcher in fetchers:
        fetcher.start()
      return [cost.result() for cost in costs]
    finally:
      for fetcher in fetchers:
        fetcher.kill()
        fetcher.join()


def _begin():
  """Prepares a measuring process."""
  parent_death.signal_at_parents_end(signal.SIGKILL)
  signal.signal(signal.SIGINT, signal.SIG_DFL)  # At Ctrl-C, it ends without a traceback.
  sys.stderr = sys.stdout  # quiet.start has redirected descriptor 2. An error of this process must be on the screen.


def measure(kind: str, seconds: float) -> Cost:
  """Measures one kind of unroll with a sending and a receiving process, which end with this process.

  Args:
    kind: the kind of unroll: Atari or DMLab-30.
    seconds: seconds to measure.
  Raises:
    errors.UserError: the sending process has ended.
  """
  address = f'localhost:{free_ports.find(1)[0]}'
  context = multiprocessing.get_context('spawn')
  sender = context.Process(target=_send, args=(kind, address), daemon=True)
  with futures.ProcessPoolExecutor(1, context, _begin) as pool:
    cost = pool.submit(_receive, kind, address, seconds)
    sender.start()
    try:
      while not futures.wait([cost], timeout=1.).done:
        if not sender.is_alive():
          raise errors.UserError(f'the sending process ended with exit code {sender.exitcode}')
      return cost.result()
    finally:
      for process in multiprocessing.active_children():  # Without a sender, the receiver would wait for ever.
        process.kill()
      sender.join()


def memory_bandwidth() -> float:
  """Returns the bytes per second that one core copies in memory, for comparison with the transport."""
  source = np.ones(64_000_000, np.uint8)
  target = np.empty_like(source)
  best = np.inf
  for _ in range(5):
    began = time.monotonic()
    np.copyto(target, source)
    best = min(best, time.monotonic() - began)
  return source.nbytes / best


def limits(cost: Cost, steps: int, cores: int, gigabits_per_second: float) -> tuple[float, float]:
  """Returns the environment frames per second at which the learner's cores, and its network, are fully used.

  Args:
    cost: the cost of an unroll.
    steps: agent steps per unroll.
    cores: number of cores that only receive unrolls.
    gigabits_per_second: speed of the network.
  """
  frames = steps * _FRAMES_PER_STEP
  return frames * cores / cost.cpu_seconds, frames * gigabits_per_second * 1e9 / 8 / cost.bytes


def most_hosts(unroll_bytes: int, parameter_bytes: float, environments: int, unrolls_per_second: float,
               gigabits_per_second: float) -> tuple[float, float]:
  """Returns the numbers of hosts whose unrolls fill a network into the learner, and whose parameters the way back.

  Args:
    unroll_bytes: bytes of an unroll.
    parameter_bytes: bytes that the learner sends for a fetch of one host. With relays, that is a part of a fetch.
    environments: environments of a host.
    unrolls_per_second: unrolls of an environment, and fetches of a host.
    gigabits_per_second: speed of the network in each direction.
  """
  bytes_per_second = gigabits_per_second * 1e9 / 8
  return (bytes_per_second / (unroll_bytes * environments * unrolls_per_second),
          bytes_per_second / (parameter_bytes * unrolls_per_second))


def main():
  """Measures unrolls and parameters, and prints the limits."""
  config = run_flags.config_from_flags(ClusterScalingConfig, validate)
  copied = memory_bandwidth()
  print(f'one core copies {copied * 1e-9:.1f} GB/s of memory')
  results: dict[str, Any] = {'memory_bytes_per_second': copied}
  for kind, (steps, _) in _KINDS.items():
    cost = measure(kind, config.seconds)
    rate = cost.unrolls_per_second * cost.bytes
    by_cores, by_network = limits(cost, steps, config.cores, config.gigabits_per_second)
    print(f'{kind}: unrolls of {cost.bytes * 1e-6:.2f} MB at {rate * 1e-9:.2f} GB/s ({rate / copied:.0%} of a copy), '
          f'{1e3 * cost.cpu_seconds:.2f} ms of CPU time each')
    for what, frames in ((f'{config.cores} cores', by_cores),
                         (f'{config.gigabits_per_second:g} Gbit/s', by_network)):
      print(f'  {what} are fully used at {frames:,.0f} frames/s: {frames / config.actor_frames_per_second:,.0f} actors '
            f'of {config.actor_frames_per_second:,.0f} frames/s, '
            f'{frames / _PAPER_FRAMES_PER_SECOND:.2f} times the 250,000 of the paper')
    results[kind] = cost._asdict() | {'frames_per_second_cores': by_cores, 'frames_per_second_network': by_network}
  steps, _ = _KINDS['DMLab-30']
  unrolls = config.actor_frames_per_second / (steps * _FRAMES_PER_STEP)
  for precision, relays in (('float32', 0), ('bfloat16', 0), ('bfloat16', config.relays)):
    its = measure_parameters(config.hosts, relays, precision, config.seconds)
    share = relays / config.hosts if relays else 1.
    print(f'{config.hosts} hosts, {relays} of them relays, fetch {its.bytes * 1e-6:.2f} MB ({precision}) every '
          f'{_FETCH_SECONDS:g} s: the learner sends {its.sent_per_second * 1e-6:.1f} MB/s and uses '
          f'{1e3 * its.cpu_per_second:.0f} ms of CPU time per second')
    print(f'  once per unroll of {steps} steps: {its.bytes * unrolls * 1e-6:.2f} MB/s per host')
    for environments in _ENVIRONMENTS:
      there, back = most_hosts(results['DMLab-30']['bytes'], its.bytes * share, environments, unrolls,
                               config.gigabits_per_second)
      print(f'  with {environments} environments per host, the unrolls of {there:,.0f} hosts, or the parameters for '
            f'{back:,.0f} hosts, fill {config.gigabits_per_second:g} Gbit/s')
    results[f'parameters, {precision}, {relays} relays'] = its._asdict()
  for in_pieces in (False, True):
    costs = measure_learners(config.hosts, _LEARNERS, in_pieces, config.seconds)
    print(f'{config.hosts} hosts of {_LEARNERS} learners, each of which sends '
          f'{"half of the parameters to all of them" if in_pieces else "all parameters to half of them"}: a learner '
          f'sends {np.mean([its.sent_per_second for its in costs]) * 1e-6:.1f} MB/s and uses '
          f'{1e3 * np.mean([its.cpu_per_second for its in costs]):.0f} ms of CPU time per second')
    results[f'{_LEARNERS} learners, {"in pieces" if in_pieces else "whole"}'] = [its._asdict() for its in costs]
  print(json.dumps(results))


if __name__ == '__main__':
  run_flags.define(ClusterScalingConfig())
  run_flags.run_main(main)
