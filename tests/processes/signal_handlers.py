"""Helps tests of code that installs handlers for SIGINT, SIGTERM and SIGHUP."""

import io
import signal
import unittest

from absl.testing import parameterized


def restore_after(test: unittest.TestCase):
  """Restores the current signal handlers after the test."""
  for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    test.addCleanup(signal.signal, number, signal.getsignal(number))


class LauncherTestCase(parameterized.TestCase):
  """A test of a launcher: it has a folder for the runs, and a stream for what they print."""

  def setUp(self):
    super().setUp()
    restore_after(self)
    self.folder = self.create_tempdir().full_path
    self.stream = io.StringIO()
