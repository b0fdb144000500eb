"""The role of a process in a cluster: its flags, its number and the ids of its actors.

A cluster has learners, which train, and actor hosts, which run environments. An actor is one environment's sequence of
steps; each host has several. This module does not import TensorFlow.
"""

import dataclasses
import re
import secrets
import socket

from scalable_agents.processes import ports
from scalable_agents.records import settings
from scalable_agents.records.settings import setting

AUTO, PAPER, UNROLL = 'auto', 'paper', 'unroll'  # Values of --parameter_refresh.
_MAX_REFRESH_STEPS = 1_000_000
_MAX_LEARNERS = 64  # Learners of one process.
_HOST_BITS, _ENVIRONMENT_BITS = 19, 12  # Bits of an actor_id, which is an int32.
MAX_HOSTS, MAX_ENVIRONMENTS = 1 << _HOST_BITS, 1 << _ENVIRONMENT_BITS


def num_processes(addresses: str) -> int:
  """Returns the number of processes with learners, given --learner_addresses. It is 1 without addresses."""
  return 1 + addresses.count(',')


def _learners(addresses):
  """Describes how many unrolls an update has: each learner adds --batch_size."""
  number = num_processes(addresses)
  return f'{number} learner{"s" if number > 1 else ""}'


@dataclasses.dataclass(frozen=True)
class ClusterConfig:
  """The role of a process in a cluster. Most other flags must be the same for all processes of the cluster."""

  job_name: str = setting(
      '', 'The role of this process in a cluster: learner, or actor for an actor host. An actor host runs environments '
      'for a learner in another process and writes no files. Empty: everything runs on this machine, and no port is '
      'opened.', free=True, choices=('', 'learner', 'actor'))
  learner_addresses: str = setting(
      '', 'HOST:PORT of the learner, or of several learners with commas between them. A learner opens its port on all '
      'network interfaces without authentication, so use private networks only.', free=True, kind=_learners)
  task: int = setting(
      -1, 'The number of this process among those with the same --job_name, from 0. An actor host without a number '
      '(-1) draws a random one.', free=True, at_least=-1, at_most=MAX_HOSTS // 4 - 1)
  learner_timeout_seconds: int = setting(
      60, 'With several learners: if a learner does not answer for this many seconds, the others end. So a learner may '
      'freeze for a shorter time. If its process ends, the others notice it at once.', free=True, at_least=1,
      at_most=settings.MAX_SECONDS)
  num_learners: int = setting(
      1, 'Number of learners in this process. Each has a GPU of its own; without GPUs all share the CPU. They make '
      'each update together, and each takes --batch_size unrolls for it, like learners at several '
      '--learner_addresses. IMPALA, section 3.', at_least=1, at_most=_MAX_LEARNERS)
  parameter_refresh: str = setting(
      AUTO, "How often a process's actors, and LASER's replayers, may take new parameters. unroll: once per unroll. A "
      "number: every so many agent steps of each environment. paper: as in the agent's paper, which is once per unroll "
      'for IMPALA (section 3), and every 100 agent steps for R2D2 (table 2: 400 frames). auto: paper for actor '
      "hosts; on the learner's machine, the newest parameters in each batch of inference.", free=True)
  parameter_precision: str = setting(
      'float32', 'Data type in which weights travel to actor hosts: float32, or bfloat16, which halves their bytes. '
      'Biases and other vectors always travel as they are. No paper rounds weights.',
      choices=('float32', 'bfloat16'))
  relay_port: int = setting(
      0, 'The port at which this actor host serves the parameters that it fetches to other actor hosts; 0 for none. It '
      "opens on all network interfaces without authentication, like the learner's.", free=True, at_least=0,
      at_most=65_535)
  parameters_from: str = setting(
      '', 'HOST:PORT of an actor host with --relay_port, from which this actor host fetches parameters. While it does '
      'not serve any, they come from the learner. It must be a host of the same learner.', free=True)

  @property
  def addresses(self) -> list[str]:
    """HOST:PORT of each process with learners. Empty on a single machine."""
    return self.learner_addresses.split(',') if self.learner_addresses else []


def validate(config: ClusterConfig) -> None:
  """Raises ValueError for the first invalid setting, with one line: the flag, its value and the allowed values."""

  def require(allowed, name, wanted):
    if not allowed:
      raise ValueError(f'--{name}={settings.shown(getattr(config, name))}: want {wanted}')

  settings.check(config)
  require(bool(config.job_name) == bool(config.learner_addresses), 'learner_addresses',
          'HOST:PORT of the learner together with --job_name, or neither of them on a single machine')
  for address in config.addresses:
    ports.split_address(address, 'learner_addresses')
  require(_all_differ(config.addresses), 'learner_addresses', 'a different address for each learner')
  require(config.job_name != 'learner' or config.task < len(config.addresses), 'task',
          f'the number of one of the learners {config.learner_addresses}')
  require(config.job_name != 'learner' or config.task >= 0 or len(config.addresses) == 1, 'task',
          f'the number of this learner in {config.learner_addresses}')
  require(config.job_name or config.task < 0, 'task', 'it only with --job_name')
  for name in ('relay_port', 'parameters_from'):
    require(config.job_name == 'actor' or not getattr(config, name), name, 'it only with --job_name=actor')
  if config.parameters_from:
    ports.split_address(config.parameters_from, 'parameters_from')
    require(_all_differ([config.parameters_from, *config.addresses]), 'parameters_from',
            'the address of an actor host with --relay_port, not of a learner')
  refresh = config.parameter_refresh
  require(refresh in (AUTO, PAPER, UNROLL)
          or re.fullmatch(settings.WHOLE_NUMBER, refresh) and len(refresh) < 12
          and 1 <= int(refresh) <= _MAX_REFRESH_STEPS,
          'parameter_refresh', f'{AUTO}, {PAPER}, {UNROLL}, or a number of agent steps from 1 to {_MAX_REFRESH_STEPS}')


def refresh_steps(config: ClusterConfig, papers: int, unroll_length: int) -> int:
  """Returns how many agent steps of each environment lie between two refreshes of a process's parameters.

  Args:
    config: the process's part in a cluster.
    papers: the agent steps in the agent's paper.
    unroll_length: agent steps of an unroll.
  Returns:
    The steps. 0: each batch of inference has the newest parameters.
  """
  refresh = config.parameter_refresh
  if refresh == AUTO:
    return papers if config.job_name == 'actor' else 0
  named = {PAPER: papers, UNROLL: unroll_length}
  return named[refresh] if refresh in named else int(refresh)


def host_number(config: ClusterConfig) -> int:
  """Returns the number of this host, from which its actors' ids follow. 0 without a cluster.

  Learners have the numbers 0, 1, ... Actor hosts with a --task follow. Actor hosts without one draw a random number.
  """
  if config.job_name != 'actor':
    return max(config.task, 0)
  # Random numbers are larger than all numbers that follow from --task.
  return (MAX_HOSTS // 2 + secrets.randbelow(MAX_HOSTS // 2) if config.task < 0
          else len(config.addresses) + config.task)


def host_name(task: int, number: int) -> str:
  """Returns the name of an actor host in the metrics: task_3 for --task=3, HOST-NUMBER without --task.

  Args:
    task: of ClusterConfig.
    number: from `host_number`.
  """
  return f'{socket.gethostname()}-{number}' if task < 0 else f'task_{task}'


def _all_differ(addresses):
  """Returns whether all addresses differ. Upper case and leading zeros of the port make no difference."""
  different = {(host.lower(), port) for host, port in map(ports.split_address, addresses)}
  return len(different) == len(addresses)


def first_actor_id(host: int) -> int:
  """Returns the id of the first actor of a host. The ids of the host's other actors follow it.

  Args:
    host: from `host_number`.
  """
  return host * MAX_ENVIRONMENTS


def place_offset(host: int, num_environments: int, num_actors: int) -> float | None:
  """Returns the offset of the places of a host's actors, for ActorHost. All hosts must have equally many actors.

  Hosts with consecutive numbers then have each of the `num_actors` places once. Number all places from 0: of k hosts,
  host h has the places h, h + k, h + 2k and so on.

  Args:
    host: from `host_number`.
    num_environments: number of actors of this host.
    num_actors: number of actors of all hosts; 0 if it is not known.
  Returns:
    A number from 0 to 1; None if it is not known how many hosts there are.
  """
  if num_actors == 0 or num_actors % num_environments:
    return None
  num_hosts = num_actors // num_environments
  return (host % num_hosts + 0.5) / num_hosts  # The middle between two places, so that rounding does not matter.
