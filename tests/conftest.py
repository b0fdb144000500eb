"""Lets pytest run tests written for absltest: only `absltest.main()` parses the flags that `create_tempfile` reads."""

from absl import flags
from absl.testing import absltest  # noqa: F401  # Defines those flags.


def pytest_configure():
  flags.FLAGS.mark_as_parsed()
