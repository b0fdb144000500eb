"""What a process is in a cluster: its flags, and the numbers that it and its actors have. No TensorFlow in here."""

import dataclasses
import os
import secrets
import socket

from scalable_agents.agents.settings import setting

JOBS = ('learner', 'actor')
UNROLL = 'unroll'  # A value of --parameter_refresh.
_HOST_BITS, _ENVIRONMENT_BITS = 19, 12  # Of an actor_id, which is an int32.
MAX_HOSTS, MAX_ENVIRONMENTS = 1 << _HOST_BITS, 1 << _ENVIRONMENT_BITS
_MAX_SECONDS = 86_400


@dataclasses.dataclass(frozen=True)
class ClusterConfig:
  """What a process is in a cluster. All processes of it have all other flags in common."""

  job_name: str = setting(
      '', 'What this process does in a cluster: learner, or actor, which plays for a learner elsewhere and writes no '
      'files. Empty: all on this machine, and no port is opened.', free=True)
  learner_addresses: str = setting(
      '', 'HOST:PORT of the learner, with commas between several. A learner opens its port on all interfaces, without '
      'authentication: for private networks only.', free=True)
  task: int = setting(
      -1, 'The number of this process among those of its job, from 0. An actor without one (-1) draws one.', free=True)
  learner_timeout_seconds: int = setting(
      60, 'Of several learners: one that does not answer for this many seconds is taken for lost, and the others end. It '
      'bounds how long a learner may be frozen. One whose process has ended is noticed at once.', free=True)
  num_learners: int = setting(
      1, 'Learners in this process, each on a GPU of its own, or all on the CPU without any. They learn in step, each '
      'from --batch_size unrolls, as do those at several --learner_addresses. Section 3.')
  parameter_refresh: str = setting(
      UNROLL, 'How often an actor process fetches parameters: unroll, once per unroll as in section 3, or after so many '
      'agent steps of each environment.', free=True)


def validate(config: ClusterConfig) -> None:
  """Raises ValueError, one line with flag, value and what is allowed, for the first setting out of its range."""

  def require(allowed, name, wanted):
    if not allowed:
      raise ValueError(f'--{name}={getattr(config, name)}: want {wanted}')

  require(config.job_name in ('', *JOBS), 'job_name', 'learner or actor')
  require(bool(config.job_name) == bool(config.learner_addresses), 'learner_addresses',
          'HOST:PORT of the learner together with --job_name, and neither on a single machine')
  for address in config.learner_addresses.split(',') if config.job_name else []:
    try:
      split_address(address)
    except ValueError as error:
      raise ValueError(f'--learner_addresses={error}') from error
  require(not config.job_name or _all_differ(config.learner_addresses.split(',')), 'learner_addresses',
          'an address of its own for each learner: one is there twice')
  require(-1 <= config.task < MAX_HOSTS // 4, 'task', f'a number from 0 to {MAX_HOSTS // 4 - 1}, or -1')
  require(1 <= config.learner_timeout_seconds <= _MAX_SECONDS, 'learner_timeout_seconds',
          f'1 to {_MAX_SECONDS}, a day')
  require(config.num_learners >= 1, 'num_learners', 'at least 1')
  require(config.job_name != 'learner' or config.task < len(config.learner_addresses.split(',')), 'task',
          f'the number of one of the learners, {config.learner_addresses}')
  require(config.job_name != 'learner' or config.task >= 0 or ',' not in config.learner_addresses, 'task',
          f'the number of this one of the learners, {config.learner_addresses}')
  require(config.parameter_refresh == UNROLL or config.parameter_refresh.isdecimal() and int(config.parameter_refresh),
          'parameter_refresh', 'unroll, or a number of agent steps of at least 1')


def host_number(config: ClusterConfig) -> int:
  """The number of this process's host; 0 where all is on one machine."""
  if config.job_name != 'actor':
    return max(config.task, 0)
  num_learners = len(config.learner_addresses.split(','))
  # Those that are drawn are beyond those that are given.
  return MAX_HOSTS // 2 + secrets.randbelow(MAX_HOSTS // 2) if config.task < 0 else num_learners + config.task


def host_name(task: int) -> str:
  """As metrics call an actor host."""
  return f'{socket.gethostname()}-{os.getpid()}' if task < 0 else f'task_{task}'


def split_address(address: str) -> tuple[str, int]:
  """Returns host and port. Raises ValueError where it is not HOST:PORT."""
  host, _, port = address.rpartition(':')
  if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
    raise ValueError(f'{address}: want HOST:PORT')
  return host, int(port)


def _all_differ(addresses):
  """Whether no address is there twice, also in other letters or with zeros before its port."""
  different = {(host.lower(), port) for host, port in map(split_address, addresses)}
  return len(different) == len(addresses)


def first_actor_id(host: int) -> int:
  """The id of the first actor of a host; those of its others count up from it.

  Learners are hosts 0, 1, ...; actor hosts come behind them.
  """
  return host * MAX_ENVIRONMENTS
