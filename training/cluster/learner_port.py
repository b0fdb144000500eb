"""A learner's side of a cluster: the port, what lies there for actors to use, and what actors report.

TensorFlow's own server runs inside the learner's eager runtime, so that a session of another process finds the
learner's resources by their names and works on the very same ones: it puts unrolls into the learner's queue and reads
its published parameters, and no thread of the learner's has a part in that. The other side is remote_learner.py.

The port has no authentication, on whatever interface: whoever reaches it can run any graph in the learner's process.
"""

import collections
import errno
import json
import re
import socket
import threading
import time
from typing import Any, NamedTuple
import uuid

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute import collective_all_reduce_strategy
from tensorflow.python.eager import context

from scalable_agents.training.cluster import cluster_config

JOB = 'worker'  # As tf.distribute.MultiWorkerMirroredStrategy calls the processes that learn together.
UNROLLS, PARAMETERS, REPORTS, GREETING = 'unrolls', 'parameters', 'reports', 'greeting'  # The names of what lies there.
REPORTS_CAPACITY = 1 << 16
BEAT_SECONDS = 5.  # An actor host reports so often.

_FORGOTTEN_SECONDS = 4 * BEAT_SECONDS  # An actor host is thought to be gone after so long a silence.
_FAREWELL_SECONDS = 3 * BEAT_SECONDS  # At the end, so long is waited for actor hosts to have heard of it.
_LINGER_SECONDS = 2.  # Or so long, in which actors that look for the learner, as they do every second, hear of it, too.
_FAREWELL_TICK_SECONDS = 0.05
_LONGEST_REPORT = 4096  # Bytes.
_LARGEST_NUMBER = 1 << 53  # In a report.
_NAME = r'[\w.-]{1,300}'
_HEALTH_CHECK_SECONDS = 1  # Between two questions to the other learners whether they are well.


class ClusterError(Exception):
  """The port cannot be used. The message is one line: what, where, what to do."""


class Report(NamedTuple):
  """What an actor host says of itself every BEAT_SECONDS."""
  host: int                  # Its number in the cluster; see cluster_config.first_actor_id.
  name: str                  # In the names of metrics.
  frames_per_second: float   # Environment frames.
  bytes_per_second: float    # Unrolls and parameters.
  environment_restarts: int
  reconnects: int
  lost_unrolls: int          # Of which it is not known whether they were received, as a connection broke.
  life: str = ''             # Which process it is.
  leaving: bool = False


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


def specs(nest) -> list[list]:
  """Shapes and types of a nest of tf.TensorSpec, fit for JSON."""
  return [[spec.dtype.name, list(spec.shape)] for spec in tf.nest.flatten(nest)]


def contract(settings: dict[str, Any], unroll_spec, parameter_specs) -> dict[str, Any]:
  """What an actor must have in common with its learner, fit for JSON. Args: see LearnerPort and its `offer`."""
  return {'settings': settings, 'unroll': specs(unroll_spec), 'parameters': specs(parameter_specs),
          'report': list(Report._fields)}


class LearnerPort:
  """The learner's port, open until the process ends."""

  def __init__(self, config: cluster_config.ClusterConfig, settings: dict[str, Any]):
    """Opens it, before TensorFlow has computed anything; waits for the other learners, if there are any.

    Args:
      config: a learner's. The port is open on all of the machine's interfaces.
      settings: all that an actor must have in common with this learner, fit for JSON.
    Raises:
      ClusterError: another process has the port, or a learner has gone meanwhile.
    """
    addresses, task = config.learner_addresses.split(','), max(config.task, 0)
    self._lock = _take_port(addresses[task])
    self.settings = settings
    self.environment_restarts = 0  # At actor hosts, as far as they were told here.
    cluster = tf.train.ClusterSpec({JOB: addresses})
    self.strategy = None  # Of several processes.
    try:
      if len(addresses) > 1:
        _configure_health_check(config.learner_timeout_seconds)
        self.strategy = tf.distribute.MultiWorkerMirroredStrategy(
            tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, task_type=JOB, task_id=task))
      else:
        tf.config.experimental_connect_to_cluster(cluster, job_name=JOB, task_index=0)
    except (tf.errors.UnavailableError, tf.errors.FailedPreconditionError) as error:
      raise ClusterError('a learner of this cluster was gone before all were there, so all end: start all again'
                         ) from error
    except tf.errors.OpError as error:
      raise ClusterError(f'{addresses[task]}: no port could be opened there: {error.message}') from error
    with tf.device('/CPU:0'):
      self._greeting = tf.raw_ops.VarHandleOp(dtype=tf.string, shape=[], shared_name=GREETING)
      self._queue = tf.raw_ops.FIFOQueueV2(
          component_types=[tf.string], shapes=[[]], capacity=REPORTS_CAPACITY, shared_name=REPORTS)
    self._reports = {}  # Host -> Report, when it came.
    self._lives = collections.defaultdict(list)  # Host -> the processes of that number, in the order they came in.
    self._restarts_of = {}  # Process -> environment_restarts.
    self._unwelcome = []    # Processes that have the number of another.
    self._malformed, self._last_malformed = 0, ''  # Reports since the last complaint, and what was wrong.
    self._lags = collections.defaultdict(list)  # Host -> of its unrolls learned from.
    self._content, self._greeting_lock = {}, threading.Lock()

  def offer(self, unroll_spec, parameter_specs):
    """Lets actors in: from now on the queue and the parameters lie there.

    Args:
      unroll_spec: nest of tf.TensorSpec, of what goes into the queue.
      parameter_specs: list of tf.TensorSpec, of what is published.
    """
    self._greet(life=uuid.uuid4().hex, ended=False, unwelcome=[],
                **contract(self.settings, unroll_spec, parameter_specs))

  def learned(self, updates: int, unrolls):
    """Notes how old the parameters were that acted in what is about to be learned from.

    Args:
      updates: made so far.
      unrolls: Unroll of [T+1, B, ...] tensors, for each learner of this process.
    """
    for unroll in unrolls:
      lags = np.maximum(updates - unroll.parameter_version[1:].numpy(), 0).mean(axis=0)  # [B], updates.
      for actor_id, lag in zip(unroll.actor_id.numpy(), lags):
        self._lags[int(actor_id) // cluster_config.MAX_ENVIRONMENTS].append(lag)

  def actor_name(self, actor_id: int) -> str:
    """What messages call an actor, of whichever process."""
    host, number = divmod(actor_id, cluster_config.MAX_ENVIRONMENTS)
    report, _ = self._reports.get(host, (None, 0.))
    return f'environment {number} of ' + (report.name if report else f'host {host}')

  def metrics(self) -> dict[str, float]:
    """What a row of metrics.jsonl says of actor hosts; policy lags are means since the row before."""
    hosts = self._hosts()
    row = {'actor_hosts': len(hosts)}
    for host, report in hosts.items():
      row |= {f'actor/{report.name}/frames_per_second': report.frames_per_second,
              f'actor/{report.name}/megabytes_per_second': report.bytes_per_second * 1e-6,
              f'actor/{report.name}/environment_restarts': report.environment_restarts,
              f'actor/{report.name}/reconnects': report.reconnects,
              f'actor/{report.name}/lost_unrolls': report.lost_unrolls}
      if host in self._lags:
        row[f'actor/{report.name}/policy_lag'] = float(np.mean(self._lags[host]))
    self._lags.clear()
    return row

  def complaint(self) -> str:
    """A line for the user about malformed reports since the last call; '' if there were none."""
    malformed, self._malformed = self._malformed, 0
    return f'malformed reports ignored: {malformed}, the last one {self._last_malformed}' if malformed else ''

  def announce_end(self):
    """Tells the actors that the run has ended."""
    self._greet(ended=True)

  def wait_for_farewells(self):
    """Waits until all actors have heard of the end; for one that has been lost lately, some seconds in vain."""
    began = time.monotonic()
    while time.monotonic() < began + (_FAREWELL_SECONDS if self._hosts() else _LINGER_SECONDS):
      time.sleep(_FAREWELL_TICK_SECONDS)

  def _hosts(self) -> dict[int, Report]:
    """The latest reports of those actor hosts that are there, by number."""
    now = time.monotonic()
    for text in self._arrived():
      try:
        report = _read_report(text)
      except ValueError as error:
        self._malformed, self._last_malformed = self._malformed + 1, str(error)
        continue
      if self._is_welcome(report):
        self._count_restarts(report)
        self._reports[report.host] = report, now
    self._reports = {host: (report, heard) for host, (report, heard) in self._reports.items()
                     if not report.leaving and now - heard < _FORGOTTEN_SECONDS}
    return {host: report for host, (report, _) in self._reports.items()}

  def _is_welcome(self, report):
    """Where a process is heard of after others with its number have come, those have to leave."""
    if report.life in self._unwelcome:
      return False
    lives = self._lives[report.host]
    if report.life not in lives:
      lives.append(report.life)
    elif report.life != lives[-1]:
      if report.leaving:
        return False  # Its successor is there.
      later = lives.index(report.life) + 1
      self._unwelcome += lives[later:]
      del lives[later:]
      self._greet(unwelcome=self._unwelcome)
    return True

  def _count_restarts(self, report):
    # What a process tells at first that had another learner before is in the metrics of that one.
    known = self._restarts_of.get(report.life, report.environment_restarts if report.reconnects else 0)
    self.environment_restarts += report.environment_restarts - known
    self._restarts_of[report.life] = report.environment_restarts

  def _greet(self, **changes):
    with self._greeting_lock:  # The end may be announced while a row is written.
      self._content |= changes
      tf.raw_ops.AssignVariableOp(resource=self._greeting, value=tf.constant(json.dumps(self._content)))

  def _arrived(self):
    size = int(tf.raw_ops.QueueSizeV2(handle=self._queue))
    if not size:
      return []
    reports, = tf.raw_ops.QueueDequeueManyV2(handle=self._queue, n=size, component_types=[tf.string])
    return reports.numpy().tolist()


def _read_report(text: bytes) -> Report:
  """Reads what somebody has sent. Raises ValueError, with who and what is wrong, where it is no report."""
  try:
    values = json.loads(text) if len(text) <= _LONGEST_REPORT else None
  except (ValueError, RecursionError):
    values = None
  if not isinstance(values, dict):
    raise ValueError('from somebody unknown: it is no JSON object, or too long')
  name = values.get('name')
  if not isinstance(name, str) or not re.fullmatch(_NAME, name):
    raise ValueError('from somebody unknown: it has no name')
  if values.keys() != set(Report._fields):
    raise ValueError(f'from {name}: it has other fields than a report')
  for field, kind in Report.__annotations__.items():
    value, most = values[field], cluster_config.MAX_HOSTS - 1 if field == 'host' else _LARGEST_NUMBER
    # A bool is no number here, and NaN is within no limits.
    if type(value) not in {float: (int, float)}.get(kind, (kind,)) or (
        kind in (int, float) and not 0 <= value <= most):
      raise ValueError(f'from {name}: {field} is out of range, or of another type')
  return Report(**values)


def _configure_health_check(timeout_seconds):
  """Lets each learner ask all others for a sign of life, and end its collective operations where one gives none.

  TensorFlow has two ways to notice that a learner is lost. The default is its coordination service, which takes SIGTERM
  for itself and drops it, waits for the others with Python locked, and has a fixed limit of 10 s. This is the other one.
  A dead process refuses all attempts at once. A frozen one lets each of them, of a second, run out.
  """
  context.context().configure_coordination_service(service_type='')
  check = collective_all_reduce_strategy.CollectiveAllReduceExtended
  # pylint: disable=protected-access
  check._check_health_interval = _HEALTH_CHECK_SECONDS
  check._check_health_timeout = 1  # Python is locked meanwhile.
  check._check_health_retry_limit = timeout_seconds


def _take_port(address):
  """Makes sure that nobody listens at the port, which gRPC would share, and that no other learner is about to."""
  _, port = cluster_config.split_address(address)
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
