"""Whether this machine has the memory that a configuration asks for."""

import contextlib

import psutil
import tensorflow as tf

from scalable_agents.environments import atari57
from scalable_agents.environments import dmlab
from scalable_agents.records import errors

_LAB_BYTES, _GAME_BYTES = 230_000_000, 800_000  # At least: of a DeepMind Lab, and of an emulator with Pong.
_LIMIT = '/sys/fs/cgroup/memory.max'  # Bytes that a container may have, or 'max'.


def machine_bytes() -> int:
  """The memory that this process can hope for: the machine's, or the container's where that is less."""
  total = psutil.virtual_memory().total
  with contextlib.suppress(OSError, ValueError):  # No control group, or one without a limit.
    with open(_LIMIT, encoding='ascii') as file:
      total = min(total, int(file.read()))
  return total


def check_environments(levels, num_environments: int) -> None:
  """Checks that so many environments, spread over the levels, fit into memory, before any of them is made.

  Raises:
    errors.UserError: they do not.
  """
  per_environment = sum(_LAB_BYTES if level in dmlab.LEVELS else _GAME_BYTES if level in atari57.LEVELS else 0
                        for level in levels) / len(levels)
  needed, there = num_environments * per_environment, machine_bytes()
  if needed > there:
    raise errors.UserError(
        f'--num_environments={num_environments}: they take at least {needed * 1e-9:,.1f} GB of memory, of which there '
        f'are {there * 1e-9:,.1f} GB: choose a smaller number')


def check(unroll_spec, parameter_specs, config, num_environments: int, num_learners: int) -> None:
  """Checks that unrolls and copies of the parameters fit into memory. The network's own needs come on top.

  Args:
    unroll_spec: nest of tf.TensorSpec of one unroll.
    parameter_specs: tf.TensorSpec of each parameter.
    config: with `unroll_length`, `batch_size`, `queue_size` and `policy_lag`.
    num_environments: of this process; each fills an unroll.
    num_learners: of this process; each has a batch that is learned from and one that is collected.
  Raises:
    errors.UserError: they do not.
  """
  # As many as the queue holds may wait in the actor pool, too.
  unrolls = num_environments + 2 * config.queue_size + 2 * num_learners * config.batch_size
  copies = 1 + config.policy_lag * (num_learners > 0)
  unroll_bytes, parameter_bytes = _bytes(unroll_spec), _bytes(parameter_specs)
  needed, there = unrolls * unroll_bytes + copies * parameter_bytes, machine_bytes()
  if needed > there:
    raise errors.UserError(
        f'--unroll_length={config.unroll_length}, --batch_size={config.batch_size}, --queue_size={config.queue_size}, '
        f'--policy_lag={config.policy_lag}, {num_environments} environments: up to {unrolls:,} unrolls of '
        f'{unroll_bytes * 1e-6:,.1f} MB and {copies:,} copies of {parameter_bytes * 1e-6:,.1f} MB of parameters take '
        f'{needed * 1e-9:,.1f} GB of memory, of which there are {there * 1e-9:,.1f} GB: choose smaller numbers')


def _bytes(specs) -> int:
  return sum(spec.shape.num_elements() * spec.dtype.size for spec in tf.nest.flatten(specs))
