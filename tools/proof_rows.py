"""The rows of `make gpu-proof`: what each measures, how, and which result is wanted. docs/gpu.md explains them.

Rows are in groups. A group is a function that gets a MeasuringProcess, in which its rows may measure one after another,
and returns them.
"""

from collections.abc import Callable, Sequence
import functools
from typing import Any, NamedTuple

from scalable_agents.agents import registry
from scalable_agents.benchmark import benchmark_parts
from scalable_agents.benchmark import device_parts
from scalable_agents.benchmark import matrix_products
from scalable_agents.benchmark import measuring_process
from scalable_agents.tools import card_runs

_FRAMES_PER_STEP = 4  # Environment frames of an agent step, of Pong and of the paper's DeepMind Lab.
_WANTED_SHARE_OF_PRODUCTS = 0.5
_WANTED_SHARE_OF_CORES = 0.9
_LARGEST_SHARE_OF_MEMORY = 0.5  # That one small training process may take of the card.
_LONGEST_SECONDS = 90.          # Of a row, so that one that hangs leaves time for the others.
_LONGEST_RUN_SECONDS = 110.     # Of a row that starts a training run and measures it.
_PAPERS_SPEEDS = 21_000, 24_000  # Frames/s on two tasks. IMPALA paper, table 1: 48 actors and one P100.


class Precision(NamedTuple):
  """A way to compute products."""
  name: str
  torso: str    # The value of --torso_precision.
  tf32: bool    # The value of --tf32.
  bound: float  # The most that ten updates may differ from those of the CPU in float32, relative to what they change.


# float32 has 23 bits after the point, TensorFloat-32 has 10, and bfloat16 has 7. On a CPU, kernels with XLA and without
# differ by 1e-6 to 3e-5 in float32, and bfloat16 differs from float32 by 0.02.
FLOAT32 = Precision('float32', 'float32', False, 1e-3)
TF32 = Precision('TF32', 'float32', True, 0.02)
BFLOAT16 = Precision('bfloat16', 'bfloat16', True, 0.1)
PRECISIONS = FLOAT32, TF32, BFLOAT16
# A3C's learner only applies gradients. Its workers compute them with the loss of A2C.
_AGENTS = [agent for agent in registry.AGENTS if agent != 'a3c']


class Plan(NamedTuple):
  """The sizes of what is measured."""
  agreement: Sequence[tuple[str, str, Precision]]   # Agent, value of --xla, precision.
  learner: device_parts.Learner                     # Sizes for agreement.
  inference_sizes: Sequence[int]                    # Batch sizes, in ascending order.
  inference: device_parts.Learner                   # The network for inference.
  product: int                                      # Rows and columns of the plain matrix product.
  rates: Sequence[tuple[str, Precision, int, int]]  # Torso, precision, batch size, unroll length.
  small: device_parts.Learner                       # That takes little of a card: for memory, and two processes.
  traced: device_parts.Learner                      # The learner whose steps are profiled.
  run_flags: Sequence[str]                          # Of the run on Pong.
  free_config: dict[str, Any]                       # ImpalaConfig of the run with free environments.
  free_run: dict[str, Any]                          # Its RunConfig.
  run_seconds: float                                # For which a run is measured.
  seconds: float                                    # For which a speed is measured otherwise.
  environments: int                                 # Processes in which an environment is measured at the same time.
  is_judged: bool                                   # Whether speeds and memory are compared with what is wanted.


def full_plan(cores: int) -> Plan:
  """Returns the plan for a card. What matters most comes first, because the time may not suffice for all."""
  return Plan(
      agreement=[(agent, xla, precision) for agent in _AGENTS for precision in PRECISIONS
                 for xla in ('always', 'never')],
      learner=device_parts.Learner(),
      inference_sizes=(32, 64, 128, 256, 512, 1024),
      inference=device_parts.Learner(torso='deep', precision='auto', tf32=True),
      product=8192,
      rates=[(torso, precision, batch, unroll)
             for batch, unroll in ((512, 20), (32, 20), (128, 100), (128, 20), (32, 100), (512, 100))
             for torso in ('deep', 'shallow') for precision in reversed(PRECISIONS)],
      small=device_parts.Learner(torso='shallow', tf32=True, batch_size=32),
      traced=device_parts.Learner(torso='deep', precision='auto', tf32=True, batch_size=32),
      run_flags=['--torso=deep', '--torso_precision=auto', '--log_interval_seconds=1',
                 '--checkpoint_interval_seconds=5'],
      free_config=dict(torso='deep', torso_precision='auto', use_lstm=True, unroll_length=100, batch_size=32),
      free_run=dict(log_interval_seconds=1.),
      run_seconds=30., seconds=1., environments=cores, is_judged=True)


def small_plan() -> Plan:
  """Returns the plan for a trial on the CPU."""
  tiny = device_parts.Learner(torso='shallow', batch_size=2, unroll_length=3)
  few = dict(num_environments=4, num_environment_workers=1, log_interval_seconds=0.2, checkpoint_interval_seconds=0.2)
  return Plan(
      agreement=[('impala', 'always', FLOAT32), ('impala', 'never', FLOAT32), ('impala', 'never', BFLOAT16),
                 *((agent, 'never', FLOAT32) for agent in _AGENTS if agent != 'impala')],
      learner=tiny, inference_sizes=(1, 2), inference=tiny, product=64,
      rates=[('deep', BFLOAT16, 2, 3), ('shallow', FLOAT32, 2, 3)], small=tiny, traced=tiny,
      run_flags=['--torso=shallow', '--batch_size=2', '--unroll_length=5',
                 *(f'--{name}={value}' for name, value in few.items())],
      free_config=dict(torso='shallow', use_lstm=True, unroll_length=5, batch_size=2), free_run=few,
      run_seconds=1., seconds=0.02, environments=1, is_judged=False)


class NotMeasured(Exception):
  """A row cannot be measured on this machine. The message is one line that says why."""


class Measured(NamedTuple):
  """What a row has found."""
  text: str
  figures: dict[str, Any]
  is_ok: bool = True


class Row(NamedTuple):
  """A row of the table."""
  name: str
  wanted: str                           # '' if the row only informs.
  measure: Callable[[float], Measured]  # Called with a deadline of time.monotonic().
  longest_seconds: float = _LONGEST_SECONDS


Group = Callable[[measuring_process.MeasuringProcess], list[Row]]


class Rows:
  """All rows for a device and a plan. Some use what earlier ones have found."""

  def __init__(self, device: str, plan: Plan, trace_folder: str):
    """Measures nothing yet.

    Args:
      device: 'gpu' or 'cpu'.
      plan: the sizes.
      trace_folder: where to write the profile of the learner.
    """
    self._device, self._plan, self._trace_folder = device, plan, trace_folder
    self._product_rates = {}   # Name of a precision -> operations/s of a plain product.
    self._inference = {}       # Batch size -> rates.
    self._batch_size = None    # Of inference in the run on Pong, the mean.
    self._frames_per_second = None  # Of that run.

  def agreement(self) -> list[Group]:
    """Returns a group for each agent, and one for two learners on one card."""
    return [*(functools.partial(self._agreement_of, agent)
              for agent in dict.fromkeys(agent for agent, *_ in self._plan.agreement)), self._two_learners]

  def _agreement_of(self, agent, process):
    return [
        self._agreement_row(f'{agent}: {device_parts.UPDATES} updates, {precision.name}, --xla={xla}', precision,
                            process, device_parts.agreement, self._plan.learner._replace(
                                agent=agent, precision=precision.torso, tf32=precision.tf32, xla=xla))
        for name, xla, precision in self._plan.agreement if name == agent]

  def _two_learners(self, process):
    return [self._agreement_row(f'impala: {device_parts.UPDATES} updates, two learners on one card', FLOAT32, process,
                                device_parts.agreement_of_two, self._plan.learner)]

  def _agreement_row(self, name, precision, process, function, settings):
    def measure(deadline):
      found = process.call(function, self._device, settings, deadline=deadline)
      return Measured(f'{found["of_change"]:.1e} of the change, {found["of_parameters"]:.1e} of the parameters; first '
                      f'update {found["first_update_seconds"]:.1f} s', found, found['of_change'] <= precision.bound)

    return Row(name, f'at most {precision.bound:g} of the change', measure)

  def training(self, run: card_runs.Run) -> Group:
    """Returns the group of a run on Pong: its speed, and resuming it on another device. The run then continues."""
    def measure(deadline):
      run.start(with_card=self._device == 'gpu')
      found = card_runs.measure(run, self._plan.run_seconds, deadline)
      self._batch_size, self._frames_per_second = found['inference_batch_size'], found['frames_per_second']
      mean_return = found['episode_return']
      return Measured(
          f'{found["frames_per_second"]:,.0f} frames/s, {_shares(found)}; return '
          f'{"none yet" if mean_return is None else format(mean_return, ".1f")} after {found["environment_frames"]:,} '
          f'frames in {found["wall_seconds"]:.0f} s', found,
          not self._plan.is_judged or found['bottleneck'] == 'environments')

    def resume(with_card, deadline):
      found = card_runs.resume(run, with_card, deadline)
      on_card = found['line'].startswith('learns and acts on GPU')
      return Measured(f'killed at {found["killed_at"]:,} frames, at {found["reached"]:,} after {found["seconds"]:.0f} '
                      f's; {found["line"]}', found, on_card == with_card)

    return lambda unused_process: [
        Row('IMPALA on Pong, end to end', self._judged('the environments are the bottleneck'), measure,
            _LONGEST_RUN_SECONDS),
        Row('kill -9, then resume on the CPU', 'continues', functools.partial(resume, False)),
        Row('kill -9, then resume on the card', 'continues', functools.partial(resume, self._device == 'gpu'))]

  def free_environments(self, run: card_runs.Run) -> Group:
    """Returns the group of a run whose environments' steps take almost no time."""
    def measure(deadline):
      run.start(with_card=self._device == 'gpu')
      found = card_runs.measure(run, self._plan.run_seconds / 2, deadline)
      for name in ('frames_per_second', 'environment_frames'):
        found[name] *= _FRAMES_PER_STEP  # These environments repeat no action.
      return Measured(f'{found["frames_per_second"]:,.0f} frames/s (paper: '
                      f'{" and ".join(f"{speed:,}" for speed in _PAPERS_SPEEDS)}), {_shares(found)}', found)

    return lambda unused_process: [
        Row('LSTM and language, free environments, end to end', '', measure, _LONGEST_RUN_SECONDS)]

  def environments(self, unused_process) -> list[Row]:
    """Returns the row of what the environments alone could do on all cores, beside the run on Pong."""
    def measure(deadline):
      processes = [measuring_process.MeasuringProcess() for _ in range(self._plan.environments)]
      try:
        found = measuring_process.at_once(
            processes, benchmark_parts.environment, 2 * self._plan.seconds, deadline=deadline)
      finally:
        for process in processes:
          process.close()
      rate = _FRAMES_PER_STEP * sum(one['steps_per_second'] for one in found)
      share = self._frames_per_second and self._frames_per_second / rate
      text = f'{rate:,.0f} frames/s' + (f'; the run on Pong reached {share:.0%} of it' if share else '')
      return Measured(text, {'frames_per_second': rate, 'share_of_run': share},
                      not self._plan.is_judged or bool(share and share >= _WANTED_SHARE_OF_CORES))

    return [Row(f'environments alone, {self._plan.environments} processes',
                self._judged(f'the run reaches {_WANTED_SHARE_OF_CORES:.0%} of it'), measure)]

  def inference(self, process) -> list[Row]:
    """Returns a row for each batch size, and one for the turning point."""
    def measure(size, deadline):
      found = self._inference[size] = process.call(
          device_parts.inference, self._device, self._plan.inference, size, self._plan.seconds, deadline=deadline)
      return Measured(f'card {found["card"]:,.0f} rows/s, CPU {found["cpu"]:,.0f} rows/s', found)

    def turn(unused_deadline):
      if not self._inference:
        raise NotMeasured('no batch size was measured')
      slower = [size for size, found in self._inference.items() if found['card'] <= found['cpu']]
      turning = min((size for size in self._inference if size > max(slower, default=0)), default=None)
      of_run = self._batch_size and f'; the run on Pong had batches of {self._batch_size:.0f}'
      text = f'the card is faster from batches of {turning} on' if turning else 'the CPU is faster at every size'
      is_ok = not self._plan.is_judged or bool(turning and turning <= (self._batch_size or turning))
      return Measured(text + (of_run or ''), {'turning_point': turning, 'batch_size_of_run': self._batch_size}, is_ok)

    return [*(Row(f'inference, {self._plan.inference.torso} network, {size} rows', '', functools.partial(measure, size))
              for size in self._plan.inference_sizes),
            Row('inference, turning point', self._judged('at most the batches of the run'), turn)]

  def memory(self, process) -> list[Row]:
    """Returns the rows of the card's memory, and of two processes on one card."""
    def measure(grows, deadline):
      before = card_runs.card()
      if self._device == 'cpu' or not before:
        raise NotMeasured('no card' if self._device == 'cpu' else 'nvidia-smi does not answer')
      own = measuring_process.MeasuringProcess()
      try:
        own.call(device_parts.begin, self._device, grows, deadline=deadline)
        found = own.call(
            device_parts.learner_rate, self._device, self._plan.small, self._plan.seconds, deadline=deadline)
        after = card_runs.card() or before
      finally:
        own.close()
      taken = after.used_megabytes - before.used_megabytes
      found |= {'taken_megabytes': taken, 'megabytes': before.megabytes}
      return Measured(f'takes {taken:,.0f} of {before.megabytes:,.0f} MB; tensors at most '
                      f'{found["peak_megabytes"]:,.0f} MB', found,
                      not grows or taken < _LARGEST_SHARE_OF_MEMORY * before.megabytes)

    def two(deadline):
      other = measuring_process.MeasuringProcess()
      arguments = device_parts.learner_rate, self._device, self._plan.small, 3 * self._plan.seconds
      try:
        alone = process.call(*arguments, deadline=deadline)['transitions_per_second']
        both = [found['transitions_per_second']
                for found in measuring_process.at_once([process, other], *arguments, deadline=deadline)]
      finally:
        other.close()
      return Measured(f'{both[0]:,.0f} and {both[1]:,.0f} transitions/s, alone {alone:,.0f}',
                      {'alone': alone, 'both': both})

    return [Row('memory, growth on (as in training)', f'less than {_LARGEST_SHARE_OF_MEMORY:.0%} of the card',
                functools.partial(measure, True)),
            Row('memory, growth off', '', functools.partial(measure, False)),
            Row('two processes on one card', 'both learn', two)]

  def rates(self, process) -> list[Row]:
    """Returns the rows of a plain matrix product, of learner steps beside it, and of a profile of these."""
    def product(precision, deadline):
      size = self._plan.product
      plain = matrix_products.Product(size, size, size, precision.torso)
      seconds = process.call(device_parts.product_seconds, self._device, plain, precision.tf32, self._plan.seconds / 4,
                             deadline=deadline)
      rate = self._product_rates[precision.name] = plain.operations / seconds
      return Measured(f'{rate * 1e-12:,.4g} TFLOP/s', {'operations_per_second': rate})

    def learner(torso, precision, batch, unroll, deadline):
      settings = device_parts.Learner('impala', torso, precision.torso, precision.tf32, 'auto', batch, unroll)
      found = process.call(device_parts.learner_rate, self._device, settings, self._plan.seconds, deadline=deadline)
      plain = self._product_rates.get(precision.name)
      found['share_of_plain'] = plain and found['operations_per_second'] / plain
      share = '' if not plain else f' ({found["share_of_plain"]:.1%} of the plain product)'
      peak = found['peak_megabytes']
      return Measured(
          f'{found["transitions_per_second"]:,.0f} transitions/s, {found["operations_per_second"] * 1e-12:,.3g} '
          f'TFLOP/s{share}, {found["same_products"]:.0%} of the speed of plain products of its shapes; first update '
          f'{found["first_update_seconds"]:.1f} s' + (f', {peak:,.0f} MB' if peak else ''), found,
          not is_judged(torso, batch) or found['same_products'] >= _WANTED_SHARE_OF_PRODUCTS)

    def trace(deadline):
      found = process.call(device_parts.trace, self._device, self._plan.traced, self._plan.seconds, self._trace_folder,
                           deadline=deadline)
      busy = '' if found['card_busy'] is None else f'card busy {found["card_busy"]:.0%}; '
      return Measured(f'{busy}{found["updates"]:,} updates, see {self._trace_folder}', found)

    largest = max(batch for _, _, batch, _ in self._plan.rates)

    def is_judged(torso, batch):
      return self._plan.is_judged and torso == 'deep' and batch == largest

    return [
        *(Row(f'plain product of {self._plan.product}x{self._plan.product}, {precision.name}', '',
              functools.partial(product, precision)) for precision in PRECISIONS),
        Row(f'profile of the learner, {self._plan.traced.torso}, {self._plan.traced.batch_size} unrolls of '
            f'{self._plan.traced.unroll_length}', '', trace),
        *(Row(f'learner, {torso}, {precision.name}, {batch} unrolls of {unroll}',
              f'{_WANTED_SHARE_OF_PRODUCTS:.0%} of plain products of its shapes' if is_judged(torso, batch) else '',
              functools.partial(learner, torso, precision, batch, unroll))
          for torso, precision, batch, unroll in self._plan.rates)]

  def _judged(self, wanted):
    return wanted if self._plan.is_judged else ''


def _shares(found):
  """Returns the text about a run's bottleneck and shares of time, from card_runs.measure."""
  busy = '' if found['card_busy'] is None else f', card busy {found["card_busy"]:.0%}'
  return (f'bottleneck: {found["bottleneck"]}; learner waits {found["time/learner_waits"]:.0%}, inference idle '
          f'{found["time/inference_idle"]:.0%}, environments step {found["time/environments_stepping"]:.0%}, '
          f'{found["inference_batch_size"]:.0f} rows per batch{busy}')
