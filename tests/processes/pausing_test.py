"""Stopped processes continue with all their descendants: when they are told to, and when who stopped them is killed."""

import contextlib
import signal
import subprocess
import sys
import time

from absl.testing import absltest
from absl.testing import parameterized
import psutil

from scalable_agents.processes import pausing
from scalable_agents.processes import python_path

# A child, in a session of its own. Before the child is `sleep`, this process waits for it and cannot be stopped.
_CHILD = 'import subprocess; subprocess.run(["sleep", "1000"], start_new_session=True)'
# Stops a process and its child, says which they are, and waits to be killed.
_STOPPING = f'''
import signal, subprocess, sys
import psutil
from scalable_agents.processes import parent_death, pausing
process = subprocess.Popen([sys.executable, "-c", {_CHILD!r}],
                           preexec_fn=parent_death.leaving_with_parent(signal.SIGTERM))
guarded = pausing.Guarded(process)
while not (children := psutil.Process(process.pid).children()) or children[0].name() != 'sleep':
  pass
guarded.send(signal.SIGSTOP)
print(process.pid, children[0].pid, flush=True)
sys.stdin.read()
'''


def _kill(process):
  with contextlib.suppress(psutil.NoSuchProcess):
    process.kill()


class PausingTest(parameterized.TestCase):

  def _wait(self, processes, stopped):
    """Waits until all processes are stopped, or none of them."""
    limit = time.monotonic() + 60
    while any((process.status() == psutil.STATUS_STOPPED) != stopped for process in processes):
      self.assertLess(time.monotonic(), limit)

  def test_stops_and_continues_a_process_and_its_descendants(self):
    process = subprocess.Popen([sys.executable, '-c', _CHILD])
    self.addCleanup(process.wait)
    self.addCleanup(process.kill)
    while not (children := psutil.Process(process.pid).children()) or children[0].name() != 'sleep':
      self.assertIsNone(process.poll())
    self.addCleanup(_kill, children[0])
    processes = [psutil.Process(process.pid), *children]
    with pausing.Guarded(process) as guarded:
      guarded.send(signal.SIGSTOP)
      self._wait(processes, stopped=True)
      guarded.send(signal.SIGCONT)
      self._wait(processes, stopped=False)
      guarded.send(signal.SIGKILL)
      process.wait()
      guarded.send(signal.SIGCONT)  # Nobody is there.
    self.assertEmpty(psutil.Process().children())  # The guard has ended, too.

  @parameterized.named_parameters(('', False), ('_if_the_process_ended_before', True))
  def test_regression_what_is_stopped_continues_when_who_stopped_it_is_killed(self, ended_before):
    stopping = subprocess.Popen([sys.executable, '-c', _STOPPING], env=python_path.environment(),
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with stopping:
      process, child = (psutil.Process(int(word)) for word in stopping.stdout.readline().split())
      self.addCleanup(_kill, child)
      if ended_before:  # As happens if the SIGTERM comes before the kernel has stopped the process.
        process.kill()
        while process.status() != psutil.STATUS_ZOMBIE:
          pass
      stopping.kill()
    self.assertEmpty(psutil.wait_procs([process], timeout=300)[1])  # It gets its SIGTERM.
    self._wait([child], stopped=False)


if __name__ == '__main__':
  absltest.main()
