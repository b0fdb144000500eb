"""SIGINT, SIGTERM and SIGHUP as requests to end well."""

import signal


class StopSignals:
  """Counts the requests. The main thread asks now and then: a handler must not touch an event or a lock, as it may
  interrupt the very thread that holds it.

  Attributes:
    count: requests so far.
  """

  def __init__(self):
    self.count = 0

  def install(self):
    """Takes the signals over. SIGHUP stays ignored where it was ignored at the start, as by nohup."""
    for number in (signal.SIGINT, signal.SIGTERM):
      signal.signal(number, self._request)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
      signal.signal(signal.SIGHUP, self._hang_up)

  def _request(self, *unused_signal):
    self.count += 1

  def _hang_up(self, *unused_signal):
    """The terminal was closed. Both the kernel and the shell may say so, which is no second request."""
    self.count = max(self.count, 1)
