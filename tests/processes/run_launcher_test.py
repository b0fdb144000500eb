"""Services of a launcher: they are started again, may refuse, and end after the runs. Processes are small programs.

population_launcher_test.py tests what happens to the runs.
"""

import os
import pathlib
import signal
import subprocess
import sys

from absl.testing import absltest
from absl.testing import parameterized
import psutil

from scalable_agents.processes import child_process
from scalable_agents.processes import python_path
from scalable_agents.processes import run_launcher
from scalable_agents.records import errors
from scalable_agents.tests.processes import signal_handlers

# A service does in its first life what its first argument says, and in later ones what its second one says.
_SERVICE = '''
import os, signal, sys, time
folder, first, then = sys.argv[1:]
def write(name, text):
  with open(os.path.join(folder, name), 'a') as stream:
    stream.write(text)
  return os.path.getsize(os.path.join(folder, name))
def leave(*unused):
  write('ended', 'service ')
  sys.exit('error: the disk is full' if plan == 'save' else 0)
signal.signal(signal.SIGTERM, leave)
plan = first if write('lives', '1') == 1 else then
if plan == 'refuse':
  print('error: --port=7: want another', file=sys.stderr)
  sys.exit(1)
print('serves', flush=True)
if plan == 'crash':
  print('error: it has crashed', file=sys.stderr)
  sys.exit(1)
if plan == 'die':
  os.kill(os.getpid(), signal.SIGKILL)
if plan == 'stop':
  sys.exit()
write('serves', '1')
while True:
  time.sleep(1)
'''
# A run waits until the service is in its life number N, and ends then. If N is 0, it never ends.
_RUN = '''
import json, os, signal, sys, time
folder, lives, logdir = sys.argv[1], int(sys.argv[2]), sys.argv[3].removeprefix('--logdir=')
def leave(*unused):
  with open(os.path.join(folder, 'ended'), 'a') as stream:
    stream.write('run ')
  sys.exit()
signal.signal(signal.SIGTERM, leave)
os.makedirs(logdir, exist_ok=True)
print('runs', flush=True)
def serving(name):
  path = os.path.join(folder, name)
  return os.path.exists(path) and os.path.getsize(path)
while not (lives and serving('lives') == lives and serving('serves')):
  time.sleep(0.01)
with open(os.path.join(logdir, 'config.json'), 'w') as stream:
  json.dump({'flags': {'total_environment_frames': 100}}, stream)
with open(os.path.join(logdir, 'metrics.jsonl'), 'w') as stream:
  stream.write(json.dumps({'environment_frames': 100, 'wall_seconds': 1}) + chr(10))
'''
_LAUNCHER = f'''
import sys
from scalable_agents.processes import run_launcher
folder = sys.argv[1]
launcher = run_launcher.Launcher(
    {{'run': [sys.executable, '-c', {_RUN!r}, folder, '0']}}, folder, sys.stdout,
    {{'service': [sys.executable, '-c', {_SERVICE!r}, folder, 'serve', 'serve']}})
print(launcher.run())
'''


class ServicesTest(signal_handlers.LauncherTestCase):

  def _run(self, first, then='serve', lives=1):
    """Runs two runs, which end when the service is in life number `lives`. Returns the runs that were given up."""
    runs = {name: [sys.executable, '-c', _RUN, self.folder, str(lives)] for name in ('run_a', 'run_b')}
    launcher = run_launcher.Launcher(
        runs, self.folder, self.stream, {'service': [sys.executable, '-c', _SERVICE, self.folder, first, then]})
    try:
      return launcher.run()
    finally:
      self.assertEmpty(psutil.Process().children())

  def _read(self, name):
    file = pathlib.Path(self.folder, name)
    return file.read_text(encoding='ascii') if file.exists() else ''

  def test_a_service_ends_after_the_runs_and_has_no_run_directory(self):
    self.assertEmpty(self._run('serve'))
    self.assertEqual(self._read('ended'), 'service ')
    self.assertCountEqual(self.stream.getvalue().splitlines(), ['service: serves', 'run_a: runs', 'run_b: runs'])
    self.assertCountEqual(os.listdir(self.folder), ['lives', 'serves', 'ended', 'run_a', 'run_b'])

  @parameterized.parameters(
      ('die', 'by SIGKILL'), ('crash', r'with exit code 1 \(it has crashed\)'), ('stop', 'with exit code 0'))
  def test_a_service_that_ends_is_started_again_and_the_runs_go_on(self, plan, reason):
    self.assertEmpty(self._run(plan, lives=2))
    self.assertRegex(self.stream.getvalue(), f'(?m)^service ended {reason}: it is started again$')
    self.assertEqual(self._read('lives'), '11')
    self.assertEqual(self.stream.getvalue().count(': runs\n'), 2)
    self.assertEqual(self._read('ended'), 'service ')

  def test_a_service_that_keeps_dying_ends_all_with_a_line(self):
    with self.assertRaisesRegex(errors.UserError, '^service: it ended 3 times in a row within 60 s of its start, the '
                                                  'last time by SIGKILL$'):
      self._run('die', then='die', lives=9)
    self.assertEqual(self._read('lives'), '111')

  def test_a_service_with_long_lives_is_always_started_again(self):
    with absltest.mock.patch.object(child_process, '_EARLY_END_SECONDS', 0.):
      runs = {'run': [sys.executable, '-c', _RUN, self.folder, '6']}
      service = _SERVICE.replace("== 1 else then", "< 6 else then")
      self.assertEmpty(run_launcher.Launcher(
          runs, self.folder, self.stream,
          {'service': [sys.executable, '-c', service, self.folder, 'die', 'serve']}).run())
    self.assertEqual(self._read('lives'), '111111')

  def test_a_refusal_of_a_service_ends_all_with_its_line(self):
    with self.assertRaisesRegex(errors.UserError, '^service: --port=7: want another$'):
      self._run('refuse')
    self.assertEqual(self._read('lives'), '1')
    self.assertNotIn('--port', self.stream.getvalue())

  def test_an_error_at_the_end_is_shown(self):
    with self.assertRaisesRegex(errors.UserError, '^not all processes ended well; the same command continues'):
      self._run('save')
    self.assertEqual(self.stream.getvalue().splitlines()[-1], 'service ended with exit code 1 (the disk is full)')

  @parameterized.parameters(signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
  def test_a_signal_ends_the_runs_first_and_then_the_service(self, number):
    launcher, children = self._launch()
    launcher.send_signal(number)
    printed, _ = launcher.communicate()
    self.assertEqual((launcher.returncode, printed), (0, 'stopped; the same command continues\n[]\n'))
    self.assertFalse(any(child.is_running() for child in children))
    self.assertEqual(self._read('ended'), 'run service ')

  def test_all_leave_when_the_launcher_is_killed(self):
    launcher, children = self._launch()
    launcher.kill()
    self.assertEmpty(psutil.wait_procs(children, timeout=300)[1])
    self.assertCountEqual(self._read('ended').split(), ['run', 'service'])

  def _launch(self):
    """Starts a launcher in a process of its own, whose run never ends. Returns it and its children."""
    launcher = subprocess.Popen([sys.executable, '-c', _LAUNCHER, self.folder], env=python_path.environment(),
                                text=True, stdout=subprocess.PIPE, start_new_session=True)
    self.addCleanup(launcher.stdout.close)
    self.addCleanup(launcher.wait)
    self.addCleanup(launcher.kill)
    self.assertCountEqual([launcher.stdout.readline() for _ in range(2)], ['run: runs\n', 'service: serves\n'])
    children = psutil.Process(launcher.pid).children()
    self.assertLen(children, 2)
    return launcher, children


if __name__ == '__main__':
  absltest.main()
