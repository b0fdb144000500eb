"""The learner's side of a cluster: its port, the resources that actor hosts use there, and their reports.

TensorFlow's own server runs inside the learner's eager runtime. A session in another process finds the learner's
resources by their names. It puts unrolls into the learner's queue and reads the published parameters; no thread of the
learner takes part. The actor host's side is remote_learner.py.

The port opens on all network interfaces and has no authentication. Anyone who reaches it can run any graph in the
learner's process.
"""

import collections
from collections.abc import Iterable, Sequence
import json
import re
import threading
import time
from typing import Any, NamedTuple
import uuid

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute import collective_all_reduce_strategy
from tensorflow.python.eager import context

from scalable_agents.cluster import cluster_config
from scalable_agents.experience import intake
from scalable_agents.processes import ports
from scalable_agents.processes import sessions

JOB = 'worker'  # The job name that tf.distribute.MultiWorkerMirroredStrategy requires.
UNROLLS, PARAMETERS, REPORTS, GREETING = 'unrolls', 'parameters', 'reports', 'greeting'  # Names of the resources.
Communication = tf.distribute.experimental.CommunicationImplementation

_FORGOTTEN_SECONDS = 4 * ports.BEAT_SECONDS  # An actor host without a report for this long counts as gone.
# At the end of a run the port stays open for a while, so that actor hosts learn of the end.
_FAREWELL_SECONDS = 3 * ports.BEAT_SECONDS  # The longest wait while known actor hosts have not left.
_LINGER_SECONDS = 2.  # The wait without known hosts. Hosts that look for the learner try to connect every second.
_FAREWELL_TICK_SECONDS = 0.05
_LONGEST_REPORT = 4096  # Bytes.
_LARGEST_NUMBER = 1 << 53  # The largest number that a report may contain.
_NAME = r'[\w.-]{1,300}'
_HEALTH_CHECK_SECONDS = 1  # The time between two health checks of the other learners.


class Report(NamedTuple):
  """The report that an actor host sends every ports.BEAT_SECONDS."""
  host: int                  # The actor host's number, from cluster_config.host_number.
  name: str                  # The host's name in the names of metrics.
  frames_per_second: float   # Environment frames.
  bytes_per_second: float    # Bytes of unrolls sent and parameters received.
  environment_restarts: int
  reconnects: int
  lost_unrolls: int          # Unrolls in flight when a connection broke. The learner may have received them.
  incarnation: str = ''      # A random id of the process.
  leaving: bool = False      # Whether this is the host's last report.


def configure_devices(num_learners: int):
  """Configures a device for each learner of this process. Must run before TensorFlow computes anything.

  Raises:
    ports.PortError: there are too few GPUs.
  """
  gpus = tf.config.list_physical_devices('GPU')
  if gpus and num_learners > len(gpus):
    raise ports.PortError(f'--num_learners={num_learners}: this machine has {len(gpus)} GPUs')
  if not gpus and num_learners > 1:
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices('CPU')[0], [tf.config.LogicalDeviceConfiguration()] * num_learners)


def communication(num_gpus: int, num_cards: int, machines: Sequence[str] = ()) -> Communication:
  """Returns how learners sum their gradients: with NCCL if each has a card of its own, else with RING.

  Args:
    num_gpus: number of logical GPUs, on which TensorFlow computes.
    num_cards: number of cards. A card can have several logical GPUs, but NCCL refuses two learners on one card.
    machines: the machine of each learner process, if there are several. Two processes on one machine may share a card.
  """
  has_card_each = 0 < num_gpus <= num_cards and len(set(machines)) == len(machines)
  return Communication.NCCL if has_card_each else Communication.RING


def make_strategy(num_learners: int, port: 'LearnerPort | None') -> tf.distribute.Strategy:
  """Returns the strategy that synchronises the learners of a run. A single learner has TensorFlow's default one.

  Raises:
    ports.PortError: there are several processes, and this one cannot have that many learners.
  """
  if port and port.strategy:
    here = port.strategy.extended.worker_devices
    if num_learners != len(here):
      raise ports.PortError(f'--num_learners={num_learners}: with several --learner_addresses a process has one '
                            f'learner per GPU, or one learner without GPUs: here {len(here)}')
    return port.strategy
  if num_learners == 1:
    return tf.distribute.get_strategy()
  # The default, collective operations, would wait for ever once this process has opened a port.
  reduction = tf.distribute.NcclAllReduce() if _has_nccl_here() else tf.distribute.ReductionToOneDevice()
  kind = 'GPU' if tf.config.list_logical_devices('GPU') else 'CPU'
  return tf.distribute.MirroredStrategy([f'{kind}:{index}' for index in range(num_learners)], reduction)


def summing(port: 'LearnerPort | None') -> str:
  """Returns the name of what sums the gradients of several learners, for a message."""
  if port and port.strategy:
    return port.communication.value
  return Communication.NCCL.value if _has_nccl_here() else 'one of their devices'


def _has_nccl_here():
  """Returns whether the learners of a single process use NCCL."""
  gpus, cards = tf.config.list_logical_devices('GPU'), tf.config.list_physical_devices('GPU')
  return communication(len(gpus), len(cards)) == Communication.NCCL


def contract(settings: dict[str, Any], unroll_spec, parameter_specs) -> dict[str, Any]:
  """Returns what an actor host and its learner must have in common, for JSON.

  Args:
    settings: see LearnerPort.
    unroll_spec, parameter_specs: see LearnerPort.offer.
  """
  return {'settings': settings, 'unroll': sessions.specs(unroll_spec), 'parameters': sessions.specs(parameter_specs),
          'report': list(Report._fields)}


class LearnerPort:
  """The learner's port. It stays open until the process ends."""
  unrolls_name, parameters_name = UNROLLS, PARAMETERS

  def __init__(self, config: cluster_config.ClusterConfig, settings: dict[str, Any]):
    """Opens the port, and waits for other learners, if any. Must run before TensorFlow computes anything.

    Args:
      config: the configuration of a learner. The port opens on all network interfaces of the machine.
      settings: the settings that actor hosts must share with this learner. JSON can hold them.
    Raises:
      ports.PortError: another process has the port, or another learner ended before all had connected.
    """
    self.settings = settings
    self.environment_restarts = 0  # The restarts that actor hosts have reported to this learner.
    self.strategy = None  # The strategy that joins several processes, if there are several.
    if len(config.addresses) > 1:
      self._join(config)
    else:
      self._lock = sessions.open_port(JOB, config.learner_addresses, 'learner', 'learner_addresses')
    with tf.device('/CPU:0'):
      self._greeting = sessions.shared_text(GREETING)
      self._queue = sessions.shared_queue(REPORTS)
    self._reports = {}  # Host -> (its latest Report, the time of its arrival).
    self._incarnations = collections.defaultdict(list)  # Host -> ids of its processes, in the order of arrival.
    self._restarts_of = {}  # Id of a process -> its environment_restarts so far.
    self._unwelcome = []    # Ids of processes that must leave, since an earlier process has the same number.
    self._malformed = 0        # Malformed reports since `warning`.
    self._last_malformed = ''  # What is wrong with the last one.
    self._lags = collections.defaultdict(list)  # Host -> the policy lag of each of its unrolls, in updates.
    self._content = {}
    self._greeting_lock = threading.Lock()
    self._reports_lock = threading.Lock()

  def _join(self, config):
    """Opens the port of one of several learners, and waits for the others."""
    addresses, task = config.addresses, config.task
    sessions.use_no_proxy()
    self._lock = ports.take_port(addresses[task], 'learner', 'learner_addresses')
    _configure_health_check(config.learner_timeout_seconds)
    cards = len(tf.config.list_physical_devices('GPU'))  # Each is one GPU for TensorFlow, see configure_devices.
    self.communication = communication(cards, cards, [ports.split_address(address)[0] for address in addresses])
    try:
      self.strategy = tf.distribute.MultiWorkerMirroredStrategy(
          tf.distribute.cluster_resolver.SimpleClusterResolver(
              tf.train.ClusterSpec({JOB: addresses}), task_type=JOB, task_id=task),
          tf.distribute.experimental.CommunicationOptions(implementation=self.communication))
    except (tf.errors.UnavailableError, tf.errors.FailedPreconditionError) as error:
      raise ports.PortError('a learner of this cluster ended before all were connected, so all learners end: start all '
                            'of them again') from error
    except tf.errors.OpError as error:
      raise ports.PortError(f'{addresses[task]}: the port could not be opened: {error.message}') from error

  def offer(self, unroll_spec, parameter_specs):
    """Admits actor hosts: makes the greeting, which they read. The queue and the published parameters must exist.

    The greeting is a JSON object. It has the items of `contract` and these:
      incarnation: a random id of this learner's process.
      saving: whether the run ends after a save. Actor hosts wait until `ended`, because the save may fail, and then the
        learner is started again.
      ended: whether the run has ended.
      unwelcome: the incarnations of actor hosts that must leave, because an earlier process has the same number.

    Args:
      unroll_spec: nest of tf.TensorSpec, the unrolls of the queue.
      parameter_specs: list of tf.TensorSpec, the published parameters.
    """
    self._greet(incarnation=uuid.uuid4().hex, saving=False, ended=False, unwelcome=[],
                **contract(self.settings, unroll_spec, parameter_specs))

  def record_lags(self, updates: int, arrived: Iterable[intake.Arrived]):
    """Records the policy lag of unrolls: the age of the parameters that chose their actions, in updates.

    Args:
      updates: the number of updates so far.
      arrived: for each learner of this process, what arrived with its batch.
    """
    for each in arrived:
      lags = np.maximum(updates - np.asarray(each.parameter_versions), 0).mean(axis=0)  # [n], updates.
      for actor_id, lag in zip(np.asarray(each.actor_ids), lags, strict=True):
        self._lags[int(actor_id) // cluster_config.MAX_ENVIRONMENTS].append(lag)

  def actor_name(self, actor_id: int) -> str:
    """Returns the name of an actor in messages. It may belong to any process."""
    host, number = divmod(actor_id, cluster_config.MAX_ENVIRONMENTS)
    report, _ = self._reports.get(host, (None, 0.))
    return f'environment {number} of ' + (report.name if report else f'host {host}')

  def metrics(self) -> dict[str, Any]:
    """Returns the metrics of actor hosts for a row of metrics.jsonl. Policy lags are means since the last call."""
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

  def warning(self) -> str:
    """Returns a message about malformed reports since the last call, or '' if there were none."""
    malformed, self._malformed = self._malformed, 0
    return f'malformed reports ignored: {malformed}, the last one {self._last_malformed}' if malformed else ''

  def announce_save(self):
    """Tells actor hosts that the run ends after a save, and that the queue takes no more unrolls."""
    self._greet(saving=True)

  def announce_end(self):
    """Tells actor hosts that the run has ended."""
    self._greet(ended=True)

  def wait_for_farewells(self):
    """Waits until all known actor hosts have left, for at most some seconds. For a lost host, it waits that long.

    Does not wait if the end was not announced.
    """
    if not self._content.get('ended'):
      return
    began = time.monotonic()
    while time.monotonic() < began + (_FAREWELL_SECONDS if self._hosts() else _LINGER_SECONDS):
      time.sleep(_FAREWELL_TICK_SECONDS)

  def _hosts(self) -> dict[int, Report]:
    """Returns the latest report of each present actor host, by number."""
    # When a signal ends the run, one thread may write the last row while the other waits for farewells. Without the
    # lock, both could take the same report from the queue, and one of them would wait for ever.
    with self._reports_lock:
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
    """Returns whether a report counts. Several processes may have the same number by mistake.

    A new process replaces the one before it. If the earlier process reports again, it has not ended: then the later
    ones have to leave.
    """
    if report.incarnation in self._unwelcome:
      return False
    incarnations = self._incarnations[report.host]
    if report.incarnation not in incarnations:
      incarnations.append(report.incarnation)
    elif report.incarnation != incarnations[-1]:
      if report.leaving:
        return False  # Its successor has reported already.
      later = incarnations.index(report.incarnation) + 1
      self._unwelcome += incarnations[later:]
      del incarnations[later:]
      self._greet(unwelcome=self._unwelcome)
    return True

  def _count_restarts(self, report):
    # A process that reported to an earlier learner starts with the restarts that are in that learner's metrics.
    known = self._restarts_of.get(report.incarnation, report.environment_restarts if report.reconnects else 0)
    self.environment_restarts += report.environment_restarts - known
    self._restarts_of[report.incarnation] = report.environment_restarts

  def _greet(self, **changes):
    """Changes items of the greeting."""
    with self._greeting_lock:  # Another thread may announce the end while a row of metrics is written.
      self._content |= changes
      sessions.set_text(self._greeting, json.dumps(self._content))

  def _arrived(self):
    size = int(tf.raw_ops.QueueSizeV2(handle=self._queue))
    if not size:
      return []
    reports, = tf.raw_ops.QueueDequeueManyV2(handle=self._queue, n=size, component_types=[tf.string])
    return reports.numpy().tolist()


def _read_report(text: bytes) -> Report:
  """Parses a report, which anyone may have sent. Raises ValueError, with the sender and the fault, if it is invalid."""
  try:
    values = json.loads(text) if len(text) <= _LONGEST_REPORT else None
  except (ValueError, RecursionError):
    values = None
  if not isinstance(values, dict):
    raise ValueError('from an unknown sender: it is no JSON object, or too long')
  name = values.get('name')
  if not isinstance(name, str) or not re.fullmatch(_NAME, name):
    raise ValueError('from an unknown sender: it has no name')
  if values.keys() != set(Report._fields):
    raise ValueError(f'from {name}: its fields are not those of a report')
  for field, kind in Report.__annotations__.items():
    value, most = values[field], cluster_config.MAX_HOSTS - 1 if field == 'host' else _LARGEST_NUMBER
    # A bool is not a number here, and NaN is outside all limits.
    if type(value) not in {float: (int, float)}.get(kind, (kind,)) or (
        kind in (int, float) and not 0 <= value <= most):
      raise ValueError(f'from {name}: {field} is out of range, or has the wrong type')
  return Report(**values)


def _configure_health_check(timeout_seconds):
  """Makes each learner check the health of all others, and end its collective operations if a check fails.

  TensorFlow has two ways to detect a lost learner. The default is its coordination service. That one swallows SIGTERM,
  holds Python's lock while it waits for the others, and has a fixed limit of 10 s. This function selects the other way,
  health checks of a second each. A dead process refuses all attempts at once. A frozen process lets each one time out.
  """
  runtime: Any = context.context()
  runtime.configure_coordination_service(service_type='')
  check = collective_all_reduce_strategy.CollectiveAllReduceExtended
  check._check_health_interval = _HEALTH_CHECK_SECONDS
  check._check_health_timeout = 1  # Seconds. A check holds Python's lock.
  check._check_health_retry_limit = timeout_seconds


