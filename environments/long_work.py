"""Work of an environment that may take many minutes, such as compiling a map, and whoever waits for it.

A process that waits for an environment ends it after a while without an answer. The environment says here when it
begins such work and when it has finished; the environment worker (actor/environment_worker.py) passes that on.
"""

from typing import Callable

_listener: Callable[[bool], None] = lambda under_way: None


def tell(listener: Callable[[bool], None]):
  """From now on, calls `listener` with True when long work of this process begins and with False when it ends."""
  global _listener
  _listener = listener


def begin():
  """Says that work has begun that may take many minutes."""
  _listener(True)


def end():
  """Says that it has ended."""
  _listener(False)
