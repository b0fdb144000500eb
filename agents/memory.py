"""Whether this machine has the memory that a configuration asks for, which is known once the environments are made."""

import contextlib

import psutil
import tensorflow as tf

from scalable_agents.agents import run_flags

_LIMIT = '/sys/fs/cgroup/memory.max'  # Bytes that a container may have, or 'max'.


def machine_bytes() -> int:
  """The memory that this process can hope for: the machine's, or the container's where that is less."""
  total = psutil.virtual_memory().total
  with contextlib.suppress(OSError, ValueError):  # No control group, or one without a limit.
    with open(_LIMIT, encoding='ascii') as file:
      total = min(total, int(file.read()))
  return total


def check(unroll_spec, parameter_specs, config, num_environments: int, num_learners: int) -> None:
  """Checks that unrolls and copies of the parameters fit into memory. The network's own needs come on top.

  Args:
    unroll_spec: nest of tf.TensorSpec of one unroll.
    parameter_specs: tf.TensorSpec of each parameter.
    config: with `unroll_length`, `batch_size`, `queue_size` and `policy_lag`.
    num_environments: of this process; each fills an unroll.
    num_learners: of this process; each has a batch that is learned from and one that is collected.
  Raises:
    run_flags.UserError: they do not.
  """
  # As many as the queue holds may wait in the actor pool, too.
  unrolls = num_environments + 2 * config.queue_size + 2 * num_learners * config.batch_size
  copies = 1 + config.policy_lag * (num_learners > 0)
  unroll_bytes, parameter_bytes = _bytes(unroll_spec), _bytes(parameter_specs)
  needed, there = unrolls * unroll_bytes + copies * parameter_bytes, machine_bytes()
  if needed > there:
    raise run_flags.UserError(
        f'--unroll_length={config.unroll_length}, --batch_size={config.batch_size}, --queue_size={config.queue_size}, '
        f'--policy_lag={config.policy_lag}, {num_environments} environments: up to {unrolls:,} unrolls of '
        f'{unroll_bytes * 1e-6:,.1f} MB and {copies:,} copies of {parameter_bytes * 1e-6:,.1f} MB of parameters take '
        f'{needed * 1e-9:,.1f} GB of memory, of which there are {there * 1e-9:,.1f} GB: choose smaller numbers')


def _bytes(specs) -> int:
  return sum(spec.shape.num_elements() * spec.dtype.size for spec in tf.nest.flatten(specs))
