"""Makes child processes end when their parent ends for any reason: the kernel sends them a signal then."""

from collections.abc import Callable
import ctypes
import os

_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl  # Loaded here, because a child should not load libraries between fork and exec.


def signal_at_parents_end(number: int):
  """Makes the kernel send this signal when the thread that started this process has ended."""
  _prctl(_PR_SET_PDEATHSIG, number)


def leaving_with_parent(number: int) -> Callable[[], None]:
  """Returns a function that a new child calls first, for example as a `preexec_fn`.

  The child then gets this signal when the thread that started it ends.
  """
  parent = os.getpid()

  def ask():
    signal_at_parents_end(number)
    if os.getppid() != parent:  # The parent has ended already.
      os._exit(1)
  return ask
