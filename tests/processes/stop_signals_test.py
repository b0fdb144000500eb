"""Tests how requests to end are counted."""

import signal

from absl.testing import absltest

from scalable_agents.processes import stop_signals
from scalable_agents.tests.processes import signal_handlers


class StopSignalsTest(absltest.TestCase):

  def _installed(self, hang_up):
    """Returns signals that were installed while SIGHUP had this handler."""
    signal_handlers.restore_after(self)
    signal.signal(signal.SIGHUP, hang_up)
    signals = stop_signals.StopSignals()
    signals.install()
    return signals

  def test_a_closed_terminal_is_one_request_however_many_tell_of_it(self):
    signals = self._installed(signal.SIG_DFL)
    counts = []
    for number in (signal.SIGHUP, signal.SIGHUP, signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
      signal.raise_signal(number)
      counts.append(signals.count)
    self.assertEqual(counts, [1, 1, 2, 2, 3])

  def test_under_nohup_a_closed_terminal_is_no_request(self):
    signals = self._installed(signal.SIG_IGN)
    signal.raise_signal(signal.SIGHUP)
    self.assertEqual(signals.count, 0)


if __name__ == '__main__':
  absltest.main()
