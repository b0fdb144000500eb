"""Selects TensorFlow's kernels for the CPU, and describes the processor's instructions that matter for speed.

oneDNN's kernels make the learner two to three times as fast. By default, TensorFlow uses them only on processors with
VNNI or newer instructions. TensorFlow decides this while it is imported, so every program must call `choose` before it
imports TensorFlow. Run as a script, this file prints `describe()`. It needs no other file of this project.
"""

import gc
import os
import sys
from typing import Any

ONEDNN = 'TF_ENABLE_ONEDNN_OPTS'  # TensorFlow's environment variable: 1 is on, 0 is off.
_INSTRUCTION_SETS = ('avx', 'avx2', 'fma', 'avx512f', 'avx_vnni', 'avx512_vnni', 'avx512_bf16', 'amx_bf16')
_BFLOAT16 = 'avx512_bf16'


def choose():
  """Sets TensorFlow's environment variables, unless the user has set them. Call it before TensorFlow's import."""
  os.environ.setdefault('TF_USE_LEGACY_KERAS', '1')  # Avoids the import of Keras, a quarter of the import time.
  if not os.environ.get(ONEDNN):  # TensorFlow treats an empty value as not set.
    os.environ[ONEDNN] = '1'


def load():
  """Imports TensorFlow in about 70 % of the time that `import tensorflow` takes, after `choose`."""
  choose()
  unneeded = {'pandas', 'scipy'} - sys.modules.keys()  # Keras imports them if they are installed.
  modules: dict[str, Any] = sys.modules
  modules.update(dict.fromkeys(unneeded))  # Python then treats them as missing.
  # The import makes half a million objects, which all stay. Python's garbage collector would look through them often.
  collects = gc.isenabled()
  gc.disable()
  try:
    import tensorflow  # noqa: F401
  finally:
    for name in unneeded:
      del modules[name]
    gc.freeze()  # The collector ignores these objects from now on.
    if collects:
      gc.enable()


def is_onednn_on() -> bool:
  """Returns whether TensorFlow uses oneDNN's kernels. Imports TensorFlow."""
  from tensorflow.python.util import _pywrap_util_port  # There is no public name.
  return _pywrap_util_port.IsMklEnabled()


def why_onednn_is_off() -> str:
  """Returns the likely reason, for a message."""
  return f'{ONEDNN}={os.environ.get(ONEDNN, "")}'


def instruction_sets(cpuinfo: str = '/proc/cpuinfo') -> list[str]:
  """Returns the processor's instruction sets that matter for speed, with Linux's names. [] if they are unknown."""
  try:
    with open(cpuinfo, encoding='ascii', errors='replace') as lines:
      present = next((line.split() for line in lines if line.startswith('flags')), [])
  except OSError:
    return []
  return [name for name in _INSTRUCTION_SETS if name in present]


def has_bfloat16() -> bool:
  """Returns whether the processor has instructions that make --torso_precision=bfloat16 faster than float32."""
  return _BFLOAT16 in instruction_sets()


def describe() -> str:
  """Returns a line that says whether oneDNN is on, and lists the instruction sets and the best --torso_precision."""
  onednn = 'oneDNN is on' if is_onednn_on() else f'oneDNN is off ({why_onednn_is_off()}), so learning is slow'
  present = instruction_sets()
  precision = 'bfloat16 is faster than float32' if has_bfloat16() else 'use float32, bfloat16 is slow'
  return f'{onednn}; the processor has {", ".join(present) or "unknown instructions"}; --torso_precision: {precision}'


if __name__ == '__main__':
  choose()
  print(describe())
