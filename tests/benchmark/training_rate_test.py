"""Tests of benchmark/training_rate.py."""

import glob
import os
import signal
import subprocess
import sys

from absl.testing import absltest
from absl.testing import parameterized
import psutil

from scalable_agents.benchmark import training_rate
from scalable_agents.processes import python_path
from scalable_agents.records import errors

_WRITER = '''
import json, os, sys, time
os.makedirs(sys.argv[1])
for number in range(10**6):
  with open(sys.argv[1] + "/metrics.jsonl", "a") as file:
    file.write(json.dumps({"learner_steps": number // 2, "wall_seconds": number * 0.05}) + chr(10))
  time.sleep(0.05)
'''


class SteadyRowsTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    folder = self.create_tempdir()
    folder.create_file('writer_of_rows.py', _WRITER)
    folder.create_file('failing.py', 'raise SystemExit("no game")')
    self.enter_context(
        absltest.mock.patch.object(training_rate.sys, 'path', [folder.full_path, *training_rate.sys.path]))

  def test_rows_after_the_warm_up_and_after_updates(self):
    logdirs = []

    def arguments(run):
      logdirs.append(run['logdir'])
      return ['writer_of_rows', run['logdir']]

    rows = training_rate.steady_rows(arguments, 0.8)
    self.assertGreaterEqual(len(rows), 3)
    first_update = 2 * 0.05
    self.assertGreaterEqual(rows[0]['wall_seconds'], first_update + 0.8)
    updates = [row['learner_steps'] for row in rows]
    self.assertEqual(updates, list(range(updates[0], updates[-1] + 1)))
    self.assertFalse(os.path.exists(logdirs[0]))
    self.assertEmpty(psutil.Process().children())

  @parameterized.parameters(signal.SIGTERM, signal.SIGKILL)
  def test_regression_a_training_ends_with_who_measures_it(self, number):
    program = ('from scalable_agents.benchmark import training_rate\n'
               'training_rate.steady_rows(lambda run: ["writer_of_rows", run["logdir"]], 1000.)')
    folder = self.create_tempdir().full_path
    measuring = subprocess.Popen([sys.executable, '-c', program], env=python_path.environment() | {'TMPDIR': folder})
    while not glob.glob(f'{folder}/*/run/metrics.jsonl'):
      self.assertIsNone(measuring.poll())
    children = psutil.Process(measuring.pid).children()
    measuring.send_signal(number)
    measuring.wait()
    self.assertEmpty(psutil.wait_procs(children, timeout=300)[1])
    if number == signal.SIGTERM:
      self.assertEqual((measuring.returncode, os.listdir(folder)), (143, []))

  def test_a_training_that_ends_says_why(self):
    with self.assertRaisesRegex(errors.UserError, '^training ended with exit code 1: no game\n'):
      training_rate.steady_rows(lambda run: ['failing'], 1.)


if __name__ == '__main__':
  absltest.main()
