"""Lets tests import `deepmind_lab`: the real module if it is installed, else the fake one in this folder."""

import glob
import importlib.util
import json
import os
import sys
import tempfile
from unittest import mock

from absl.testing import parameterized

from scalable_agents.environments import dmlab

IS_REAL = importlib.util.find_spec('deepmind_lab') is not None
if not IS_REAL:
  sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), 'fake_deepmind_lab'))  # Workers inherit it.


class Watch:
  """Records the arguments of the fake module's Labs, and makes them fail. Also works in child processes."""

  def __init__(self, test):
    """Watches during a test, an absltest.TestCase. The test gets a folder of its own for temporary files."""
    self.folder = test.create_tempdir().full_path
    temporary = test.create_tempdir().full_path
    test.enter_context(mock.patch.dict(os.environ, FAKE_DEEPMIND_LAB=self.folder, TMPDIR=temporary))
    test.enter_context(mock.patch.object(tempfile, 'tempdir', temporary))

  def records(self) -> list:
    """Returns one dict for each Lab made so far."""
    records = []
    for path in sorted(glob.glob(os.path.join(self.folder, '*.json'))):
      with open(path, encoding='utf-8') as file:
        records.append(json.load(file))
    return records

  def plant(self, fault: str):
    """Gives the next Lab this fault. The fake module lists the faults."""
    with open(os.path.join(self.folder, fault), 'x', encoding='utf-8'):
      pass


class TestCase(parameterized.TestCase):
  """A test with a Watch, which can make environments."""

  def setUp(self):
    super().setUp()
    self.watch = Watch(self)

  def make(self, level='rooms_watermaze', seed=0, **settings):
    """Makes a dmlab.Dmlab, which is closed at the end of the test. `settings`: fields of DmlabSettings."""
    environment = dmlab.Dmlab(level, seed=seed, settings=dmlab.DmlabSettings(**settings))
    self.addCleanup(environment.close)
    return environment
