"""Child processes that end with their parent, however that ends: the kernel sends them a signal then."""

import ctypes
import os
from typing import Callable

_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl  # Found beforehand: between fork and exec a child had better not look for libraries.


def signal_at_parents_end(number: int):
  """Asks for this signal when the thread has ended that started this process."""
  _prctl(_PR_SET_PDEATHSIG, number)


def leaving_with_parent(number: int) -> Callable[[], None]:
  """A subprocess.Popen's `preexec_fn`: the child gets this signal when the thread has ended that starts it."""
  parent = os.getpid()

  def ask():
    signal_at_parents_end(number)
    if os.getppid() != parent:  # It has ended before.
      os._exit(1)
  return ask
