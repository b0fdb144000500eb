"""Treats SIGINT, SIGTERM and SIGHUP as requests to end cleanly."""

from collections.abc import Iterator
import contextlib
import signal
import sys


@contextlib.contextmanager
def leaving_on_signals() -> Iterator[None]:
  """Within the block, SIGTERM and SIGHUP raise SystemExit in the main thread, so that what is in use is cleaned up.

  SIGHUP stays ignored if it was ignored before, as under nohup.
  """
  def leave(number, unused_frame):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # The kernel and the shell may both send it: once is enough.
    sys.exit(128 + number)

  is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
  numbers = (signal.SIGTERM,) if is_ignored else (signal.SIGTERM, signal.SIGHUP)
  before = {number: signal.signal(number, leave) for number in numbers}
  try:
    yield
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)


class StopSignals:
  """Counts the requests. The main thread reads the count regularly.

  A handler must not use an event or a lock, because it may interrupt the very thread that holds it.

  Attributes:
    count: requests so far.
    last: number of the last signal; 0 if there was none.
  """

  def __init__(self):
    self.count = 0
    self.last = 0

  def install(self):
    """Installs the handlers. SIGHUP stays ignored if it was ignored at the start, as under nohup."""
    for number in (signal.SIGINT, signal.SIGTERM):
      signal.signal(number, self._request)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
      signal.signal(signal.SIGHUP, self._hang_up)

  def _request(self, number, unused_frame):
    self.count += 1
    self.last = number

  def _hang_up(self, number, unused_frame):
    """Handles a closed terminal. The kernel and the shell may both send SIGHUP, which must count as one request."""
    self.count = max(self.count, 1)
    self.last = number
