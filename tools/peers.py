"""Says which parts of a benchmark are far below what comparable processors reach, and why that may be.

A part is compared with the environment on the same core, so that a slow processor is no shortfall.
"""

from typing import Any

from scalable_agents.training import kernels

# Rows or transitions per agent step of the environment that a core makes in the same CPU time, with oneDNN: the least of
# those measured. README.md has an AMD Zen 4 (6.2, 2.4) and an Intel Cascade Lake (learner: 2.9). An Intel Sapphire Rapids
# had 3.9 to 6.9 and 1.7 to 2.7, and 3.1 to 4.6 and 1.2 to 2.1 when it was held to AVX2.
_INFERENCE = 3.1
_LEARNER = 1.2
_ENVIRONMENT = 0.8   # Agent steps per step of ale-py's AtariVectorEnv.
_FAR_BELOW = 0.5     # Of the least.
_WORTH_A_WORD = 1.3  # Times as fast with oneDNN.
_BUSY = 'other programs on these cores'


def shortfalls(environment: dict[str, Any], inference: dict[str, Any], learner: dict[str, Any], precision: str,
               is_onednn_on: bool) -> list[str]:
  """Returns a line for each part that is far below its peers.

  Args:
    environment: `cpu_seconds` of an agent step, and of AtariVectorEnv's, `vector_env_cpu_seconds`.
    inference: `cpu_seconds` of a row of the shallow network, in batches of 32.
    learner: `cpu_seconds` of a transition.
    precision: what the network computes in, float32 or bfloat16.
    is_onednn_on: whether TensorFlow computed with oneDNN's kernels.
  """
  lines = []
  for name, cost, reference, least, reason in (
      ('environment', environment['cpu_seconds'], environment['vector_env_cpu_seconds'], _ENVIRONMENT, _BUSY),
      ('inference', inference['cpu_seconds'], environment['cpu_seconds'], _INFERENCE, _reason(precision, is_onednn_on)),
      ('learner', learner['cpu_seconds'], environment['cpu_seconds'], _LEARNER, _reason(precision, is_onednn_on))):
    wanted = least / reference
    if 1 / cost < _FAR_BELOW * wanted:
      lines.append(f'{name}: {1 / cost:,.0f} per second and core is far below the {wanted:,.0f} and more of comparable '
                   f'processors; likely cause: {reason}')
  return lines


def shortfall_without_onednn(learner: dict[str, Any], with_onednn: dict[str, Any]) -> list[str]:
  """Returns a line if the learner is much faster with oneDNN, which is off. Args: `cpu_seconds` of both."""
  ratio = learner['cpu_seconds'] / with_onednn['cpu_seconds']
  if ratio < _WORTH_A_WORD:
    return []
  return [f'learner: {ratio:.1f} times as fast with oneDNN, which {kernels.why_onednn_is_off()} switches off: unset it']


def _reason(precision, is_onednn_on):
  if not is_onednn_on:
    return f'oneDNN is off ({kernels.why_onednn_is_off()})'
  if precision == 'bfloat16' and not kernels.has_bfloat16():
    return 'the processor has no instructions for --torso_precision=bfloat16'
  return _BUSY
