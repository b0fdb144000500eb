"""What a process is in a cluster: its flags, and the numbers that it and its actors have. No TensorFlow in here."""

import dataclasses
import os
import secrets
import socket

from scalable_agents.records import settings
from scalable_agents.records.settings import setting

JOBS = ('learner', 'actor')
UNROLL = 'unroll'  # A value of --parameter_refresh.
_MAX_REFRESH_STEPS = 1_000_000
_MAX_LEARNERS = 64  # Of one process: a GPU each.
_HOST_BITS, _ENVIRONMENT_BITS = 19, 12  # Of an actor_id, which is an int32.
MAX_HOSTS, MAX_ENVIRONMENTS = 1 << _HOST_BITS, 1 << _ENVIRONMENT_BITS


@dataclasses.dataclass(frozen=True)
class ClusterConfig:
  """What a process is in a cluster. All processes of it have all other flags in common."""

  job_name: str = setting(
      '', 'What this process does in a cluster: learner, or actor, which plays for a learner elsewhere and writes no '
      'files. Empty: all on this machine, and no port is opened.', free=True, choices=('', *JOBS))
  learner_addresses: str = setting(
      '', 'HOST:PORT of the learner, with commas between several. A learner opens its port on all interfaces, without '
      'authentication: for private networks only.', free=True)
  task: int = setting(
      -1, 'The number of this process among those of its job, from 0. An actor without one (-1) draws one.', free=True,
      at_least=-1, at_most=MAX_HOSTS // 4 - 1)
  learner_timeout_seconds: int = setting(
      60, 'Of several learners: one that does not answer for this many seconds is taken for lost, and the others end. It '
      'bounds how long a learner may be frozen. One whose process has ended is noticed at once.', free=True, at_least=1,
      at_most=settings.MAX_SECONDS)
  num_learners: int = setting(
      1, 'Learners in this process, each on a GPU of its own, or all on the CPU without any. They learn in step, each '
      'from --batch_size unrolls, as do those at several --learner_addresses. Section 3.', at_least=1,
      at_most=_MAX_LEARNERS)
  parameter_refresh: str = setting(
      UNROLL, 'How often an actor process fetches parameters: unroll, once per unroll as in section 3, or after so many '
      'agent steps of each environment.', free=True)


def validate(config: ClusterConfig) -> None:
  """Raises ValueError, one line with flag, value and what is allowed, for the first setting out of its range."""

  def require(allowed, name, wanted):
    if not allowed:
      raise ValueError(f'--{name}={settings.shown(getattr(config, name))}: want {wanted}')

  settings.check(config)
  require(bool(config.job_name) == bool(config.learner_addresses), 'learner_addresses',
          'HOST:PORT of the learner together with --job_name, and neither on a single machine')
  for address in config.learner_addresses.split(',') if config.job_name else []:
    try:
      split_address(address)
    except ValueError as error:
      raise ValueError(f'--learner_addresses={error}') from error
  require(not config.job_name or _all_differ(config.learner_addresses.split(',')), 'learner_addresses',
          'an address of its own for each learner: one is there twice')
  require(config.job_name != 'learner' or config.task < len(config.learner_addresses.split(',')), 'task',
          f'the number of one of the learners, {config.learner_addresses}')
  require(config.job_name != 'learner' or config.task >= 0 or ',' not in config.learner_addresses, 'task',
          f'the number of this one of the learners, {config.learner_addresses}')
  refresh = config.parameter_refresh
  require(refresh == UNROLL or refresh.isdecimal() and len(refresh) < 8 and 1 <= int(refresh) <= _MAX_REFRESH_STEPS,
          'parameter_refresh', f'{UNROLL}, or a number of agent steps from 1 to {_MAX_REFRESH_STEPS}')


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
  if not host or not port.isdecimal() or len(port) > 5 or not 0 < int(port) < 1 << 16:
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
