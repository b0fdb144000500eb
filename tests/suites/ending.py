"""How test programs end whose threads may still wait for a TensorFlow session."""

import contextlib
import sys

from scalable_agents.processes import quiet


@contextlib.contextmanager
def abrupt_end():
  """Ends the process without Python's own shutdown. Use it around absltest.main in tests that connect to learners.

  A TensorFlow session waits for ever if its learner is gone. If such a thread returns while Python shuts down, the
  process crashes.
  """
  try:
    yield
  except SystemExit as end:
    sys.stdout.flush()
    quiet.leave(int(bool(end.code)))
