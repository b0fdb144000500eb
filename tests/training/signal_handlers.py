"""For tests of what takes SIGINT, SIGTERM and SIGHUP into its own hands."""

import signal
import unittest


def restore_after(test: unittest.TestCase):
  """Gives the signals the handlers back that they have now, once the test has ended."""
  for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    test.addCleanup(signal.signal, number, signal.getsignal(number))
