"""A temporary folder that is removed when its process ends, even if C code or a signal ends the process."""

import os
import secrets
import subprocess
import sys
import tempfile

from scalable_agents.environments import folder_remover

_VARIABLES_OF_PYTHON = ('LD_LIBRARY_PATH',)  # Python may need this variable to find its own libraries.


class ScratchFolder:
  """A new folder in the system's folder for temporary files.

  A small helper process waits until this process ends. It then kills the programs that still work in the folder, and
  removes the folder.

  Attributes:
    path: the folder's path.
  """

  def __init__(self, prefix: str):
    """Makes the folder.

    Raises:
      OSError: the folder cannot be made, or the helper process cannot be started.
    """
    self.path = os.path.join(tempfile.gettempdir(), prefix + secrets.token_hex(8))
    reading, writing = os.pipe()
    self._lifeline = open(writing, 'wb')
    # With the worker's environment variables, the helper process would be killed with the worker; see
    # actor/leftovers.py.
    variables = {name: os.environ[name] for name in _VARIABLES_OF_PYTHON if name in os.environ}
    with open(reading, 'rb') as stdin:
      # The helper starts before the folder exists. It has a session of its own, so it gets no signals of a terminal.
      self._remover = subprocess.Popen(
          [sys.executable, '-I', '-S', folder_remover.__file__, self.path], stdin=stdin, env=variables,
          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, cwd='/')
    try:
      os.mkdir(self.path, mode=0o700)
    except OSError:
      self.remove()
      raise

  def remove(self):
    """Removes the folder and its content now. Idempotent."""
    self._lifeline.close()
    self._remover.wait()
