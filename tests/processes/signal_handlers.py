"""Helps tests of code that installs handlers for SIGINT, SIGTERM and SIGHUP."""

import signal
import unittest


def restore_after(test: unittest.TestCase):
  """Restores the current signal handlers after the test."""
  for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    test.addCleanup(signal.signal, number, signal.getsignal(number))
