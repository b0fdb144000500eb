"""Checks whether this machine has the memory that a configuration needs."""

import tensorflow as tf

from scalable_agents.actor import environment_workers
from scalable_agents.environments import atari57
from scalable_agents.environments import dmlab
from scalable_agents.ops import ops
from scalable_agents.processes import machine
from scalable_agents.records import errors
from scalable_agents.records import runtime_config

_LAB_BYTES, _GAME_BYTES = 230_000_000, 800_000  # The least memory of a DeepMind Lab, and of an emulator with Pong.
_WORTH_SAYING = 50_000_000  # Less is 0.0 GB in a message.
_REPLAYS_SHARE = 0.8  # Of the memory that batches leave; the rest is for everything else.


def check_environments(levels, num_environments: int) -> None:
  """Checks that environments fit into memory, before any of them is made.

  Args:
    levels: names of levels. The environments are spread evenly over them.
    num_environments: number of environments.
  Raises:
    errors.UserError: they do not fit.
  """
  per_environment = sum(_LAB_BYTES if level in dmlab.LEVELS else _GAME_BYTES if level in atari57.LEVELS else 0
                        for level in levels) / len(levels)
  needed, there = num_environments * per_environment, machine.memory_bytes()
  if needed > there:
    raise errors.UserError(
        f'--num_environments={num_environments}: they need at least {needed * 1e-9:,.1f} GB of memory, but the machine '
        f'has {there * 1e-9:,.1f} GB: choose a smaller number')


def check_stored_frames(specification: environment_workers.Specification, steps: int, capacity: int) -> None:
  """Checks that the observations of a full replay fit into memory, as soon as they are known.

  When all environments are made, `check_replay` also counts the rest, for example the batches.

  Args:
    specification: the environments.
    steps: agent steps in a full replay; 0 without one.
    capacity: --replay_capacity, a divisor of `steps`.
  Raises:
    errors.UserError: they do not fit.
  """
  if not steps:
    return
  bytes_per_step = sum(ops.num_bytes(tf.TensorSpec(shape, dtype)) // specification.frame_stacks.get(name, 1)
                       for name, (dtype, shape) in specification.observation.items())
  unit = 'agent steps' if steps == capacity else f'times {steps // capacity} agent steps'
  check_replay(steps * bytes_per_step, capacity, unit)


def check(unroll_spec, sent_spec, parameter_specs, config: runtime_config.RuntimeConfig, num_environments: int,
          num_learners: int, held: int = 0) -> None:
  """Checks that unrolls and copies of the parameters fit into memory.

  What a learner's step makes on its device is not counted: the whole stacks of frames of its batch, and what the
  network computes.

  Args:
    unroll_spec: nest of tf.TensorSpec of one unroll in the actor pool.
    sent_spec: nest of tf.TensorSpec of what the queue and the batches hold of it. For A3C, that is a gradient.
    parameter_specs: tf.TensorSpec of each parameter.
    config: the agent's config, with `unroll_length`, `batch_size`, `queue_size` and `policy_lag`.
    num_environments: number of environments of this process. Each fills an unroll.
    num_learners: number of learners of this process. Each has a batch in its update and a batch that is collected.
    held: number of copies of the parameters that workers hold, as in A3C.
  Raises:
    errors.UserError: they do not fit.
  """
  # The actor pool can hold as many finished unrolls as the queue.
  unrolls = num_environments + config.queue_size
  sent = config.queue_size + 2 * num_learners * config.batch_size
  copies = 1 + config.policy_lag * (num_learners > 0) + held
  unroll_bytes, sent_bytes, parameter_bytes = map(ops.num_bytes, (unroll_spec, sent_spec, parameter_specs))
  needed = unrolls * unroll_bytes + sent * sent_bytes + copies * parameter_bytes
  there = machine.memory_bytes()
  if needed > there:
    raise errors.UserError(
        f'--unroll_length={config.unroll_length}, --batch_size={config.batch_size}, --queue_size={config.queue_size}, '
        f'--policy_lag={config.policy_lag}, {num_environments} environments: up to {unrolls:,} unrolls of '
        f'{unroll_bytes * 1e-6:,.1f} MB in the actors, {sent:,} times {sent_bytes * 1e-6:,.1f} MB in the queue and in '
        f'batches, and {copies:,} copies of {parameter_bytes * 1e-6:,.1f} MB of parameters need {needed * 1e-9:,.1f} '
        f'GB of memory, but the machine has {there * 1e-9:,.1f} GB: choose smaller numbers')


def check_replay(replay_bytes: int, capacity: int, unit: str, batch_bytes: int = 0, batch_size: int = 0,
                 new_bytes: int = 0, new: str = '') -> None:
  """Checks that a full replay, two batches and the new unrolls of an update fit into memory.

  A learner learns from one batch while its next one is collected.

  Args:
    replay_bytes: memory of a full replay.
    capacity: its capacity, --replay_capacity.
    unit: what the capacity counts, for example 'agent steps'.
    batch_bytes: memory of a batch; 0 if this process has none.
    batch_size: the size of the batch, --batch_size.
    new_bytes: memory of the new unrolls that are taken in together; 0 if they are counted elsewhere.
    new: a name of these unrolls, for the message.
  Raises:
    errors.UserError: they do not fit. The message says which capacity would.
  """
  there, batches = machine.memory_bytes(), 2 * batch_bytes
  if replay_bytes + batches + new_bytes <= there:
    return
  fitting = int(max(there - batches - new_bytes, 0) * _REPLAYS_SHARE / replay_bytes * capacity)
  rounded = fitting - fitting % 10 ** max(len(str(fitting)) - 2, 0)
  remedy = f'--replay_capacity={rounded} would fit' if rounded else 'choose smaller numbers'
  flags = f'--replay_capacity={capacity}' + (f', --batch_size={batch_size}' if batch_size else '')
  needs = [f'a full replay of {capacity:,} {unit} takes {replay_bytes * 1e-9:,.1f} GB']
  if batches:
    needs.append(f'two batches take {batches * 1e-9:,.1f} GB')
  if new_bytes >= _WORTH_SAYING:
    needs.append(f'{new} take {new_bytes * 1e-9:,.1f} GB')
  raise errors.UserError(
      f'{flags}: {" and ".join(needs)}, but the machine has {there * 1e-9:,.1f} GB of memory: {remedy}')
