"""Lets pytest run tests written for absltest: only `absltest.main()` parses the flags that `create_tempfile` reads."""

import os

from absl import flags
from absl.testing import absltest  # noqa: F401  # Defines those flags.

os.environ['CUDA_VISIBLE_DEVICES'] = '-1'  # The tests are for a machine without a card, as in .bazelrc.


def pytest_configure():
  flags.FLAGS.mark_as_parsed()
