"""The parts of `make gpu-proof` that need no training run: what a card computes, how exactly and how fast.

Each function measures one part in a process that `begin` has set up. A device is a card ('gpu'), or a second logical
CPU that stands for one ('cpu'). The functions import TensorFlow themselves, as those of benchmark_parts.py do.
"""

import functools
import gc
import importlib.metadata
import os
import pathlib
import platform
import time
from typing import Any, NamedTuple

import numpy as np

from scalable_agents.agents import registry
from scalable_agents.benchmark import benchmark_parts
from scalable_agents.benchmark import matrix_products
from scalable_agents.benchmark import r2d2_parts
from scalable_agents.processes import kernels
from scalable_agents.processes import machine
from scalable_agents.processes import python_path

HOST = '/CPU:0'
_CARDS = {'gpu': '/GPU:0', 'cpu': '/CPU:1'}
_begun: list[str] = []  # The device for which this process has been set up.
UPDATES = 10  # The number of updates after which parameters are compared.
_LEVELS = 3   # Number of levels for PopArt-IMPALA and LASER.
_PART_OF_CARD_MEGABYTES = 4096  # Memory of each of several learners on one card.


class Learner(NamedTuple):
  """The settings of a learner's step."""
  agent: str = 'impala'         # One of registry.AGENTS.
  torso: str = ''               # '' for the default of the agent.
  precision: str = 'float32'    # Of the torso: float32 or bfloat16.
  tf32: bool = False            # Whether products of float32 numbers are computed in TensorFloat-32.
  xla: str = 'auto'
  batch_size: int = 8
  unroll_length: int = 20       # Of R2D2: steps of the sequences.

  @property
  def transitions(self) -> int:
    """The number of transitions per update."""
    return self.batch_size * self.unroll_length


def begin(device: str, grows: bool = True, parts: int = 1) -> str:
  """Sets up TensorFlow in this process as training does, unless that has been done. Returns the name of the card.

  Args:
    device: 'gpu' or 'cpu'.
    grows: whether TensorFlow takes the memory of a card as needed, as in training. Otherwise it takes nearly all of it
      at once.
    parts: the number of logical devices that the first card is split into.
  """
  if _begun:  # The settings of the first call stay, even if this call has others.
    return _CARDS[device]
  _begun.append(device)
  if device == 'cpu':
    os.environ['CUDA_VISIBLE_DEVICES'] = '-1'
  import tensorflow as tf

  from scalable_agents.processes import devices
  devices.configure_tensorflow()
  if device == 'cpu':
    cpu, = tf.config.list_physical_devices('CPU')
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
  gpus = tf.config.list_physical_devices('GPU')
  if not grows:
    for gpu in gpus:
      tf.config.experimental.set_memory_growth(gpu, False)
  if gpus and parts > 1:
    tf.config.set_logical_device_configuration(
        gpus[0], [tf.config.LogicalDeviceConfiguration(_PART_OF_CARD_MEGABYTES)] * parts)
  return _CARDS[device]


def describe(device):
  """Returns what the machine has, where it computes, and what TensorFlow is built with."""
  begin(device)
  import tensorflow as tf

  from scalable_agents.processes import devices
  card = devices.choose()
  build = tf.sysconfig.get_build_info()
  details = {}
  gpus = tf.config.list_physical_devices('GPU')
  if gpus:
    details = tf.config.experimental.get_device_details(gpus[0])
  return {
      'line': devices.describe([card], card), 'why_unused': devices.why_unused(), 'num_cards': len(gpus),
      'card': details.get('device_name'), 'compute_capability': details.get('compute_capability'),
      'fastest_precision': devices.fastest_precision(card), 'cores': machine.num_cores(),
      'processor_instructions': kernels.instruction_sets(), 'python': platform.python_version(),
      'tensorflow': tf.__version__, 'built_for_cuda': build.get('cuda_version'),
      'built_for_cudnn': build.get('cudnn_version'), 'built_for_cards': build.get('cuda_compute_capabilities'),
      'installed': {found.metadata['Name']: found.version for found in importlib.metadata.distributions()
                    if (found.metadata['Name'] or '').startswith('nvidia-')}}


def _workload(settings):
  config = dict(level_name='pong', torso_precision=settings.precision, batch_size=settings.batch_size)
  if settings.torso:
    config['torso'] = settings.torso
  if settings.agent == 'r2d2':
    burn_in = settings.unroll_length // 3
    config |= dict(burn_in=burn_in, sequence_length=settings.unroll_length - burn_in)
  else:
    config |= dict(unroll_length=settings.unroll_length)
  if settings.agent == 'laser':
    config |= dict(replay_share=0.5, trust_region_threshold=1.)
  return benchmark_parts.Workload(config, 'atari', settings.unroll_length + 1, wanted_share=0., agent=settings.agent)


def _make_learner(settings, together, device):
  """Returns the learner of a learner_group.LearnerGroup, and a batch on the device."""
  gc.collect()  # Frees the card's memory: earlier learners refer to themselves, so only the collector deletes them.
  import tensorflow as tf

  from scalable_agents.experience import mixed_experience
  tf.config.experimental.enable_tensor_float_32_execution(settings.tf32)
  workload = _workload(settings)
  levels = 1 if settings.agent in ('impala', 'r2d2') else _LEVELS
  definition, config = benchmark_parts.definition_and_config(workload)
  with together.scope():
    agent = benchmark_parts.make_agent(tf, workload, definition, config, levels)
    learner = definition.make_learner(agent, config, settings.xla, device)
  with tf.device(device):
    if settings.agent == 'r2d2':
      batch = r2d2_parts.learner_batch(tf, workload, agent, config)
    else:
      batch = benchmark_parts.learner_batch(tf, workload, agent, config, levels)
    if settings.agent == 'laser':
      _, replayed = config.split_batch()
      batch = batch._replace(sample=mixed_experience.MixedSample(
          tf.ones([replayed]), tf.range(replayed, dtype=tf.int64)))
  return learner, learner.prepare(batch)


def _make_one_learner(settings, device):
  from scalable_agents.training import learner_group
  return _make_learner(settings, learner_group.LearnerGroup(None, device), device)


class _Trained(NamedTuple):
  """A learner's numbers after some updates."""
  before: np.ndarray   # All parameters before the first update, [N].
  after: np.ndarray    # All parameters after the last update, [N].
  losses: np.ndarray   # The loss of each update, [UPDATES].
  first_seconds: float


@functools.cache
def _trained(settings, device, num_learners=1):
  """Makes UPDATES updates, each from the same batch. Several learners have equal parts of it."""
  import tensorflow as tf

  from scalable_agents.cluster import learner_port
  from scalable_agents.experience import intake
  from scalable_agents.training import learner_group
  together = learner_group.LearnerGroup(learner_port.make_strategy(num_learners, None), device)
  learner, batch = _make_learner(settings, together, device)
  batches = _split(batch, num_learners) if num_learners > 1 else [batch]
  arrived = [intake.Arrived(
      tf.constant(0, tf.int64), intake.Episodes(tf.constant([intake.NO_LEVEL]), tf.constant([0.]), tf.constant([0])),
      part.unroll.actor_id, part.unroll.parameter_version[1:]) for part in batches]

  def parameters():
    return np.concatenate([variable.numpy().ravel() for variable in learner.agent.trainable_variables])

  def loss_of_update():
    return float(learner.read(together.step(learner, batches, arrived, False).metrics)['loss/total'])

  before, began = parameters(), time.monotonic()
  losses, first_seconds = [loss_of_update()], time.monotonic() - began
  losses += [loss_of_update() for _ in range(UPDATES - 1)]
  return _Trained(before, parameters(), np.array(losses), first_seconds)


def _split(batch, num_parts):
  """Returns the equal parts of a batch of unrolls."""
  import tensorflow as tf

  from scalable_agents.actor import unroll as unroll_lib
  size = batch.unroll.level_id.shape[0] // num_parts

  def part(index):
    rows = slice(index * size, (index + 1) * size)
    return batch._replace(unroll=tf.nest.map_structure(
        lambda values, has_time: values[:, rows] if has_time else values[rows], batch.unroll,
        unroll_lib.has_time(batch.unroll)))

  return [part(index) for index in range(num_parts)]


def agreement(device, settings):
  """Compares the updates of a learner on the card with those of the same learner in float32 on the CPU.

  Returns:
    'of_parameters': the norm of the difference of all parameters after UPDATES updates, over their norm on the CPU.
    'of_change': the same norm over that of the change of the parameters, which is stricter.
    'of_loss': the largest difference of a loss, over the largest loss.
    'first_update_seconds': of the first update, which is traced and perhaps compiled.
  """
  card = begin(device)
  want = _trained(settings._replace(precision='float32', tf32=False, xla='never'), HOST)
  return _difference(_trained(settings, card), want)


def agreement_of_two(device, settings):
  """Compares the updates of two learners on one card, with half of the batch each, with those of one learner there.

  Returns:
    As for `agreement`.
  """
  card = begin(device, parts=2)
  return _difference(_trained(settings, card, 2), _trained(settings, card))


def _difference(got, want):
  if not np.isfinite(got.after).all():
    raise ValueError('a parameter is not finite')
  difference = np.linalg.norm(got.after - want.after)
  return {'of_parameters': float(difference / np.linalg.norm(want.after)),
          'of_change': float(difference / np.linalg.norm(want.after - want.before)),
          'of_loss': float(np.abs(got.losses - want.losses).max() / np.abs(want.losses).max()),
          'first_update_seconds': got.first_seconds}


def product_seconds(device, product, tf32, seconds):
  """Returns `matrix_products.measure` on the card."""
  return matrix_products.measure(begin(device), product, tf32, seconds)


def learner_rate(device, settings, seconds):
  """Measures a learner's step with a batch that is on the card already.

  Args:
    device: as for `begin`.
    settings: Learner.
    seconds: duration, about.
  Returns:
    'transitions_per_second'.
    'first_update_seconds': of the first update, which is traced and perhaps compiled.
    'operations_per_second': floating-point operations of its matrix products and convolutions.
    'same_products': the share of the step's time that plain matrix products of the same shapes would take.
    'peak_megabytes': the most memory of the card that TensorFlow's tensors took; None for a CPU.
  """
  card = begin(device)
  import tensorflow as tf
  if device == 'gpu':
    tf.config.experimental.reset_memory_stats(card.strip('/'))
  learner, batch = _make_one_learner(settings, card)
  began = time.monotonic()
  learner.step(batch)[0].numpy()
  first_seconds = time.monotonic() - began
  per_second, _ = benchmark_parts.rate(_step(learner, batch), settings.transitions, seconds)
  step_seconds = settings.transitions / per_second
  counts = matrix_products.of_gradient(python_path.load(registry.AGENTS[settings.agent]), learner, batch)
  peak = tf.config.experimental.get_memory_info(card.strip('/'))['peak'] / 1e6 if device == 'gpu' else None
  del learner, batch
  plain = sum(count * matrix_products.measure(card, product, settings.tf32, seconds / 100)
              for product, count in counts.items())
  return {'transitions_per_second': per_second, 'first_update_seconds': first_seconds,
          'operations_per_second': sum(count * product.operations for product, count in counts.items()) / step_seconds,
          'same_products': plain / step_seconds, 'peak_megabytes': peak}


def _step(learner, batch):
  """Returns a function that begins an update and waits for the one before, as training does."""
  before = []

  def step():
    before.append(learner.step(batch)[0])
    if len(before) > 1:
      before.pop(0).numpy()

  return step


def trace(device, settings, seconds, folder):
  """Writes a profile of a learner's steps to a folder, for TensorBoard.

  Returns:
    'updates', 'seconds': what was profiled. 'card_busy': see `busy_seconds`, as a share.
  """
  card = begin(device)
  import tensorflow as tf
  from tensorflow.tsl.profiler.protobuf import xplane_pb2
  learner, batch = _make_one_learner(settings, card)
  learner.step(batch)[0].numpy()
  step = _step(learner, batch)
  tf.profiler.experimental.start(folder)
  updates, began = 0, time.monotonic()
  while not updates or time.monotonic() < began + seconds:
    step()
    updates += 1
  elapsed = time.monotonic() - began
  tf.profiler.experimental.stop()
  newest = max(pathlib.Path(folder).glob('plugins/profile/*/*.xplane.pb'), key=lambda path: path.stat().st_mtime)
  messages: Any = xplane_pb2  # The type checker does not see what is in it.
  busy = busy_seconds(messages.XSpace.FromString(newest.read_bytes()))
  return {'updates': updates, 'seconds': elapsed, 'card_busy': None if busy is None else busy / elapsed}


def busy_seconds(space) -> float | None:
  """Returns the time in which the first card did something, from a profile. Work that overlaps counts once.

  Args:
    space: an XSpace.
  Returns:
    The seconds; None if the profile has no card. In a container, the profiler may not be allowed to see it.
  """
  if not any(plane.name == '/device:GPU:0' for plane in space.planes):
    return None
  spans = sorted(
      (begin_ps, begin_ps + event.duration_ps) for plane in space.planes if plane.name == '/device:GPU:0'
      for line in plane.lines if line.name.startswith('Stream')  # The other lines group the same work in other ways.
      for event in line.events for begin_ps in [line.timestamp_ns * 1000 + event.offset_ps])
  busy, end = 0, 0
  for first, last in spans:
    busy += max(0, last - max(first, end))
    end = max(end, last)
  return busy * 1e-12


def inference(device, settings, size, seconds):
  """Measures the rows/s of the policy on the card and on the CPU, from an input on the CPU to an output on the CPU.

  Returns:
    'card' and 'cpu': rows/s.
  """
  card = begin(device)
  import tensorflow as tf

  from scalable_agents.actor import acting
  with tf.device(HOST):
    inputs = acting.ActorInput(
        tf.zeros([size], tf.int32), tf.zeros([size]), tf.zeros([size], tf.int32), tf.zeros([size]), tf.ones([size]),
        tf.zeros([size], tf.bool), benchmark_parts.observations(tf, _workload(settings), size))
  return {name: _inference_rate(place, settings, inputs, seconds) for name, place in (('card', card), ('cpu', HOST))}


def _inference_rate(place, settings, inputs, seconds):
  import tensorflow as tf
  tf.config.experimental.enable_tensor_float_32_execution(settings.tf32)
  workload, size = _workload(settings), len(inputs.reward)
  with tf.device(place):
    agent = benchmark_parts.make_agent(tf, workload, *benchmark_parts.definition_and_config(workload))
    state = agent.initial_state(size)
  with tf.device(HOST):
    seed = tf.constant([0, 0], tf.int64)

  @tf.function(autograph=False)
  def act(inputs, state, seed):
    with tf.device(place):
      output, _ = agent.step(inputs, state, seed)
    with tf.device(HOST):
      return tf.nest.map_structure(tf.identity, output)

  return benchmark_parts.rate(lambda: act(inputs, state, seed).action.numpy(), size, seconds)[0]
