"""Runs several test files in one process, so that TensorFlow is imported once: the program of a `suite` in BUILD files.

  python tests/suites/suite.py --files=tests/learner/losses_test.py,tests/learner/vtrace_test.py

The cases of all files are reported together, under the name of the file's module. A file that cannot be imported is
one failed case; the other files still run.
"""

import unittest

from absl import flags
from absl.testing import absltest

from scalable_agents.tests.suites import ending

_FILES = flags.DEFINE_list('files', [], 'The test files, by their paths in the repository, in the order to run.')


def module_name(path: str) -> str:
  """The name by which a file of this project is imported: 'a/b.py' is scalable_agents.a.b."""
  return 'scalable_agents.' + path.removesuffix('.py').replace('/', '.')


def load_tests(loader: unittest.TestLoader, unused_tests, unused_pattern) -> unittest.TestSuite:
  """The tests of all files. unittest calls this in place of collecting the tests of this module, of which it has none.

  Raises:
    ValueError: no file is named, or one has no tests.
  """
  suites = [loader.loadTestsFromName(module_name(path)) for path in _FILES.value]
  for path, suite in zip(_FILES.value, suites):
    if not suite.countTestCases():
      raise ValueError(f'--files: {path} has no tests')
  if not suites:
    raise ValueError('--files: want at least one test file')
  return unittest.TestSuite(suites)


if __name__ == '__main__':
  with ending.abrupt_end():
    absltest.main()
