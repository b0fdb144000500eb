"""For tests of what takes SIGINT and SIGTERM into its own hands."""

import signal
import unittest


def restore_after(test: unittest.TestCase):
  """Gives both signals the handlers back that they have now, once the test has ended."""
  for number in (signal.SIGINT, signal.SIGTERM):
    test.addCleanup(signal.signal, number, signal.getsignal(number))
