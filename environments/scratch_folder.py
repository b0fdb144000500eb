"""A folder that does not outlive the process that uses it, not even one that C code or a signal ends."""

import os
import secrets
import subprocess
import sys
import tempfile

from scalable_agents.environments import folder_remover

_VARIABLES_OF_PYTHON = ('LD_LIBRARY_PATH',)  # Where it may find its own libraries.


class ScratchFolder:
  """An empty folder among the system's temporary files.

  A small process of its own waits for this one's end, then ends the programs that still work in the folder, and
  removes it.

  Attributes:
    path: where it is.
  """

  def __init__(self, prefix: str):
    """Makes the folder.

    Raises:
      OSError: it cannot be made, or no process can be started.
    """
    self.path = os.path.join(tempfile.gettempdir(), prefix + secrets.token_hex(8))
    reading, writing = os.pipe()
    self._lifeline = open(writing, 'wb')
    # By its environment variables it would be taken for a program that ends with the worker; see actor/leftovers.py.
    variables = {name: os.environ[name] for name in _VARIABLES_OF_PYTHON if name in os.environ}
    with open(reading, 'rb') as stdin:
      # Before there is a folder. In a session of its own, so that the signals of a terminal pass it by.
      self._remover = subprocess.Popen(
          [sys.executable, '-I', '-S', folder_remover.__file__, self.path], stdin=stdin, env=variables,
          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, cwd='/')
    try:
      os.mkdir(self.path, mode=0o700)
    except OSError:
      self.remove()
      raise

  def remove(self):
    """Removes it now, with all that is in it. Idempotent."""
    self._lifeline.close()
    self._remover.wait()
