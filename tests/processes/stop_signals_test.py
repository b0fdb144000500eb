"""Tests what requests to end do, and how they are counted."""

import signal

from absl.testing import absltest
from absl.testing import parameterized

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


class LeavingOnSignalsTest(parameterized.TestCase):

  @parameterized.parameters((signal.SIGTERM,), (signal.SIGHUP,), (signal.SIGHUP, signal.SIGHUP))
  def test_what_is_in_use_is_cleaned_up(self, *numbers):
    signal_handlers.restore_after(self)
    for number in (signal.SIGTERM, signal.SIGHUP):
      signal.signal(number, signal.SIG_DFL)
    cleaned_up = []
    with self.assertRaises(SystemExit) as caught, stop_signals.leaving_on_signals():
      try:
        signal.raise_signal(numbers[0])
      finally:
        for number in numbers[1:]:
          signal.raise_signal(number)
        cleaned_up.append(True)
    self.assertEqual(caught.exception.code, 128 + numbers[0])
    self.assertEqual(cleaned_up, [True])
    self.assertEqual([signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)], 2 * [signal.SIG_DFL])

  def test_under_nohup_a_closed_terminal_changes_nothing(self):
    signal_handlers.restore_after(self)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with stop_signals.leaving_on_signals():
      signal.raise_signal(signal.SIGHUP)
    self.assertEqual(signal.getsignal(signal.SIGHUP), signal.SIG_IGN)


if __name__ == '__main__':
  absltest.main()
