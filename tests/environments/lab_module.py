"""Lets tests import `deepmind_lab`: the real module where it is installed, else the fake one beside this file."""

import glob
import importlib.util
import json
import os
import sys
import tempfile
from unittest import mock

IS_REAL = importlib.util.find_spec('deepmind_lab') is not None
if not IS_REAL:
  sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), 'fake_deepmind_lab'))  # Workers get it too.


class Watch:
  """What the fake module's Labs were given, and the faults they are to have; in this process's children too."""

  def __init__(self, test):
    """For the time of a test (absltest.TestCase), which has a folder of its own for temporary files, too."""
    self.folder = test.create_tempdir().full_path
    temporary = test.create_tempdir().full_path
    test.enter_context(mock.patch.dict(os.environ, FAKE_DEEPMIND_LAB=self.folder, TMPDIR=temporary))
    test.enter_context(mock.patch.object(tempfile, 'tempdir', temporary))

  def records(self) -> list:
    """One dict for each Lab made so far."""
    records = []
    for path in sorted(glob.glob(os.path.join(self.folder, '*.json'))):
      with open(path, encoding='utf-8') as file:
        records.append(json.load(file))
    return records

  def plant(self, fault: str):
    """The next Lab that comes by has this fault."""
    with open(os.path.join(self.folder, fault), 'x', encoding='utf-8'):
      pass
