"""Finds free ports, for a cluster on one machine."""

import random
import socket

from scalable_agents.records import errors

# The kernel uses none of these ports for outgoing connections. Otherwise, a process that tries to connect could be
# given the port that it looks for.
_PORTS = range(20_000, 32_000)


def find(count: int) -> list[int]:
  """Returns ports of this machine that are free.

  Raises:
    errors.UserError: there are too few free ports.
  """
  found = []
  for port in random.sample(_PORTS, len(_PORTS)):
    if len(found) == count:
      break
    try:
      with socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET) as probe:
        probe.bind(('', port))
      found.append(port)
    except OSError:
      pass  # The port is in use.
  if len(found) < count:
    raise errors.UserError(f'only {len(found)} ports are free from {_PORTS[0]} to {_PORTS[-1]}: want {count}')
  return found
