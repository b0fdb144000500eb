"""Addresses of processes, HOST:PORT, and the ports there. Nothing here imports TensorFlow."""

import errno
import socket

from scalable_agents.processes import machine
from scalable_agents.records import errors

BEAT_SECONDS = 5.    # The time between two reports of a client.
ANSWER_SECONDS = 5.  # A healthy process answers within this time.
_OPEN_FILES = 65_536  # Each connection is an open file. Some programs close as many files as are allowed, one by one.


class PortError(errors.UserError):
  """The port cannot be used. The message is one line: the problem, its place and the remedy."""


def split_address(address: str, flag: str = '') -> tuple[str, int]:
  """Returns host and port. Raises ValueError if the address is not HOST:PORT; the message names the flag, if given."""
  host, _, port = address.rpartition(':')
  given = (f'--{flag}=' if flag else '') + address
  if not host or any(map(str.isspace, host)) or not port.isdecimal() or len(port) > 5 or not 0 < int(port) < 1 << 16:
    raise ValueError(f'{given}: want HOST:PORT')
  if ':' in host and not (host.startswith('[') and host.endswith(']')):
    raise ValueError(f'{given}: want [HOST]:PORT, with the IPv6 address in brackets')
  return host, int(port)


def check_address(address: str):
  """Checks that a process listens at HOST:PORT. Raises OSError, with a clear message."""
  host, port = split_address(address)
  try:
    socket.create_connection((host.strip('[]'), port), ANSWER_SECONDS).close()
  except UnicodeError as error:
    raise OSError(f'{host} is not a valid host name') from error


def take_port(address: str, owner: str, flag: str = '') -> socket.socket:
  """Checks that no process uses the port, and reserves it among this project's processes. gRPC would share a used port.

  Args:
    address: HOST:PORT.
    owner: who opens it, for messages.
    flag: the flag that has the address, if there is one, for messages.
  Returns:
    A lock that keeps others from the port until it is closed.
  Raises:
    PortError: the port is in use.
  """
  _, port = split_address(address)
  where = f' in --{flag}' if flag else ''
  machine.allow_open_files(_OPEN_FILES)
  lock = socket.socket(socket.AF_UNIX)
  try:
    lock.bind(f'\0scalable_agents at port {port}')  # This name is no file, and ends with the process.
    with socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET) as probe:
      probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # Ignore closed connections of an earlier learner.
      probe.bind(('', port))
  except OSError as error:
    lock.close()
    if error.errno != errno.EADDRINUSE:
      raise PortError(f'{address}: port {port} cannot be opened ({error.strerror}): choose another one'
                      f'{where}') from error
    raise PortError(f'{address}: port {port} is in use on this machine ({error.strerror}): another {owner}? Stop '
                    f'it, or choose another port{where}') from error
  return lock
