"""Reports work of an environment that may take many minutes, such as compiling a map.

The training process replaces an environment worker that does not answer for some time. An environment calls `begin` and
`end` around long work. The environment worker (actor/environment_worker.py) reports this to the training process, which
then waits longer.
"""

from collections.abc import Callable


def _nobody(under_way: bool):
  """The listener before the first call of `tell`. Does nothing."""


_listener: Callable[[bool], None] = _nobody


def tell(listener: Callable[[bool], None]):
  """Sets the function to call with True when long work of this process begins, and with False when it ends."""
  global _listener
  _listener = listener


def begin():
  """Reports that work has begun that may take many minutes."""
  _listener(True)


def end():
  """Reports that the work has ended."""
  _listener(False)
