"""A learner's side of a cluster: the port, what lies there for actors to use, and what actors report.

TensorFlow's own server runs inside the learner's eager runtime, so that a session of another process finds the
learner's resources by their names and works on the very same ones: it puts unrolls into the learner's queue and reads
its published parameters, and no thread of the learner's has a part in that. The other side is remote_learner.py.

The port has no authentication, on whatever interface: whoever reaches it can run any graph in the learner's process.
"""

import collections
import dataclasses
import errno
import json
import os
import secrets
import socket
import time
from typing import Any, NamedTuple
import uuid

import numpy as np
import tensorflow as tf

from scalable_agents.agents.settings import setting

JOB = 'worker'  # As tf.distribute.MultiWorkerMirroredStrategy calls the processes that learn together.
UNROLLS, PARAMETERS, REPORTS, GREETING = 'unrolls', 'parameters', 'reports', 'greeting'  # The names of what lies there.
REPORTS_CAPACITY = 1 << 16
JOBS = ('learner', 'actor')
UNROLL = 'unroll'  # A value of --parameter_refresh.
BEAT_SECONDS = 5.  # An actor host reports so often.

_FORGOTTEN_SECONDS = 4 * BEAT_SECONDS  # An actor host is thought to be gone after so long a silence.
_FAREWELL_SECONDS = 3 * BEAT_SECONDS  # At the end, so long is waited for actor hosts to have heard of it.
_FAREWELL_TICK_SECONDS = 0.05
_HOST_BITS, _ENVIRONMENT_BITS = 19, 12  # Of an actor_id, which is an int32.
MAX_HOSTS, MAX_ENVIRONMENTS = 1 << _HOST_BITS, 1 << _ENVIRONMENT_BITS


@dataclasses.dataclass(frozen=True)
class ClusterConfig:
  """What a process is in a cluster. All processes of it have all other flags in common."""

  job_name: str = setting(
      '', 'What this process does in a cluster: learner, or actor, which plays for a learner elsewhere and writes no '
      'files. Empty: all on this machine, and no port is opened.', free=True)
  learner_addresses: str = setting(
      '', 'HOST:PORT of the learner, with commas between several. A learner opens its port on all interfaces, without '
      'authentication: for private networks only.', free=True)
  task: int = setting(
      -1, 'The number of this process among those of its job, from 0. An actor without one (-1) draws one.', free=True)
  num_learners: int = setting(
      1, 'Learners in this process, each on a GPU of its own, or all on the CPU without any. They learn in step, each '
      'from --batch_size unrolls, as do those at several --learner_addresses. Section 3.')
  parameter_refresh: str = setting(
      UNROLL, 'How often an actor process fetches parameters: unroll, once per unroll as in section 3, or after so many '
      'agent steps of each environment.', free=True)


def validate(config: ClusterConfig) -> None:
  """Raises ValueError, one line with flag, value and what is allowed, for the first setting out of its range."""

  def require(allowed, name, wanted):
    if not allowed:
      raise ValueError(f'--{name}={getattr(config, name)}: want {wanted}')

  require(config.job_name in ('', *JOBS), 'job_name', 'learner or actor')
  require(bool(config.job_name) == bool(config.learner_addresses), 'learner_addresses',
          'HOST:PORT of the learner together with --job_name, and neither on a single machine')
  for address in config.learner_addresses.split(',') if config.job_name else []:
    try:
      split_address(address)
    except ValueError as error:
      raise ValueError(f'--learner_addresses={error}') from error
  require(-1 <= config.task < MAX_HOSTS // 4, 'task', f'a number from 0 to {MAX_HOSTS // 4 - 1}, or -1')
  require(config.num_learners >= 1, 'num_learners', 'at least 1')
  require(config.job_name != 'learner' or config.task < len(config.learner_addresses.split(',')), 'task',
          f'the number of one of the learners, {config.learner_addresses}')
  require(config.job_name != 'learner' or config.task >= 0 or ',' not in config.learner_addresses, 'task',
          f'the number of this one of the learners, {config.learner_addresses}')
  require(config.parameter_refresh == UNROLL or config.parameter_refresh.isdecimal() and int(config.parameter_refresh),
          'parameter_refresh', 'unroll, or a number of agent steps of at least 1')


class ClusterError(Exception):
  """The port cannot be used. The message is one line: what, where, what to do."""


class Report(NamedTuple):
  """What an actor host says of itself every BEAT_SECONDS."""
  host: int                  # Its number in the cluster; see first_actor_id.
  name: str                  # In the names of metrics.
  frames_per_second: float   # Environment frames.
  bytes_per_second: float    # Unrolls and parameters.
  reconnects: int
  lost_unrolls: int          # Of which it is not known whether they were received, as a connection broke.
  leaving: bool = False


def first_actor_id(host: int) -> int:
  """The id of the first actor of a host; those of its others count up from it.

  Learners are hosts 0, 1, ...; actor hosts come behind them.
  """
  return host * MAX_ENVIRONMENTS


def configure_devices(num_learners: int):
  """Gives each learner of this process a device; before TensorFlow has computed anything.

  Raises:
    ClusterError: there are too few GPUs.
  """
  gpus = tf.config.list_physical_devices('GPU')
  if gpus and num_learners > len(gpus):
    raise ClusterError(f'--num_learners={num_learners}: this machine has {len(gpus)} GPUs')
  if not gpus and num_learners > 1:
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices('CPU')[0], [tf.config.LogicalDeviceConfiguration()] * num_learners)


def make_strategy(num_learners: int, port: 'LearnerPort | None') -> tf.distribute.Strategy:
  """How the learners of a run learn in step; TensorFlow's default strategy where there is but one.

  Raises:
    ClusterError: several processes cannot have that many learners each.
  """
  if port and port.strategy:
    here = port.strategy.extended.worker_devices
    if num_learners != len(here):
      raise ClusterError(f'--num_learners={num_learners}: with several --learner_addresses a process has a learner per '
                         f'GPU, or one without any: here {len(here)}')
    return port.strategy
  if num_learners == 1:
    return tf.distribute.get_strategy()
  kind = 'GPU' if tf.config.list_logical_devices('GPU') else 'CPU'
  # Collective operations, the default, wait for ever where this process has opened a port.
  return tf.distribute.MirroredStrategy([f'{kind}:{index}' for index in range(num_learners)],
                                        tf.distribute.ReductionToOneDevice())


def host_number(config: ClusterConfig) -> int:
  """The number of this process's host; 0 where all is on one machine."""
  if config.job_name != 'actor':
    return max(config.task, 0)
  num_learners = len(config.learner_addresses.split(','))
  # Those that are drawn are beyond those that are given.
  return MAX_HOSTS // 2 + secrets.randbelow(MAX_HOSTS // 2) if config.task < 0 else num_learners + config.task


def host_name(task: int) -> str:
  """As metrics call an actor host."""
  return f'{socket.gethostname()}-{os.getpid()}' if task < 0 else f'task_{task}'


def split_address(address: str) -> tuple[str, int]:
  """Returns host and port. Raises ValueError where it is not HOST:PORT."""
  host, _, port = address.rpartition(':')
  if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
    raise ValueError(f'{address}: want HOST:PORT')
  return host, int(port)


def specs(nest) -> list[list]:
  """Shapes and types of a nest of tf.TensorSpec, fit for JSON."""
  return [[spec.dtype.name, list(spec.shape)] for spec in tf.nest.flatten(nest)]


class LearnerPort:
  """The learner's port, open until the process ends."""

  def __init__(self, config: ClusterConfig, settings: dict[str, Any]):
    """Opens it, before TensorFlow has computed anything; waits for the other learners, if there are any.

    Args:
      config: a learner's. The port is open on all of the machine's interfaces.
      settings: all that an actor must have in common with this learner, fit for JSON.
    Raises:
      ClusterError: another process has the port, or a learner has failed meanwhile.
    """
    addresses, task = config.learner_addresses.split(','), max(config.task, 0)
    self._lock = _take_port(addresses[task])
    self._settings = settings
    cluster = tf.train.ClusterSpec({JOB: addresses})
    self.strategy = None  # Of several processes.
    try:
      if len(addresses) > 1:
        self.strategy = tf.distribute.MultiWorkerMirroredStrategy(
            tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, task_type=JOB, task_id=task))
      else:
        tf.config.experimental_connect_to_cluster(cluster, job_name=JOB, task_index=0)
    except tf.errors.OpError as error:
      raise ClusterError(f'{addresses[task]}: no port could be opened there, or another learner is gone: '
                         f'{error.message}') from error
    with tf.device('/CPU:0'):
      self._greeting = tf.raw_ops.VarHandleOp(dtype=tf.string, shape=[], shared_name=GREETING)
      self._queue = tf.raw_ops.FIFOQueueV2(
          component_types=[tf.string], shapes=[[]], capacity=REPORTS_CAPACITY, shared_name=REPORTS)
    self._reports = {}  # Host -> Report, when it came.
    self._lags = collections.defaultdict(list)  # Host -> of its unrolls learned from.
    self._content = {}

  def offer(self, unroll_spec, parameter_specs):
    """Lets actors in: from now on the queue and the parameters lie there.

    Args:
      unroll_spec: nest of tf.TensorSpec, of what goes into the queue.
      parameter_specs: list of tf.TensorSpec, of what is published.
    """
    self._greet({'life': uuid.uuid4().hex, 'ended': False, 'settings': self._settings,
                 'unroll': specs(unroll_spec), 'parameters': specs(parameter_specs)})

  def learned(self, actor_ids: np.ndarray, lags: np.ndarray):
    """Keeps account of a batch. Args: [B] each; `lags` in updates."""
    for actor_id, lag in zip(actor_ids, lags):
      self._lags[int(actor_id) // MAX_ENVIRONMENTS].append(lag)

  def metrics(self) -> dict[str, float]:
    """What a row of metrics.jsonl says of actor hosts; policy lags are means since the row before."""
    hosts = self._hosts()
    row = {'actor_hosts': len(hosts)}
    for host, report in hosts.items():
      row |= {f'actor/{report.name}/frames_per_second': report.frames_per_second,
              f'actor/{report.name}/megabytes_per_second': report.bytes_per_second * 1e-6,
              f'actor/{report.name}/reconnects': report.reconnects,
              f'actor/{report.name}/lost_unrolls': report.lost_unrolls}
      if host in self._lags:
        row[f'actor/{report.name}/policy_lag'] = float(np.mean(self._lags[host]))
    self._lags.clear()
    return row

  def announce_end(self):
    """Tells the actors that the run has ended."""
    self._greet(self._content | {'ended': True})

  def wait_for_farewells(self):
    """Waits until all actors have heard of the end; of one that has been lost lately, for some seconds in vain."""
    deadline = time.monotonic() + _FAREWELL_SECONDS
    while self._hosts() and time.monotonic() < deadline:
      time.sleep(_FAREWELL_TICK_SECONDS)

  def _hosts(self) -> dict[int, Report]:
    """The latest reports of those actor hosts that are there, by number."""
    now = time.monotonic()
    for text in self._arrived():
      report = Report(**json.loads(text))
      self._reports[report.host] = report, now
    self._reports = {host: (report, heard) for host, (report, heard) in self._reports.items()
                     if not report.leaving and now - heard < _FORGOTTEN_SECONDS}
    return {host: report for host, (report, _) in self._reports.items()}

  def _greet(self, content):
    self._content = content
    tf.raw_ops.AssignVariableOp(resource=self._greeting, value=tf.constant(json.dumps(content)))

  def _arrived(self):
    size = int(tf.raw_ops.QueueSizeV2(handle=self._queue))
    if not size:
      return []
    reports, = tf.raw_ops.QueueDequeueManyV2(handle=self._queue, n=size, component_types=[tf.string])
    return reports.numpy().tolist()


def _take_port(address):
  """Makes sure that nobody listens at the port, which gRPC would share, and that no other learner is about to."""
  _, port = split_address(address)
  lock = socket.socket(socket.AF_UNIX)
  try:
    lock.bind(f'\0scalable_agents learner at port {port}')  # No file; goes with the process.
    with socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET) as probe:
      probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # Connections of a learner before do not matter.
      probe.bind(('', port))
  except OSError as error:
    lock.close()
    if error.errno != errno.EADDRINUSE:
      raise ClusterError(f'{address}: port {port} cannot be opened ({error.strerror}): choose another one in '
                         '--learner_addresses') from error
    raise ClusterError(f'{address}: port {port} is in use on this machine ({error.strerror}): another learner? Stop it, '
                       'or choose another port in --learner_addresses') from error
  return lock
