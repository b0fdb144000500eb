"""The devices that a program learns and acts on: a card, that is a GPU from NVIDIA, or the CPU."""

from collections.abc import Sequence

import tensorflow as tf

from scalable_agents.processes import cards
from scalable_agents.processes import kernels
from scalable_agents.processes import machine
from scalable_agents.processes import quiet
from scalable_agents.records import errors

CPU, GPU = '/CPU:0', '/GPU:0'
_BFLOAT16_CAPABILITY = 8, 0  # From this compute capability on, cards have instructions for bfloat16.


def grow_memory() -> None:
  """Lets this process take the memory of cards as it needs it. Otherwise TensorFlow takes nearly all of it at once.

  Raises:
    RuntimeError: TensorFlow uses a card already.
  """
  for gpu in tf.config.list_physical_devices('GPU'):
    tf.config.experimental.set_memory_growth(gpu, True)


def configure_tensorflow(tf32: bool = True, num_kernel_threads: int | None = None):
  """Configures TensorFlow in this process. Call it before TensorFlow computes anything.

  It also notes in the log which kernels compute on the CPU.

  Args:
    tf32: whether a GPU may compute products of float32 numbers in TensorFloat-32.
    num_kernel_threads: threads that compute one operation on the CPU. None: half of the cores.
  """
  tf.config.experimental.enable_tensor_float_32_execution(tf32)
  # The other half of the cores is for the environments. An idle thread looks for work for a while before it sleeps.
  # With one thread per core this took a fifth of the training process's time.
  tf.config.threading.set_intra_op_parallelism_threads(num_kernel_threads or max(1, machine.num_cores() // 2))
  grow_memory()
  quiet.note(f'kernels on the CPU: {kernels.describe()}')


def choose(wanted: str = 'auto') -> str:
  """Returns the name of a device: GPU, which is the first GPU, or CPU.

  Args:
    wanted: 'auto', 'cpu' or 'gpu', as --inference_device. 'auto': the GPU if TensorFlow has one.
  Raises:
    errors.UserError: a GPU is wanted and there is none.
  """
  if wanted == 'cpu':
    return CPU
  if tf.config.list_logical_devices('GPU'):
    return GPU
  if wanted == 'gpu':
    raise errors.UserError(
        f'--inference_device=gpu: {why_unused() or "this machine has no NVIDIA card: choose auto or cpu"}')
  return CPU


def describe(learns: Sequence[str] = (), acts: str = '') -> str:
  """Returns a line for the user: where the program learns and acts, and why it does not use a card of the machine.

  Args:
    learns: the devices of the learners of this process.
    acts: the device of inference; '' if this process does not act.
  """
  learn, act = ' and '.join(dict.fromkeys(map(_name, learns))), acts and _name(acts)
  if learn and learn == act:
    line = f'learns and acts on {learn}'
  else:
    line = ', '.join(f'{verb} on {device}' for verb, device in (('learns', learn), ('acts', act)) if device)
  reason = why_unused()
  return f'{line}: {reason}' if reason else line


def why_unused() -> str:
  """Returns why TensorFlow uses none of this machine's cards, and what fixes it. '' if it uses one or there is none."""
  models = cards.models()
  if not models or tf.config.list_physical_devices('GPU'):
    return ''
  if fault := cards.find_fault():
    reason = f'{fault.reason}; {fault.fix}'
  elif not tf.test.is_built_with_cuda():
    reason = f"this TensorFlow is built without CUDA; pip install 'tensorflow[and-cuda]=={tf.__version__}'"
  else:
    reason = 'TensorFlow cannot use it; its log, and `scalable-agents doctor`, may say why'
  return f'the {models[0]} of this machine is not used: {reason}'


def fastest_precision(device: str) -> str:
  """Returns the data type that --torso_precision=auto means on a device: 'bfloat16' or 'float32'."""
  spec = tf.DeviceSpec.from_string(device)
  if spec.device_type != 'GPU':
    return 'bfloat16' if kernels.has_bfloat16() else 'float32'
  capability = _details(spec.device_index or 0).get('compute_capability', (0, 0))
  return 'bfloat16' if capability >= _BFLOAT16_CAPABILITY else 'float32'


def _name(device):
  spec = tf.DeviceSpec.from_string(device)
  if spec.device_type == 'CPU':
    return 'the CPU'
  number = spec.device_index or 0
  model = _details(number).get('device_name')
  return f'GPU:{number}' + (f' ({model})' if model else '')


def _details(number):
  gpus = tf.config.list_physical_devices('GPU')
  # One card may be several logical devices.
  return tf.config.experimental.get_device_details(gpus[min(number, len(gpus) - 1)]) if gpus else {}
