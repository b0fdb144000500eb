"""Finds the parts of a benchmark that are much slower than on comparable processors, and the likely cause.

Each part is compared with the environment on the same core, so that a slow processor alone is not reported.
"""

from typing import Any

from scalable_agents.processes import kernels

# _INFERENCE: rows of inference that a core computes in the CPU time of one agent step of the environment, with oneDNN.
# _LEARNER: transitions in the same time. Each is the smallest of the measured values, which are, for inference and
# learner: AMD Zen 4 (docs/performance.md) 6.2 and 2.4; Intel Sapphire Rapids 3.9 to 6.9 and 1.7 to 2.7; the same
# processor restricted to AVX2 3.1 to 4.6 and 1.2 to 2.1; Intel Cascade Lake (docs/performance.md), only the learner,
# 2.9. They were measured before a C++ library made the pixels, with which the environment takes some 0.8 of the time.
# So a part is already reported a little above _FAR_BELOW of the smallest value.
_INFERENCE = 3.1
_LEARNER = 1.2
_ENVIRONMENT = 0.8   # Agent steps in the CPU time of one step of ale-py's AtariVectorEnv.
_FAR_BELOW = 0.5     # A part is reported below this share of the smallest value.
_WORTH_A_WORD = 1.3  # oneDNN is mentioned if it makes the learner this many times as fast.
_BUSY = 'other programs on these cores'


def shortfalls(environment: dict[str, Any], inference: dict[str, Any], learner: dict[str, Any], precision: str,
               is_onednn_on: bool) -> list[str]:
  """Returns a line for each part that is much slower than on comparable processors.

  Args:
    environment: `cpu_seconds` of an agent step, and `vector_env_cpu_seconds` of a step of AtariVectorEnv.
    inference: `cpu_seconds` of a row of the shallow network, in batches of 32.
    learner: `cpu_seconds` of a transition.
    precision: data type of the network's torso, float32 or bfloat16.
    is_onednn_on: whether TensorFlow used oneDNN's kernels.
  """
  lines = []
  for name, cost, reference, least, reason in (
      ('environment', environment['cpu_seconds'], environment['vector_env_cpu_seconds'], _ENVIRONMENT, _BUSY),
      ('inference', inference['cpu_seconds'], environment['cpu_seconds'], _INFERENCE, _reason(precision, is_onednn_on)),
      ('learner', learner['cpu_seconds'], environment['cpu_seconds'], _LEARNER, _reason(precision, is_onednn_on))):
    wanted = least / reference
    if 1 / cost < _FAR_BELOW * wanted:
      lines.append(f'{name}: {1 / cost:,.0f} per second per core is far below comparable processors, which reach '
                   f'{wanted:,.0f} or more; likely cause: {reason}')
  return lines


def shortfall_without_onednn(learner: dict[str, Any], with_onednn: dict[str, Any]) -> list[str]:
  """Returns a list with one line if the learner is much faster with oneDNN, which is off, else an empty list.

  Args:
    learner: `cpu_seconds` of a transition without oneDNN.
    with_onednn: `cpu_seconds` of a transition with oneDNN.
  """
  ratio = learner['cpu_seconds'] / with_onednn['cpu_seconds']
  if ratio < _WORTH_A_WORD:
    return []
  return [f'learner: {ratio:.1f} times as fast with oneDNN, which {kernels.why_onednn_is_off()} turns off: unset it']


def _reason(precision, is_onednn_on):
  if not is_onednn_on:
    return f'oneDNN is off ({kernels.why_onednn_is_off()})'
  if precision == 'bfloat16' and not kernels.has_bfloat16():
    return 'the processor has no instructions for --torso_precision=bfloat16'
  return _BUSY
