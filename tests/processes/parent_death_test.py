"""Children end with their parent, however that ends."""

import signal
import subprocess
import sys

from absl.testing import absltest
import psutil

from scalable_agents.processes import parent_death
from scalable_agents.processes import python_path

# Starts a child, says which, and waits to be killed.
_PARENT = '''
import signal, subprocess, sys
from scalable_agents.processes import parent_death
child = subprocess.Popen(["sleep", "1000"], preexec_fn=parent_death.leaving_with_parent(signal.SIGTERM))
print(child.pid, flush=True)
sys.stdin.read()
'''


class ParentDeathTest(absltest.TestCase):

  def test_a_child_ends_with_a_parent_that_is_killed(self):
    parent = subprocess.Popen([sys.executable, '-c', _PARENT], env=python_path.environment(), stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE)
    with parent:
      child = psutil.Process(int(parent.stdout.readline()))
      parent.kill()
    self.assertEmpty(psutil.wait_procs([child], timeout=300)[1])

  def test_a_child_of_a_dead_parent_does_not_begin(self):
    with absltest.mock.patch.object(parent_death.os, 'getpid', return_value=-1):
      not_of_this_process = parent_death.leaving_with_parent(signal.SIGTERM)
    ended = subprocess.run(['echo', 'begun'], preexec_fn=not_of_this_process, stdout=subprocess.PIPE, check=False)
    self.assertEqual((ended.returncode, ended.stdout), (1, b''))


if __name__ == '__main__':
  absltest.main()
