"""Draws a run's learning curve: during training in a process of its own, and at the end in the training process.

Drawing holds Python's lock for a second and takes a hundred megabytes, which would slow the training process down.
"""

from collections.abc import Callable
import sys

from scalable_agents.processes import background_process
from scalable_agents.records import learning_curve
from scalable_agents.records import run_directory

_NICENESS = 10  # Gives the process a lower priority than environments and learner.
_PATIENCE_SECONDS = 120.


class CurveProcess:
  """Draws the curve of one run, one picture at a time. After an error it shows a line, and training continues."""

  def __init__(self, logdir: str, say: Callable[[str], None]):
    """Starts no process yet.

    Args:
      logdir: the run directory.
      say: shows the user a line. It is called from a thread.
    """
    self._logdir = logdir
    self._say = say
    self._process = background_process.BackgroundProcess('scalable_agents.training.curve_process', self._report)

  def begin(self):
    """Starts to draw a picture and returns at once. Does nothing while an earlier picture is being drawn."""
    if not self._process.is_running:
      self._process.begin(self._logdir, patience_seconds=_PATIENCE_SECONDS)

  def finish(self):
    """Draws the last picture in this process. Training is over, so drawing cannot slow it down."""
    self._process.finish()  # If a picture is being drawn, it is older than the last one, and not needed.
    try:
      learning_curve.draw(self._logdir)
    except Exception as error:  # The run is complete and saved, also without a picture.
      self._report('', str(error))

  def _report(self, unused_output: str, reason: str):
    if reason:
      self._say(f'{run_directory.LEARNING_CURVE} could not be drawn: {reason}')


def _main():
  """Draws the curve of the run directory in the first argument. Prints a RunDirectoryError and exits with code 1."""
  background_process.begin(_NICENESS)
  try:
    learning_curve.draw(sys.argv[1])
  except run_directory.RunDirectoryError as error:
    print(error)
    sys.exit(1)


if __name__ == '__main__':
  _main()
