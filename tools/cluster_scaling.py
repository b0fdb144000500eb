"""Measures the cost of sending unrolls to a learner, and computes how many actors a learner can serve.

  bazel run //tools:cluster_scaling

One process sends unrolls to another through the cluster's own code (cluster/remote_learner.py), over loopback
and without learning. The program measures the size of an unroll and the CPU time that it costs the receiving process.
From these it computes the rate, and the number of actors, at which the learner's cores or network are fully used. The
last line of the output is a JSON object with all numbers.
"""

from concurrent import futures
import dataclasses
import json
import multiprocessing
import signal
import time
from typing import Any, NamedTuple

from scalable_agents.processes import kernels

if __name__ == '__main__':
  kernels.choose()  # Before TensorFlow is imported.

import numpy as np
import tensorflow as tf

from scalable_agents.actor import parameters as parameters_lib
from scalable_agents.benchmark import training_rate
from scalable_agents.cluster import cluster_config
from scalable_agents.cluster import learner_port
from scalable_agents.cluster import remote_learner
from scalable_agents.learner import queue as unroll_queue
from scalable_agents.processes import free_ports
from scalable_agents.processes import parent_death
from scalable_agents.processes import run_flags
from scalable_agents.records.settings import setting

# Agent steps per unroll, and the shape of its pixels. Of Atari's stacks, it has each frame once.
_KINDS = {'Atari': (20, (24, 84, 84, 1)), 'DMLab-30': (100, (101, 72, 96, 3))}
_FRAMES_PER_STEP = 4
_PAPER_FRAMES_PER_SECOND = 250_000  # Espeholt et al. 2018 (IMPALA), table 1: 500 actors, one learner.
_PARAMETERS = [tf.TensorSpec([1_600_000])]  # About the number of parameters of the deep network.
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


def _send(kind, address):
  """Sends unrolls until the process is killed."""
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
    raise TimeoutError('the learner sent no parameters')
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
  size = sum(int(np.prod(spec.shape)) * spec.dtype.size for spec in _spec(kind))
  return Cost(unrolls / passed, size, (time.process_time() - cpu) / unrolls)


def _begin():
  parent_death.signal_at_parents_end(signal.SIGKILL)


def measure(kind: str, seconds: float) -> Cost:
  """Measures one kind of unroll with a sending and a receiving process, which end with this process."""
  address = f'localhost:{free_ports.find(1)[0]}'
  context = multiprocessing.get_context('spawn')
  sender = context.Process(target=_send, args=(kind, address), daemon=True)
  with futures.ProcessPoolExecutor(1, context, _begin) as pool:
    cost = pool.submit(_receive, kind, address, seconds)
    sender.start()
    try:
      while not futures.wait([cost], timeout=1.).done:
        if not sender.is_alive():
          raise RuntimeError(f'the sender ended with exit code {sender.exitcode}')
      return cost.result()
    finally:
      sender.kill()
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


def main():
  """Measures both kinds of unroll, and prints the limits."""
  config = run_flags.config_from_flags(ClusterScalingConfig)
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
  print(json.dumps(results))


if __name__ == '__main__':
  run_flags.define(ClusterScalingConfig())
  run_flags.run_main(main)
