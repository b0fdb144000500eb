"""What environments start ends with their worker, however that ends."""

import os
import random
import signal
import struct
import subprocess
import sys
import time

from absl.testing import absltest
from absl.testing import parameterized
import psutil

from scalable_agents.actor import environment_workers
from scalable_agents.actor import leftovers
from scalable_agents.processes import python_path
from scalable_agents.tests.actor import test_environments
from scalable_agents.tests.actor import waiting

_STARTING = 'scalable_agents.tests.actor.test_environments:Starting'

# A program with a worker, which waits to be killed. A bystander is in its session and process group.
_PROGRAM = f'''
import subprocess, sys
from scalable_agents.actor import environment_workers
bystander = subprocess.Popen(['sleep', '3600'])
workers = environment_workers.EnvironmentWorkers('{_STARTING}', [{{'seed': 0, 'seconds': sys.argv[1]}}], 1)
print(bystander.pid, flush=True)
sys.stdin.read()
'''

# A program with a worker whose environment leaves a file when it is closed.
_CLOSES = '''
import sys
from scalable_agents.actor import environment_workers
workers = environment_workers.EnvironmentWorkers(
    'scalable_agents.tests.actor.test_environments:Closing', [{'seed': 0, 'file': sys.argv[1], 'fault': 'slow'}], 1)
print('ready', flush=True)
sys.stdin.read()
'''


class LeftoversTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.seconds = f'3600.{random.randrange(10**12)}'  # By which this test's programs are known.
    self.addCleanup(lambda: [process.kill() for process in self._started()])

  def _started(self):
    """The programs that environments have started and that run."""
    return [process for process in psutil.process_iter(['cmdline', 'status'])
            if process.info['cmdline'] == ['sleep', self.seconds] and process.info['status'] != psutil.STATUS_ZOMBIE]

  def _wait_for_four(self):
    waiting.wait_until(lambda: len(self._started()) == 4)
    return self._started()

  def _start(self):
    workers = environment_workers.EnvironmentWorkers(_STARTING, [{'seed': 0, 'seconds': self.seconds}], 1)
    self.addCleanup(workers.close)
    return workers, self._wait_for_four()

  def test_workers_are_closed(self):
    workers, _ = self._start()
    workers.close()
    self.assertEmpty(self._started())

  @parameterized.parameters('killed', 'hangs')
  def test_a_worker_is_replaced(self, fault):
    workers, programs = self._start()
    if fault == 'killed':
      workers[0].process.kill()
    else:
      for _ in range(2):  # It begins, and then hangs in a step.
        workers[0].connection.send(struct.pack('<I', 0))
    workers.replace(0)
    self.assertNoCommonElements(self._wait_for_four(), programs)

  def test_an_environment_that_is_made_in_this_process(self):
    with leftovers.cleanup():
      test_environments.Starting(0, self.seconds)
      self._wait_for_four()
    self.assertEmpty(self._started())
    self.assertNotIn(leftovers.VARIABLE, os.environ)

  def test_a_process_that_is_forked_in_this_process_and_is_no_other_program(self):
    with leftovers.cleanup():
      pid = os.fork()
      if not pid:
        time.sleep(1000)
        os._exit(0)
    self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), -signal.SIGKILL)

  def test_of_others_nothing_ends(self):
    programs = {mark: subprocess.Popen(['sleep', self.seconds], env=os.environ | {leftovers.VARIABLE: mark})
                for mark in ('ab.1.', 'ab.10.', 'ab.2.', 'b.1.')}
    def check_running(*marks):
      for mark, program in programs.items():
        if mark not in marks:
          program.wait(waiting.PATIENCE_SECONDS)
      self.assertEqual(tuple(mark for mark, program in programs.items() if program.poll() is None), marks)
    leftovers.kill('ab.1.')
    check_running('ab.10.', 'ab.2.', 'b.1.')
    leftovers.kill('ab.')
    check_running('b.1.')
    leftovers.kill('b.')
    check_running()

  def test_the_process_that_has_the_workers_is_killed(self):
    program = subprocess.Popen([sys.executable, '-c', _PROGRAM, self.seconds], env=python_path.environment(),
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    with program:
      bystander = psutil.Process(int(program.stdout.readline()))
      self.addCleanup(bystander.kill)
      self._wait_for_four()
      program.kill()
    waiting.wait_until(lambda: not self._started())
    self.assertNotEqual(bystander.status(), psutil.STATUS_ZOMBIE)

  def test_environments_are_closed_though_the_process_that_has_the_workers_is_killed(self):
    file = os.path.join(self.create_tempdir().full_path, 'closed')
    program = subprocess.Popen([sys.executable, '-c', _CLOSES, file], env=python_path.environment(),
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with program:
      program.stdout.readline()
      program.kill()
    waiting.wait_until(lambda: os.path.exists(file))


if __name__ == '__main__':
  absltest.main()
